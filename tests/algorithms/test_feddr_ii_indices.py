"""FedDR-II with the indices of Wang et al., section IV.B, which contradict each other.

Step 7 of iteration k - 1 gives x_i^k and w_i^k to the clients of S_{k-1}.  Step 3 of iteration k
then lets every client outside S_k have xhat_i^k = xhat_i^{k-1}, x_i^k = x_i^{k-1} and
w_i^k = w_i^{k-1}: for a client of S_{k-1} that is not in S_k the two disagree.  Two readings:

    undone   step 3 as printed: the client loses its solve
    late     step 3 for xhat_i alone: the server hears of a solve when the client is drawn again

With everybody in every round both are the recursion (11).  Under partial participation neither is
FedDR (Remark 2); the package uploads xhat_i^{k+1} after the solve, as Algorithms 1 and 2 do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest

import fedadmm as fa
from support.federations import Array, Federation, assert_same, federation, run

ETA = 0.5


def printed(
    given: Federation, cohorts: Sequence[Sequence[int]], reading: Literal["undone", "late"]
) -> Array:
    """The models xbar^0, xbar^1, … that the printed steps give, g = 0."""
    n = given.clients
    x = np.tile(given.start, (n, 1))
    w, xhat = np.zeros_like(x), x.copy()
    before = (x.copy(), w.copy())  # x^{k-1} and w^{k-1}
    models = []
    for active in cohorts:
        for i in range(n):  # step 3
            if i in active:
                xhat[i] = x[i] + w[i]
            elif reading == "undone":
                x[i], w[i] = before[0][i], before[1][i]
        before = (x.copy(), w.copy())
        xbar = given.a @ xhat  # step 5
        models.append(xbar)
        for i in active:  # step 7
            x[i] = given.prox(i, xbar - w[i], ETA)
            w[i] = w[i] + x[i] - xbar
    return np.array(models)


def draws(clients: int, size: int, rounds: int) -> list[list[int]]:
    generator = np.random.default_rng(3)
    return [sorted(generator.choice(clients, size, replace=False)) for _ in range(rounds)]


@pytest.mark.parametrize("reading", ["undone", "late"])
def test_with_full_participation_the_printed_indices_are_the_recursion(reading):
    given = federation(71)
    ours = run(fa.FedDRII(ETA), given, 30)
    models = printed(given, [range(5)] * 31, reading)
    np.testing.assert_allclose(models[0], given.start, atol=1e-14)
    assert_same(models[1:], ours.trajectory)


def test_read_as_printed_no_model_ever_moves_when_clients_take_turns():
    given = federation(72)
    turns = [[k % 5] for k in range(60)]
    models = printed(given, turns, "undone")
    np.testing.assert_allclose(models, np.tile(given.start, (60, 1)), atol=1e-14)
    ours = run(fa.FedDRII(ETA), given, 60, sampler=fa.CyclicSampling(1))
    far = np.linalg.norm(given.start - given.optimum)
    assert np.linalg.norm(ours.params.numpy() - given.optimum) < 0.1 * far


def test_late_uploads_are_another_method_with_the_same_limit():
    """Remark 2 calls FedDR and FedDR-II equivalent; the models differ after the first round."""
    given, cohorts = federation(73), draws(5, 2, 800)
    ours = run(fa.FedDRII(ETA), given, 40, sampler=fa.TraceSampling(cohorts[:40]))
    feddr = run(fa.FedDR(ETA), given, 40, sampler=fa.TraceSampling(cohorts[:40]))
    assert_same(ours.trajectory, feddr.trajectory)
    models = printed(given, cohorts, "late")
    apart = np.abs(models[1:41] - np.array([m.numpy() for m in ours.trajectory])).max(1)
    assert apart[0] > 1e-2
    np.testing.assert_allclose(models[-1], given.optimum, atol=1e-8)
