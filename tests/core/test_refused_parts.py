"""Rules of samplers, solvers, stopping rules, regularisers and schedules that no annotation says.

What their annotations say is checked for every part in `test_refusals.py`.
"""

from __future__ import annotations

import pytest

import fedadmm as fa
from support.refusals import Cases, refused, simulate

RULES: Cases = {
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
    "coin above one": (
        lambda: simulate(sampler=fa.BernoulliSampling(fa.Geometric(0.8, 1.5))),
        "BernoulliSampling: probability in round 1 is 1.2000000000000002, but must be >= 0 and "
        "<= 1",
    ),
    "more than there are": (
        lambda: simulate(sampler=fa.UniformSampling(9)),
        "UniformSampling: size is 9, but must be at most the number of clients, 4",
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
    "GroupLasso sizes": (
        lambda: simulate(regularizer=fa.GroupLasso(1.0, [2, 2])),
        "GroupLasso: sizes add up to 4, but must add up to the number of parameters, 3",
    ),
    "Box": (lambda: fa.Box(1.0, 0.0), "Box: high is 0.0, but must be >= 1"),
    "PyProximal": (
        lambda: fa.PyProximal(3),
        "PyProximal: operator is 3, but must be a pyproximal.ProxOperator with a value and a prox",
    ),
    "Piecewise": (
        lambda: fa.Piecewise({5: 1.0}),
        "Piecewise: values has change points [5], but needs one at 0",
    ),
    "Piecewise point": (
        lambda: fa.Piecewise({0: 1.0, -5: 1.0}),
        "Piecewise: values (a change point) is -5, but must be a whole number of at least 0",
    ),
}


@pytest.mark.parametrize("case", RULES)
def test_a_rule(case: str) -> None:
    refused(fa.ParameterError, RULES[case])
