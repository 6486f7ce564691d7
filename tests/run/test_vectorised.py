"""A stack of clients is the same clients one after the other."""

from __future__ import annotations

import multiprocessing
import re
from typing import Any

import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core.objectives import losses
from fedadmm.data import models
from fedadmm.run.engines import Vectorised, vectorised
from support.engines import (
    ALGORITHMS,
    PROBLEMS,
    SIZES,
    assert_same_run,
    model_federation,
    run,
    tanh_net,
)
from support.rejections import naming


def _equal(
    algorithm: object, problem: str, engine: object = "vectorised", **options: object
) -> None:
    expected = run("sequential", algorithm, PROBLEMS[problem](), **options)
    assert_same_run(run(engine, algorithm, PROBLEMS[problem](), **options), expected)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("problem", ["perceptron", "least squares"])
def test_every_method(name: str, problem: str) -> None:
    _equal(ALGORITHMS[name], problem)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_objective(problem: str) -> None:
    _equal(ALGORITHMS["fedadmm"], problem)


RULES = {
    "epochs": fa.Epochs(3),
    "steps": fa.Steps(8),
    "uniform": fa.UniformEpochs(4),
    "gradient": fa.stopping.GradientTolerance(0.02, max_epochs=6),
    "prox": fa.stopping.ProxAccuracy(0.05, max_epochs=6),
    "relative": fa.stopping.RelativeAccuracy(0.5, max_epochs=6),
    "relative, squared": fa.stopping.RelativeAccuracy(0.2, squared=True, max_epochs=6),
    "insa": fa.stopping.InSaCriterion(sigma=0.6, max_epochs=6),
    "insa-global": fa.stopping.InSaCriterion(reference="global", max_epochs=6),
}


DISTANCES = ("prox", "relative", "relative, squared", "relative, argument")
"""Rules that certify a distance, for which the local problem needs a quadratic term."""


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (rule, name)
        for rule in RULES
        for name in ("fedadmm", "fedadmm-insa", "scaffold-2")
        if not (rule in DISTANCES and name == "scaffold-2")
    ],
)
def test_every_stopping_rule(rule: str, name: str) -> None:
    _equal(ALGORITHMS[name], "perceptron", stop=RULES[rule])


@pytest.mark.parametrize("rule", RULES)
def test_every_stopping_rule_from_the_current_model(rule: str) -> None:
    _equal(ALGORITHMS["fedadmm"], "perceptron", stop=RULES[rule], start="current")


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold-2", "fedadmm-insa"])
@pytest.mark.parametrize("problem", ["perceptron", "tanh"])
def test_momentum(name: str, problem: str) -> None:
    _equal(ALGORITHMS[name], problem, solver=fa.SGD(0.05, batch_size=4, momentum=0.8))


REGULARIZERS = {
    "l1": fa.L1(0.05),
    "groups": fa.regularizers.GroupLasso(0.05, (1, 2, 1)),
    "ball": fa.regularizers.L2Ball(0.8),
}
RATES = (0.1, 0.05, 0.2, 0.08, 0.15, 0.12)


@pytest.mark.parametrize("g", REGULARIZERS)
@pytest.mark.parametrize("method", [fa.FedMid(), fa.FedDualAvg(0.8)], ids=["mid", "dual"])
@pytest.mark.parametrize(("lr", "momentum"), [(0.1, 0.0), (RATES, 0.0), (RATES, 0.5)])
def test_the_prox_in_local_steps(g: str, method: Any, lr: Any, momentum: float) -> None:
    """g is a function of one client's vector: no stack may mix rows, whatever g is."""

    def problem() -> fa.Problem:
        plain = PROBLEMS["least squares"]()
        return fa.Problem(plain.clients, REGULARIZERS[g], initial=plain.initial)

    options: Any = {"solver": fa.SGD(lr, batch_size=5, momentum=momentum), "rounds": 6}
    expected = run("sequential", method, problem(), **options)
    assert_same_run(run("vectorised", method, problem(), **options), expected)


@pytest.mark.parametrize("name", ["fednova", "fedcm", "scaffnew"])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_the_sum_of_steps_with_a_rate_per_client(name: str, momentum: float) -> None:
    solver = fa.SGD(RATES, batch_size=4, momentum=momentum)
    _equal(ALGORITHMS[name], "perceptron", solver=solver)


@pytest.mark.parametrize("name", ["fedavg", "fedadmm-insa", "scaffold-1"])
@pytest.mark.parametrize("solver", [fa.GradientDescent(0.1), fa.SGD(0.1, batch_size=31)])
def test_full_batches(name: str, solver: object) -> None:
    _equal(ALGORITHMS[name], "perceptron", solver=solver, stop=RULES["insa"])
    _equal(ALGORITHMS[name], "quadratic", solver=solver, stop=RULES["steps"])


@pytest.mark.parametrize("stack", [1, 3])
def test_small_stacks(stack: int) -> None:
    _equal(ALGORITHMS["fedadmm-insa"], "perceptron", Vectorised(stack=stack))


def test_rounds_without_participants() -> None:
    sampler = fa.TraceSampling([list(range(len(SIZES))), [], [1]])
    _equal(ALGORITHMS["fedadmm-insa"], "perceptron", sampler=sampler, rounds=3)


def test_clients_with_more_samples_than_one_pass_takes() -> None:
    def problem() -> fa.Problem:
        return model_federation(lambda: models.mlp(4, 6, 3), sizes=(300, 700, 5, 256))

    for solver in (fa.GradientDescent(0.1), fa.SGD(0.1, batch_size=100)):
        options = {"solver": solver, "stop": fa.stopping.InSaCriterion(sigma=0.7), "rounds": 2}
        expected = run("sequential", fa.FedADMM(rho=0.5), problem(), **options)
        assert_same_run(run("vectorised", fa.FedADMM(rho=0.5), problem(), **options), expected)


def test_losses_of_users() -> None:
    def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - nn.functional.one_hot(targets, 3)).square().mean()

    def problem() -> fa.Problem:
        return model_federation(tanh_net, squared)

    expected = run("sequential", fa.FedAvg(), problem())
    assert_same_run(run("vectorised", fa.FedAvg(), problem()), expected)


def test_preparation_of_stored_samples() -> None:
    def problem() -> fa.Problem:
        flat = fa.FlatModule(models.build("mlp-4-6-3").double())
        clients = [
            fa.ModelObjective(
                flat,
                losses.cross_entropy,
                torch.arange(4 * n, dtype=torch.uint8).view(n, 4),
                torch.arange(n) % 3,
                lambda rows: rows.double() / 50 - 1,
            )
            for n in SIZES
        ]
        clients = [
            fa.ModelObjective(flat, c.loss, c.inputs, c.targets, clients[0].prepare)
            for c in clients
        ]
        return fa.Problem(clients, initial=flat.vector.clone())

    expected = run("sequential", fa.FedADMM(rho=0.5), problem())
    assert_same_run(run("vectorised", fa.FedADMM(rho=0.5), problem()), expected)


@pytest.mark.parametrize("name", ["fedavg", "scaffold-1"])
def test_divergence_names_the_same_client(name: str) -> None:
    options = {"solver": fa.GradientDescent(1e200), "stop": fa.Epochs(4), "rounds": 3}
    expected = run("sequential", ALGORITHMS[name], PROBLEMS["least squares"](), **options)
    found = run("vectorised", ALGORITHMS[name], PROBLEMS["least squares"](), **options)
    assert (found.code, found.status) == (expected.code, expected.status)
    assert found.code == "diverged"
    assert sorted(found.clients) == sorted(expected.clients)


def test_states_do_not_keep_their_stack_alive() -> None:
    result = run("vectorised", fa.FedADMM(rho=0.5), PROBLEMS["perceptron"]())
    for state in result.clients.values():
        assert state.w.untyped_storage().nbytes() == state.w.numel() * 8


def _rejection(problem: fa.Problem, **options: object) -> str:
    with pytest.raises(fa.errors.CompatibilityError) as caught:
        run("vectorised", fa.FedAvg(), problem, **options)
    return str(caught.value)


def test_clients_that_cannot_be_stacked_are_rejected() -> None:
    perceptron = PROBLEMS["perceptron"]()
    assert re.search(naming("solver LBFGS SGD"), _rejection(perceptron, solver=fa.LBFGS()))
    noisy = model_federation(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3))
    )
    assert "dropout" in _rejection(noisy)
    one_channel = nn.Unflatten(1, (1, 5)), nn.BatchNorm1d(1), nn.Flatten()  # a row is enough
    normed = model_federation(
        lambda: nn.Sequential(nn.Linear(4, 5), *one_channel, nn.Linear(5, 3)), buffers="average"
    )
    assert "buffers" in _rejection(normed)

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.layer(inputs)
            return scores if scores.sum() > 0 else 2 * scores

    assert "torch.func.vmap" in _rejection(model_federation(Branching))

    def spread(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - outputs.mean(0)).square().mean()

    assert "mean of the" in _rejection(model_federation(tanh_net, spread))


def test_a_client_of_another_kind_is_named() -> None:
    mixed = fa.Problem(
        [*PROBLEMS["least squares"]().clients, *PROBLEMS["logistic"]().clients],
        initial=torch.ones(4, dtype=torch.float64),
    )
    with pytest.raises(fa.errors.CompatibilityError, match=naming("client 6")):
        run("vectorised", fa.FedAvg(), mixed, sampler=fa.FullParticipation())


def _divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every round be worth the exchange with other processes."""
    monkeypatch.setattr(vectorised, "SHARED_WORK", 0.0)
    monkeypatch.setattr(vectorised, "FEWEST_STACKED", 1)


def _problem_of_many(size: int = 11) -> fa.Problem:
    return model_federation(tanh_net, sizes=tuple(3 + 5 * (i % 4) for i in range(size)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_in_processes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks in three processes: the same bits as in one, whoever took part before."""
    method = ALGORITHMS[name]
    partial = not method.requirements.full_participation
    options: dict[str, Any] = {"sampler": fa.UniformSampling(7)} if partial else {}
    expected = run(Vectorised(workers=1), method, _problem_of_many(), **options)
    _divided(monkeypatch)
    found = run(Vectorised(workers=3), method, _problem_of_many(), **options)
    assert_same_run(found, expected, tolerance=0.0)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    "options",
    [
        {"pipeline": [fa.TopK(0.3)]},
        {"pipeline": [fa.Clip(0.1), fa.Quantise(4)]},
        {"personal": fa.Ditto(0.1)},
        {"solver": fa.Adam(0.01, batch_size=4, moments="kept")},
        {"evaluate": fa.Evaluation(objective=True, train=True, clients=True)},
    ],
    ids=["error feedback", "stages", "personal", "solver memory", "evaluation"],
)
def test_what_else_a_client_keeps_in_processes(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = fa.AlignedADMM(rho=0.5)
    expected = run(Vectorised(workers=1), method, _problem_of_many(), **options)
    _divided(monkeypatch)
    found = run(Vectorised(workers=2), method, _problem_of_many(), **options)
    assert_same_run(found, expected, tolerance=0.0)


def test_a_failure_in_a_process_names_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    _divided(monkeypatch)

    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("no such sample")

    monkeypatch.setattr(vectorised.Stacker, "join", broken)
    with pytest.raises(fa.errors.EngineError, match=r"round 0(.|\n)*no such sample"):
        run(Vectorised(workers=2), fa.FedAvg(), _problem_of_many())
    assert multiprocessing.active_children() == []
