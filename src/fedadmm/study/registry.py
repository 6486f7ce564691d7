"""Every part that a configuration can name, by family.

The parts are the frozen dataclasses that Python recipes use: a table of a configuration is a
constructor call.  Algorithms, engines and problems keep their own registries; a new one of those
needs nothing here.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any, cast

from fedadmm import problems, regularizers, sampling, schedules, solvers, stopping
from fedadmm.algorithms import REGISTRY
from fedadmm.engines import ENGINES

Parts = dict[str, type[Any]]
"""Name in configurations -> frozen dataclass."""

SOLVERS: Parts = {
    "sgd": solvers.SGD,
    "gradient-descent": solvers.GradientDescent,
    "accelerated-gradient": solvers.AcceleratedGradient,
    "lbfgs": solvers.LBFGS,
    "exact": solvers.ExactSolver,
}

STOPPING: Parts = {
    "epochs": stopping.Epochs,
    "uniform-epochs": stopping.UniformEpochs,
    "steps": stopping.Steps,
    "gradient-tolerance": stopping.GradientTolerance,
    "prox-accuracy": stopping.ProxAccuracy,
    "relative-accuracy": stopping.RelativeAccuracy,
    "insa": stopping.InSaCriterion,
}

SAMPLERS: Parts = {
    "full": sampling.FullParticipation,
    "uniform": sampling.UniformSampling,
    "bernoulli": sampling.BernoulliSampling,
    "weighted": sampling.WeightedSampling,
    "non-overlapping": sampling.NonOverlappingSampling,
    "doubly-uniform": sampling.DoublyUniformSampling,
    "cyclic": sampling.CyclicSampling,
    "trace": sampling.TraceSampling,
}

REGULARIZERS: Parts = {
    "zero": regularizers.Zero,
    "l1": regularizers.L1,
    "squared-l2": regularizers.SquaredL2,
    "elastic-net": regularizers.ElasticNet,
    "group-lasso": regularizers.GroupLasso,
    "box": regularizers.Box,
    "non-negative": regularizers.NonNegative,
    "l2-ball": regularizers.L2Ball,
}

SCHEDULES: Parts = {"piecewise": schedules.Piecewise, "geometric": schedules.Geometric}


@cache
def families() -> dict[str, Parts]:
    """Table of a configuration -> the parts it can name."""
    return {
        "problem": {name: problems.options(name) for name in problems.names()},
        "regularizer": REGULARIZERS,
        "algorithm": dict(REGISTRY),
        "solver": SOLVERS,
        "stop": STOPPING,
        "sampler": SAMPLERS,
        "engine": cast(Parts, ENGINES),
    }


@cache
def defaults() -> dict[str, Any]:
    """What a configuration may leave out although the constructor asks for it."""
    text = resources.files(__package__).joinpath("defaults.toml").read_text("utf-8")
    return tomllib.loads(text)
