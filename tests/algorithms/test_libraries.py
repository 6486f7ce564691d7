"""Libraries whose FedDyn or SCAFFOLD is another method: what the mistake does, and it mended.

Every program runs on quadratics, where the limit that a mistake leads to has a closed form.  The
mended program is the same function without the mistake, and is ours to rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedadmm as fa
from support import programs
from support.federations import Array, assert_same, federation, run
from support.programs import Work

GIVEN = federation(21)
WORK = Work(5, 0.1)
ALPHA = 0.4
ALPHAS = np.full(GIVEN.clients, ALPHA)
EVERYBODY = [range(GIVEN.clients)] * 1500
COHORTS = [[0, 2], [1], [3, 4], [0, 1, 2, 3, 4], [4, 1], [2, 3]] * 5


def ours(method: Any, cohorts: Any) -> Any:
    options = {"solver": fa.GradientDescent(WORK.lr), "stop": fa.Steps(WORK.steps)}
    sampler = fa.TraceSampling(cohorts)
    return run(method, GIVEN, len(cohorts), sampler=sampler, **options).trajectory


def feddyn(cohorts: Any, **mistake: Any) -> Array:
    solve = programs.held(GIVEN.gradient, WORK, **mistake)
    return programs.feddyn(solve, GIVEN.start, cohorts, ALPHAS)


def scaffold(cohorts: Any, **mistake: Any) -> Array:
    return programs.scaffold(GIVEN.gradient, GIVEN.start, cohorts, GIVEN.clients, WORK, **mistake)


def drifted() -> Array:
    """Where FedAvg with K local steps rests: the mean of the clients' moves is zero.

    A client moves by -P_i (x - x_i), P_i = I - (I - lr A_i)^K, x_i its own optimum.
    """
    identity = np.eye(GIVEN.b.shape[1])
    P = [identity - np.linalg.matrix_power(identity - WORK.lr * A, WORK.steps) for A in GIVEN.A]
    own = [np.linalg.solve(A, b) for A, b in zip(GIVEN.A, GIVEN.b, strict=True)]
    return np.linalg.solve(sum(P), sum(p @ x for p, x in zip(P, own, strict=True)))


def distance(point: Array, other: Array) -> float:
    return float(np.linalg.norm(point - other))


def test_the_mended_programs_are_ours():
    assert_same(ours(fa.FedDyn(1 / ALPHA), COHORTS), feddyn(COHORTS))
    assert_same(ours(fa.Scaffold(), COHORTS), scaffold(COHORTS))


def test_the_mended_programs_reach_the_optimum():
    for program in (feddyn, scaffold):
        assert distance(program(EVERYBODY)[-1], GIVEN.optimum) < 1e-10
    assert distance(drifted(), GIVEN.optimum) > 0.05


def test_pfllibs_feddyn_penalises_the_norm():
    """Its pull is as strong near theta as far away.

    A client whose corrected gradient is shorter than alpha/2 is held at theta, wherever that is:
    the duals stop before they agree, and theta settles beside the optimum.
    """

    def unit(w: Array, theta: Array) -> Array:
        length = np.linalg.norm(w - theta)
        return (w - theta) / (2 * length) if length > 0 else np.zeros_like(w)

    theirs = feddyn(EVERYBODY, penalty=unit)
    assert min(distance(theta, GIVEN.optimum) for theta in theirs[-500:]) > 0.05


def test_fl_benchs_feddyn_lacks_the_quadratic_term():
    """<-theta, w> alone is left of ||w - theta||^2 / 2: the limit minimises f - (alpha/2) ||x||^2.

    A weight decay of alpha puts the term back, as in Acar's program, from which the line comes.
    """
    theirs = feddyn(EVERYBODY, penalty=lambda w, theta: -theta)
    A, b = GIVEN.A.mean(0), GIVEN.b.mean(0)
    limit = np.linalg.solve(A - ALPHA * np.eye(len(b)), b)
    assert distance(theirs[-1], limit) < 1e-10
    assert distance(limit, GIVEN.optimum) > 0.1
    decaying = programs.held(
        lambda i, w: GIVEN.gradient(i, w) + ALPHA * w, WORK, penalty=lambda w, theta: -theta
    )
    decayed = programs.feddyn(decaying, GIVEN.start, COHORTS, ALPHAS)
    assert_same(ours(fa.FedDyn(1 / ALPHA), COHORTS), decayed)


def test_fedlabs_feddyn_penalty_has_no_gradient():
    """Clients make FedAvg's steps, and the server's sum of moves drives theta to FedAvg's rest."""
    theirs = feddyn(EVERYBODY, detached=True)
    assert distance(theirs[-1], drifted()) < 1e-10


def test_fl_benchs_scaffold_never_stores_the_clients_variates():
    """c_i stays zero, so c adds up the mean gradients until they vanish: at FedAvg's rest."""
    theirs = scaffold(EVERYBODY, stores=False)
    assert distance(theirs[-1], drifted()) < 1e-10


@pytest.mark.parametrize("cohorts", [COHORTS, EVERYBODY[:40]])
def test_fedlabs_scaffold_is_fedavg(cohorts):
    """Gradients are corrected in a copy that no step uses."""
    assert_same(ours(fa.FedAvg(), cohorts), scaffold(cohorts, corrects=False))
