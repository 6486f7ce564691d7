"""Own tables made ready from what each client tells: as if all rows had been in one place."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from fedadmm import data
from fedadmm.core.errors import DataError
from fedadmm.data import problems
from fedadmm.data.loaders.tabular import prepared_table
from fedadmm.data.preparation import (
    Numbers,
    OneHot,
    Standardised,
    fit,
    identifiers,
    statistics,
)
from support.commands import call


def write_sites(folder: Path, sites: int = 3, rows: int = 40) -> list[Path]:
    """Sites of different levels, with gaps and words; the outcome hangs on both columns."""
    draws = np.random.default_rng(5)
    paths = []
    for site in range(sites):
        age = draws.normal(50 + 10 * site, 8, rows)
        ward = draws.choice(["north", "south", "?"] if site else ["north", "west"], rows)
        sick = (age + 15 * (ward == "north") + draws.normal(0, 4, rows)) > 65
        cells = ["" if i % 9 == 4 else f"{value:.3f}" for i, value in enumerate(age)]
        names = np.where(sick, "sick", "well")
        lines = [f"{a},{w},7,{s}" for a, w, s in zip(cells, ward, names, strict=True)]
        path = folder / f"site{site}.csv"
        path.write_text("\n".join(["age,ward,room,diagnosis", *lines]) + "\n")
        paths.append(path)
    return paths


def test_joined_sums_are_those_of_all_rows_together() -> None:
    draws = np.random.default_rng(0)
    parts = [draws.normal(1e6 + i, 1 + i, 10 * i) for i in range(4)]  # the first has no rows
    clients = [{"x": np.array([repr(float(v)) for v in part], dtype=str)} for part in parts]
    (column,) = fit(clients, "here")
    together = np.concatenate(parts)
    assert isinstance(column, Standardised)
    assert column.mean == pytest.approx(together.mean(), rel=1e-14)
    assert column.deviation == pytest.approx(together.std(), rel=1e-10)


def test_a_client_tells_sums_and_lists_and_no_row() -> None:
    cells = {"age": np.array(["1", "3", "?"]), "ward": np.array(["b", "a", "b"])}
    assert statistics(cells, {"ward"}) == {"age": Numbers(2, 2.0, 2.0), "ward": {"a", "b"}}


def test_one_site_s_word_makes_the_column_words_everywhere() -> None:
    clients = [{"ward": np.array(["1", "2"])}, {"ward": np.array(["x", "NA"])}]
    assert fit(clients, "here") == [OneHot("ward", ("1", "2", "x"))]


def test_rows_are_imputed_encoded_and_scaled_and_held_out_ones_teach_nothing(
    tmp_path: Path,
) -> None:
    paths = [str(path) for path in write_sites(tmp_path)]
    made = prepared_table(paths, target="diagnosis", client=None, kind="classes", seed=3)
    assert made.test is not None
    assert made.train.group_names == ("site0", "site1", "site2")
    assert made.train.preparation is not None
    columns = {one["name"]: one for one in made.train.preparation["columns"]}
    assert columns["ward"]["categories"] == ("north", "south", "west")
    assert columns["room"]["mean"] == 7.0
    assert columns["room"]["deviation"] == 1.0
    x = made.train.inputs.numpy()
    assert x.shape[1] == 1 + 3 + 1
    known = x[x[:, 0] != 0, 0]  # a gap is the mean of what is there
    assert known.mean() == pytest.approx(0, abs=1e-5)
    assert known.std() == pytest.approx(1, abs=1e-5)
    assert set(x[:, 1:4].sum(axis=1).tolist()) == {0.0, 1.0}
    assert abs(float(made.test.inputs[:, 0].mean())) > 1e-4
    assert len(made.test) == 3 * 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "room"}, "has one class only"),
        ({"target": "illness"}, "has no column 'illness' (it has age, ward, room, diagnosis)"),
        ({"leave_out": ["rom"]}, "has no column 'rom'"),
        ({"target": "age", "kind": "numbers"}, "is missing"),
        ({"client": "site"}, "client=None makes every file one client"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    paths = [str(path) for path in write_sites(tmp_path)]
    options = {"target": "diagnosis", "client": None, "kind": "classes"} | change
    with pytest.raises(DataError) as refusal:
        prepared_table(paths, **options)  # type: ignore[arg-type]
    assert message in str(refusal.value)


def test_names_are_no_categories_and_measurements_no_classes(tmp_path: Path) -> None:
    lines = [f"p{i},{i / 7},{'ab'[i % 2]}" for i in range(120)]
    path = tmp_path / "one.csv"
    path.write_text("\n".join(["patient,dose,kind", *lines]) + "\n")
    options = {"client": None, "kind": "classes"}
    with pytest.raises(DataError, match=r"'patient' holds .*--set problem\.leave_out=\"\['pat"):
        prepared_table(str(path), target="kind", test_fraction=0, **options)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"problem.kind = 'numbers'"):
        prepared_table(str(path), target="dose", **options)  # type: ignore[arg-type]


def test_a_run_from_csv_files_says_how_they_were_prepared(tmp_path: Path) -> None:
    paths = write_sites(tmp_path)
    words = ("--target", "diagnosis", "--rounds", 8, "--no-report")
    ran = call("run", "--csv", *paths, *words, "--out", tmp_path / "run")
    assert ran.exit_code == 0, ran.stderr
    assert "data    numbers are standardised and text columns" in ran.stdout
    recorded = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert recorded["names"] == ["site0", "site1", "site2"]
    assert recorded["labels"] == ["sick", "well"]
    assert [one["name"] for one in recorded["preparation"]["columns"]] == ["age", "ward", "room"]
    final = json.loads((tmp_path / "run" / "summary.json").read_text())["final"]
    assert final["test_accuracy"] > 0.75


def test_a_run_from_csv_files_goes_on_from_the_line_it_printed_and_with_no_other_rows(
    tmp_path: Path,
) -> None:
    paths, out = write_sites(tmp_path), tmp_path / "run"
    line = ("run", "--csv", *paths, "--target", "diagnosis", "--rounds", 5, "--no-report")
    whole = call(*line, "--out", tmp_path / "whole")
    assert whole.exit_code == 0, whole.stderr
    stopping = (
        "--set",
        "callbacks=[{name='support.commands:Interrupter'}]",
        "--checkpoint-every",
        2,
    )
    stopped = call(*line, "--out", out, *stopping)
    assert stopped.exit_code == 130, stopped.output
    printed = shlex.split(stopped.stderr.partition("go on with: ")[2])[1:]
    text = paths[0].read_text()
    paths[0].write_text(text[: text.rindex("\n", 0, -1) + 1])  # one patient less
    refused = call(*printed, "--set", "callbacks=[]")
    assert refused.exit_code == 2
    assert "the data have changed since this run began" in refused.stderr
    assert "sizes" in refused.stderr
    paths[0].write_text(text)
    assert call(*printed, "--set", "callbacks=[]").exit_code == 0
    found = [json.loads((one / "summary.json").read_text()) for one in (tmp_path / "whole", out)]
    assert found[0]["params_sha256"] == found[1]["params_sha256"]
    assert call("run", "--out", out, "--resume", "--rounds", 6, "--no-report").exit_code == 0


def test_a_comparison_takes_one_file_with_a_column_of_clients(tmp_path: Path) -> None:
    first, second, _ = (path.read_text().splitlines() for path in write_sites(tmp_path))
    rows = [f"{line},A" for line in first[1:]] + [f"{line},B" for line in second[1:]]
    path = tmp_path / "all.csv"
    path.write_text("\n".join([f"{first[0]},clinic", *rows]) + "\n")
    words = ("--csv", path, "--target", "diagnosis", "--client", "clinic", "--rounds", 2)
    shown = call("compare", *words, "--jobs", 1, "--no-report", "--out", tmp_path / "out")
    assert shown.exit_code == 0, shown.stderr
    for method in ("FedAvg", "FedProx", "SCAFFOLD", "FedADMM"):
        assert method.lower() in shown.stdout.lower()
    assert "no row left its client" in " ".join(shown.stdout.split())


def test_files_come_before_or_after_other_words(tmp_path: Path) -> None:
    a, b, _ = write_sites(tmp_path)
    for words in (
        ("--csv", a, b, "--target", "diagnosis"),
        ("--target", "diagnosis", "--csv", a, b),
        ("--csv", a, "--target", "diagnosis", "--csv", b),
        (f"--csv={a}", f"--csv={b}", "--target=diagnosis"),
        ("quickstart", "--target", "diagnosis", "--csv", a, b),
    ):
        shown = call("run", *words, "--print-config")
        assert shown.exit_code == 0, shown.stderr
        assert str(a) in shown.stdout
        assert str(b) in shown.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--csv", "a.csv"), "--target is missing, expected the column to predict"),
        (("--target", "x"), "--target is 'x', a column of --csv FILE …, but --csv is missing"),
        (("--target", "x", "--csv"), "Option '--csv' requires an argument"),
    ],
)
def test_half_a_line_is_answered(words: tuple[str, ...], message: str) -> None:
    assert message in call("run", *words).stderr


def test_numbers_to_predict_are_scaled_too_so_that_a_perceptron_can_learn_them(
    tmp_path: Path,
) -> None:
    paths = write_sites(tmp_path)
    for path in paths:  # what a patient costs: thousands, and more where the level is higher
        head, *lines = path.read_text().splitlines()
        costs = [2000 + 40 * float(line.split(",")[0] or 50) for line in lines]
        rows = [f"{line},{cost}" for line, cost in zip(lines, costs, strict=True)]
        path.write_text("\n".join([f"{head},cost", *rows]) + "\n")
    words = ("--csv", *paths, "--target", "cost", "--rounds", 10, "--no-report")
    sets = ("--set", "problem.kind=numbers", "--set", "problem.model=mlp")
    ran = call("run", *words, *sets, "--out", tmp_path / "run", "--json")
    assert ran.exit_code == 0, ran.stderr
    assert json.loads(ran.stdout)["final"]["test_loss"] < 0.1  # 1/2 is what the mean would cost
    files = [str(path) for path in paths]
    made = prepared_table(files, target="cost", client=None, kind="numbers", test_fraction=0.2)
    assert made.test is not None
    recorded = json.loads((tmp_path / "run" / "partition.json").read_text())["preparation"]
    numbers = made.train.targets.double().numpy()
    assert (numbers.mean(), numbers.std()) == pytest.approx((0, 1), abs=1e-5)
    raw = data.tabular(files, target="cost", client=None, inputs="room", kind="numbers")
    everybody = torch.cat([made.train.targets, made.test.targets])
    scale = recorded["target"]
    back = sorted((everybody * scale["deviation"] + scale["mean"]).tolist())
    assert back == pytest.approx(sorted(raw.targets.tolist()), rel=1e-5)


def test_a_refused_run_leaves_its_name_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ("run", "--csv", *write_sites(tmp_path), "--target", "diagnosis", "--no-report")
    for leave_out, code in (("rom", 2), ("room", 0)):
        ran = call(*line, "--rounds", 1, "--set", f"problem.leave_out=['{leave_out}']")
        assert ran.exit_code == code, ran.output
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["table-fedadmm-seed0"]
    again = call(*line, "--rounds", 2, "--set", "problem.leave_out=['room']", "--resume")
    assert "completed all 2 rounds" in again.stdout, again.stderr


def test_gaps_and_a_single_client_are_refused_with_a_remedy(tmp_path: Path) -> None:
    path = str(write_sites(tmp_path)[0])
    with pytest.raises(DataError, match=r"problem\.preparation = 'from-sums'"):
        problems.load("table", path=path, target="diagnosis")
    options = {"path": path, "target": "diagnosis", "preparation": "from-sums"}
    with pytest.raises(DataError, match=r"is one client only.*problem\.partition = 'iid'"):
        problems.load("table", **options)
    assert problems.load("table", **options, partition="iid", clients=4).num_clients == 4
    assert problems.load("table", **options, client=None).num_clients == 1


def test_columns_whose_values_hardly_repeat_are_named() -> None:
    """40 rows at two clients: 20 dates, 5 wards, an age, a number of each patient."""
    clients = []
    for client in range(2):
        order = np.arange(20)
        clients.append(
            {
                "visit": np.array([f"2024-01-{1 + number:02d}" for number in order]),
                "ward": np.array([f"ward {number % 5}" for number in order]),
                "age": 50.0 + order % 7,
                "patient_no": 1000.0 * client + order,
            }
        )
    assert identifiers(clients) == ["visit", "patient_no"]
