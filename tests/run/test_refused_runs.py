"""Runs that cannot work, refused word for word before any client has computed anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fedadmm as fa
from support.models import small_federation
from support.refusals import (
    EYE,
    POSITIVE,
    START,
    WHOLE,
    Cases,
    Untouchable,
    refused,
    simulate,
)


def batch_norm(**options: Any) -> fa.Problem:
    return small_federation(nn.BatchNorm1d(5), **options)


class Forgetful(fa.Sampler):
    def sample(self, seed, round_index):  # type: ignore[override]
        return [0]


HAS_NO_PROX = (
    "has no proximal server step, but the problem's regularizer is L1; use AlignedADMM, "
    "FedADMM, FedADMMIn, FedDR, FedDRII, FedDualAvg or FedMid"
)
SGD = fa.SGD(0.1)

PAIRINGS: Cases = {
    "FedPD with some clients": (
        lambda: simulate(fa.FedPD(1.0), sampler=fa.UniformSampling(2)),
        "FedPD needs all clients in every round, but the sampler is UniformSampling; use "
        "FullParticipation",
    ),
    "FedSplit with some clients": (
        lambda: simulate(fa.FedSplit(1.0), sampler=fa.CyclicSampling(2)),
        "FedSplit needs all clients in every round, but the sampler is CyclicSampling; use "
        "FullParticipation",
    ),
    **{
        f"{type(method).__name__} with g": (
            lambda method=method: simulate(method, regularizer=fa.L1(0.1), solver=SGD),
            f"{type(method).__name__} {HAS_NO_PROX}",
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
    "no solver": (
        lambda: simulate(fa.FedAvg(), solver=None),
        "FedAvg needs a local solver, but solver is None; choose one, such as SGD(lr=0.1)",
    ),
    "SCAFFOLD 2 with an exact solver": (
        lambda: simulate(fa.Scaffold()),
        "Scaffold averages the gradients of its local steps, but ExactSolver has none to average; "
        "use SGD, Adam, GradientDescent, AcceleratedGradient or DPSGD, or option=1",
    ),
    "SCAFFOLD 2 with L-BFGS": (
        lambda: simulate(fa.Scaffold(), solver=fa.LBFGS()),
        "Scaffold averages the gradients of its local steps, but LBFGS has none to average; "
        "use SGD, Adam, GradientDescent, AcceleratedGradient or DPSGD, or option=1",
    ),
    "exact solver on a network": (
        lambda: fa.simulate(fa.FedADMM(1.0), small_federation(), 2, solver=fa.ExactSolver()),
        "ExactSolver needs quadratic objectives, but the clients' are ModelObjective; use SGD, "
        "GradientDescent, AcceleratedGradient or LBFGS",
    ),
    "exact solver on anything else": (
        lambda: simulate(client=Untouchable()),
        "ExactSolver needs quadratic objectives, but the clients' are Untouchable; use SGD, "
        "GradientDescent, AcceleratedGradient or LBFGS",
    ),
    "certified accuracy without a penalty": (
        lambda: simulate(fa.FedAvg(), solver=SGD, stop=fa.ProxAccuracy(1.0)),
        "ProxAccuracy: the local problem's weight must exceed weak_convexity=0 to certify an "
        "accuracy, but exceeds it by 0",
    ),
    "certified accuracy with too small a penalty": (
        lambda: simulate(
            fa.FedADMM(1.0), solver=SGD, stop=fa.RelativeAccuracy(0.1, weak_convexity=3)
        ),
        "RelativeAccuracy: the local problem's weight must exceed weak_convexity=3 to certify an "
        "accuracy, but exceeds it by -2",
    ),
    "a reference that is not always sent": (
        lambda: simulate(fa.FedPD(1.0, 0.5), solver=SGD, stop=fa.InSaCriterion(reference="global")),
        "InSaCriterion with reference='global' measures against theta, but FedPD does not send it "
        "in every round; use reference='own'",
    ),
    "BatchNorm without a policy": (
        lambda: fa.simulate(fa.FedAvg(), batch_norm(), 2, solver=SGD),
        "the model has buffers (1.running_mean, 1.running_var, 1.num_batches_tracked), but the "
        "problem has no policy for them; choose buffers='keep-local' or buffers='average' where "
        "Python makes the problem; the command line needs a model without them, such as one with "
        "GroupNorm",
    ),
    "BatchNorm and a batch of one row": (
        lambda: fa.simulate(
            fa.FedAvg(), batch_norm(buffers="average"), 2, solver=fa.SGD(0.1, batch_size=22)
        ),
        "batch_size is 22 and client 2 has 23 rows, which leaves a batch of one row, but "
        "BatchNorm1d needs at least two to train on; choose another batch_size, or GroupNorm or "
        "LayerNorm",
    ),
    "local statistics, global evaluation": (
        lambda: fa.simulate(fa.FedAvg(), batch_norm(buffers="keep-local"), 2, solver=SGD),
        "buffers='keep-local' leaves BatchNorm statistics on the clients, but the global model is "
        "to be evaluated; use Evaluation(target='local')",
    ),
}

PARAMETERS: Cases = {
    "rounds": (lambda: simulate(rounds=0), f"Experiment: rounds is 0, but {WHOLE}"),
    "tolerance": (
        lambda: simulate(tolerance=0.0),
        f"Experiment: tolerance is 0.0, but {POSITIVE}",
    ),
    "no initial": (
        lambda: simulate(initial=None),
        "simulate: initial is None, but must be a vector, because the problem has no initial "
        "vector of its own",
    ),
    "initial shape": (
        lambda: simulate(initial=torch.zeros(2)),
        "simulate: initial has shape (2,), but must be (3,)",
    ),
    "initial list": (
        lambda: simulate(initial=[0.0, 0.0, 0.0]),
        "simulate: initial is a list, but must be a torch.Tensor",
    ),
    "a class for a method": (
        lambda: simulate(fa.FedAvg),
        "Experiment: algorithm is the class FedAvg, but must be of the kind Algorithm; call it "
        "with its options, as in FedAvg(...)",
    ),
    "a word for a solver": (
        lambda: simulate(solver="sgd"),
        "LocalWork: solver is 'sgd', but must be of the kind LocalSolver, or None",
    ),
    "a sampler that forgot what it is called with": (
        lambda: simulate(sampler=Forgetful()),
        "Forgetful: sample takes (seed, round_index), but must take "
        "(seed, round_index, clients, known=None)",
    ),
    "a number for a sampler": (
        lambda: simulate(sampler=0.1),
        "Experiment: sampler is 0.1, but must be of the kind Sampler",
    ),
    "a negative seed": (
        lambda: simulate(seed=-5),
        "Experiment: seed is -5, but must be a whole number of at least 0",
    ),
    "initial integers": (
        lambda: simulate(initial=torch.zeros(3, dtype=torch.int64)),
        "simulate: initial must be a vector of finite floating-point numbers",
    ),
    "initial NaN": (
        lambda: simulate(initial=START * float("nan")),
        "simulate: initial must be a vector of finite floating-point numbers",
    ),
}


@pytest.mark.parametrize("case", PAIRINGS)
def test_a_pairing(case: str) -> None:
    refused(fa.PairingError, PAIRINGS[case])


KINDS: dict[str, Any] = {
    "sampler": fa.FullParticipation(),
    "algorithm": fa.FedAvg(),
    "regularizer": fa.Zero(),
    "solver": SGD,
    "stop": fa.Epochs(1),
    "engine": fa.Sequential(),
    "upload": fa.Clip(1.0),
    "aggregate": fa.Sum(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_part_is_asked_what_it_refuses(kind: str) -> None:
    """Also one of another package, which says it in the same way."""

    class Shy(type(KINDS[kind])):  # type: ignore[misc]
        def refuses(self, setup: Any) -> Iterator[str]:
            yield from super().refuses(setup)
            yield f"{setup.problem.num_clients} clients are too many for {kind}"

    part: Any = Shy(**vars(KINDS[kind]))
    chosen = {"algorithm": fa.FedAvg(), "solver": SGD, kind: [part] if kind == "upload" else part}
    with pytest.raises(fa.PairingError, match=f"^4 clients are too many for {kind}$"):
        simulate(**chosen)


@pytest.mark.parametrize("case", PARAMETERS)
def test_a_parameter(case: str) -> None:
    refused(fa.ParameterError, PARAMETERS[case])


def test_an_unknown_engine_is_refused_with_the_list_of_known_ones():
    with pytest.raises(
        fa.ParameterError, match=r"^Experiment: engine is 'magic', but must be one of 'sequential'"
    ):
        simulate(engine="magic")


def test_a_schedule_that_leaves_its_range_is_named():
    problem = fa.Problem([fa.Quadratic(EYE, START)])
    with pytest.raises(fa.ParameterError, match=r"its value in round 2 is 0\.0, but must be > 0"):
        fa.simulate(
            fa.FedADMM(lambda t: 2.0 - t), problem, 5, solver=fa.ExactSolver(), initial=START
        )


def test_an_exact_solver_says_when_there_is_no_unique_solution():
    problem = fa.Problem([fa.Quadratic(torch.zeros(3, 3, dtype=torch.float64), START)])
    with pytest.raises(fa.PairingError, match="the local problem has no unique solution"):
        fa.simulate(fa.FedAvg(), problem, 1, solver=fa.ExactSolver(), initial=START)


def test_nothing_to_refuse_when_nothing_is_evaluated():
    """Statistics may stay with the clients as long as nobody asks for a global evaluation."""
    problem = batch_norm(buffers="keep-local")
    result = fa.simulate(fa.FedAvg(), problem, 1, solver=SGD, evaluate=False)
    assert result.code == "completed"


def test_one_image_is_enough_for_a_batch_norm_of_channels():
    """Its statistics run over the pixels too; trying it out moves none of them."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    inputs, targets = torch.randn(3, 1, 4, 4), torch.tensor([0, 1, 0])
    client = fa.ModelObjective(model, nn.functional.cross_entropy, inputs, targets)
    before = client.flat.buffers()
    assert client.needs_two_rows() is None
    assert torch.equal(before, client.flat.buffers())
    problem = fa.Problem([client], initial=client.flat.vector.clone(), buffers="average")
    solver = fa.SGD(0.1, batch_size=2)
    assert fa.simulate(fa.FedAvg(), problem, 1, solver=solver).code == "completed"


def test_a_method_without_local_steps_has_no_last_batch():
    """FedSGD takes one gradient over all rows, whatever the solver's batches would be."""
    problem = batch_norm(buffers="average")
    solver = fa.SGD(0.1, batch_size=22)  # would leave client 2 a batch of one row
    assert fa.simulate(fa.FedSGD(lr=0.1), problem, 1, solver=solver).code == "completed"
