"""DP-SGD: rows clipped one by one, the noise, who is drawn, what is spent, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core.contracts import LocalProblem
from fedadmm.core.local_work import SolveContext
from fedadmm.core.privacy import Accountant
from fedadmm.core.rng import KeyedGenerator
from fedadmm.run.privacy import ExampleLevelDP, NoisedSteps
from support.rejections import naming

SIZES = (40, 25, 9)


def model(*layers: nn.Module) -> fa.FlatModule:
    torch.manual_seed(1)
    return fa.FlatModule(nn.Sequential(*layers).double())


def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 5, generator=drawn, dtype=torch.float64)
    return inputs, torch.randint(0, 3, (count,), generator=drawn)


def networks() -> fa.Problem:
    """Three clients; kernels run the layers in a stack, torch.func those of one client."""
    flat = model(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    loss = nn.functional.cross_entropy
    clients = [fa.ModelObjective(flat, loss, *rows(n, n)) for n in SIZES]
    return fa.Problem(clients, initial=flat.vector.clone())


def modules() -> fa.Problem:
    """The same with a layer that only torch.func knows, also in a stack."""
    flat = model(nn.Linear(5, 6), nn.GroupNorm(2, 6), nn.Tanh(), nn.Linear(6, 3))
    loss = nn.functional.cross_entropy
    clients = [fa.ModelObjective(flat, loss, *rows(n, n)) for n in SIZES]
    return fa.Problem(clients, initial=flat.vector.clone())


def linear(kind: Any) -> fa.Problem:
    clients = [kind(rows(n, n)[0], (rows(n, n)[1] > 0).double(), 0.3) for n in SIZES]
    return fa.Problem(clients, initial=torch.ones(5, dtype=torch.float64))


PROBLEMS = {
    "kernels": networks,
    "torch.func": modules,
    "least squares": lambda: linear(fa.LeastSquares),
    "logistic": lambda: linear(fa.LogisticRegression),
}


def solver(**options: Any) -> fa.DPSGD:
    usual: dict[str, Any] = {"clip": 0.5, "multiplier": 1.0, "batch_size": 8, "delta": 1e-3}
    return fa.DPSGD(0.1, **(usual | options))


def by_hand(objective: Any, start: torch.Tensor, steps: int, clip: float, per_epoch: int, key: int):
    """The recursion of Abadi et al., row by row, with autograd through the whole objective."""
    from fedadmm.core.rng import derive

    w, lr = start.clone(), 0.1
    for step in range(steps):
        rng = KeyedGenerator(derive(key, "noised step", step // per_epoch, step % per_epoch))
        chosen = np.flatnonzero(rng.uniform(objective.num_samples, "rows").numpy() < 1 / per_epoch)
        total = np.zeros(len(w))
        for row in chosen:
            g = objective.gradient(w, torch.tensor([row])).numpy().copy()
            total += g * min(1.0, clip / np.linalg.norm(g))
        total += 1.3 * clip * rng.normal(w, "noise").numpy()
        w = w - lr * torch.from_numpy(total) / (objective.num_samples / per_epoch)
    return w


@pytest.mark.parametrize("clip", [0.02, 0.7, 50.0])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_solve_is_the_printed_recursion(name, clip):
    problem = PROBLEMS[name]()
    objective, start = problem.clients[1], problem.start(0)
    made = solver(clip=clip, multiplier=1.3)
    result, info = made.solve(objective, LocalProblem(start), fa.Steps(6), 77)
    assert info.steps == 6
    expected = by_hand(objective, start, 6, clip, 4, 77)  # 25 rows in batches of 8: four steps
    torch.testing.assert_close(result.params, expected, rtol=0, atol=1e-12)


def test_many_samples_in_turns_are_the_same_sum(monkeypatch):
    problem = modules()
    objective, start = problem.clients[0], problem.start(0)
    whole, _ = solver().solve(objective, LocalProblem(start), fa.Steps(3), 5)
    monkeypatch.setattr("fedadmm.core.solvers.private.NUMBERS", 2 * start.numel())
    parts, _ = solver().solve(objective, LocalProblem(start), fa.Steps(3), 5)
    torch.testing.assert_close(parts.params, whole.params, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [fa.FedAvg(), fa.Scaffold(), fa.FedADMM(1.0)])
@pytest.mark.parametrize("name", PROBLEMS)
def test_stacked_clients_do_the_same(name, method):
    results = [
        fa.simulate(
            method, PROBLEMS[name](), 2, solver=solver(momentum=0.5), engine=engine, evaluate=False
        )
        for engine in ("sequential", "vectorised")
    ]
    torch.testing.assert_close(results[0].params, results[1].params, rtol=0, atol=1e-12)
    assert results[0].history[-1]["privacy"] == results[1].history[-1]["privacy"]


def test_the_noise_has_its_variance_and_batches_their_mean_size():
    # Rows whose gradient is zero: what moves w by lr 1 is the noise alone, z C / (n/K).
    n, d = 60, 400
    still = fa.LeastSquares(torch.zeros(n, d).double(), torch.zeros(n).double())
    start, sizes = torch.zeros(d, dtype=torch.float64), []
    one = fa.DPSGD(1.0, clip=3.0, multiplier=0.7, batch_size=20)
    seen = still.sample_gradients

    def watched(params: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows))
        return seen(params, rows)

    object.__setattr__(still, "sample_gradients", watched)
    for deployed in (False, True):
        sizes.clear()
        context = SolveContext(deployed=deployed)
        drawn = torch.cat(
            [
                one.solve(still, LocalProblem(start), fa.Steps(1), key, context)[0].params
                for key in range(60)
            ]
        )
        assert float(drawn.std()) == pytest.approx(0.7 * 3.0 / 20, rel=0.03)
        assert np.mean(sizes) == pytest.approx(20, abs=2.5)  # five standard errors
        assert np.std(sizes) == pytest.approx(np.sqrt(60 * (1 / 3) * (2 / 3)), rel=0.4)


def test_noise_of_a_deployment_is_never_the_same_again():
    problem = networks()
    objective, start = problem.clients[0], LocalProblem(problem.start(0))

    def solved(deployed: bool) -> torch.Tensor:
        context = SolveContext(deployed=deployed)
        return solver().solve(objective, start, fa.Steps(2), 3, context)[0].params

    assert torch.equal(solved(False), solved(False))
    assert not torch.isclose(solved(True), solved(True)).any()
    assert not torch.isclose(solved(True), solved(False)).any()


@pytest.mark.parametrize("name", ["kernels", "torch.func", "least squares"])
@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_sample_whose_gradient_is_not_finite_counts_as_zero(name, engine):
    """No row may decide whether a result is finite: that would be an answer without noise."""
    with_it, without = PROBLEMS[name](), PROBLEMS[name]()
    for problem, value in ((with_it, 1e308), (without, 0.0)):
        for client in problem.clients:
            rows: Any = client.inputs if hasattr(client, "inputs") else client.features
            rows[3:5] = value
    first = with_it.clients[0]
    found = first.sample_gradients(1e3 * with_it.start(0), torch.arange(first.num_samples))
    bad = ~found.isfinite().all(dim=1)
    assert bad.nonzero().flatten().tolist() == [3, 4]
    start, made = 1e3 * with_it.start(0), solver(batch_size=100)  # every row is in the one batch
    ends = [
        fa.simulate(fa.FedAvg(), one, 1, solver=made, engine=engine, initial=start, evaluate=False)
        for one in (with_it, without)
    ]
    assert [end.code for end in ends] == ["completed", "completed"]
    # The two rows as zeros have a gradient of their own (a bias, a ridge): take it out by hand.
    step = torch.zeros_like(start)
    for client in without.clients:
        each = client.sample_gradients(start, torch.arange(3, 5))
        shares = (0.5 / each.norm(dim=1, keepdim=True)).clamp(max=1.0)
        step += 0.1 * (shares * each).sum(dim=0) / client.num_samples / len(SIZES)
    torch.testing.assert_close(ends[0].params, ends[1].params + step, rtol=1e-12, atol=1e-9)


def test_the_worst_client_is_accounted_for():
    # Two clients in turns: sizes 40 and 9 in batches of 8 have 5 and 2 steps in an epoch.
    sampler = fa.TraceSampling([[0], [2], [0], [2], [2], [2], [1]])
    result = fa.simulate(
        fa.FedAvg(), networks(), 7, solver=solver(), stop=fa.Epochs(3), sampler=sampler
    )
    spent = [record["privacy"]["epsilon"] for record in result.history[:6]]
    large, small = Accountant(1.0, 1e-3, 1 / 5), Accountant(1.0, 1e-3, 1 / 2)
    turns = [(1, 0), (1, 1), (2, 1), (2, 2), (2, 3), (2, 4)]
    assert spent == [max(large.epsilon(15 * a), small.epsilon(6 * b)) for a, b in turns]
    assert result.history[-1]["privacy"] | {"epsilon": 0} == {
        "hides": "records",
        "epsilon": 0,
        "delta": 1e-3,
        "clip": 0.5,
    }


def test_of_clients_with_equal_epochs_the_most_steps_count():
    privacy = ExampleLevelDP(solver().noise, fa.Epochs(1))
    made = {0: NoisedSteps(18, 3), 1: NoisedSteps(6, 3), 2: NoisedSteps(2, 1)}
    assert privacy.epsilon(5, made) == Accountant(1.0, 1e-3, 1 / 3).epsilon(18)


def test_batches_of_all_samples_are_not_amplified():
    result = fa.simulate(fa.FedAvg(), networks(), 2, solver=solver(batch_size=100))
    assert result.history[-1]["privacy"]["epsilon"] == Accountant(1.0, 1e-3).epsilon(2)


@pytest.mark.parametrize("stop", [fa.Epochs(2), fa.UniformEpochs(3)])
def test_a_budget_ends_the_run_before_any_client_exceeds_it(stop):
    made = solver(multiplier=2.0, budget=4.0)
    result = fa.simulate(fa.FedADMM(1.0), networks(), 200, solver=made, stop=stop, evaluate=False)
    assert result.code == "budget"
    assert re.search(naming("budget 4"), result.status)
    assert 2.0 < result.history[-1]["privacy"]["epsilon"] <= 4.0


def test_a_resumed_run_goes_on_with_other_noise_and_the_count(tmp_path):
    chosen: dict[str, Any] = {"solver": solver(), "evaluate": False, "keep_trajectory": True}
    whole = fa.simulate(fa.FedADMM(1.0), networks(), 6, **chosen)
    points = fa.Checkpoints(tmp_path, every=1)
    fa.simulate(fa.FedADMM(1.0), networks(), 3, checkpoints=points, **chosen)
    points = fa.Checkpoints(tmp_path, every=1)
    rest = fa.simulate(fa.FedADMM(1.0), networks(), 6, checkpoints=points, resume=True, **chosen)
    assert torch.equal(whole.params, rest.params)
    assert [r["privacy"] for r in whole.history[3:]] == [r["privacy"] for r in rest.history]
    points = fa.Checkpoints(tmp_path, every=1)
    less = chosen | {"solver": solver(budget=7.0)}
    assert rest.history[-1]["privacy"]["epsilon"] > 7.0
    with pytest.raises(fa.errors.StateError, match=naming("epsilon budget 7")):
        fa.simulate(fa.FedADMM(1.0), networks(), 9, checkpoints=points, resume=True, **less)


def batch_norm() -> fa.Problem:
    flat = model(nn.Linear(5, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3))
    clients = [fa.ModelObjective(flat, nn.functional.cross_entropy, *rows(9, 0))]
    return fa.Problem(clients, initial=flat.vector.clone())


def unruly() -> fa.Problem:
    class Choosing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    flat = model(nn.Linear(5, 3), Choosing())
    clients = [fa.ModelObjective(flat, nn.functional.cross_entropy, *rows(9, 0))]
    return fa.Problem(clients, initial=flat.vector.clone())


def rowless() -> fa.Problem:
    eye = torch.eye(3).double()
    return fa.Problem([fa.Quadratic(eye, eye[0])], initial=torch.zeros(3).double())


UPLOAD = [fa.Clip(1.0), fa.GaussianNoise(1.0, 1e-3)]
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "batch norm": ({"problem": batch_norm()}, "DPSGD BatchNorm1d"),
    "no vmap": ({"problem": unruly()}, "DPSGD torch.func.vmap"),
    "no rows": ({"problem": rowless()}, "DPSGD Quadratic"),
    "method": ({"algorithm": fa.Scaffold(option=1)}, "algorithm Scaffold DPSGD"),
    "first": (
        {"algorithm": fa.FedADMM(1.0, dual="gradient")},
        "algorithm FedADMM DPSGD",
    ),
    "no solve": ({"algorithm": fa.FedSGD(0.1)}, "algorithm FedSGD DPSGD"),
    "drawn steps": ({"algorithm": fa.Scaffnew(0.5)}, "algorithm Scaffnew DPSGD"),
    "rule": ({"stop": fa.stopping.GradientTolerance(0.1)}, "stop GradientTolerance DPSGD"),
    "both": ({"pipeline": UPLOAD}, "pipeline GaussianNoise DPSGD"),
    "delta": ({"solver": solver(delta=0.03)}, "delta 0.03 0.025"),
    "budget": ({"solver": solver(budget=0.5)}, "budget 0.5 client 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_statistics_of_samples_without_noise_are_rejected(case):
    changes, names = WRONG[case]
    given: dict[str, Any] = {"algorithm": fa.FedAvg(), "problem": networks(), "solver": solver()}
    with pytest.raises(fa.FedADMMError, match=naming(names)):
        fa.simulate(rounds=2, **(given | changes))


@pytest.mark.parametrize("field", ["clip", "multiplier", "budget", "delta"])
def test_clip_noise_and_budget_must_be_positive(field):
    with pytest.raises(fa.errors.ParameterError, match=naming(f"DPSGD {field} 0.0")):
        solver(**{field: 0.0})
