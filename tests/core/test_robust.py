"""Trimmed means and medians: weights, ties, and how far a few wrong replies can move them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

import fedadmm as fa
from fedadmm.core.messages import Upload
from support.rejections import naming


def folded(part: fa.Aggregator, rows: np.ndarray, weights: list[float]) -> np.ndarray:
    uploads = [Upload((torch.from_numpy(row.copy()),)) for row in rows]
    found = part.aggregate(iter(zip(weights, uploads, strict=True)))
    assert found is not None
    return found.message[0].numpy()


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((10, 7))


def test_with_equal_weights_they_are_numpys_and_scipys(rows: np.ndarray) -> None:
    equal = [0.3] * 10  # a method divides by the sum of the weights
    np.testing.assert_allclose(folded(fa.Median(), rows, equal), 3 * np.median(rows, 0))
    odd = folded(fa.Median(), rows[:9], [1 / 9] * 9)
    np.testing.assert_allclose(odd, np.median(rows[:9], 0))
    found = folded(fa.TrimmedMean(0.2), rows, equal)
    np.testing.assert_allclose(found, 3 * trim_mean(rows, 0.2))
    plain = folded(fa.TrimmedMean(0.0), rows, equal)
    np.testing.assert_allclose(plain, 3 * rows.mean(0))


def test_a_weight_of_three_counts_as_three_updates(rows: np.ndarray) -> None:
    weights = [3, 1, 2, 1, 1, 4, 1, 2, 3, 2]
    repeated = np.repeat(rows, weights, axis=0)
    shares = [weight / 20 for weight in weights]
    np.testing.assert_allclose(folded(fa.Median(), rows, shares), np.median(repeated, 0))
    found = folded(fa.TrimmedMean(0.15), rows, shares)
    np.testing.assert_allclose(found, trim_mean(repeated, 0.15))  # three of twenty at either end


def test_a_part_of_an_entry_is_cut_off() -> None:
    """Of 1, 2, 4 with a third each, 0.2 at either end leaves 2/15 of the outer two."""
    found = folded(fa.TrimmedMean(0.2), np.array([[4.0], [1.0], [2.0]]), [1 / 3] * 3)
    np.testing.assert_allclose(found, [(2 / 15 * 5 + 2 / 3) / 0.6])


@pytest.mark.parametrize("part", [fa.TrimmedMean(0.3), fa.Median()])
def test_less_weight_than_is_cut_off_cannot_leave_the_range_of_the_others(
    part: fa.Aggregator, rows: np.ndarray
) -> None:
    attacked = rows.copy()
    attacked[[1, 5]] = [[1e9], [-1e9]]
    found = folded(part, attacked, [0.1] * 10)
    honest = np.delete(rows, [1, 5], 0)
    assert (honest.min(0) <= found).all()
    assert (found <= honest.max(0)).all()


def test_a_tracked_mean_refuses_them() -> None:
    problem = fa.Problem([fa.Quadratic(torch.eye(2), torch.ones(2))] * 4, initial=torch.zeros(2))
    for part in (fa.TrimmedMean(), fa.Median()):
        with pytest.raises(
            fa.errors.CompatibilityError, match=naming(f"algorithm FedADMM {type(part).__name__}")
        ):
            fa.simulate(fa.FedADMM(1.0), problem, 1, solver=fa.SGD(0.1), aggregator=part)
        fa.simulate(fa.FedAvg(), problem, 1, solver=fa.SGD(0.1), aggregator=part)
