"""The grid search: choice by mean score, growth at the edges, successive halving."""

from __future__ import annotations

import json
import math

import pytest

from fedadmm.study.search import SearchResult, Trial, search


def peak_at(best: float):
    """A score that falls with the distance from `best` on a logarithmic scale."""
    return lambda values, seed: -abs(math.log(values["lr"] / best))


def test_interior_optimum_leaves_the_grid_as_given() -> None:
    result = search({"lr": [0.4, 0.1, 0.2]}, peak_at(0.2), [0])
    assert result.chosen == {"lr": 0.2}
    assert result.grid == {"lr": (0.1, 0.2, 0.4)}
    assert result.interior == {"lr": True}
    assert result.is_interior
    assert [trial.values["lr"] for trial in result.trials] == [0.1, 0.2, 0.4]


@pytest.mark.parametrize(
    ("best", "grid"),
    [
        (0.8, (0.1, 0.2, 0.4, 0.8, 1.6)),
        (0.025, (0.0125, 0.025, 0.05, 0.1, 0.2)),
    ],
)
def test_optimum_beyond_an_edge_extends_the_grid_until_it_is_inside(
    best: float, grid: tuple[float, ...]
) -> None:
    result = search({"lr": [0.1, 0.2]}, peak_at(best), [0])
    assert result.grid["lr"] == pytest.approx(grid)
    assert result.chosen["lr"] == pytest.approx(best)
    assert result.is_interior


def test_extension_uses_the_ratio_of_the_two_outermost_values() -> None:
    result = search({"lr": [0.1, 0.3, 3.0]}, peak_at(30.0), [0])
    assert result.grid["lr"] == (0.1, 0.3, 3.0, 30.0, 300.0)


def test_extensions_are_limited_and_the_edge_is_reported() -> None:
    result = search({"lr": [1.0, 2.0]}, lambda values, seed: values["lr"], [0], max_extensions=2)
    assert result.grid["lr"] == (1.0, 2.0, 4.0, 8.0)
    assert result.chosen == {"lr": 8.0}
    assert not result.is_interior


def test_limits_stop_the_growth_of_a_grid() -> None:
    result = search(
        {"lr": [1.0, 2.0]}, lambda values, seed: values["lr"], [0], limits={"lr": (0.5, 4.0)}
    )
    assert result.grid["lr"] == (1.0, 2.0, 4.0)
    assert not result.is_interior


def test_choice_is_by_the_mean_over_seeds_and_not_by_one_seed() -> None:
    scores = {1.0: (0.0, 0.0), 2.0: (5.0, 5.0), 3.0: (9.0, 0.0), 4.0: (1.0, 1.0)}
    calls = []

    def evaluate(values: dict, seed: int) -> float:
        calls.append((values["lr"], seed))
        return scores[values["lr"]][seed]

    assert search({"lr": list(scores)}, evaluate, [0]).chosen == {"lr": 3.0}
    calls.clear()
    assert search({"lr": list(scores)}, evaluate, [0, 1]).chosen == {"lr": 2.0}
    assert sorted(calls) == [(lr, seed) for lr in scores for seed in (0, 1)]


def test_keep_drops_the_worst_candidates_after_each_seed() -> None:
    calls: list[tuple[float, int]] = []

    def evaluate(values: dict, seed: int) -> float:
        calls.append((values["lr"], seed))
        return {1.0: 1.0, 2.0: 4.0, 4.0: 5.0, 8.0: 4.5, 16.0: 0.0}[values["lr"]]

    result = search({"lr": [1.0, 2.0, 4.0, 8.0, 16.0]}, evaluate, [7, 8, 9], keep=0.5)
    # Five candidates on seed 7, the best ceil(5/2) = 3 on seed 8, the best two on seed 9.
    assert [lr for lr, seed in calls if seed == 7] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert [lr for lr, seed in calls if seed == 8] == [2.0, 4.0, 8.0]
    assert [lr for lr, seed in calls if seed == 9] == [4.0, 8.0]
    assert result.chosen == {"lr": 4.0}
    assert {trial.values["lr"]: len(trial.scores) for trial in result.trials} == {
        1.0: 1,
        2.0: 2,
        4.0: 3,
        8.0: 3,
        16.0: 1,
    }


def test_known_scores_are_not_evaluated_again_when_the_grid_grows() -> None:
    calls: list[tuple[float, int]] = []

    def evaluate(values: dict, seed: int) -> float:
        calls.append((values["lr"], seed))
        return peak_at(4.0)(values, seed)

    search({"lr": [1.0, 2.0]}, evaluate, [0, 1])
    assert len(calls) == len(set(calls)) == 2 * 4  # 1, 2, 4 and 8 on two seeds


def test_candidates_with_more_seeds_have_no_advantage_after_an_extension() -> None:
    # On seed 0 the new value 4 is the best; the others were lucky on seed 1.
    scores = {1.0: (0.0, 9.0), 2.0: (1.0, 9.0), 4.0: (2.0, 10.0), 8.0: (0.5, 0.0)}
    result = search({"lr": [1.0, 2.0]}, lambda v, seed: scores[v["lr"]][seed], [0, 1], keep=0.5)
    assert result.chosen == {"lr": 4.0}
    assert result.is_interior


def test_divergence_counts_as_the_worst_score() -> None:
    def evaluate(values: dict, seed: int) -> float:
        return math.nan if values["lr"] >= 2.0 and seed == 1 else values["lr"]

    result = search({"lr": [0.5, 1.0, 2.0, 4.0]}, evaluate, [0, 1])
    assert result.chosen == {"lr": 1.0}
    assert result.is_interior
    text = json.dumps(result.as_dict(), allow_nan=False)
    assert json.loads(text)["trials"][3]["scores"] == [4.0, None]


def test_categories_have_no_edges_and_are_crossed_with_the_numbers() -> None:
    def evaluate(values: dict, seed: int) -> float:
        return peak_at(2.0 if values["output"] == "mean" else 0.5)(values, seed) + (
            1.0 if values["output"] == "mean" else 0.0
        )

    result = search({"lr": [0.5, 1.0], "output": ["last", "mean"]}, evaluate, [0])
    assert result.chosen == {"lr": 2.0, "output": "mean"}
    assert result.grid == {"lr": (0.5, 1.0, 2.0, 4.0), "output": ("last", "mean")}
    assert result.interior == {"lr": True}
    assert len(result.trials) == 8


def test_two_numeric_parameters_grow_independently() -> None:
    def evaluate(values: dict, seed: int) -> float:
        return -abs(math.log(values["lr"] / 0.1)) - abs(math.log(values["rho"] / 8.0))

    result = search({"lr": [0.05, 0.1, 0.2], "rho": [2.0, 4.0]}, evaluate, [0])
    assert result.chosen == {"lr": 0.1, "rho": 8.0}
    assert result.grid == {"lr": (0.05, 0.1, 0.2), "rho": (2.0, 4.0, 8.0, 16.0)}


def test_a_single_value_is_fixed_and_has_no_edge() -> None:
    result = search({"lr": [0.1], "momentum": [0.9]}, lambda values, seed: 0.0, [0])
    assert result.chosen == {"lr": 0.1, "momentum": 0.9}
    assert result.interior == {}
    assert result.is_interior


def test_result_is_plain_json() -> None:
    result = search({"lr": [0.1, 0.2, 0.4]}, peak_at(0.2), [3, 4])
    assert isinstance(result, SearchResult)
    assert json.loads(json.dumps(result.as_dict())) == {
        "chosen": {"lr": 0.2},
        "interior": {"lr": True},
        "grid": {"lr": [0.1, 0.2, 0.4]},
        "seeds": [3, 4],
        "trials": [
            {"values": {"lr": 0.1}, "scores": [pytest.approx(-math.log(2))] * 2},
            {"values": {"lr": 0.2}, "scores": [0.0, 0.0]},
            {"values": {"lr": 0.4}, "scores": [pytest.approx(-math.log(2))] * 2},
        ],
    }


def test_mean_of_a_trial_is_minus_infinity_after_divergence() -> None:
    assert Trial({}, (1.0, 2.0)).mean == 1.5
    assert Trial({}, (1.0, math.inf)).mean == -math.inf


@pytest.mark.parametrize(
    ("grid", "seeds", "keep", "message"),
    [
        ({}, [0], 1.0, "grid: got no parameter"),
        ({"lr": []}, [0], 1.0, "grid.lr"),
        ({"lr": [0.1, 0.1]}, [0], 1.0, "grid.lr"),
        ({"lr": [0.1, "auto"]}, [0], 1.0, "grid.lr"),
        ({"lr": [0.1]}, [], 1.0, "seeds"),
        ({"lr": [0.1]}, [1, 1], 1.0, "seeds"),
        ({"lr": [0.1]}, [0], 0.0, "keep"),
        ({"lr": [0.1]}, [0], 1.5, "keep"),
    ],
)
def test_invalid_arguments_are_rejected(
    grid: dict, seeds: list[int], keep: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        search(grid, lambda values, seed: 0.0, seeds, keep=keep)


def test_a_grid_with_zero_grows_by_differences_and_whole_numbers_stay_whole() -> None:
    found = search({"gamma": [0.0, 0.5]}, lambda values, seed: -abs(values["gamma"] - 1.4), [0])
    assert found.grid["gamma"] == (0.0, 0.5, 1.0, 1.5, 2.0)
    assert found.chosen == {"gamma": 1.5}
    found = search({"size": [10, 20]}, lambda values, seed: -abs(values["size"] - 40), [0])
    assert found.grid["size"] == (10, 20, 40, 80)
    assert all(isinstance(one, int) for one in found.grid["size"])


def test_tables_of_components_are_categories() -> None:
    grid = {"rho": [{"name": "per-work", "pull": pull} for pull in (0.1, 0.2)]}
    found = search(grid, lambda values, seed: values["rho"]["pull"], [0])
    assert found.chosen == {"rho": {"name": "per-work", "pull": 0.2}}
    assert found.interior == {}
