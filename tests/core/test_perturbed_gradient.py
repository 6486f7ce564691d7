"""Perturbed gradients against numpy, their rest point, and what they must leave alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core.local_work import SolveContext
from fedadmm.core.objectives import losses
from fedadmm.core.protocols import LocalProblem, Needs
from fedadmm.run.engines import VirtualTime
from support.engines import ALGORITHMS, PROBLEMS, assert_same_run, model_federation, run
from support.federations import federation
from support.federations import run as run_quadratics


class Recording(fa.LeastSquares):
    """Least squares that remembers where its gradients were taken, and over which rows."""

    def gradient(self, params, rows=None):
        order = np.arange(len(self.targets)) if rows is None else rows.numpy().copy()
        self.__dict__.setdefault("calls", []).append((params.numpy().copy(), order))
        return super().gradient(params, rows)


def perturbed(gradient, w, r, share, normalised):
    """(1 - share) g(w) + share g(w + r d), as in the paper."""
    here = gradient(w)
    way = here / np.linalg.norm(here) if normalised else here
    return (1 - share) * here + share * gradient(w + r * way)


@pytest.mark.parametrize(
    ("share", "normalised", "momentum", "batch_size"),
    list(itertools.product([0.3, 1.0], [True, False], [0.0, 0.6], [None, 5])),
)
def test_the_steps_are_those_of_the_paper(share, normalised, momentum, batch_size):
    """The rows of the steps are read from the calls; all else is numpy."""
    draws = np.random.default_rng(4)
    x, y = draws.normal(size=(13, 4)), draws.normal(size=13)
    start, linear, centre = draws.normal(size=(3, 4))
    objective = Recording(torch.from_numpy(x), torch.from_numpy(y), 0.1)
    solver = fa.SGD(0.05, batch_size, momentum, fa.SAM(0.2, share, normalised))
    problem = LocalProblem(
        torch.from_numpy(start), torch.from_numpy(linear), 0.7, torch.from_numpy(centre)
    )
    context = SolveContext(needs=Needs(mean_gradient=True))
    result, info = solver.solve(objective, problem, fa.Steps(7), 3, context)

    w, velocity, used = start.copy(), np.zeros(4), []
    calls = objective.calls
    assert len(calls) == 2 * info.steps == 14
    for (here, rows), (_, again) in zip(calls[::2], calls[1::2], strict=True):
        np.testing.assert_array_equal(rows, again)  # one mini-batch, two gradients
        np.testing.assert_allclose(here, w, rtol=0, atol=1e-12)

        def gradient(point, x=x[rows], y=y[rows]):
            return x.T @ (x @ point - y) / len(y) + 0.1 * point

        used.append(perturbed(gradient, w, 0.2, share, normalised))
        velocity = momentum * velocity + 0.05 * (used[-1] + linear + 0.7 * (w - centre))
        w = w - velocity
    np.testing.assert_allclose(result.params, w, rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.mean_gradient, np.mean(used, axis=0), rtol=0, atol=1e-10)
    assert info.passes == pytest.approx(2 * info.epochs if batch_size is None else 2 * 31 / 13)


@pytest.mark.parametrize("method", [fa.FedADMM(1.5), fa.FedDyn(0.7), fa.Scaffold(), fa.FedDR(0.6)])
def test_a_run_rests_where_the_flattened_objective_is_least(method):
    """grad f + s A (r grad f) = grad (f + (s r / 2) ||grad f||^2) for a quadratic f."""
    given = federation(7, weights=(1.0, 3.0, 0.5, 2.0, 1.5))
    r, share = 0.2, 0.6
    solver = fa.SGD(0.02, None, perturb=fa.SAM(r, share, normalised=False))
    result = run_quadratics(
        method, given, rounds=900, solver=solver, stop=fa.Steps(10), sampler=fa.FullParticipation()
    )
    flatter = [np.eye(len(A)) + share * r * A for A in given.A]
    left = sum(a * P @ A for a, P, A in zip(given.a, flatter, given.A, strict=True))
    right = sum(a * P @ b for a, P, b in zip(given.a, flatter, given.b, strict=True))
    expected = np.linalg.solve(left, right)
    np.testing.assert_allclose(result.params, expected, rtol=0, atol=1e-9)
    assert np.linalg.norm(expected - given.optimum) > 1e-3


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "fedsgd"])
@pytest.mark.parametrize("problem", ["perceptron", "least squares"])
def test_every_method_stacked(name, problem):
    solver = fa.SGD(0.05, 4, perturb=fa.SAM(0.1, 0.7, normalised=name != "fedavg"))
    expected = run("sequential", ALGORITHMS[name], PROBLEMS[problem](), solver=solver)
    found = run("vectorised", ALGORITHMS[name], PROBLEMS[problem](), solver=solver)
    assert_same_run(found, expected)
    plain = run("sequential", ALGORITHMS[name], PROBLEMS[problem](), solver=fa.SGD(0.05, 4))
    assert not torch.equal(plain.params, expected.params)
    for left, right in zip(expected.history, plain.history, strict=True):
        # Scaffnew's coin ends a solve inside an epoch, where steps and rows are different shares.
        plain_work = right["work"]
        steps = plain_work["passes"] if name == "scaffnew" else plain_work["epochs"]
        assert left["work"]["passes"] == pytest.approx(plain_work["passes"] + steps)


@pytest.mark.parametrize("engine", ["workers", VirtualTime(mode="sync")])
def test_other_engines(engine):
    solver = fa.SGD(0.05, 4, momentum=0.3, perturb=fa.SAM(0.1))
    method = fa.FedDyn(0.7)
    expected = run("sequential", method, PROBLEMS["perceptron"](), solver=solver)
    found = run(engine, method, PROBLEMS["perceptron"](), solver=solver)
    assert torch.equal(found.params, expected.params)


def test_statistics_are_those_of_the_models_that_are_trained():
    """The batch is normalised ahead of w too, but only w's own statistics are remembered."""

    def kept(solver):
        problem = model_federation(
            lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)),
            losses.cross_entropy,
            sizes=(6, 8),
            buffers="average",
        )
        result = fa.simulate(
            fa.FedAvg(), problem, 1, solver=solver, stop=fa.Steps(1), evaluate=False
        )
        return result.buffers

    plain = kept(fa.SGD(0.1, None))
    assert torch.equal(kept(fa.SGD(0.1, None, perturb=fa.SAM(0.5))), plain)
    assert not torch.equal(plain[:5], torch.zeros(5, dtype=plain.dtype))


@pytest.mark.parametrize("normalised", [True, False])
def test_where_the_gradient_is_zero_there_is_no_way_ahead(normalised):
    point = torch.tensor([1.0, -2.0], dtype=torch.float64)
    objective = fa.Quadratic(torch.eye(2, dtype=torch.float64), point)
    solver = fa.SGD(0.1, perturb=fa.SAM(0.5, normalised=normalised))
    result, _ = solver.solve(objective, LocalProblem(point), fa.Steps(3), 0)
    assert torch.equal(result.params, point)


def test_the_options_are_checked():
    with pytest.raises(fa.ParameterError, match=r"SAM: radius is 0, but must be > 0"):
        fa.SAM(0)
    with pytest.raises(fa.ParameterError, match=r"SAM: share is 1.5, but must be > 0"):
        fa.SAM(0.1, 1.5)
    with pytest.raises(fa.ParameterError, match=r"SGD: perturb is 0.1, but must be"):
        fa.SGD(0.1, perturb=0.1)
