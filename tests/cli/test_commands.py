"""Every command, walked with real files."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import typer

from fedadmm.algorithms import REGISTRY
from fedadmm.cli import app
from fedadmm.run.record import PHASES
from fedadmm.study import config as configs
from support.commands import call, write_small

METHODS = [{"algorithm": {"name": "fedavg"}}, {"algorithm": {"name": "fedadmm"}}]
TARGET = {"metric": "loss", "value": 1e9, "at_least": False, "end_run": False}


def document(*arguments: object) -> dict[str, Any]:
    """The one JSON document on standard output."""
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def commands(group: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of every command below a group, and of the groups."""
    found = [path]
    if isinstance(group, click.Group):
        for name, command in group.commands.items():
            found += commands(command, (*path, name))
    return found


@pytest.mark.parametrize("path", commands(typer.main.get_command(app)), ids=" ".join)
def test_every_help_page_shows_an_example(path: tuple[str, ...]) -> None:
    result = call(*path, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Example:\s+fedadmm {' '.join(path)}", result.stdout)


def test_examples_use_options_that_exist() -> None:
    pages = {path: call(*path, "--help").stdout for path in commands(typer.main.get_command(app))}
    for page in pages.values():
        example = " ".join(page.partition("Example: ")[2].split())
        words = tuple(example.split()[1:])
        named = max((path for path in pages if words[: len(path)] == path), key=len)
        for option in re.findall(r"--[a-z-]+", example):
            assert option in pages[named].partition("Example: ")[0], (example, option)


def test_the_promised_commands_are_there() -> None:
    names = {path[0] for path in commands(typer.main.get_command(app)) if path}
    assert names >= {
        *("run", "compare", "sweep", "report", "algorithms", "data", "export"),
        *("reproduce", "advise", "deploy"),
    }


def test_run_writes_the_run_directory(tmp_path: Path) -> None:
    config = write_small(tmp_path / "small.toml")
    out = tmp_path / "out"
    result = call("run", config, "--out", out)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    for name in ("config.toml", "metrics.jsonl", "summary.json", "checkpoint", "report.html"):
        assert (out / name).exists()
    assert "completed all 4 rounds" in result.stdout
    assert str(out / "report.html") in result.stdout


def test_run_shows_where_the_time_went(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = call(
        "run", write_small(tmp_path / "c.toml"), "--rounds", 2, "--out", folder, "--profile"
    )
    assert result.exit_code == 0, result.stderr
    assert "Where the time of 2 rounds went" in result.stdout
    assert [phase for phase in PHASES if f"│ {phase}" not in result.stdout] == []
    assert '"Time of a round by phase"' in (folder / "report.html").read_text()


def test_run_takes_every_shortcut(tmp_path: Path) -> None:
    config = write_small(tmp_path / "small.toml")
    result = call(
        *("run", config, "--algorithm", "fedprox", "--rounds", 7, "--seed", 3),
        *("--checkpoint-every", 5, "--engine", "sequential", "--set", "device=cpu"),
        *(
            "--set",
            "precision=float64",
            "--set",
            "algorithm.rho=0.5",
            "--set",
            "local.solver.name=lbfgs",
        ),
        *("--tracker", "mlflow", "--print-config"),
    )
    assert result.exit_code == 0, result.stderr
    tree = tomllib.loads(result.stdout)
    assert tree["algorithm"] == {"name": "fedprox", "rho": 0.5}
    assert tree["local"]["solver"] == {"name": "lbfgs", "lr": 1.0, "history": 10}
    assert (tree["rounds"], tree["seed"], tree["precision"]) == (7, 3, "float64")
    assert tree["checkpoint"]["every"] == 5
    assert tree["callbacks"] == [{"name": "mlflow"}]


def test_run_as_json_prints_one_document(tmp_path: Path) -> None:
    config = write_small(tmp_path / "small.toml")
    out = tmp_path / "out"
    printed = document("run", config, "--out", out, "--no-report")
    summary = json.loads((out / "summary.json").read_text())
    assert printed == summary | {"directory": str(out), "report": None}


def test_a_run_without_out_gets_a_new_folder_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_small(tmp_path / "small.toml")
    folders = [document("run", config, "--no-report")["directory"] for _ in range(2)]
    assert folders == ["runs/small-fedadmm-seed0", "runs/small-fedadmm-seed0-2"]
    again = document("run", config, "--no-report", "--resume")
    assert again["directory"] == folders[1]


def test_an_interrupted_run_exits_130_with_the_command_that_goes_on(tmp_path: Path) -> None:
    whole = document("run", write_small(tmp_path / "a.toml"), "--out", tmp_path / "a")
    config = write_small(tmp_path / "b.toml", callbacks=[{"name": "support.commands:Interrupter"}])
    result = call("run", config, "--out", tmp_path / "b")
    assert result.exit_code == 130
    command = f"fedadmm run {config} --out {tmp_path / 'b'} --resume"
    assert result.stderr.endswith(f" rounds are kept; go on with: {command}\n")
    resumed = document(*command.split()[1:], "--set", "callbacks=[]")
    assert resumed["params_sha256"] == whole["params_sha256"]
    assert resumed["rounds"] == 4


def test_compare_ends_with_a_table_and_the_report(tmp_path: Path) -> None:
    config = write_small(tmp_path / "c.toml", methods=METHODS, seeds=[0, 1], target=TARGET)
    out = tmp_path / "out"
    result = call("compare", config, "--out", out, "--jobs", 1)
    assert result.exit_code == 0, result.stderr
    assert "FedAvg" in result.stdout
    assert "1.0 ± 0.0" in result.stdout
    assert result.stdout.rstrip().endswith("report.html")
    for name in ("results.json", "study.toml", "report.html"):
        assert (out / name).is_file()
    assert sorted(path.name for path in (out / "runs").iterdir()) == [
        *("fedadmm-seed0", "fedadmm-seed1", "fedavg-seed0", "fedavg-seed1")
    ]


def test_compare_picks_algorithms_and_seeds_and_goes_on(tmp_path: Path) -> None:
    config = write_small(tmp_path / "c.toml", target=TARGET)
    out = tmp_path / "out"
    options = ("--algorithms", "fedavg,feddr,scaffold", "--seeds", "4,5", "--jobs", 1)
    first = document("compare", config, *options, "--out", out, "--rounds", 2, "--no-report")
    assert [row["label"] for row in first["table"]] == ["fedavg", "feddr", "scaffold"]
    assert first["seeds"] == [4, 5]
    again = document("compare", "--out", out, "--resume", "--no-report", "--jobs", 1)
    assert again["runs"] == first["runs"]


def sites(folder: Path) -> list[object]:
    """The options that compare two small files of one's own."""
    for name in "ab":
        lines = "\n".join(f"{size},{'xy'[size % 2]}" for size in range(20))
        (folder / f"{name}.csv").write_text(f"size,label\n{lines}\n")
    return ["--csv", folder / "a.csv", folder / "b.csv", "--target", "label"]


def noisy_sites(folder: Path, **sizes: int) -> list[object]:
    """Two sites of other sizes with a row number each, whose labels depend on a noisy column."""
    draws = np.random.default_rng(0)
    for name, rows in sizes.items():
        size = draws.normal(size=rows)
        labels = np.where(size + draws.normal(size=rows) > 0, "x", "y")
        lines = [f"{no},{size[no]:.3f},{labels[no]}" for no in range(rows)]
        text = "\n".join(["patient_no,size,label", *lines])
        (folder / f"{name}.csv").write_text(text + "\n")
    return ["--csv", *(folder / f"{name}.csv" for name in sizes), "--target", "label"]


def test_seeds_hold_out_other_rows_of_one_s_own_table(tmp_path: Path) -> None:
    given = [*noisy_sites(tmp_path, a=40, b=60), "--rounds", 2, "--algorithms", "fedavg,fedadmm"]
    found = document("compare", *given, "--out", tmp_path / "out", "--no-report", "--jobs", 1)
    assert found["seeds"] == [0, 1, 2, 3, 4]
    ends = {run["final"]["test_accuracy"] for run in found["runs"] if run["label"] == "fedavg"}
    assert len(ends) > 1
    shown = call("compare", *given, "--out", tmp_path / "out", "--resume", "--jobs", 1)
    assert re.search(r"(first|best) [^:]+: \w+", shown.stdout)
    pages = [(tmp_path / "out/report.html").read_text()]
    assert call("report", tmp_path / "out").exit_code == 0  # from the files alone
    pages.append((tmp_path / "out/report.html").read_text())
    panels = [one.partition('<section id="federating">')[2].partition("</sec")[0] for one in pages]
    assert "personalised" in panels[0]
    assert panels[0] == panels[1]


def test_a_site_of_one_s_own_table_counts_by_its_rows(tmp_path: Path) -> None:
    given = [*noisy_sites(tmp_path, a=10, b=90), "--rounds", 1]
    shown = call("run", *given, "--out", tmp_path / "out", "--set", "local.stop.epochs=1")
    assert shown.exit_code == 0, shown.stderr
    said = " ".join(shown.stdout.split())
    assert "2, of 8 to 72 rows; each counts by its training rows" in said
    assert "hardly repeat, as numbers of rows, names or dates do: patient_no; leave them" in said
    assert "--set problem.leave_out=\"['patient_no']\"" in said
    page = (tmp_path / "out/report.html").read_text()
    assert "In the average each client is weighted by its samples." in page
    panel = page.partition('<section id="federating">')[2].partition("</section>")[0]
    assert "<th>local</th><th>shared</th><th>personalised</th>" in panel
    assert "<td>a</td><td>2</td>" in panel
    assert re.search(r"<td>(better|worse|not significant)</td>", panel)
    run = configs.resolve(configs.read(str(tmp_path / "out")))
    weights = [run.load_problem().weight(client) for client in (0, 1)]
    assert weights == pytest.approx([8 / 80, 72 / 80])


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("sweep", ["--grid", "local.solver.lr=0.1,0.2", "--jobs", 1]),
        ("advise", []),
    ],
)
def test_other_commands_take_one_s_own_files_too(
    command: str, more: list[object], tmp_path: Path
) -> None:
    given = [*noisy_sites(tmp_path, a=20, b=20), "--set", "rounds=2"]
    out = [] if command == "advise" else ["--out", tmp_path / "out", "--no-report"]
    result = call(command, *given, *more, *out)
    assert result.exit_code == 0, result.stderr
    if command == "advise":
        line = shlex.split(result.stdout.splitlines()[0])
        assert line[:3] == ["fedadmm", "run", "--csv"]
        ran = call(*line[1:], "--out", tmp_path / "run", "--no-report")
        assert ran.exit_code == 0, ran.stderr
    else:
        found = json.loads((tmp_path / "out/results.json").read_text())
        assert [run["code"] for run in found["runs"]] == ["completed"] * 2
        assert found["problem"] == "table"


def test_all_columns_of_text_are_refused_at_once(tmp_path: Path) -> None:
    lines = [f"{row},n{row},t{row},{'xy'[row % 2]}" for row in range(150)]
    (tmp_path / "a.csv").write_text("\n".join(["size,name,text,label", *lines]) + "\n")
    given = ["--csv", tmp_path / "a.csv", "--target", "label", "--set", "problem.partition=iid"]
    given += ["--set", "problem.clients=2", "--rounds", 1, "--out", tmp_path / "out"]
    refused = call("run", *given)
    assert refused.exit_code == 2
    assert "'name' holds" in refused.stderr
    assert "'text' holds" in refused.stderr
    remedy = shlex.split(refused.stderr.partition("leave them out: ")[2])
    assert call("run", *given, *remedy, "--no-report").exit_code == 0


def test_compare_says_which_methods_take_what_is_set(tmp_path: Path) -> None:
    out, given = tmp_path / "own", ["--set", "algorithm.rho=7", "--rounds", 1]
    result = call("compare", *sites(tmp_path), *given, "--out", out, "--no-report", "--jobs", 1)
    assert result.exit_code == 0, result.stderr
    line = "algorithm.rho = 7 for fedprox; fedadmm; not for fedavg; scaffold"
    assert line in " ".join(result.stdout.split())
    for method, rho in (("fedavg", None), ("fedprox", 7.0), ("scaffold", None), ("fedadmm", 7.0)):
        config = configs.table(out / "runs" / f"{method}-seed0" / "config.toml")
        assert config["algorithm"].get("rho") == rho
    shown = call("compare", "quickstart", "--set", "algorithm.rho=7", "--print-config")
    methods = {one["label"]: one["algorithm"] for one in tomllib.loads(shown.stdout)["methods"]}
    assert methods["FedADMM"]["rho"] == methods["aligned ADMM"]["rho"] == 7


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_what_no_run_has_a_key_for_is_refused(command: str, tmp_path: Path) -> None:
    more = {"sweep": ["--grid", "seed=0,1"]}
    config = write_small(tmp_path / "small.toml", methods=METHODS)
    bogus = ["--set", "algorithm.bogus=7", "--out", tmp_path / "out"]
    result = call(command, config, *more.get(command, []), *bogus)
    assert result.exit_code == 2
    assert "algorithm.bogus is set to 7, but is not a key of" in result.stderr
    assert not (tmp_path / "out").exists()


def test_compare_prints_a_configuration_that_compare_takes(tmp_path: Path) -> None:
    printed = call("compare", "quickstart", "--print-config")
    assert printed.exit_code == 0, printed.stderr
    tree = tomllib.loads(printed.stdout)
    assert [method["label"] for method in tree["methods"]][:1] == ["FedAvg"]
    assert all("stop" in method["local"] for method in tree["methods"])
    path = tmp_path / "again.toml"
    path.write_text(printed.stdout)
    assert call("compare", path, "--print-config").stdout == printed.stdout


def test_sweep_runs_a_grid_and_finds_finished_cells(tmp_path: Path) -> None:
    config = write_small(tmp_path / "s.toml")
    options = ("--grid", "algorithm.rho=0.5,2", "--seeds", "0,1", "--out", tmp_path / "out")
    first = document("sweep", config, *options, "--jobs", 1)
    assert len(first["runs"]) == 4
    assert len(list((tmp_path / "out/cells").iterdir())) == 4
    table = call("sweep", config, *options, "--grid", "rounds=4,5", "--jobs", 1)
    assert table.exit_code == 0, table.stderr
    assert re.search(r"rho\W+rounds\W+seed", table.stdout)
    assert len(list((tmp_path / "out/cells").iterdir())) == 8


def test_sweep_goes_on_from_its_folder_without_a_configuration(tmp_path: Path) -> None:
    config, out = write_small(tmp_path / "small.toml"), tmp_path / "sweep"
    first = document("sweep", config, "--grid", "rounds=2,3", "--out", out, "--jobs", 1)
    assert document("sweep", "--out", out, "--resume", "--jobs", 1) == first
    other = document("sweep", "--out", out, "--grid", "rounds=4", "--jobs", 1)
    assert [run["rounds"] for run in other["runs"]] == [4]
    assert call("sweep", "--out", tmp_path / "none", "--resume").exit_code == 2


def test_workers_is_the_number_of_actors_of_ray(tmp_path: Path) -> None:
    config = write_small(tmp_path / "small.toml")
    shown = call("run", config, "--engine", "ray", "--workers", 2, "--print-config")
    assert tomllib.loads(shown.stdout)["engine"]["workers"] == 2


def test_report_and_export_read_a_finished_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    document("run", write_small(tmp_path / "a.toml"), "--out", out, "--no-report")
    shown = document("report", out, "--figures", tmp_path / "figures")
    assert Path(shown["report"]).is_file()
    kinds = {Path(name).suffix for name in shown["figures"]}
    assert kinds == {".png", ".svg", ".pdf"}
    pages = [Path(name).read_bytes() for name in shown["figures"] if name.endswith(".pdf")]
    assert all(page.startswith(b"%PDF") for page in pages)
    assert "report" in call("report", out).stdout
    exported = document("export", out)
    assert (exported["rows"], exported["file"]) == (4, str(out / "metrics.csv"))
    assert "4 rows" in call("export", out, "--format", "jsonl").stdout


def test_algorithms_lists_every_method_and_what_it_sends() -> None:
    cards = {card["name"]: card for card in document("algorithms")["algorithms"]}
    assert set(cards) == set(REGISTRY)
    assert (cards["scaffold"]["up"], cards["scaffold"]["down"]) == (2, 2)
    # The model, and what the client missed of the participants' dual steps.
    assert (cards["aligned-admm"]["up"], cards["aligned-admm"]["down"]) == (1, 2)
    assert (cards["fedavg"]["up"], cards["fedavg"]["state"]) == (1, [])
    assert cards["fedadmm"]["state"][:2] == ["w", "y"]
    assert "full participation only" in cards["fedpd"]["accepts"]
    assert "g = 0 only" in cards["fedavg"]["accepts"]
    one = call("algorithms", "feddr")
    assert "algorithm.alpha: > 0" in one.stdout


def test_data_lists_checks_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDADMM_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    listed = document("data", "list")
    assert {row["name"] for row in listed["problems"]} >= {"digits", "quadratics"}
    here = [row["name"] for row in listed["datasets"] if row["present"]]
    assert here == ["heart-disease"]  # it comes with the package
    assert "digits" in call("data", "list").stdout
    checked = document("data", "check", "mnist")
    assert {row["status"] for row in checked["files"]} == {"missing"}
    missing = call("data", "path", "mnist")
    assert (missing.exit_code, missing.stdout) == (2, "")
    picture = tmp_path / "digits.png"
    shown = document("data", "show", "digits", "--set", "clients=10", "--out", picture)
    assert shown["summary"]["clients"] == 10
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "clients" in call("data", "show", "quadratics").stdout


def test_a_damaged_file_makes_data_check_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDADMM_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist/t10k-labels-idx1-ubyte.gz").write_bytes(b"not it")
    result = call("data", "check", "mnist")
    assert result.exit_code == 2
    assert "damaged" in result.stdout


def test_config_shows_presets_and_the_schema(tmp_path: Path) -> None:
    presets = document("config", "presets")["presets"]
    assert set(presets) == set(configs.presets())
    assert all(presets.values())
    path = tmp_path / "mine.toml"
    path.write_text(call("config", "show", "quickstart").stdout)
    assert configs.read(str(path)) == configs.read("quickstart")
    schema = json.loads(call("config", "schema").stdout)
    assert {"problem", "algorithm", "methods", "search"} <= set(schema["properties"])


def test_version_and_no_arguments() -> None:
    assert call("--version").stdout.startswith("fedadmm ")
    assert "compare" in call().output
