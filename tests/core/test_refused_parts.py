"""What no sampler, solver, stopping rule, regulariser or schedule accepts, word for word."""

from __future__ import annotations

import pytest

import fedadmm as fa
from support.refusals import (
    NOT_NEGATIVE,
    POSITIVE,
    WHOLE,
    Cases,
    refused,
    simulate,
)

SAMPLERS: Cases = {
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
}

SOLVERS: Cases = {
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
    "Epochs truth": (
        lambda: fa.Epochs(True),
        f"Epochs: epochs is True, but {POSITIVE}, or a list, each > 0 and finite",
    ),
    "Epochs word": (
        lambda: fa.Epochs("two"),
        f"Epochs: epochs is 'two', but {POSITIVE}, or a list, each > 0 and finite",
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
}

SERVERS: Cases = {
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
        "Geometric: floor is 'follow', but must be 'tracking'",
    ),
}


@pytest.mark.parametrize("case", SAMPLERS)
def test_a_sampler(case: str) -> None:
    refused(fa.ParameterError, SAMPLERS[case])


@pytest.mark.parametrize("case", SOLVERS)
def test_a_solver_or_a_stopping_rule(case: str) -> None:
    refused(fa.ParameterError, SOLVERS[case])


@pytest.mark.parametrize("case", SERVERS)
def test_a_regulariser_or_a_schedule(case: str) -> None:
    refused(fa.ParameterError, SERVERS[case])


def test_numbers_of_numpy_are_numbers():
    import numpy as np

    assert fa.UniformSampling(np.int64(2)).sample(0, 0, 5)
    assert fa.FedADMM(np.float32(0.5)).rho == 0.5
