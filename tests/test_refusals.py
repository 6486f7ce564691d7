"""Every refusal, word for word, and all of them before any client has computed anything."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core import penalties
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.problem import LazyClients
from support.models import perceptron, rows, small_federation


class Untouchable(fa.Objective):
    """A client that knows its sizes and nothing else: whoever computes with it fails the test."""

    num_parameters = 3
    num_samples = 10

    def value(self, params: Any) -> Any:
        raise AssertionError("a client was evaluated before the refusal")

    gradient = workspace = evaluation_gradient = work = value

    def to(self, dtype: Any, device: Any = "cpu") -> Untouchable:
        return self


class Quadratic(Untouchable):
    """The same, of a kind that the exact solver accepts."""

    hessian = offset = Untouchable.value


START = torch.zeros(3, dtype=torch.float64)
EYE = torch.eye(3, dtype=torch.float64)


def simulate(
    algorithm: Any = None, client: Any = None, regularizer: Any = None, **options: Any
) -> Any:
    made = Quadratic() if client is None else client
    problem = fa.Problem([made] * 4, regularizer if regularizer is not None else fa.Zero())
    settings = {"rounds": 3, "solver": fa.ExactSolver(), "initial": START}
    return fa.simulate(
        algorithm if algorithm is not None else fa.FedADMM(1.0), problem, **(settings | options)
    )


def batch_norm(**options: Any) -> fa.Problem:
    return small_federation(nn.BatchNorm1d(5), **options)


HAS_NO_PROX = (
    "has no proximal server step, but the problem's regularizer is L1; use FedADMM, FedADMMIn, "
    "FedADMMInSa, FedDR, FedDRII, FedMid or FedDualAvg"
)
SGD = fa.SGD(0.1)

PAIRINGS: dict[str, tuple[Callable[[], Any], str]] = {
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
        "use SGD, GradientDescent or AcceleratedGradient, or option=1",
    ),
    "SCAFFOLD 2 with L-BFGS": (
        lambda: simulate(fa.Scaffold(), solver=fa.LBFGS()),
        "Scaffold averages the gradients of its local steps, but LBFGS has none to average; "
        "use SGD, GradientDescent or AcceleratedGradient, or option=1",
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
        "problem has no policy for them; choose buffers='keep-local' or buffers='average'",
    ),
    "local statistics, global evaluation": (
        lambda: fa.simulate(fa.FedAvg(), batch_norm(buffers="keep-local"), 2, solver=SGD),
        "buffers='keep-local' leaves BatchNorm statistics on the clients, but the global model is "
        "to be evaluated; use Evaluation(target='local')",
    ),
}


@pytest.mark.parametrize("case", PAIRINGS)
def test_pairing(case):
    attempt, message = PAIRINGS[case]
    with pytest.raises(fa.PairingError, match=f"^{re.escape(message)}$"):
        attempt()


WHOLE = "must be a whole number of at least 1"
POSITIVE = "must be > 0 and finite"
NOT_NEGATIVE = "must be >= 0 and finite"

PARAMETERS: dict[str, tuple[Callable[[], Any], str]] = {
    # simulate
    "rounds": (lambda: simulate(rounds=0), f"simulate: rounds is 0, but {WHOLE}"),
    "tolerance": (
        lambda: simulate(tolerance=0.0),
        f"simulate: tolerance is 0.0, but {POSITIVE}",
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
        "simulate: algorithm is the class FedAvg, but must be of the kind Algorithm; call it with "
        "its options, as in FedAvg(...)",
    ),
    "a word for a solver": (
        lambda: simulate(solver="sgd"),
        "simulate: solver is 'sgd', but must be of the kind LocalSolver",
    ),
    "a number for a sampler": (
        lambda: simulate(sampler=0.1),
        "simulate: sampler is a float, but must be of the kind Sampler",
    ),
    "a negative seed": (
        lambda: simulate(seed=-5),
        "simulate: seed is -5, but must be a whole number of at least 0",
    ),
    "half a seed": (
        lambda: simulate(seed=1.5),
        "simulate: seed is 1.5, but must be a whole number of at least 0",
    ),
    "initial integers": (
        lambda: simulate(initial=torch.zeros(3, dtype=torch.int64)),
        "simulate: initial must be a vector of finite floating-point numbers",
    ),
    "initial NaN": (
        lambda: simulate(initial=START * float("nan")),
        "simulate: initial must be a vector of finite floating-point numbers",
    ),
    # samplers in a run
    "too many clients": (
        lambda: simulate(sampler=fa.UniformSampling(9)),
        "UniformSampling: size is 9, but must be at most the number of clients, 4",
    ),
    "too many cyclic clients": (
        lambda: simulate(sampler=fa.CyclicSampling(9)),
        "CyclicSampling: size is 9, but must be at most the number of clients, 4",
    ),
    "too many weighted clients": (
        lambda: simulate(sampler=fa.WeightedSampling([1, 1, 1, 1], 9)),
        "WeightedSampling: size is 9, but must be at most the number of clients, 4",
    ),
    "too many blocks": (
        lambda: simulate(sampler=fa.NonOverlappingSampling(9)),
        "NonOverlappingSampling: blocks is 9, but must be at most the number of clients, 4",
    ),
    "coins for others": (
        lambda: simulate(sampler=fa.BernoulliSampling([0.5, 0.5])),
        "BernoulliSampling: probability has 2 entries, but must have one for each of the 4 clients",
    ),
    "weights for others": (
        lambda: simulate(sampler=fa.WeightedSampling([1.0], 1)),
        "WeightedSampling: weights has 1 entries, but must have one for each of the 4 clients",
    ),
    "a weight of zero is not proper": (
        lambda: simulate(sampler=fa.WeightedSampling([1, 0, 1, 1], 2)),
        "WeightedSampling: client 1 takes part with probability 0, but a proper scheme gives every "
        "client a chance",
    ),
    "a trace without somebody is not proper": (
        lambda: simulate(sampler=fa.TraceSampling([[0], [1, 3], [0]])),
        "TraceSampling: client 2 takes part with probability 0, but a proper scheme gives every "
        "client a chance",
    ),
    "a trace with a stranger": (
        lambda: simulate(sampler=fa.TraceSampling([[0, 1, 2, 3], [7]])),
        "TraceSampling: rounds names client 7, but ids must be 0 to 3",
    ),
    "a trace that is too short": (
        lambda: simulate(sampler=fa.TraceSampling([[0, 1], [2, 3]])),
        "TraceSampling: rounds has 2 entries, but the run has 3 rounds (repeat=True starts the "
        "trace again)",
    ),
    "a trace with a repetition": (
        lambda: fa.TraceSampling([[0], [1, 1]]),
        "TraceSampling: rounds[1] names a client twice",
    ),
    "a trace of nothing": (
        lambda: fa.TraceSampling([]),
        "TraceSampling: rounds is empty, but needs at least one round",
    ),
    # samplers
    "no client": (lambda: fa.UniformSampling(0), f"UniformSampling: size is 0, but {WHOLE}"),
    "a fraction above one": (
        lambda: fa.UniformSampling(1.5),
        "UniformSampling: size is 1.5, but must be > 0 and <= 1",
    ),
    "no cyclic client": (lambda: fa.CyclicSampling(0), f"CyclicSampling: size is 0, but {WHOLE}"),
    "a coin that never falls": (
        lambda: fa.BernoulliSampling([0.5, 0.0]),
        "BernoulliSampling: probability[1] is 0.0, but must be > 0 and <= 1",
    ),
    "a negative weight": (
        lambda: fa.WeightedSampling([1.0, -1.0], 1),
        "WeightedSampling: weights[1] is -1.0, but must be >= 0 and finite",
    ),
    "no weighted client": (
        lambda: fa.WeightedSampling([1.0], 0),
        f"WeightedSampling: size is 0, but {WHOLE}",
    ),
    "no block": (
        lambda: fa.NonOverlappingSampling(0),
        f"NonOverlappingSampling: blocks is 0, but {WHOLE}",
    ),
    # algorithms
    "FedSGD lr": (lambda: fa.FedSGD(0.0), f"FedSGD: lr is 0.0, but {POSITIVE}"),
    "FedProx rho": (lambda: fa.FedProx(-1.0), f"FedProx: rho is -1.0, but {NOT_NEGATIVE}"),
    "Scaffold option": (
        lambda: fa.Scaffold(3),
        "Scaffold: option is 3, but must be one of 1, 2",
    ),
    "Scaffold step": (
        lambda: fa.Scaffold(step=-1.0),
        f"Scaffold: step is -1.0, but {POSITIVE}",
    ),
    "FedDyn eta": (
        lambda: fa.FedDyn(float("inf")),
        f"FedDyn: eta is inf, but {POSITIVE}",
    ),
    "FedDyn members": (
        lambda: fa.FedDyn(1.0, "some"),
        "FedDyn: members is 'some', but must be one of 'all', 'seen'",
    ),
    "FedPD eta": (lambda: fa.FedPD(0.0), f"FedPD: eta is 0.0, but {POSITIVE}"),
    "FedPD skip": (
        lambda: fa.FedPD(1.0, 1.0),
        "FedPD: skip_probability is 1.0, but must be >= 0 and < 1",
    ),
    "FedADMM rho": (lambda: fa.FedADMM(-2.0), f"FedADMM: rho is -2.0, but {POSITIVE}"),
    "FedADMM rho text": (
        lambda: fa.FedADMM("two"),
        f"FedADMM: rho is 'two', but {POSITIVE}, or a Schedule",
    ),
    "FedADMM step": (
        lambda: fa.FedADMM(1.0, step="follow"),
        "FedADMM: step is 'follow', but must be one of 'tracking'",
    ),
    "FedADMM step zero": (
        lambda: fa.FedADMM(1.0, step=0.0),
        f"FedADMM: step is 0.0, but {POSITIVE}",
    ),
    "FedADMM start": (
        lambda: fa.FedADMM(1.0, start="zero"),
        "FedADMM: start is 'zero', but must be one of 'own', 'current', 'global'",
    ),
    "FedADMM increment": (
        lambda: fa.FedADMM(1.0, increment="late"),
        "FedADMM: increment is 'late', but must be one of 'exact', 'printed', 'released'",
    ),
    "FedADMM seen, as released": (
        lambda: fa.FedADMM(1.0, increment="released", members="seen"),
        "FedADMM: increment is 'released', but must be 'exact' with members='seen', whose mean "
        "counts the clients' own models",
    ),
    "FedADMM schedule with a step": (
        lambda: fa.FedADMM(fa.Geometric(1.0), step=0.5),
        "FedADMM: step is 0.5, but must be 'tracking' with members='seen' or a schedule of rho, "
        "which keep an exact mean (increment='printed' keeps none)",
    ),
    "FedADMM members": (
        lambda: fa.FedADMM(1.0, members="some"),
        "FedADMM: members is 'some', but must be one of 'all', 'seen'",
    ),
    "FedADMM seen with a step": (
        lambda: fa.FedADMM(1.0, step=0.5, members="seen"),
        "FedADMM: step is 0.5, but must be 'tracking' with members='seen' or a schedule of rho, "
        "which keep an exact mean (increment='printed' keeps none)",
    ),
    "FedADMM rho with a tracking floor": (
        lambda: fa.FedADMM(fa.Geometric(floor="tracking")),
        "FedADMM: rho has the floor 'tracking', but only a server step can have it; use a number",
    ),
    "FedADMM-In beta": (lambda: fa.FedADMMIn(0.0), f"FedADMMIn: beta is 0.0, but {POSITIVE}"),
    "FedADMM-In start": (
        lambda: fa.FedADMMIn(1.0, start="zero"),
        "FedADMMIn: start is 'zero', but must be one of 'own', 'global'",
    ),
    "FedADMM-In members": (
        lambda: fa.FedADMMIn(1.0, members="some"),
        "FedADMMIn: members is 'some', but must be one of 'all', 'seen'",
    ),
    "FedADMM-In memory": (
        lambda: fa.FedADMMIn(1.0, memory=-0.1),
        f"FedADMMIn: memory is -0.1, but {NOT_NEGATIVE}",
    ),
    "FedADMM-InSa beta": (
        lambda: fa.FedADMMInSa(1e9),
        "FedADMMInSa: beta is 1000000000.0, but must be >= 0.0001 and <= 10000",
    ),
    "FedADMM-InSa beta_min": (
        lambda: fa.FedADMMInSa(1.0, beta_min=0.0),
        f"FedADMMInSa: beta_min is 0.0, but {POSITIVE}",
    ),
    "FedADMM-InSa beta_max": (
        lambda: fa.FedADMMInSa(1.0, beta_min=2.0, beta_max=1.0),
        "FedADMMInSa: beta_max is 1.0, but must be >= 2",
    ),
    "FedADMM-InSa mu": (
        lambda: fa.FedADMMInSa(1.0, mu=1.0),
        "FedADMMInSa: mu is 1.0, but must be > 1 and finite",
    ),
    "FedADMM-InSa tau": (
        lambda: fa.FedADMMInSa(1.0, tau=0.5),
        "FedADMMInSa: tau is 0.5, but must be > 1 and finite",
    ),
    "FedDR eta": (lambda: fa.FedDR(0.0), f"FedDR: eta is 0.0, but {POSITIVE}"),
    "FedDR alpha": (
        lambda: fa.FedDR(1.0, 2.0),
        "FedDR: alpha is 2.0, but must be > 0 and < 2",
    ),
    "FedDR init": (
        lambda: fa.FedDR(1.0, init="zero"),
        "FedDR: init is 'zero', but must be one of 'start', 'prox'",
    ),
    "FedDR-II eta": (lambda: fa.FedDRII(-1.0), f"FedDRII: eta is -1.0, but {POSITIVE}"),
    "FedSplit eta": (lambda: fa.FedSplit(-1.0), f"FedSplit: eta is -1.0, but {POSITIVE}"),
    "FedSplit alpha": (
        lambda: fa.FedSplit(1.0, alpha=1.5),
        "FedSplit: alpha is 1.5, but must be 2 (use FedDR for others)",
    ),
    # solvers and stopping rules
    "SGD lr": (lambda: fa.SGD(0.0), f"SGD: lr is 0.0, but {POSITIVE}"),
    "SGD momentum": (
        lambda: fa.SGD(0.1, momentum=1.0),
        "SGD: momentum is 1.0, but must be >= 0 and < 1",
    ),
    "SGD batch": (lambda: fa.SGD(0.1, batch_size=0), f"SGD: batch_size is 0, but {WHOLE}"),
    "GradientDescent lr": (
        lambda: fa.GradientDescent(-1),
        f"GradientDescent: lr is -1, but {POSITIVE}",
    ),
    "AcceleratedGradient lr": (
        lambda: fa.AcceleratedGradient(-1),
        f"AcceleratedGradient: lr is -1, but {POSITIVE}",
    ),
    "LBFGS history": (lambda: fa.LBFGS(history=0), f"LBFGS: history is 0, but {WHOLE}"),
    "Epochs": (lambda: fa.Epochs(0), f"Epochs: epochs is 0, but {POSITIVE}"),
    "Epochs of a client": (
        lambda: fa.Epochs([2, 0.5, 0.0]),
        f"Epochs: epochs[2] is 0.0, but {POSITIVE}",
    ),
    "Epochs truth": (lambda: fa.Epochs(True), f"Epochs: epochs is True, but {POSITIVE}, or a list"),
    "Epochs word": (
        lambda: fa.Epochs("two"),
        f"Epochs: epochs is 'two', but {POSITIVE}, or a list",
    ),
    "Steps of a client": (lambda: fa.Steps([1, 1.5]), f"Steps: steps[1] is 1.5, but {WHOLE}"),
    "rate of a client": (
        lambda: fa.SGD([0.1, -0.1]),
        f"SGD: lr[1] is -0.1, but {POSITIVE}",
    ),
    "sigma of a client": (
        lambda: fa.InSaCriterion([0.5, 1.0]),
        "InSaCriterion: sigma[1] is 1.0, but must be > 0 and < 1",
    ),
    "coin above one": (
        lambda: simulate(sampler=fa.BernoulliSampling(fa.Geometric(0.8, 1.5))),
        "BernoulliSampling: probability in round 1 is 1.2000000000000002, but must be >= 0 and "
        "<= 1",
    ),
    "no room for the floor": (
        lambda: simulate(sampler=fa.LossSampling(1, floor=0.3)),
        "LossSampling: floor is 0.3, but must be > 0 and <= 0.25",
    ),
    "no floor": (
        lambda: fa.LossSampling(1, floor=0.0),
        "LossSampling: floor is 0.0, but must be > 0 and <= 1",
    ),
    "batteries for others": (
        lambda: simulate(sampler=fa.EnergySampling(2, recovery=[0.1, 0.2])),
        "EnergySampling: recovery has 2 entries, but must have one for each of the 4 clients",
    ),
    "a battery without a round in it": (
        lambda: fa.EnergySampling(2, capacity=0.5),
        "EnergySampling: capacity is 0.5, but must be >= 1 and finite",
    ),
    "more than there are": (
        lambda: simulate(sampler=fa.LeastRecentlySeenSampling(9)),
        "LeastRecentlySeenSampling: size is 9, but must be at most the number of clients, 4",
    ),
    "rates for others": (
        lambda: simulate(solver=fa.SGD([0.1, 0.2])),
        "SGD: lr has 2 entries, but must have one for each of the 4 clients",
    ),
    "epochs for others": (
        lambda: simulate(stop=fa.UniformEpochs([1, 2, 3, 4, 5])),
        "UniformEpochs: epochs has 5 entries, but must have one for each of the 4 clients",
    ),
    "constants for others": (
        lambda: simulate(stop=fa.InSaCriterion(c=[0.1] * 3)),
        "InSaCriterion: c has 3 entries, but must have one for each of the 4 clients",
    ),
    "UniformEpochs": (lambda: fa.UniformEpochs(0), f"UniformEpochs: epochs is 0, but {WHOLE}"),
    "Steps": (lambda: fa.Steps(0), f"Steps: steps is 0, but {WHOLE}"),
    "GradientTolerance": (
        lambda: fa.GradientTolerance(0.0),
        f"GradientTolerance: epsilon is 0.0, but {POSITIVE}",
    ),
    "GradientTolerance cap": (
        lambda: fa.GradientTolerance(0.1, 0),
        f"GradientTolerance: max_epochs is 0, but {WHOLE}",
    ),
    "ProxAccuracy": (lambda: fa.ProxAccuracy(0.0), f"ProxAccuracy: M is 0.0, but {POSITIVE}"),
    "ProxAccuracy convexity": (
        lambda: fa.ProxAccuracy(1.0, -1.0),
        "ProxAccuracy: weak_convexity is -1.0, but must be >= 0 and finite",
    ),
    "RelativeAccuracy": (
        lambda: fa.RelativeAccuracy(0.0),
        f"RelativeAccuracy: theta is 0.0, but {POSITIVE}",
    ),
    "InSaCriterion sigma": (
        lambda: fa.InSaCriterion(1.0),
        "InSaCriterion: sigma is 1.0, but must be > 0 and < 1",
    ),
    "InSaCriterion c": (
        lambda: fa.InSaCriterion(c=0.0),
        f"InSaCriterion: c is 0.0, but {POSITIVE}",
    ),
    "InSaCriterion safety": (
        lambda: fa.InSaCriterion(safety=1.0),
        "InSaCriterion: safety is 1.0, but must be > 0 and < 1",
    ),
    "InSaCriterion reference": (
        lambda: fa.InSaCriterion(reference="mean"),
        "InSaCriterion: reference is 'mean', but must be one of 'own', 'global'",
    ),
    # regularisers, penalties, schedules
    "L1": (lambda: fa.L1(-1.0), f"L1: lam is -1.0, but {NOT_NEGATIVE}"),
    "L1 infinite": (lambda: fa.L1(float("inf")), f"L1: lam is inf, but {NOT_NEGATIVE}"),
    "SquaredL2": (lambda: fa.SquaredL2(-1.0), f"SquaredL2: lam is -1.0, but {NOT_NEGATIVE}"),
    "ElasticNet l1": (
        lambda: fa.ElasticNet(-1.0, 1.0),
        f"ElasticNet: l1 is -1.0, but {NOT_NEGATIVE}",
    ),
    "ElasticNet l2": (
        lambda: fa.ElasticNet(1.0, float("nan")),
        f"ElasticNet: l2 is nan, but {NOT_NEGATIVE}",
    ),
    "GroupLasso lam": (
        lambda: fa.GroupLasso(-1.0, [1]),
        f"GroupLasso: lam is -1.0, but {NOT_NEGATIVE}",
    ),
    "GroupLasso empty group": (
        lambda: fa.GroupLasso(1.0, [2, 0]),
        f"GroupLasso: sizes[1] is 0, but {WHOLE}",
    ),
    "GroupLasso sizes": (
        lambda: simulate(regularizer=fa.GroupLasso(1.0, [2, 2])),
        "GroupLasso: sizes add up to 4, but must add up to the number of parameters, 3",
    ),
    "Box": (lambda: fa.Box(1.0, 0.0), "Box: high is 0.0, but must be >= 1"),
    "Box low": (lambda: fa.Box(float("nan"), 0.0), "Box: low is nan, but must be a number"),
    "L2Ball": (lambda: fa.L2Ball(0.0), f"L2Ball: radius is 0.0, but {POSITIVE}"),
    "PyProximal": (
        lambda: fa.PyProximal(3),
        "PyProximal: operator is 3, but must be a pyproximal.ProxOperator with a value and a prox",
    ),
    "ResidualBalancing mu": (
        lambda: penalties.ResidualBalancing(mu=1.0),
        "ResidualBalancing: mu is 1.0, but must be > 1",
    ),
    "ResidualBalancing tau": (
        lambda: penalties.ResidualBalancing(tau=1.0),
        "ResidualBalancing: tau is 1.0, but must be > 1",
    ),
    "ResidualBalancing low": (
        lambda: penalties.ResidualBalancing(low=0.0),
        f"ResidualBalancing: low is 0.0, but {POSITIVE}",
    ),
    "ResidualBalancing high": (
        lambda: penalties.ResidualBalancing(low=2.0, high=1.0),
        "ResidualBalancing: high is 1.0, but must be >= 2",
    ),
    "Piecewise": (
        lambda: fa.Piecewise({5: 1.0}),
        "Piecewise: values has change points [5], but needs one at 0",
    ),
    "Piecewise value": (
        lambda: fa.Piecewise({0: 1.0, 5: 0.0}),
        f"Piecewise: values[5] is 0.0, but {POSITIVE}",
    ),
    "Piecewise point": (
        lambda: fa.Piecewise({0: 1.0, -5: 1.0}),
        "Piecewise: values (a change point) is -5, but must be a whole number of at least 0",
    ),
    "Geometric initial": (
        lambda: fa.Geometric(0.0),
        f"Geometric: initial is 0.0, but {POSITIVE}",
    ),
    "Geometric factor": (
        lambda: fa.Geometric(factor=-1.0),
        f"Geometric: factor is -1.0, but {POSITIVE}",
    ),
    "Geometric floor": (
        lambda: fa.Geometric(floor=-1.0),
        "Geometric: floor is -1.0, but must be >= 0 and finite",
    ),
    "Geometric floor word": (
        lambda: fa.Geometric(floor="follow"),
        "Geometric: floor is 'follow', but must be one of 'tracking'",
    ),
    # problem and evaluation
    "problem weights": (
        lambda: fa.Problem([Untouchable()] * 3, weights=[1.0, 2.0]),
        "Problem: weights has shape (2,), but must hold one number for each of the 3 clients",
    ),
    "problem weight zero": (
        lambda: fa.Problem([Untouchable()] * 2, weights=[1.0, 0.0]),
        "Problem: weights must be finite and greater than zero",
    ),
    "problem buffers": (
        lambda: fa.Problem([Untouchable()], buffers="forget"),
        "Problem: buffers is 'forget', but must be one of 'keep-local', 'average'",
    ),
    "Evaluation every": (
        lambda: fa.Evaluation(every=0),
        f"Evaluation: every is 0, but {WHOLE}",
    ),
    "Evaluation target": (
        lambda: fa.Evaluation(target="both"),
        "Evaluation: target is 'both', but must be one of 'global', 'local'",
    ),
    "ridge": (
        lambda: fa.LeastSquares(EYE, START, -1.0),
        "LeastSquares: ridge is -1.0, but must be >= 0",
    ),
    "nothing to train": (
        lambda: FlatModule(nn.Tanh()),
        "module is Tanh with no trainable parameter, but must have one",
    ),
}


@pytest.mark.parametrize("case", PARAMETERS)
def test_parameter(case):
    attempt, message = PARAMETERS[case]
    with pytest.raises(fa.ParameterError, match=f"^{re.escape(message)}$"):
        attempt()


def test_an_unknown_engine_is_refused_with_the_list_of_known_ones():
    with pytest.raises(
        fa.ParameterError, match=r"^simulate: engine is 'magic', but must be one of 'sequential'"
    ):
        simulate(engine="magic")


def _second(client: object) -> fa.Problem:
    """Three perceptrons that are made when they are asked for; the one in the middle is another."""
    given = small_federation(clients=3)
    clients = LazyClients(3, lambda index: client if index == 1 else given.clients[index])
    return fa.Problem(clients, initial=given.initial)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(
    ("client", "why"),
    [
        (object(), "Problem: client 1 is a object, but must be a fedadmm.Objective"),
        (fa.Quadratic(EYE, START), "Problem: client 1 has 3 parameters, but must have as many as"),
        (
            fa.ModelObjective(
                FlatModule(perceptron()),
                nn.functional.cross_entropy,
                torch.ones(4, 3),
                torch.ones(4).long(),
            ),
            "ModelObjective",
        ),
    ],
    ids=["no objective", "another length", "another width"],
)
def test_a_client_that_is_made_on_demand_is_checked_when_it_takes_part(client, why, engine):
    with pytest.raises(fa.DataError, match=why):
        fa.simulate(fa.FedAvg(), _second(client), 2, solver=fa.SGD(lr=0.1), engine=engine)


DATA: dict[str, tuple[Callable[[], Any], str]] = {
    "a client that is none": (
        lambda: fa.Problem([Untouchable(), object()]),
        "Problem: client 1 is a object, but must be a fedadmm.Objective; let its class inherit "
        "from it",
    ),
    "no clients": (
        lambda: fa.Problem([]),
        "Problem: clients is empty, but at least one is needed",
    ),
    "clients of different lengths": (
        lambda: fa.Problem([fa.Quadratic(EYE, START), fa.Quadratic(EYE[:2, :2], START[:2])]),
        "Problem: client 1 has 2 parameters, but must have as many as client 0, 3",
    ),
    "tests for others": (
        lambda: fa.Problem([Untouchable()] * 3, client_tests=[lambda x: {}]),
        "Problem: 1 client_tests for 3 clients, but there must be one a client",
    ),
    "quadratic shapes": (
        lambda: fa.Quadratic(EYE, START[:2]),
        "Quadratic: A has shape (3, 3) and b (2,), but A must be (D, D) and b (D,)",
    ),
    "quadratic symmetry": (
        lambda: fa.Quadratic(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.zeros(2)),
        "Quadratic: A is not symmetric, but must be",
    ),
    "rows": (
        lambda: fa.LeastSquares(EYE, START[:2]),
        "LeastSquares: features have shape (3, 3) and targets (2,), but must be (m, D) and (m,)",
    ),
    "no rows": (
        lambda: fa.LeastSquares(EYE[:0], START[:0]),
        "LeastSquares: no rows, but at least one is needed",
    ),
    "classes": (
        lambda: fa.LogisticRegression(EYE, START + 2),
        "LogisticRegression: targets must be 0 or 1",
    ),
    "model rows": (
        lambda: fa.ModelObjective(
            perceptron(), nn.functional.cross_entropy, rows(0, 5)[0], rows(0, 4)[1]
        ),
        "ModelObjective: 5 inputs and 4 targets, but there must be one target an input",
    ),
    "model without rows": (
        lambda: fa.ModelObjective(perceptron(), nn.functional.cross_entropy, *rows(0, 0)),
        "ModelObjective: no rows, but at least one is needed",
    ),
}


@pytest.mark.parametrize("case", DATA)
def test_data(case):
    attempt, message = DATA[case]
    with pytest.raises(fa.DataError, match=f"^{re.escape(message)}$"):
        attempt()


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


def test_numbers_of_numpy_are_numbers():
    import numpy as np

    assert fa.UniformSampling(np.int64(2)).sample(0, 0, 5)
    assert fa.FedADMM(np.float32(0.5)).rho == 0.5


def test_nothing_to_refuse_when_nothing_is_evaluated():
    """Statistics may stay with the clients as long as nobody asks for a global evaluation."""
    problem = batch_norm(buffers="keep-local")
    result = fa.simulate(fa.FedAvg(), problem, 1, solver=SGD, evaluate=False)
    assert result.code == "completed"
