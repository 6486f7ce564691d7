"""The page of the papers' results is made from the stored files, and says nothing else."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from fedadmm.study.recipe import identifiers
from studies.papers.__main__ import LARGEST, RESULTS, gong, kept, page

ROOT = Path(__file__).parents[2]


def test_the_page_is_the_one_that_the_results_make() -> None:
    assert (ROOT / "docs/reproduction-tables.md").read_text("utf-8") == page()


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
    rows = [{"name": name, "seeds": 3, "final": {"mean": 0.5}} for name in ("a", "b")]
    before = kept({**told, "seeds": [0, 1, 2], "table": rows}, "first")
    later = [{"name": "b", "seeds": 1, "final": {"mean": 0.7}}, {"name": "c", "seeds": 0}]
    for unrun in ([], [{"name": "a", "seeds": 0}]):  # --cells leaves a cell out of the table
        both = kept({**told, "seeds": [0], "table": [*unrun, *later]}, "then", before)
        found = {row["name"]: row["final"]["mean"] for row in both["table"]}
        assert found == {"a": 0.5, "b": 0.7}
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
    assert f">{figures.described(name)}<" in drawn, "run python docs/_figures/reproduction.py docs"
    assert len(drawn) < 60_000
