"""The page of the papers' results is made from the stored files, and says nothing else."""

from __future__ import annotations

import json
import math
from importlib import import_module
from pathlib import Path

import pytest

from fedadmm.study.recipes import identifiers
from studies.papers.__main__ import (
    COLUMNS,
    LARGEST,
    filled,
    kept,
    missing,
    page,
    shards,
)
from studies.papers.others import RESULTS, stored

ROOT = Path(__file__).parents[2]


def test_the_page_is_the_one_that_the_results_make() -> None:
    """`python -m studies.papers page` makes both pages and their figures again."""
    assert (ROOT / "studies/papers/all-results.md").read_text("utf-8") == page()
    text = (ROOT / "docs/reproduction.md").read_text("utf-8")
    assert filled(text) == text


def means(name: str, measure: str, setting: str = "") -> dict[str, float]:
    """The means of a kept result: by cell, or by method of a setting."""
    start = f"{setting}/" if setting else ""
    rows = {key: row[measure]["mean"] for key, row in stored(name).items() if key.startswith(start)}
    return {
        key.removeprefix(start): math.inf if mean is None else mean for key, mean in rows.items()
    }


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
    # 18 s a round: 60 rounds are 0.3 h; 12 rounds of 4, 2 and 1 rates on three seeds are 0.42 h.
    assert missing().splitlines()[2:] == [
        "* network of the text, IID: FedAvg: 0.3",
        "* network of the text, two shards: FedProx: 0.7",
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


@pytest.mark.parametrize("name", ["gong-worlds", "gong-curves", "gong-ladder", "gong-fig8"])
def test_the_figures_draw_the_committed_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs/_figures"))
    figures = import_module("reproduction")
    drawn = (ROOT / f"docs/{name}.svg").read_text("utf-8")
    assert f">{figures.described(name)}<" in drawn, "run python -m studies.papers page"
    assert len(drawn) < 60_000
