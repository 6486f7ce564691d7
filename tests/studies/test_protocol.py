"""What the studies share: validation samples, censored rounds, and committed searches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedadmm.data.problems import load
from studies.protocol import (
    finite,
    on_validation,
    read,
    rounds_to,
    write,
)

STUDIES = Path(__file__).parents[2] / "studies"
FILES = sorted(
    path
    for folder in ("cifar10", "participation_rate", "hospitals")
    for path in (STUDIES / folder).rglob("*.json")
    if path.name != "preset.json"  # runs with the weight that results.json chose
)


def searches(tree: Any) -> Iterator[dict[str, Any]]:
    """Every search of a results file, wherever it is."""
    if isinstance(tree, dict):
        if "grid" in tree and "chosen" in tree:
            yield tree
        for value in tree.values():
            yield from searches(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from searches(value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_committed_search_chose_a_number_at_an_edge_of_its_grid(path: Path) -> None:
    found = list(searches(json.loads(path.read_text())))
    assert found, "a results file without any search"
    for one in found:
        for name, values in one["grid"].items():
            if len(values) > 1 and not isinstance(values[0], str):
                assert min(values) < one["chosen"][name] < max(values), one["chosen"]


def test_validation_samples_are_those_that_no_client_trains_on() -> None:
    problem = load("digits", clients=5, partition="shards", validation=0.2, partition_seed=3)
    validated = on_validation(problem)
    held_out: Any = validated.test
    expected = [problem.data.validation(client)[0] for client in range(5)]
    assert torch.equal(held_out.inputs, torch.cat(expected))
    assert len(held_out.inputs) == 290  # a fifth of 288 + 288 + 287 + 287 + 287, rounded up each
    trained = torch.cat([problem.data.train(client)[0] for client in range(5)])
    assert len(trained) + len(held_out.inputs) == 1437
    measured = [set(one.test(problem.start(0))) for one in (validated, problem)]
    assert measured[0] == {name for name in measured[1] if name.startswith("test_")}


def test_rounds_to_a_target_are_those_of_the_first_evaluation_that_meets_it() -> None:
    curve = [(5, 0.5), (10, 0.8), (15, 0.7), (20, 0.9)]
    assert rounds_to(curve, 0.8) == 10
    assert rounds_to(curve, 0.85) == 20
    assert rounds_to(curve, 0.95) is None


def test_divergence_counts_as_zero_accuracy() -> None:
    assert [finite(value) for value in (0.5, float("nan"), float("inf"))] == [0.5, 0.0, 0.0]


def test_results_can_be_read_again_and_a_missing_file_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "results" / "one.json"
    assert read(path) == {}
    write(path, {"runs": {"0": [1, None]}})
    assert read(path) == {"runs": {"0": [1, None]}}
    assert [one.name for one in path.parent.iterdir()] == ["one.json"]
