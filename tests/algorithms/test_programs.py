"""The authors' own programs, and the setting of ours that each of them is.

The programs are numpy from `support.programs`; participation is scripted, work is full-batch steps
or exact solves.  Where a program is not any setting of ours, its limit is compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.run.engines import VirtualTime
from support import programs, reference
from support.federations import WEIGHTS, assert_same, federation, run, stacked
from support.programs import Work, logistic

COHORTS = [[0, 2], [1], [3, 0], [2, 3, 1], [0], [1, 2], [3], [0, 1, 2, 3], [2], [1, 3]] * 3
"""Clients join in the rounds 0, 1 and 2; some rounds have one participant."""
GIVEN = logistic(3)
PLAIN = Work(4, 0.3)


def ours(method: Any, work: Work = PLAIN, **options: Any) -> list[torch.Tensor]:
    weights = options.pop("weights", None)
    settings: dict[str, Any] = {
        "sampler": fa.TraceSampling(COHORTS),
        "solver": fa.SGD(work.lr, batch_size=None, momentum=work.momentum),
        "stop": fa.Steps(work.steps),
        "keep_trajectory": True,
        "evaluate": False,
    }
    return fa.simulate(
        method, GIVEN.problem(weights), len(COHORTS), **(settings | options)
    ).trajectory


RELEASED = fa.algorithms.FedADMMReleased(0.4, step=fa.schedules.Piecewise({0: 1.0, 12: 0.5}))
EQUAL = np.full(4, 0.25)


def test_gongs_program():
    """Momentum 0.5, training from theta, 2 (w - theta) sent, a step that falls to one half."""
    work = Work(4, 0.1, momentum=0.5)
    theirs = programs.released_fedadmm(
        GIVEN.gradient, GIVEN.start, COHORTS, EQUAL, 0.4, work, change=12
    )
    assert_same(ours(RELEASED, work, start="global"), theirs)
    assert np.abs(theirs - stacked(ours(fa.FedADMM(0.4), work))).max() > 0.1


def test_fl_benchs_fedadmm():
    """Gong's program without momentum, weighted by the clients' rows."""
    shares = GIVEN.sizes / GIVEN.sizes.sum()
    theirs = programs.released_fedadmm(
        GIVEN.gradient, GIVEN.start, COHORTS, shares, 0.4, PLAIN, change=12
    )
    assert_same(ours(RELEASED, weights=list(shares), start="global"), theirs)


def test_wangs_program():
    eta = 0.8
    theirs = programs.wang(GIVEN.gradient, GIVEN.start, COHORTS, 4, eta, PLAIN)
    assert_same(ours(fa.algorithms.FedADMMWangReleased(1 / eta), start="current"), theirs)
    assert np.abs(theirs - stacked(ours(fa.FedADMM(1 / eta), start="current"))).max() > 1e-2


def soft(v: np.ndarray, t: float) -> np.ndarray:
    return reference.soft_threshold(v, 0.1 * t)


TRACE = [[0, 2], [1], [3, 4], [0, 1, 2, 3, 4], [4], [2, 3], [1, 0], [4, 2]] * 6
AT_ONCE = [(cohort, [0] * len(cohort)) for cohort in TRACE]
FOR_LONG = TRACE * 10


def test_feddrs_program_from_zero():
    """alpha = 1.95, weights by rows, l1."""
    given = federation(5, weights=WEIGHTS, regularizer=fa.L1(0.1))
    given = given._replace(start=np.zeros(4))
    theirs = programs.feddr(given, AT_ONCE, 0.9, 1.95, slots_at_zero=True, prox=soft)
    method = fa.FedDR(0.9, alpha=1.95)
    assert_same(run(method, given, len(TRACE), sampler=fa.TraceSampling(TRACE)).trajectory, theirs)


def test_feddrs_program_with_full_participation_is_independent_of_the_start():
    """v_i = 0 and x_i = x^0 = xbar: the first prox is at zero, so the run is ours from zero."""
    given = federation(5, weights=WEIGHTS)
    everybody = [(range(5), [0] * 5)] * 40
    theirs = programs.feddr(given, everybody, 0.9, 1.5, slots_at_zero=True)
    from_zero = run(fa.FedDR(0.9, alpha=1.5), given._replace(start=np.zeros(4)), 40)
    assert_same(from_zero.trajectory, theirs)


@pytest.mark.parametrize("slots_at_zero", [True, False])
def test_feddrs_programs_from_elsewhere_take_another_way_to_the_same_place(slots_at_zero):
    """The slots are replaced and not moved, so what they held at first does not stay."""
    given = federation(5, weights=WEIGHTS)
    theirs = programs.feddr(given, AT_ONCE * 10, 0.9, 1.0, slots_at_zero)
    sampler = fa.TraceSampling(TRACE, repeat=True)
    mine = stacked(run(fa.FedDR(0.9), given, len(theirs), sampler=sampler).trajectory)
    assert np.abs(mine - theirs)[:10].max() > 0.1
    assert np.abs(theirs[-1] - given.optimum).max() < 1e-10
    assert np.abs(mine[-1] - given.optimum).max() < 1e-10


def test_asyncfeddrs_program():
    """From zero it is ours under the same arrivals; from elsewhere the limit is the same."""
    given = federation(6, weights=WEIGHTS)
    zero = given._replace(start=np.zeros(4))
    late = run(fa.AsyncFedDR(0.5, 0.9), zero, 600, engine=VirtualTime(ratio=6.0), seed=7)
    arrivals = [(record["cohort"]["clients"], record["clock"]["delays"]) for record in late.history]
    assert max(delay for _, delays in arrivals for delay in delays) >= 5
    assert_same(late.trajectory, programs.feddr(zero, arrivals, 0.5, 0.9, slots_at_zero=False))
    elsewhere = programs.feddr(given, arrivals, 0.5, 0.9, slots_at_zero=False)
    assert np.abs(elsewhere[:20] - stacked(late.trajectory[:20])).max() > 0.1
    far = np.abs(given.start - given.optimum).max()
    assert np.abs(elsewhere[-1] - given.optimum).max() < 1e-4 * far


def test_insas_program():
    """Criterion against e(z), start z, memory, and absent clients with their new penalty."""
    rule = {"mu": 1.5, "tau": 2.0}
    theirs, betas, epochs = programs.insa(
        GIVEN.gradient, GIVEN.start, COHORTS, 4, 0.3, 0.3, **rule, delta=0.01, c=0.01, epochs=8
    )
    method = fa.algorithms.FedADMMInSaReleased(0.3, memory=0.01, **rule)
    stop = fa.stopping.InSaCriterion(reference="global", c=0.01, max_epochs=8)
    assert_same(ours(method, stop=stop, start="global"), theirs)
    assert len(set(betas)) > 1
    assert len(set(epochs)) > 2
    assert max(epochs) == 8


ALPHA = 0.7


def test_acars_feddyn_with_clients_of_one_size():
    solve = programs.held(GIVEN.gradient, PLAIN)
    theirs = programs.feddyn(solve, GIVEN.start, COHORTS, np.full(4, ALPHA))
    assert_same(ours(fa.FedDyn(1 / ALPHA)), theirs)


def exact(given: Any) -> Any:
    solve = reference.exact(given)
    return lambda i, theta, history, alpha: solve(i, theta, alpha * history, alpha, theta)


def test_acars_feddyn_with_clients_of_other_sizes():
    """alpha_i = alpha N/(n n_i) with plain means is FedDyn with equal weights on n a_i f_i.

    n a_i times the client's local problem has the penalty alpha again, and the mean of these losses
    is sum a_i f_i.  With the weights a_i on the f_i themselves the way is another, the optimum not.
    """
    given = federation(8, weights=WEIGHTS)
    scale = given.clients * given.a
    theirs = programs.feddyn(exact(given), given.start, FOR_LONG, ALPHA / scale)
    scaled = given._replace(
        problem=fa.Problem(
            [
                fa.Quadratic(s * client.A, s * client.b)
                for s, client in zip(scale, given.problem.clients, strict=True)
            ]
        )
    )
    options = {"rounds": len(FOR_LONG), "sampler": fa.TraceSampling(FOR_LONG)}
    assert_same(run(fa.FedDyn(1 / ALPHA), scaled, **options).trajectory, theirs)
    weighted = stacked(run(fa.FedDyn(1 / ALPHA), given, **options).trajectory)
    assert np.abs(weighted - theirs)[:10].max() > 1e-2
    for trajectory in (weighted, theirs):
        assert np.abs(trajectory[-1] - given.optimum).max() < 1e-8


def test_acars_scaffold():
    theirs = programs.scaffold(GIVEN.gradient, GIVEN.start, COHORTS, 4, PLAIN)
    assert_same(ours(fa.Scaffold()), theirs)


def test_pfllibs_scaffold():
    """The same with a server learning rate."""
    theirs = programs.scaffold(GIVEN.gradient, GIVEN.start, COHORTS, 4, PLAIN, step=0.6)
    assert_same(ours(fa.Scaffold(step=0.6)), theirs)
