"""Numbers that change over the rounds, or from client to client."""

from __future__ import annotations

import pytest
import torch

import fedadmm as fa
from fedadmm.core.schedules import at, of_clients
from support.rejections import naming


def test_piecewise_changes_at_its_points():
    schedule = fa.schedules.Piecewise({0: 1.0, 60: 0.5, 80: 0.1})
    assert [schedule(t) for t in (0, 59, 60, 79, 80, 1000)] == [1.0, 1.0, 0.5, 0.5, 0.1, 0.1]


def test_geometric_falls_to_its_floor():
    schedule = fa.schedules.Geometric(2.0, 0.5, 0.3)
    assert [schedule(t) for t in range(5)] == [2.0, 1.0, 0.5, 0.3, 0.3]


def test_a_number_is_a_constant_schedule():
    assert at(0.7, 0) == at(0.7, 99) == 0.7


def test_an_initial_round_counts_as_the_first():
    assert at(fa.schedules.Piecewise({0: 1.0, 1: 0.5}), -1) == 1.0


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_schedule_must_stay_positive(value):
    with pytest.raises(fa.errors.ParameterError, match=naming(f"round 3 {value}")):
        at(lambda t: value, 3)


def test_a_sequence_has_a_number_per_client():
    assert [at([0.1, 0.2, 0.4], 7, client) for client in (2, 0)] == [0.4, 0.1]
    column = of_clients([0.1, 0.2, 0.4], [2, 0], torch.zeros(2, 1, dtype=torch.float64))
    assert column.tolist() == [[0.4], [0.1]]
    assert of_clients([0.1, 0.2, 0.4], [1], torch.zeros(1)).shape == (1,)
    assert of_clients(0.3, [2, 0], torch.zeros(2, 1)) == 0.3
