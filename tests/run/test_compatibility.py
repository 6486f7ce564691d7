"""Runs whose components are incompatible are rejected before any client has computed anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core.compatibility import Feature
from support.models import small_federation
from support.rejections import EYE, START, Cases, Untouchable, assert_rejected, naming, simulate


def batch_norm(**options: Any) -> fa.Problem:
    return small_federation(nn.BatchNorm1d(5), **options)


class Forgetful(fa.Sampler):
    def sample(self, seed, round_index):  # type: ignore[override]
        return [0]


SGD = fa.SGD(0.1)

PAIRINGS: Cases = {
    "FedPD with some clients": (
        lambda: simulate(fa.FedPD(1.0), sampler=fa.UniformSampling(2)),
        "sampler UniformSampling FedPD FullParticipation",
    ),
    "FedSplit with some clients": (
        lambda: simulate(fa.FedSplit(1.0), sampler=fa.CyclicSampling(2)),
        "sampler CyclicSampling FedSplit FullParticipation",
    ),
    **{
        f"{type(method).__name__} with g": (
            lambda method=method: simulate(method, regularizer=fa.L1(0.1), solver=SGD),
            f"regularizer L1 {type(method).__name__} FedADMM FedDR FedMid",
        )
        for method in (
            fa.FedSGD(0.1),
            fa.FedAvg(),
            fa.FedProx(1.0),
            fa.Scaffold(),
            fa.FedDyn(1.0),
            fa.FedPD(1.0),
            fa.FedSplit(1.0),
        )
    },
    "no solver": (lambda: simulate(fa.FedAvg(), solver=None), "solver None FedAvg"),
    "SCAFFOLD 2 with an exact solver": (
        lambda: simulate(fa.Scaffold()),
        "solver ExactSolver Scaffold SGD",
    ),
    "SCAFFOLD 2 with L-BFGS": (
        lambda: simulate(fa.Scaffold(), solver=fa.LBFGS()),
        "solver LBFGS Scaffold SGD",
    ),
    "FedNova with a solver of unknown steps": (
        lambda: simulate(fa.FedNova(), solver=fa.LBFGS()),
        "solver LBFGS FedNova SGD",
    ),
    "an exact solver on a network": (
        lambda: fa.simulate(fa.FedADMM(1.0), small_federation(), 2, solver=fa.ExactSolver()),
        "problem ModelObjective ExactSolver SGD",
    ),
    "an exact solver on another objective": (
        lambda: simulate(client=Untouchable()),
        "problem Untouchable ExactSolver SGD",
    ),
    "certified accuracy without a penalty": (
        lambda: simulate(fa.FedAvg(), solver=SGD, stop=fa.stopping.ProxAccuracy(1.0)),
        "ProxAccuracy weak_convexity",
    ),
    "certified accuracy with too small a penalty": (
        lambda: simulate(
            fa.FedADMM(1.0), solver=SGD, stop=fa.stopping.RelativeAccuracy(0.1, weak_convexity=3)
        ),
        "RelativeAccuracy weak_convexity",
    ),
    "a global reference that is not always sent": (
        lambda: simulate(
            fa.FedPD(1.0, 0.5), solver=SGD, stop=fa.stopping.InSaCriterion(reference="global")
        ),
        "algorithm FedPD InSaCriterion",
    ),
    "BatchNorm without a policy": (
        lambda: fa.simulate(fa.FedAvg(), batch_norm(), 2, solver=SGD),
        "buffers 1.running_mean 'keep-local' 'average'",
    ),
    "BatchNorm and a batch of one sample": (
        lambda: fa.simulate(
            fa.FedAvg(), batch_norm(buffers="average"), 2, solver=fa.SGD(0.1, batch_size=22)
        ),
        "batch_size 22 client 2 23 BatchNorm1d",
    ),
    "local statistics and a global evaluation": (
        lambda: fa.simulate(fa.FedAvg(), batch_norm(buffers="keep-local"), 2, solver=SGD),
        "buffers 'keep-local' Evaluation",
    ),
}

PARAMETERS: Cases = {
    "no rounds": (lambda: simulate(rounds=0), "Experiment rounds 0"),
    "no tolerance": (lambda: simulate(tolerance=0.0), "Experiment tolerance 0.0"),
    "no initial vector": (lambda: simulate(initial=None), "simulate initial None"),
    "an initial vector of another length": (
        lambda: simulate(initial=torch.zeros(2)),
        "simulate initial (2,) (3,)",
    ),
    "a list as initial vector": (
        lambda: simulate(initial=[0.0, 0.0, 0.0]),
        "simulate initial list torch.Tensor",
    ),
    "a class in place of a method": (
        lambda: simulate(fa.FedAvg),
        "Experiment algorithm FedAvg Algorithm",
    ),
    "a word in place of a solver": (
        lambda: simulate(solver="sgd"),
        "LocalWork solver 'sgd' LocalSolver",
    ),
    "a sampler with another signature": (
        lambda: simulate(sampler=Forgetful()),
        "Forgetful sample (seed, round_index, clients)",
    ),
    "a number in place of a sampler": (
        lambda: simulate(sampler=0.1),
        "Experiment sampler 0.1 Sampler",
    ),
    "a negative seed": (lambda: simulate(seed=-5), "Experiment seed -5"),
    "an initial vector of integers": (
        lambda: simulate(initial=torch.zeros(3, dtype=torch.int64)),
        "simulate initial",
    ),
    "an initial vector with a NaN": (
        lambda: simulate(initial=START * float("nan")),
        "simulate initial",
    ),
}


@pytest.mark.parametrize("case", PAIRINGS)
def test_incompatible_components_are_rejected(case: str) -> None:
    assert_rejected(fa.errors.CompatibilityError, PAIRINGS[case])


KINDS: dict[str, Any] = {
    "sampler": fa.FullParticipation(),
    "algorithm": fa.FedAvg(),
    "solver": SGD,
    "stop": fa.Epochs(1),
    "engine": fa.engines.Sequential(),
    "pipeline": fa.Clip(1.0),
    "aggregator": fa.Sum(),
}


def chosen(kind: str, component: Any) -> dict[str, Any]:
    given = [component] if kind == "pipeline" else component
    return {"algorithm": fa.FedAvg(), "solver": SGD, kind: given}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_component_is_asked_for_incompatibilities(kind: str) -> None:
    """A component of another package takes part in the check as one of this package."""

    class Shy(type(KINDS[kind])):  # type: ignore[misc]
        def check_run(self, run: Any) -> Iterator[str]:
            yield from super().check_run(run)
            yield f"{run.problem.num_clients} clients are too many for {kind}"

    with pytest.raises(fa.errors.CompatibilityError, match=f"^4 clients are too many for {kind}$"):
        simulate(**chosen(kind, Shy(**vars(KINDS[kind]))))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "algorithm"])
def test_every_kind_of_component_may_declare_a_requirement(kind: str) -> None:
    """The message names the field, what the run has, and the component that requires more."""

    class Demanding(type(KINDS[kind])):  # type: ignore[misc]
        def requires(self, run: Any) -> tuple[Feature, ...]:
            return (*super().requires(run), Feature.LOCAL_MODELS)

    with pytest.raises(fa.errors.CompatibilityError, match=naming("algorithm FedAvg Demanding")):
        simulate(**chosen(kind, Demanding(**vars(KINDS[kind]))))


@pytest.mark.parametrize("case", PARAMETERS)
def test_an_invalid_argument_is_rejected(case: str) -> None:
    assert_rejected(fa.errors.ParameterError, PARAMETERS[case])


def test_an_unknown_engine_is_rejected_with_the_list_of_known_ones():
    with pytest.raises(
        fa.errors.ParameterError, match=naming("engine 'magic' 'sequential' 'workers'")
    ):
        simulate(engine="magic")


def test_a_schedule_that_leaves_its_range_is_named():
    problem = fa.Problem([fa.Quadratic(EYE, START)])
    with pytest.raises(fa.errors.ParameterError, match=naming("round 2 0.0")):
        fa.simulate(
            fa.FedADMM(lambda t: 2.0 - t), problem, 5, solver=fa.ExactSolver(), initial=START
        )


def test_an_exact_solver_rejects_a_problem_without_a_unique_solution():
    problem = fa.Problem([fa.Quadratic(torch.zeros(3, 3, dtype=torch.float64), START)])
    with pytest.raises(fa.errors.CompatibilityError, match=naming("ExactSolver")):
        fa.simulate(fa.FedAvg(), problem, 1, solver=fa.ExactSolver(), initial=START)


def test_local_statistics_are_accepted_without_evaluation():
    """Only the evaluation of the global model needs statistics of its own."""
    problem = batch_norm(buffers="keep-local")
    result = fa.simulate(fa.FedAvg(), problem, 1, solver=SGD, evaluate=False)
    assert result.code == "completed"


def test_one_image_is_enough_for_a_batch_norm_of_channels():
    """Its statistics run over the pixels too; trying it out moves none of them."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    inputs, targets = torch.randn(3, 1, 4, 4), torch.tensor([0, 1, 0])
    client = fa.ModelObjective(model, nn.functional.cross_entropy, inputs, targets)
    before = client.flat.buffers()
    assert client.needs_two_samples() is None
    assert torch.equal(before, client.flat.buffers())
    problem = fa.Problem([client], initial=client.flat.vector.clone(), buffers="average")
    solver = fa.SGD(0.1, batch_size=2)
    assert fa.simulate(fa.FedAvg(), problem, 1, solver=solver).code == "completed"


def test_a_method_without_local_steps_has_no_last_batch():
    """FedSGD takes one gradient over all rows, whatever the solver's batches would be."""
    problem = batch_norm(buffers="average")
    solver = fa.SGD(0.1, batch_size=22)  # would leave client 2 a batch of one row
    assert fa.simulate(fa.FedSGD(lr=0.1), problem, 1, solver=solver).code == "completed"
