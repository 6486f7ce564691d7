"""The page of the papers' results is made from the stored files, and says nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from fedadmm.study.recipe import identifiers
from studies.papers.__main__ import LARGEST, RESULTS, kept, page

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
