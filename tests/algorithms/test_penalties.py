"""Residual balancing, case by case."""

from __future__ import annotations

import pytest
import torch

import fedadmm as fa


def balanced(beta: float, move: float, drift: float, **options: float) -> float:
    rule = fa.FedADMMInSa(1.0, **options)
    values = (torch.tensor([x], dtype=torch.float64) for x in (beta, move, drift))
    return float(rule.next_penalty(*values))


@pytest.mark.parametrize(
    ("beta", "move", "drift", "expected"),
    [
        (2.0, 1.0, 10.1, 4.0),  # d > mu p with p = 2
        (2.0, 1.0, 10.0, 2.0),  # the boundary itself belongs to the balance
        (2.0, 1.0, 2.0, 2.0),
        (2.0, 1.0, 0.4, 2.0),  # p = 2 = mu d
        (2.0, 1.0, 0.39, 1.0),  # p > mu d
        (2.0, 0.0, 0.1, 4.0),  # the client stands still away from theta
        (2.0, 0.1, 0.0, 1.0),  # the client moves and sits on theta
        (2.0, 0.0, 0.0, 2.0),  # nothing moves
    ],
)
def test_balance(beta, move, drift, expected):
    assert balanced(beta, move, drift) == expected


def test_the_penalty_counts_in_the_primal_side_only():
    """p = beta ||w+ - w||: a larger beta alone tips the balance."""
    assert balanced(0.5, 1.0, 3.0) == 1.0
    assert balanced(1.0, 1.0, 3.0) == 1.0
    assert balanced(16.0, 1.0, 3.0) == 8.0


def test_bounds():
    assert balanced(8.0, 0.0, 1.0, beta_max=10.0) == 10.0
    assert balanced(0.3, 1.0, 0.0, beta_min=0.2) == 0.2


def test_mu_and_tau():
    assert balanced(1.0, 1.0, 2.5, mu=2.0, tau=3.0) == 3.0
    assert balanced(1.0, 1.0, 2.5, mu=3.0, tau=3.0) == 1.0


def test_a_stack_is_decided_client_by_client():
    column = [
        torch.tensor(v, dtype=torch.float64)[:, None]
        for v in ([2.0] * 3, [1.0] * 3, [11.0, 2.0, 0.1])
    ]
    assert fa.FedADMMInSa(1.0).next_penalty(*column).tolist() == [[4.0], [2.0], [1.0]]


def test_a_fixed_penalty_stays():
    beta = torch.tensor([3.0])
    assert torch.equal(fa.FedADMMIn(1.0).next_penalty(beta, beta, beta * 100), beta)
