"""Certificates: measured below the bound on four classes of problems, violated when it must be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.core.local_work import LocalWork
from fedadmm.data import problems
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.run.engines import VirtualTime
from fedadmm.theory.assumptions import local_errors
from support.certified import CLASSES, METHODS, SAMPLERS, accurate, assert_holds, certified, curves
from support.federations import run, snapshots
from support.jobs import job_of
from support.rejections import naming
from support.thinning import thinned

LEVELS = {"fine": 1e-6, "coarse": 1.0}


@pytest.mark.parametrize(
    ("name", "method", "level", "sampler"), thinned(5, CLASSES, METHODS, LEVELS, SAMPLERS)
)
def test_measured_stays_below_the_bound(name, method, level, sampler):
    problem = problems.load(name, **CLASSES[name])
    L = problem.facts.smoothness
    made, weight, theorem = METHODS[method](L)
    options = accurate(LEVELS[level], L, weight * L)
    options |= {"sampler": SAMPLERS[sampler], "seed": list(SAMPLERS).index(sampler)}
    assert_holds(certified(made, problem, theorem=theorem, **options))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("method", METHODS)
def test_exact_solves_stay_below_the_bound(method, seed):
    problem = problems.load("quadratics", **CLASSES["quadratics"], data_seed=seed)
    made, _, theorem = METHODS[method](1.0)
    options = {"solver": fa.ExactSolver(), "sampler": fa.UniformSampling(2), "seed": seed}
    assert_holds(certified(made, problem, 60, theorem=theorem, **options))


@pytest.mark.parametrize("init", ["start", "prox"])
@pytest.mark.parametrize("seed", range(3))
def test_asynchronous_runs_stay_below_the_bound(seed, init):
    problem = problems.load("quadratics", clients=12, dimension=4)
    engine = VirtualTime(ratio=1.5, concurrency=3)
    method = fa.AsyncFedDR(0.2, 0.4, init)
    result = certified(method, problem, 120, solver=fa.ExactSolver(), engine=engine, seed=seed)
    assert max(record["clock"]["staleness_max"] for record in result.history) >= 2
    assert_holds(result)


def test_the_mean_and_the_bound_are_those_of_the_theorem():
    """FedDR on quadratics by hand: every model's gradient, Corollary 3.1's constant at eta L = 1/3.

    Identical clients start at their own prox, so that only F(x0) - F* and the excess count.
    """
    A, b = torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    start = torch.tensor([3.0, -4.0], dtype=torch.float64)
    problem = fa.Problem(
        [fa.Quadratic(A, b) for _ in range(4)], initial=start, facts=fa.Facts(1.0, 0.0)
    )
    eta = 1 / 3
    result = certified(
        fa.FedDR(eta, init="prox"),
        problem,
        10,
        solver=fa.ExactSolver(),
        sampler=fa.UniformSampling(1),
        keep_trajectory=True,
    )
    first = 2 * start / (1 + eta) - start  # xhat = 2 prox(x0) - x0, the same for everybody
    models = result.trajectory
    assert models[0].tolist() == pytest.approx(first.tolist(), rel=1e-12)
    measured, bounds = curves(result)
    for K in range(1, 11):
        mean = float(sum(model.square().sum() for model in models[: K + 1])) / (K + 1)
        assert measured[K - 1] == pytest.approx(mean, rel=1e-12)
        gap = 25 / 2 + eta * 25 / (1 - eta) ** 2
        assert bounds[K - 1] == pytest.approx(160 * 4 / (3 * (K + 1)) * gap, rel=1e-12)


def test_gongs_measure_by_hand():
    """V/n over the states before each round, from the states themselves."""
    from support.federations import federation

    given = federation(3)
    L = max(float(np.linalg.eigvalsh(A)[-1]) for A in given.A)
    value = given.problem.value(torch.from_numpy(given.optimum))
    problem = fa.Problem(given.problem.clients, facts=fa.Facts(L, float(value)))
    rho = 5 * L
    shots = snapshots(fa.FedADMM(rho), given, 6, sampler=fa.UniformSampling(2), seed=1)

    def measure(theta: Any, w: Any, y: Any) -> float:
        slopes = [given.gradient(i, w[i]) + y[i] + rho * (w[i] - theta) for i in range(5)]
        pull = sum(y[i] + rho * (w[i] - theta) for i in range(5))
        apart = sum(float(np.sum((w[i] - theta) ** 2)) for i in range(5))
        return (sum(float(s @ s) for s in slopes) + apart + float(pull @ pull)) / 5

    start = given.start
    values = [measure(start, [start] * 5, [np.zeros(4)] * 5)]
    for shot in shots:
        w, y = ([getattr(c, name).numpy() for c in shot.clients] for name in ("w", "y"))
        values.append(measure(shot.theta.numpy(), w, y))
    result = certified(
        fa.FedADMM(rho),
        problem,
        6,
        theorem="gong",
        solver=fa.ExactSolver(),
        sampler=fa.UniformSampling(2),
        seed=1,
        initial=given.initial,
    )
    means = [sum(values[:T]) / T for T in range(1, 7)]
    assert curves(result)[0] == pytest.approx(means, rel=1e-10)


def indefinite() -> fa.Problem:
    """Four scalar quadratics, two of them concave, pulling apart; F = x²/20, F* = 0, L = 1."""
    clients = [
        fa.Quadratic(
            torch.full((1, 1), a, dtype=torch.float64), torch.full((1,), b, dtype=torch.float64)
        )
        for a, b in ((1.0, 0.0), (1.0, 0.0), (-0.9, 1.0), (-0.7, -1.0))
    ]
    start = torch.ones(1, dtype=torch.float64)
    return fa.Problem(clients, initial=start, facts=fa.Facts(1.0, 0.0))


def bound_for(rounds: int) -> float:
    """Theorem 3.1 with a step inside its range: at x = 1 the gradients are 1, 1, -1.9, 0.3."""
    from fedadmm.theory import feddr_bound

    start = (1 + 1 + 1.9**2 + 0.3**2) / 4
    return feddr_bound(1.0, 0.3, 1.0, 1.0, rounds, 0.05, start_gradient=start)


def mean_square(trajectory: list[torch.Tensor]) -> float:
    """The mean of ||grad F||², F' = x/10, over the start and all models."""
    models = [1.0, *(float(model) for model in trajectory)]
    return sum((0.1 * x) ** 2 for x in models) / len(models)


def test_a_step_beyond_the_condition_violates_the_bound():
    """alpha = 1 allows eta < 1/(2L); at 0.7 the two concave clients drive each other away."""
    options = {"solver": fa.ExactSolver(), "keep_trajectory": True, "evaluate": False}
    wild = fa.simulate(fa.FedDR(0.7), indefinite(), 60, **options)
    tame = fa.simulate(fa.FedDR(0.3), indefinite(), 60, **options)
    assert mean_square(tame.trajectory) <= bound_for(60)
    assert not mean_square(wild.trajectory) <= bound_for(60)


def test_a_numeric_step_under_partial_participation_violates_the_bound():
    """step = 1 with one of six clients: the server no longer holds the mean."""
    problem = problems.load("quadratics", clients=6, dimension=4, conditioning=1.0)
    from fedadmm.theory import feddr_bound

    start = problem.start(0)
    options = {
        "solver": fa.ExactSolver(),
        "sampler": fa.UniformSampling(1),
        "keep_trajectory": True,
        "evaluate": False,
    }
    rho, rounds = 2.5, 150
    gradients = [float(client.gradient(start).square().sum()) for client in problem.clients]
    bound = feddr_bound(
        1.0,
        1 / rho,
        1.0,
        1 / 6,
        rounds,
        float(problem.value(start)),
        start_gradient=sum(gradients) / 6,
    )
    means = {}
    for step in ("tracking", 1.0):
        models = fa.simulate(fa.FedADMM(rho, step), problem, rounds, **options).trajectory
        squares = [float(problem.gradient(model).square().sum()) for model in models]
        means[step] = sum(squares) / rounds
    assert means["tracking"] <= bound
    assert not means[1.0] <= bound


def test_no_bound_once_a_client_missed_its_accuracy():
    problem = problems.load("saturating", **CLASSES["saturating"])
    rule = fa.stopping.ProxAccuracy(1e-12, weak_convexity=problem.facts.smoothness, max_epochs=1)
    result = certified(fa.FedDR(0.1), problem, 3, solver=fa.GradientDescent(0.01), stop=rule)
    assert all(math.isnan(bound) for bound in curves(result)[1])
    assert all(math.isfinite(value) for value in curves(result)[0])


def test_no_bound_when_a_client_missed_its_accuracy_in_the_initial_round():
    """One GD step of length 1/(L + weight) solves a client whose curvature is L, and no other.

    The initial round meets both, the first sampled round only the first: nobody but the initial
    round can tell that the accuracy was missed.
    """
    clients = [
        fa.Quadratic(a * torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
        for a in (1.0, 0.01)
    ]
    start = torch.full((2,), 3.0, dtype=torch.float64)
    problem = fa.Problem(clients, initial=start, facts=fa.Facts(1.0, -1.0, weak_convexity=0.0))
    options = {
        "solver": fa.GradientDescent(1 / (1.0 + 4.0)),
        "stop": fa.stopping.ProxAccuracy(1e-6, max_epochs=1),
        "sampler": fa.UniformSampling(1),
    }
    seed = next(s for s in range(9) if fa.UniformSampling(1).sample(s, 0, 2) == [0])
    result = certified(fa.FedDR(0.25, init="prox"), problem, 1, seed=seed, **options)
    assert [record["cohort"]["clients"] for record in result.history] == [[0, 1], [0]]
    assert math.isnan(curves(result)[1][0])
    calm = certified(fa.FedDR(0.25), problem, 1, seed=seed, **options)
    assert math.isfinite(curves(calm)[1][0])


def test_a_certificate_goes_on_after_a_crash_between_the_initial_round_and_the_first(tmp_path):
    """The mean counts the state that the initial round leads to, and none before it."""
    clients = [
        fa.Quadratic(a * torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
        for a in (1.0, 0.5)
    ]
    start = torch.full((2,), 3.0, dtype=torch.float64)
    problem = fa.Problem(clients, initial=start, facts=fa.Facts(1.0, -1.5, weak_convexity=0.0))
    method, options = fa.FedDR(0.25, init="prox"), {"sampler": fa.UniformSampling(1)}
    options["solver"] = fa.ExactSolver()

    def crash(report):
        if report.record["round"] == 1:
            raise OSError

    saved = fa.Checkpoints(tmp_path, 9)
    with pytest.raises(OSError):
        certified(method, problem, 2, checkpoints=saved, callbacks=[crash], **options)
    saved = fa.Checkpoints(tmp_path, 9)
    again = certified(method, problem, 2, checkpoints=saved, resume=True, **options)
    whole = certified(method, problem, 2, keep_trajectory=True, **options)
    assert [record["round"] for record in again.history] == [1, 2]
    assert curves(again) == curves(whole)
    squares = [float(problem.gradient(x).square().sum()) for x in whole.trajectory]
    assert curves(again)[0] == pytest.approx([sum(squares[:2]) / 2, sum(squares) / 3], rel=1e-12)


def test_an_accuracy_that_is_no_accuracy_is_refused_on_a_problem_that_is_not_convex():
    problem = problems.load("saturating", **CLASSES["saturating"])
    options = {"solver": fa.GradientDescent(0.1)}
    with pytest.raises(
        fa.errors.CompatibilityError,
        match=naming("certificate ProxAccuracy weak_convexity 0 1 saturating"),
    ):
        certified(fa.FedDR(0.1), problem, 1, stop=fa.stopping.ProxAccuracy(1.0), **options)
    unknown = fa.Problem(problem.clients, initial=problem.initial, facts=fa.Facts(2.5, 0.0))
    with pytest.raises(fa.errors.CompatibilityError, match=naming("weak_convexity 1 problem")):
        certified(fa.FedDR(0.1), unknown, 1, stop=fa.stopping.ProxAccuracy(1.0, 1.0), **options)
    assert_holds(
        certified(fa.FedDR(0.1), problem, 2, stop=fa.stopping.ProxAccuracy(1.0, 1.0), **options)
    )


@pytest.mark.parametrize("init", ["start", "prox"])
def test_the_sum_of_the_errors_is_what_clients_carry(init):
    """E[eps_{i,k}²] by its recursion: a client solves anew with probability p, or keeps its error.

    k = 0 belongs to the initial round; without one the start's own term of the bound stands there.
    """
    p, rule = 0.3, fa.stopping.ProxAccuracy(2.0)
    carried = 1.0 if init == "prox" else 0.0  # M/2
    total, sums = carried, []
    for k in range(4000):
        carried = p * 2.0 / (2 * (k + 2) ** 2) + (1 - p) * carried
        total += carried
        sums.append(total)
    problem = problems.load("quadratics", **CLASSES["quadratics"])
    job = job_of(
        fa.FedDR(0.3, 1.0, init),
        problem,
        LocalWork(fa.GradientDescent(0.1), rule),
        0,
        problem.start(0),
    )
    errors = local_errors(job, 1 / 0.3, p)
    assert all(value <= errors.total(K) for K, value in enumerate(sums))
    assert errors.total(3999) == pytest.approx(sums[-1], rel=1e-3)
    assert errors.initial == (1.0 if init == "prox" else 0.0)


@pytest.mark.parametrize("curvature", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 3.0])
def test_inexact_initial_solves_raise_the_start_by_no_more_than_the_excess(curvature, epsilon):
    """V^0 of FedDR's proof for two clients a x²/2 ± x that miss the prox of x0 = 0 outwards.

    Their xhat cancel, so that xbar = 0, and V^0 is f_1(x_1) + 3 x_1²/(2 eta) with F(x0) = 0.
    """
    from fedadmm.theory import feddr_prox_start_excess

    eta = 0.25
    x = eta / (1 + eta * curvature) + epsilon
    start = curvature * x**2 / 2 - x + 3 * x**2 / (2 * eta)
    excess = feddr_prox_start_excess(1.0, eta, 1.0, epsilon=epsilon)
    assert start <= excess
    if epsilon > 1:  # where both terms with epsilon matter, and neither may be missing
        assert start >= 0.85 * excess


def test_a_resumed_run_goes_on_with_its_mean(tmp_path):
    problem = problems.load("quadratics", **CLASSES["quadratics"])
    options = {"solver": fa.ExactSolver(), "sampler": fa.UniformSampling(2)}
    whole = certified(fa.FedDR(0.3), problem, 12, **options)
    saved = Checkpoints(tmp_path, every=5)
    certified(fa.FedDR(0.3), problem, 5, checkpoints=saved, **options)
    rest = certified(fa.FedDR(0.3), problem, 12, checkpoints=saved, resume=True, **options)
    assert curves(rest)[0] == curves(whole)[0][5:]
    assert curves(rest)[1] == curves(whole)[1][5:]


def test_a_run_that_was_not_certified_from_the_start_cannot_be_later(tmp_path):
    problem = problems.load("quadratics", **CLASSES["quadratics"])
    saved = Checkpoints(tmp_path, every=5)
    run_options = {"solver": fa.ExactSolver(), "checkpoints": saved}
    fa.simulate(fa.FedDR(0.3), problem, 5, evaluate=False, **run_options)
    with pytest.raises(fa.errors.StateError, match="callback certificate"):
        certified(fa.FedDR(0.3), problem, 9, resume=True, **run_options)


QUADRATICS = {"name": "quadratics", **CLASSES["quadratics"]}
REFUSED = [
    (fa.FedAvg(), {}, "certificate algorithm FedAvg"),
    (
        fa.FedADMM(5.0, step=1.0),
        {},
        "certificate algorithm FedADMM rho step members",
    ),
    (
        fa.AlignedADMM(5.0),
        {},
        "certificate algorithm AlignedADMM FedADMM FedDR",
    ),
    (
        fa.AFedPD(5.0),
        {"theorem": "feddr"},
        "certificate algorithm AFedPD FedADMM FedDR",
    ),
    (fa.FedDR(0.6), {}, "feddr_constants eta 0.6 alpha"),
    (fa.FedADMM(3.0), {"theorem": "gong"}, "gong_constants rho 3.0 sqrt"),
    (fa.FedDR(0.3), {"theorem": "gong"}, "certificate theorem gong feddr"),
    (fa.FedDR(0.3), {"sampler": fa.CyclicSampling(2)}, "certificate sampler CyclicSampling"),
    (
        fa.FedDR(0.3),
        {"sampler": fa.BernoulliSampling(fa.schedules.Geometric(0.9, 0.9, 0.1))},
        "certificate sampler BernoulliSampling",
    ),
    (
        fa.FedDR(0.3),
        {"solver": fa.SGD(0.1), "stop": fa.Epochs(2)},
        "certificate stop Epochs ExactSolver ProxAccuracy GradientTolerance",
    ),
    (
        fa.AsyncFedDR(0.3),
        {},
        "async_certificate alpha 1.0 n 6 tau slack",
    ),
    (
        fa.AsyncFedDR(0.2, 0.4),
        {"engine": VirtualTime(buffer=2)},
        "certificate buffer 2 policy",
    ),
]


@pytest.mark.parametrize(("method", "options", "names"), REFUSED)
def test_refused(method, options, names):
    problem = problems.load(**QUADRATICS)
    settings = {"solver": fa.ExactSolver()} | options
    with pytest.raises(fa.FedADMMError, match=naming(names)):
        certified(method, problem, 3, **settings)


def test_a_problem_that_nothing_is_known_of_is_refused():
    from support.federations import federation

    given = federation(1)
    with pytest.raises(
        fa.errors.CompatibilityError,
        match=naming("certificate problem smoothness L"),
    ):
        run(fa.FedDR(0.1), given, 1, callbacks=[fa.Certificate()])
