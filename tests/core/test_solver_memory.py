"""A solver with per-client memory: Adam's moments, against numpy and torch.

The memory is kept on every engine and across an interruption.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.core.contracts import LocalNeeds, LocalProblem
from fedadmm.core.local_work import SolveContext
from support import resumable
from support.engines import PROBLEMS, assert_same_run, run
from support.federations import WEIGHTS, Array, assert_same, federation, run as run_quadratics
from support.rejections import naming
from support.thinning import thinned

STEPS, RHO = 4, 1.3
ROUNDS = 12
COHORTS = fa.UniformSampling(2)


def adam(given, beta1: float, beta2: float, lr: float, eps: float, keep: bool) -> Array:
    """SISA's step, several times a round where there are several: FedADMM's server over all."""
    n, zero = given.clients, np.zeros_like(given.start)
    theta, y, u = given.start.copy(), [zero] * n, [given.start.copy() for _ in range(n)]
    memory = [(zero, zero, 0)] * n
    trajectory = []
    for t in range(ROUNDS):
        for i in COHORTS.sample(0, t, n):
            m, v, count = memory[i] if keep else (zero, zero, 0)
            w = theta.copy()
            for _ in range(STEPS if not keep else 1):
                g, count = given.gradient(i, w), count + 1
                m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
                scale = (np.sqrt(v / (1 - beta2**count)) + eps) / lr
                way = m / (1 - beta1**count) + y[i] + RHO * (w - theta)
                w = w - way / (RHO + scale)
            memory[i] = (m, v, count)
            y[i] = y[i] + RHO * (w - theta)
            u[i] = w + y[i] / RHO
        theta = given.a @ np.array(u)
        trajectory.append(theta)
    return np.array(trajectory)


@pytest.mark.parametrize(("beta1", "keep"), [(0.0, True), (0.6, True), (0.0, False), (0.6, False)])
def test_one_kept_step_is_sisas_with_corrected_moments_and_several_repeat_it(beta1, keep):
    given = federation(35, weights=WEIGHTS)
    moments = "kept" if keep else "fresh"
    solver = fa.Adam(0.1, None, beta1, 0.9, 1e-3, moments=moments)
    options = {"sampler": COHORTS, "solver": solver, "stop": fa.Steps(1 if keep else STEPS)}
    found = run_quadratics(fa.FedADMM(RHO), given, rounds=ROUNDS, **options)
    assert_same(found.trajectory, adam(given, beta1, 0.9, 0.1, 1e-3, keep))


@pytest.mark.parametrize("linear", [None, torch.tensor([1.0, -20.0, 0.3, 0.0]).double()])
@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize("batch_size", [None, 5])
def test_without_a_quadratic_term_it_is_torchs_adamw(decay, batch_size, linear):
    draws = np.random.default_rng(4)
    x, y = torch.from_numpy(draws.normal(size=(13, 4))), torch.from_numpy(draws.normal(size=13))
    calls = []

    class Recording(fa.LeastSquares):
        def gradient(self, params, rows=None):
            calls.append(torch.arange(13) if rows is None else rows.clone())
            return super().gradient(params, rows)

    start = torch.from_numpy(draws.normal(size=4))
    solver = fa.Adam(0.03, batch_size, 0.8, 0.95, 1e-6, decay)
    context = SolveContext(needs=LocalNeeds(mean_gradient=True))
    result, info = solver.solve(
        Recording(x, y, 0.1), LocalProblem(start, linear), fa.Steps(9), 3, context
    )
    w = start.clone().requires_grad_(True)
    optimiser = torch.optim.AdamW([w], 0.03, (0.8, 0.95), 1e-6, decay)
    gradients = []
    for rows in calls:
        optimiser.zero_grad()
        loss = (x[rows] @ w - y[rows]).square().mean() / 2 + 0.05 * w.square().sum()
        loss.backward()
        gradients.append(w.grad.clone())
        w.grad += 0.0 if linear is None else linear
        optimiser.step()
    assert len(calls) == info.steps == 9
    torch.testing.assert_close(result.params, w.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(result.mean_gradient, torch.stack(gradients).mean(0))


@pytest.mark.parametrize("moments", ["fresh", "kept"])
@pytest.mark.parametrize("method", [fa.FedADMM(RHO), fa.FedDR(0.6), fa.AlignedADMM(RHO)], ids=str)
def test_adam_rests_at_the_optimum_of_a_primal_dual_method(method, moments):
    """P scales the way to the local solution, and not the solution."""
    given = federation(36, weights=WEIGHTS)
    solver = fa.Adam(0.2, None, 0.5, 0.9, 1.0, moments=moments)
    options = {"solver": solver, "stop": fa.Steps(10), "sampler": fa.UniformSampling(3)}
    result = run_quadratics(method, given, rounds=900, **options)
    np.testing.assert_allclose(result.params, given.optimum, rtol=0, atol=1e-8)


SOLVERS = {
    "adam": fa.Adam(0.02, 4),
    "kept": fa.Adam(0.02, 4, weight_decay=0.1, moments="kept"),
    "rates": fa.Adam([0.01, 0.02, 0.03, 0.01, 0.02, 0.03], None, moments="kept"),
}
METHODS = {
    "fedavg": fa.FedAvg(),
    "scaffold": fa.Scaffold(),
    "fedadmm": fa.FedADMM(0.5),
    "insa": fa.FedADMMInSa(0.5, mu=1.5),
    "aligned": fa.AlignedADMM(0.5),
}
STOPS = {
    "epochs": fa.UniformEpochs(3),
    "tolerance": fa.stopping.GradientTolerance(0.02, max_epochs=4),
}


@pytest.mark.parametrize(("solver", "method", "stop"), thinned(7, SOLVERS, METHODS, STOPS))
@pytest.mark.parametrize("problem", ["perceptron", "tanh", "least squares"])
def test_stacked(solver, method, stop, problem):
    given = {"solver": SOLVERS[solver], "stop": STOPS[stop], "rounds": 6}
    chosen = METHODS[method]
    expected = run("sequential", chosen, PROBLEMS[problem](), **given)
    found = run("vectorised", chosen, PROBLEMS[problem](), **given)
    assert_same_run(found, expected)
    forgetful = given | {"solver": fa.SGD(0.05, 4, momentum=0.3)}
    plain = run("sequential", chosen, PROBLEMS[problem](), **forgetful)
    assert not torch.equal(plain.params, expected.params)


@pytest.mark.parametrize("solver", SOLVERS)
def test_in_workers(solver):
    given = {"solver": SOLVERS[solver], "rounds": 5}
    expected = run("sequential", fa.FedADMM(0.5), PROBLEMS["perceptron"](), **given)
    found = run("workers", fa.FedADMM(0.5), PROBLEMS["perceptron"](), **given)
    assert torch.equal(found.params, expected.params)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_resumed(kind, tmp_path):
    options = {"solver": SOLVERS["kept"], "algorithm": fa.FedAvg()}
    resume = resumable.interrupted(tmp_path, 5, kind=kind, **options)
    resumable.assert_continued(resume(), resumable.run(8, **options), 5)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_round_without_steps_keeps_what_the_solver_keeps(engine):
    """FedADMM that begins with gradients asks everybody for one before the first round."""
    method, given = fa.FedADMM(0.5, dual="gradient"), {"solver": SOLVERS["kept"], "rounds": 1}
    result = run(engine, method, PROBLEMS["perceptron"](), **given)
    for client in range(6):
        _, v, made = result.clients.record(client).memory
        assert bool(made > 0) == bool(v.any())
    expected = run("sequential", method, PROBLEMS["perceptron"](), **given)
    assert_same_run(result, expected)


def test_what_does_not_fit_is_rejected():
    given = federation(37)
    with pytest.raises(fa.errors.CompatibilityError, match=naming("solver Adam FedNova")):
        run_quadratics(fa.FedNova(), given, solver=fa.Adam(0.1))
    with pytest.raises(fa.errors.CompatibilityError, match=naming("solver Adam PerWork")):
        run_quadratics(fa.FedADMM(fa.PerWork()), given, solver=fa.Adam(0.1))
