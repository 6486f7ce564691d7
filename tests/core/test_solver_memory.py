"""Solvers that keep something of a client: FedLESAM's direction and Adam's moments, against numpy.

Each on every engine, through an interruption and deployed: what a client keeps must come along.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.core.local_work import SolveContext
from fedadmm.core.protocols import LocalProblem, Needs
from support import resumable
from support.engines import PROBLEMS, assert_same_run, run
from support.federations import WEIGHTS, Array, assert_same, federation
from support.federations import run as run_quadratics

R, LR, STEPS, RHO = 0.3, 0.05, 4, 1.3
ROUNDS = 12
COHORTS = fa.UniformSampling(2)
LESAM = fa.SGD(LR, None, perturb=fa.LESAM(R))


def lesam(given, method: str) -> Array:
    """FedLESAM with FedAvg's server and FedLESAM-D with FedDyn's, from the paper."""
    n, zero = given.clients, np.zeros_like(given.start)
    theta, old = given.start.copy(), [given.start.copy() for _ in range(n)]
    y, h, trajectory = [zero] * n, zero, []
    for t in range(ROUNDS):
        cohort = list(COHORTS.sample(0, t, n))
        moves = {}
        for i in cohort:
            way = old[i] - theta
            e = R * way / np.linalg.norm(way) if way.any() else zero
            old[i], w = theta, theta.copy()
            for _ in range(STEPS):
                g = given.gradient(i, w + e)
                w = w - LR * (g + (y[i] + RHO * (w - theta) if method == "dyn" else 0))
            moves[i] = w - theta
        share = given.a[cohort].sum()
        mean = sum(given.a[i] * moves[i] for i in cohort) / share
        if method == "dyn":
            for i in cohort:
                y[i] = y[i] + RHO * moves[i]
            h = h + RHO * sum(given.a[i] * moves[i] for i in cohort)
            mean = mean + h / RHO
        theta = theta + mean
        trajectory.append(theta)
    return np.array(trajectory)


@pytest.mark.parametrize(
    ("name", "method"), [("avg", fa.FedAvg()), ("dyn", fa.FedDyn(1 / RHO))], ids=str
)
def test_fedlesam_is_the_papers(name, method):
    """Two of five clients a round, so that a client's last round is not everybody's."""
    given = federation(31, weights=WEIGHTS)
    options = {"sampler": COHORTS, "solver": LESAM, "stop": fa.Steps(STEPS)}
    found = run_quadratics(method, given, rounds=ROUNDS, **options)
    assert_same(found.trajectory, lesam(given, name))
    assert found.history[-1]["work"]["passes"] == pytest.approx(STEPS)  # one gradient a step


def test_aligned_admm_without_virtual_steps_is_fedlesam_d():
    given = federation(32)
    options = {"rounds": ROUNDS, "sampler": COHORTS, "solver": LESAM, "stop": fa.Steps(STEPS)}
    aligned = run_quadratics(fa.AlignedADMM(RHO, sigma=0.0), given, **options)
    dyn = run_quadratics(fa.FedDyn(1 / RHO), given, **options)
    assert_same(aligned.trajectory, dyn.trajectory)


def test_where_the_model_did_not_move_nothing_is_perturbed():
    """In a first round from the initial model, and in a solve of its own."""
    given = federation(33)
    options = {"rounds": 1, "stop": fa.Steps(STEPS)}
    perturbed = run_quadratics(fa.FedAvg(), given, solver=LESAM, **options)
    plain = run_quadratics(fa.FedAvg(), given, solver=fa.SGD(LR, None), **options)
    assert torch.equal(perturbed.params, plain.params)


def test_a_constant_perturbation_moves_the_limit_by_itself():
    """theta_old - theta goes to zero and its direction does not: the limit is not a point."""
    given = federation(34)
    options = {"solver": LESAM, "stop": fa.Steps(STEPS), "sampler": fa.FullParticipation()}
    result = run_quadratics(fa.FedDyn(1 / RHO), given, rounds=600, **options)
    away = np.linalg.norm(result.params.numpy() - given.optimum)
    assert 1e-3 < away < 2 * R


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
def test_one_kept_step_is_sisa_and_several_are_its_repetition(beta1, keep):
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
    context = SolveContext(needs=Needs(mean_gradient=True))
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
    "lesam": fa.SGD(0.05, 4, momentum=0.3, perturb=fa.LESAM(0.1)),
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
STOPS = {"epochs": fa.UniformEpochs(3), "tolerance": fa.GradientTolerance(0.02, max_epochs=4)}


CASES = list(itertools.product(SOLVERS, METHODS, STOPS))[::3]


@pytest.mark.parametrize(("solver", "method", "stop"), [*CASES, ("lesam", "fedmid", "epochs")])
@pytest.mark.parametrize("problem", ["perceptron", "tanh", "least squares"])
def test_stacked(solver, method, stop, problem):
    given = {"solver": SOLVERS[solver], "stop": STOPS[stop], "rounds": 6}
    chosen = METHODS.get(method, fa.FedMid())
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
@pytest.mark.parametrize("solver", ["lesam", "kept"])
def test_resumed(solver, kind, tmp_path):
    options = {"solver": SOLVERS[solver], "algorithm": fa.FedAvg()}
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


def test_what_does_not_fit_is_refused():
    given = federation(37)
    with pytest.raises(fa.PairingError, match="FedPD does not send it in every round"):
        run_quadratics(fa.FedPD(0.7, 0.3), given, solver=LESAM)
    with pytest.raises(fa.PairingError, match="FedNova must know the size of every local step"):
        run_quadratics(fa.FedNova(), given, solver=fa.Adam(0.1))
    with pytest.raises(fa.PairingError, match="PerWork makes a penalty from the learning rate"):
        run_quadratics(fa.FedADMM(fa.PerWork()), given, solver=fa.Adam(0.1))
