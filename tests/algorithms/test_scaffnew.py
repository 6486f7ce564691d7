"""Scaffnew: Algorithm 2 of the ProxSkip paper step by step, and its rounds by sqrt(kappa)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.core.contracts import Round
from support.federations import ROUNDS, WEIGHTS, Federation, assert_same, federation, run, snapshots
from support.rejections import naming

LR, P = 0.15, 0.3


def tosses(rounds: int) -> list[int]:
    """How many local steps each round of a run with seed 3 has, read off what was sent."""
    given = federation(111)
    options = {"solver": fa.GradientDescent(LR), "seed": 3}
    taken = snapshots(fa.Scaffnew(P), given, rounds, **options)
    return [round(snapshot.record["work"]["steps"] / given.clients) for snapshot in taken]


def proxskip(given: Federation, steps: list[int], lr: float, p: float):
    """The paper's loop over iterations with a model per client; what each communication leaves."""
    n, d = given.b.shape
    x, h, thetas, controls = np.tile(given.start, (n, 1)), np.zeros((n, d)), [], []
    for length in steps:
        for k in range(length):
            hat = np.array([x[i] - lr * (given.gradient(i, x[i]) - h[i]) for i in range(n)])
            ends = k == length - 1
            x = np.tile(given.a @ (hat - (lr / p) * h), (n, 1)) if ends else hat
            h = h + (p / lr) * (x - hat)
        thetas.append(x[0].copy())
        controls.append(h.copy())
    return np.array(thetas), np.array(controls)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_against_the_algorithm_as_printed(weights):
    given = federation(111, weights=weights)
    steps = tosses(ROUNDS)
    assert len(set(steps)) > 3
    taken = snapshots(fa.Scaffnew(P), given, solver=fa.GradientDescent(LR), seed=3)
    thetas, controls = proxskip(given, steps, LR, P)
    assert_same([snapshot.theta for snapshot in taken], thetas)
    for snapshot, expected in zip(taken, controls, strict=True):
        known = [client.z + client.ratio * snapshot.theta for client in snapshot.clients]
        assert_same(known, expected)
        assert np.abs(given.a @ expected).max() < 1e-10


def test_the_coin_is_geometric_and_shared():
    method = fa.Scaffnew(0.25)
    server = method.init_server(federation(112).initial)
    lengths = np.array([method.broadcast(server, Round(0, key)).steps for key in range(4000)])
    for k in range(1, 6):
        share = 0.25 * 0.75 ** (k - 1)
        slack = 4 * math.sqrt(share * (1 - share) / len(lengths))
        assert abs((lengths == k).mean() - share) < slack
    assert (
        np.array([fa.Scaffnew(1.0).broadcast(server, Round(0, k)).steps for k in range(9)]) == 1
    ).all()


def test_a_rate_per_client_keeps_the_sum_of_control_variates_and_the_optimum():
    given = federation(113, weights=WEIGHTS)
    solver = fa.GradientDescent((0.1, 0.2, 0.15, 0.12, 0.25))
    taken = snapshots(fa.Scaffnew(P), given, 400, solver=solver, seed=4)
    for snapshot in taken[:50]:
        known = [client.z + client.ratio * snapshot.theta for client in snapshot.clients]
        total = sum(a * h.numpy() for a, h in zip(given.a, known, strict=True))
        assert np.abs(total).max() < 1e-10
    assert np.linalg.norm(taken[-1].theta.numpy() - given.optimum) < 1e-8


def ill_conditioned(kappa: float, seed: int) -> Federation:
    """Clients with eigenvalues from 1 to kappa in axes of their own."""
    given = federation(seed, clients=4, dimension=6)
    draws = np.random.default_rng(seed)
    axes = np.linalg.qr(draws.normal(size=(4, 6, 6)))[0]
    A = np.einsum("kij,j,klj->kil", axes, np.geomspace(1, kappa, 6), axes)
    A = (A + A.transpose(0, 2, 1)) / 2
    clients = [fa.Quadratic(torch.from_numpy(A[i]), torch.from_numpy(given.b[i])) for i in range(4)]
    return given._replace(A=A, problem=fa.Problem(clients))


def rounds_to(method, kappa: float, limit: int, solver, stop=None) -> float:
    """The mean over some seeds of the rounds until the error is a millionth of the first one."""
    counts = []
    for seed in range(4):
        given = ill_conditioned(kappa, 20 + seed)
        aim = 1e-6 * np.linalg.norm(given.start - given.optimum)
        trajectory = run(method, given, limit, solver=solver, stop=stop, seed=seed).trajectory
        errors = [np.linalg.norm(theta.numpy() - given.optimum) for theta in trajectory]
        assert errors[-1] < aim
        counts.append(next(i for i, error in enumerate(errors, 1) if error < aim))
    return float(np.mean(counts))


def test_rounds_grow_like_the_root_of_the_condition_number():
    """With lr = 1/L and p = 1/sqrt(kappa): sixteen times kappa, about four times the rounds."""
    small, large = 16.0, 256.0
    needed = [
        rounds_to(fa.Scaffnew(1 / math.sqrt(kappa)), kappa, limit, fa.GradientDescent(1 / kappa))
        for kappa, limit in ((small, 250), (large, 900))
    ]
    assert 2.0 < needed[1] / needed[0] < 6.5
    # the theorem's own count: sqrt(kappa) log(1/eps^2), with the first distance of the h_i in it
    for kappa, count in zip((small, large), needed, strict=True):
        assert count < 2 * math.sqrt(kappa) * math.log(1e12)


def test_a_rule_that_ends_solves_by_itself_is_rejected():
    with pytest.raises(
        fa.errors.CompatibilityError, match=naming("algorithm Scaffnew GradientTolerance")
    ):
        run(
            fa.Scaffnew(),
            federation(114),
            1,
            solver=fa.GradientDescent(0.1),
            stop=fa.stopping.GradientTolerance(1e-3),
        )
