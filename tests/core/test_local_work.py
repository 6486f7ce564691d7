"""Where local work starts: the same for every method that keeps a model, on every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.algorithms import REGISTRY
from fedadmm.core.compatibility import default_requirements
from fedadmm.core.local_work import STARTS
from support import reference
from support.engines import ALGORITHMS, PROBLEMS, run as short_run
from support.federations import ROUNDS, WEIGHTS, Federation, assert_same, federation, run
from support.rejections import naming

KEEPERS = {
    "fedadmm": fa.FedADMM(rho=1.7),
    "fedadmm-in": fa.FedADMMIn(beta=1.7),
    "feddr": fa.FedDR(eta=0.6, alpha=1.3),
    "feddr-ii": fa.FedDRII(eta=0.6),
}
STEPS, LR = 3, 0.15
WORK: dict[str, Any] = {"solver": fa.GradientDescent(LR), "stop": fa.Steps(STEPS)}


def feddr(given: Federation, cohorts: list[list[int]], start: Any, eta: float, alpha: float) -> Any:
    """FedDR's xbar after every round, with a few gradient steps from `start`."""
    solve = reference.gradient_steps(given, STEPS, LR)
    n = given.clients
    xbar = given.start.copy()
    x, v = np.tile(xbar, (n, 1)), np.tile(xbar, (n, 1))
    seen: set[int] = set()
    trajectory = []
    for cohort in cohorts:
        for i in cohort:
            v[i] = v[i] + alpha * (xbar - x[i])
            begin = reference.begin(start, xbar, x[i], i in seen)
            x[i] = solve(i, begin, np.zeros_like(xbar), 1 / eta, v[i])
        seen |= set(cohort)
        xbar = given.a @ (2 * x - v)
        trajectory.append(xbar.copy())
    return np.array(trajectory)


def expected(name: str, given: Federation, cohorts: list[list[int]], start: Any) -> Any:
    if name in ("feddr", "feddr-ii"):
        return feddr(given, cohorts, start, 0.6, 1.3 if name == "feddr" else 1.0)
    solve = reference.gradient_steps(given, STEPS, LR)
    return reference.fedadmm(given, cohorts, lambda t: 1.7, solve, start=start)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", KEEPERS)
def test_a_solve_starts_where_it_is_asked_to(name, start):
    given, sampler = federation(41, weights=WEIGHTS), fa.UniformSampling(2)
    cohorts = [list(sampler.sample(2, t, given.clients)) for t in range(ROUNDS)]
    found = run(KEEPERS[name], given, sampler=sampler, seed=2, start=start, **WORK)
    assert_same(found.trajectory, expected(name, given, cohorts, start))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("engine", ["vectorised", "workers", "auto"])
@pytest.mark.parametrize("name", KEEPERS)
def test_every_engine_starts_there(name, engine, start):
    problem = PROBLEMS["logistic"]()
    one = short_run("sequential", KEEPERS[name], problem, start=start)
    assert_same(one.trajectory, short_run(engine, KEEPERS[name], problem, start=start).trajectory)


@pytest.mark.parametrize("name", ["fedpd", "fedsplit"])
def test_own_and_current_starts_agree_with_full_participation(name):
    """Their difference is the first round of a client, which is round 0 for all; global differs."""
    ways = [
        short_run("sequential", ALGORITHMS[name], PROBLEMS["logistic"](), start=s).params
        for s in STARTS
    ]
    assert torch.equal(ways[0], ways[1])
    assert not torch.allclose(ways[0], ways[2], atol=1e-6)


def test_local_work_starts_at_the_global_model_unless_a_paper_prints_otherwise():
    """Gong's figure 9 is the one method whose definition has its start."""
    starts = {name: default_requirements(kind).default_start for name, kind in REGISTRY.items()}
    assert {name: start for name, start in starts.items() if start != "global"} == {
        "fedadmm-printed": "own"
    }


def test_the_default_is_a_run_from_theta():
    given = federation(41)
    usual, said = (run(fa.FedADMM(1.7), given, **WORK, **s) for s in ({}, {"start": "global"}))
    assert_same(usual.trajectory, said.trajectory)


@pytest.mark.parametrize("start", ["own", "current"])
@pytest.mark.parametrize(
    "method", [fa.FedAvg(), fa.Scaffold(), fa.FedDyn(1.0), fa.AlignedADMM(1.0)]
)
def test_a_method_without_models_of_its_clients_has_no_choice(method, start):
    given = federation(42)
    run(method, given, rounds=1, start="global", **WORK)
    names = f"algorithm {type(method).__name__} local.start='global'"
    with pytest.raises(fa.errors.CompatibilityError, match=naming(names)):
        run(method, given, rounds=1, start=start, **WORK)


def test_an_unknown_start_is_rejected():
    names = "start 'here' 'own' 'current' 'global'"
    with pytest.raises(fa.errors.ParameterError, match=naming(names)):
        run(fa.FedADMM(1.0), federation(42), rounds=1, start="here", **WORK)
