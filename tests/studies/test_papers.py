"""The page of the papers' results is made from the stored files, and says nothing else."""

from __future__ import annotations

import json
import math
import re
from importlib import import_module
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify

from fedadmm.study.recipe import identifiers
from studies.papers.__main__ import (
    COLUMNS,
    LARGEST,
    filled,
    gong,
    gong_runs,
    kept,
    missing,
    page,
    shards,
)
from studies.papers.others import RESULTS, stored

ROOT = Path(__file__).parents[2]


def test_the_page_is_the_one_that_the_results_make() -> None:
    """`python -m studies.papers page` makes both pages and their figures again."""
    assert (ROOT / "docs/reproduction-tables.md").read_text("utf-8") == page()
    text = (ROOT / "docs/reproduction.md").read_text("utf-8")
    assert filled(text) == text


def test_every_table_and_figure_has_a_result_with_its_command() -> None:
    text = (ROOT / "docs/reproduction.md").read_text("utf-8")
    listed = text.partition("## All tables and figures")[2].partition("## Readings")[0]
    rows = [line for line in listed.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 22
    sections = {}
    for part in re.split(r"^#{2,3} ", page(), flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        sections[slugify(title, "-")] = body
    commands = ("fedadmm reproduce", "python -m studies")
    for row in rows:
        links = re.findall(r"\(reproduction-tables\.md#([^)]*)\)", row)
        assert links or "](#" in row, row
        for link in links:
            assert any(command in sections[link] for command in commands), link


def test_what_the_page_says_of_the_ladder_is_what_the_seeds_say() -> None:
    rungs = ("fedavg", "ladder-momentum", "ladder-epochs", "released")
    rounds = [[len(run["curve"]) for run in gong_runs(f"released-iid-{rung}")] for rung in rungs]
    seeds = list(zip(*rounds, strict=True))
    assert len(seeds) == 3
    assert all(momentum < plain < drawn for plain, momentum, drawn, _ in seeds)
    assert sorted(duals < drawn for _, _, drawn, duals in seeds) == [False, True, True]
    assert all(momentum < duals for _, momentum, _, duals in seeds)
    first = [
        len(gong_runs(f"{world}-iid-{row}")[0]["curve"])
        for world in ("released", "sound")
        for row in ("fedavg", "scaffold", "released")
    ]
    assert first[0] < first[2] >= first[1]
    assert first[3] < first[5] >= first[4]


def means(name: str, measure: str, setting: str = "") -> dict[str, float]:
    """The means of a kept result: by cell, or by method of a setting."""
    start = f"{setting}/" if setting else ""
    rows = {key: row[measure]["mean"] for key, row in stored(name).items() if key.startswith(start)}
    return {
        key.removeprefix(start): math.inf if mean is None else mean for key, mean in rows.items()
    }


def test_what_the_page_says_of_the_other_papers_is_what_the_results_say() -> None:
    losses, slack = means("wang-fig2-quick", "final", "synthetic-1-1"), 0.1436
    assert losses["fedadmm-layer"] > losses["fedadmm"] + 3 * slack
    for one, other in (("layer", "-released"), ("start", ""), ("slots", "")):
        assert abs(losses[f"fedadmm-{one}"] - losses[f"fedadmm{other}"]) < slack
    writers = (stored("wang-fig3-quick")[f"of30-{n}/fedadmm"] for n in (10, 15, 20, 25, 30))
    for seed in zip(*(row["by_seed"]["final"].values() for row in writers), strict=True):
        assert list(seed) == sorted(seed)

    def ranked(name: str, setting: str) -> list[str]:
        found = means(name, "final", setting)
        return sorted(found, key=lambda method: -found[method])

    first = ranked("feddr-fig2-quick", "synthetic-1-1")
    assert (first[:2], first[-1]) == (["feddr-local", "feddr-theta"], "feddr")
    some = [row for row in ranked("feddr-fig3-quick", "synthetic-1-1") if row != "recommended"]
    assert some == ["feddr-local", "fedprox", "fedpd", "feddr-theta", "fedavg", "feddr"]
    assert ranked("feddr-fig4-quick", "femnist")[:3] == ["feddr-theta", "feddr", "feddr-local"]
    shrunk = means("feddr-fig5-quick", "final", "femnist")
    assert len({value for key, value in shrunk.items() if not key.endswith("-local")}) == 1

    table = means("insa-table-quick", "final")

    def width(problem: str, method: str) -> float:
        found = [table[f"{problem}-b{beta}/{method}"] for beta in (1, 2, 5, 10)]
        return max(found) - min(found)

    assert width("mnist", "fedadmm-insa-released") < 0.5 * width("mnist", "fedadmm")
    fixed = width("regression", "fedadmm")
    released = width("regression", "fedadmm-insa-released")
    assert width("regression", "fedadmm-insa") < fixed < released

    heart = stored("flamby-heart-full")
    rates = {key: (row["chosen"] or {}).get("local.solver.lr") for key, row in heart.items()}
    chosen = {key: rate for key, rate in rates.items() if key.startswith("searched/")}
    assert {key for key, rate in chosen.items() if rate != 0.03} == {"searched/scaffold-searched"}
    accuracy = means("flamby-heart-full", "final")
    assert accuracy["rate-0.003162/fedavg-rate"] > accuracy["searched/fedavg-searched"]
    assert accuracy["published/fedadagrad"] > accuracy["searched/fedadagrad-searched"]
    lead = accuracy["published/fedadagrad"] - accuracy["rate-0.003162/fedavg-rate"]
    assert lead < 1.05 * heart["published/fedadagrad"]["final"]["std"]
    ours = [accuracy[f"searched/{name}"] for name in ("fedadmm", "feddr", "feddyn", "aligned")]
    assert max(ours) < accuracy["searched/fedavg-searched"]


def test_what_the_list_says_of_gong_is_what_the_results_say() -> None:
    def rounds(name: str, setting: str) -> dict[str, float]:
        return means(name, "rounds_to_target", setting)

    def times(name: str, setting: str) -> float:
        found = rounds(name, setting)
        return found["fedadmm-released"] / found["fedavg"]

    settings = {key.partition("/")[0] for key in stored("gong-table3-quick")}
    assert len(settings) == 6
    for setting in settings:
        found = rounds("gong-table3-quick", setting)
        assert found["fedadmm-released"] > min(found["fedavg"], found["fedprox"], found["scaffold"])
    for split in ("iid", "shards"):
        by_epochs = [rounds("gong-table4-quick", f"mnist-{split}-e{e}") for e in (1, 5, 10)]
        assert by_epochs[0]["fedadmm-released"] == math.inf > by_epochs[1]["fedadmm-released"]
        assert all(one["fedadmm-printed"] == math.inf for one in by_epochs)
        best = [means("gong-fig7-quick", "best", f"mnist-{split}-e{e}") for e in (1, 5)]
        assert best[0]["fedadmm-released"] < best[1]["fedadmm-released"]
    ahead, more = set(), {}
    for setting in {key.partition("/")[0] for key in stored("gong-table5-quick")}:
        found = rounds("gong-table5-quick", setting)
        proxes = [found[f"fedprox-{rho}"] for rho in ("0.01", "0.1", "1.0")]
        more[setting] = proxes[2] - proxes[0]
        ahead |= {setting} if found["fedadmm-released"] < min(proxes) else set()
    assert ahead == {"mnist-500-iid", "fmnist-500-iid"}
    assert (more.pop("mnist-500-iid"), more.pop("mnist-200-iid")) == (math.inf, 14)
    assert max(more.values()) == 4
    growing = [times("gong-fig3-quick", f"fmnist-iid-{n}") for n in (100, 200, 500, 1000)]
    assert [round(one, 1) for one in growing] == [3.2, 2.9, 2.9, 1.5]
    mixed = [times("gong-fig4-quick", f"fmnist-shards-{n}") for n in (100, 200, 500, 1000)]
    assert [round(one, 1) for one in mixed] == [1.7, 1.9, 1.3, 1.8]
    drop = means("gong-fig6-quick", "final", "mnist-shards")
    assert (round(drop["step-drop"], 3), round(drop["step-1.0"], 3)) == (0.395, 0.283)
    level = means("gong-fig10-quick", "best", "fmnist-imbalanced")
    others = max(level["fedavg"], level["fedprox"], level["scaffold"])
    assert others - level["fedadmm-released"] < 0.0081  # its standard deviation
    for split in ("iid", "shards"):
        fixed, changed, larger = (
            stored("gong-fig9-quick")[f"mnist-{split}/{row}"]["by_seed"]["final"].values()
            for row in ("rho-0.01", "rho-change", "rho-0.1")
        )
        assert all(a < b < c for a, b, c in zip(fixed, changed, larger, strict=True))


def test_what_the_page_says_of_two_shards_is_what_the_runs_say() -> None:
    def best(world: str, row: str) -> float:
        return max(max(run["curve"]) for run in gong_runs(f"{world}-shards-{row}"))

    rows = ("aligned-1", "released", "scaffold", "fedavg", "printed")
    found = [best("released", row) for row in rows]
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.5
    epochs = [gong_runs(f"released-shards-{row}")[0]["epochs"] for row in rows[1:4]]
    assert [round(one) for one in epochs] == [178, 300, 300]
    rows = ("aligned-1", "fedavg", "scaffold", "released", "printed")
    found = [best("sound", row) for row in rows]
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.44


def test_what_the_page_says_of_printed_steps_and_starts_is_what_the_runs_say() -> None:
    for world in ("released", "sound"):
        (printed,) = gong_runs(f"{world}-iid-printed")
        assert max(printed["curve"]) < 0.94
        assert gong_runs(f"{world}-iid-printed-global")[0]["code"] == "diverged"
    assert gong_runs("released-iid-tracking-global")[0]["rounds_to_target"] is None
    met = [gong_runs(f"sound-iid-{row}")[0]["rounds_to_target"] or 0 for row in COLUMNS]
    assert max(met) == gong_runs("sound-iid-tracking-global")[0]["rounds_to_target"] == 52


def test_a_missing_cell_is_named_with_what_it_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = {"seconds": 180, "curve": [0.5] * 10, "rounds_to_target": None, "code": "completed"}
    for world in ("released", "sound"):
        for split in ("iid", "shards"):
            for row in COLUMNS:
                (tmp_path / f"{world}-{split}-{row}-seed0.json").write_text(json.dumps(run))
    monkeypatch.setattr("studies.papers.__main__.GONG", tmp_path)
    assert missing() == "No cell is missing."
    assert "FedAvg 50.0 % (rounds to 97 %: 10+)" in shards()
    (tmp_path / "sound-shards-fedprox-seed0.json").unlink()
    (tmp_path / "sound-iid-fedavg-seed0.json").unlink()
    (tmp_path / "sound-iid-fedavg-search.json").write_text("{}")
    # 18 s a round: 60 rounds are 0.3 h; four rates for 4 rounds and two for 8 more are 0.16 h.
    assert missing().splitlines()[2:] == [
        "* network of the text, IID: FedAvg: 0.3",
        "* network of the text, two shards: FedProx: 0.5",
    ]


def test_results_are_small_and_of_known_recipes() -> None:
    files = list(RESULTS.glob("*.json"))
    assert files
    for path in files:
        document = json.loads(path.read_text("utf-8"))
        assert document["id"] in identifiers()
        assert path.stem == f"{document['id']}-{document['scale']}"
        assert path.stat().st_size < LARGEST
        assert all(row["by_seed"] for row in document["table"])


def test_rows_that_were_not_run_are_not_kept() -> None:
    row = {"setting": "a", "title": "FedAvg", "seeds": 2, "final": {"mean": 0.5}, "runs": [1]}
    document = {key: key for key in ("id", "scale", "title", "source", "notes")} | {
        "measures": ["final"],
        "seeds": [0, 1],
        "edges": [],
        "table": [row, row | {"seeds": 0}],
    }
    (only,) = kept(document, "today")["table"]
    assert "runs" not in only
    assert only["final"] == {"mean": 0.5}


def test_a_row_that_was_kept_before_stays_until_it_is_run_again() -> None:
    told = {key: key for key in ("id", "scale", "title", "source", "notes")}
    told |= {"measures": ["final"], "edges": []}
    rows = [{"name": name, "seeds": 3, "final": {"mean": 0.5}} for name in ("s/a", "s/b")]
    edges = [{"row": name, "places": ["s"]} for name in ("a", "b")]
    before = kept({**told, "seeds": [0, 1, 2], "table": rows, "edges": edges}, "first")
    later = [{"name": "s/b", "seeds": 1, "final": {"mean": 0.7}}, {"name": "s/c", "seeds": 0}]
    for unrun in ([], [{"name": "s/a", "seeds": 0}]):  # --cells leaves a cell out of the table
        both = kept({**told, "seeds": [0], "table": [*unrun, *later]}, "then", before)
        found = {row["name"]: row["final"]["mean"] for row in both["table"]}
        assert found == {"s/a": 0.5, "s/b": 0.7}
        assert both["edges"] == edges[:1]
    assert (both["seeds"], both["made"]) == ([0, 1, 2], "then")


def test_gongs_runs_are_on_the_page_with_their_rounds() -> None:
    lines = [line for line in gong().splitlines() if "FedAvg" in line]
    assert lines[0].startswith("| released network, IID | FedAvg | baseline | 0.5 | 14")
    assert "| 19 |" in lines[0]


@pytest.mark.parametrize("name", ["gong-worlds", "gong-curves", "gong-ladder", "gong-fig8"])
def test_the_figures_draw_the_committed_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs/_figures"))
    figures = import_module("reproduction")
    drawn = (ROOT / f"docs/{name}.svg").read_text("utf-8")
    assert f">{figures.described(name)}<" in drawn, "run python -m studies.papers page"
    assert len(drawn) < 60_000
