"""Rules of samplers, solvers, stopping rules, regularizers and schedules beyond their annotations.

`test_validation.py` checks the annotations of every component.
"""

from __future__ import annotations

import pytest

import fedadmm as fa
from support.rejections import Cases, assert_rejected, simulate

RULES: Cases = {
    "more clients than there are": (
        lambda: simulate(sampler=fa.UniformSampling(9)),
        "UniformSampling size 9 4",
    ),
    "more cyclic clients than there are": (
        lambda: simulate(sampler=fa.CyclicSampling(9)),
        "CyclicSampling size 9 4",
    ),
    "more weighted clients than there are": (
        lambda: simulate(sampler=fa.WeightedSampling([1, 1, 1, 1], 9)),
        "WeightedSampling size 9 4",
    ),
    "more blocks than clients": (
        lambda: simulate(sampler=fa.NonOverlappingSampling(9)),
        "NonOverlappingSampling blocks 9 4",
    ),
    "probabilities of two of four clients": (
        lambda: simulate(sampler=fa.BernoulliSampling([0.5, 0.5])),
        "BernoulliSampling probability 2 4",
    ),
    "weights of one of four clients": (
        lambda: simulate(sampler=fa.WeightedSampling([1.0], 1)),
        "WeightedSampling weights 1 4",
    ),
    "a client with weight zero": (
        lambda: simulate(sampler=fa.WeightedSampling([1, 0, 1, 1], 2)),
        "WeightedSampling client 1 probability",
    ),
    "a client that is missing from a trace": (
        lambda: simulate(sampler=fa.TraceSampling([[0], [1, 3], [0]])),
        "TraceSampling client 2 probability",
    ),
    "an unknown client in a trace": (
        lambda: simulate(sampler=fa.TraceSampling([[0, 1, 2, 3], [7]])),
        "TraceSampling rounds 7 3",
    ),
    "a trace that is too short": (
        lambda: simulate(sampler=fa.TraceSampling([[0, 1], [2, 3]])),
        "TraceSampling rounds 2 3 repeat=True",
    ),
    "a trace with a repetition": (
        lambda: fa.TraceSampling([[0], [1, 1]]),
        "TraceSampling rounds[1]",
    ),
    "an empty trace": (lambda: fa.TraceSampling([]), "TraceSampling rounds"),
    "a probability above one": (
        lambda: simulate(sampler=fa.BernoulliSampling(fa.schedules.Geometric(0.8, 1.5))),
        "BernoulliSampling probability round 1 1.2000000000000002",
    ),
    "learning rates of two of four clients": (
        lambda: simulate(solver=fa.SGD([0.1, 0.2])),
        "SGD lr 2 4",
    ),
    "epochs of five of four clients": (
        lambda: simulate(stop=fa.UniformEpochs([1, 2, 3, 4, 5])),
        "UniformEpochs epochs 5 4",
    ),
    "constants of three of four clients": (
        lambda: simulate(stop=fa.stopping.InSaCriterion(c=[0.1] * 3)),
        "InSaCriterion c 3 4",
    ),
    "groups of another number of parameters": (
        lambda: simulate(regularizer=fa.regularizers.GroupLasso(1.0, [2, 2])),
        "GroupLasso sizes 4 3",
    ),
    "a box with crossed bounds": (lambda: fa.regularizers.Box(1.0, 0.0), "Box high 0.0"),
    "an operator that is none": (lambda: fa.regularizers.PyProximal(3), "PyProximal operator 3"),
    "a schedule without a first value": (
        lambda: fa.schedules.Piecewise({5: 1.0}),
        "Piecewise values [5]",
    ),
    "a change before the first round": (
        lambda: fa.schedules.Piecewise({0: 1.0, -5: 1.0}),
        "Piecewise values -5",
    ),
}


@pytest.mark.parametrize("case", RULES)
def test_a_component_that_breaks_a_rule_is_rejected(case: str) -> None:
    assert_rejected(fa.errors.ParameterError, RULES[case])
