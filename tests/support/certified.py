"""Certified runs on the four classes of problems with a known infimum, shared by their tests."""

from __future__ import annotations

import math
from typing import Any

import fedadmm as fa

CLASSES = {
    "quadratics": {"clients": 6, "dimension": 4, "smoothness": 1.0},
    "saturating": {"clients": 6, "dimension": 4},
    "cosine-quadratics": {"clients": 6, "dimension": 4, "wave": 0.5},
    "robust-regression": {"clients": 6, "dimension": 4, "rows": 12},
}
SAMPLERS = {
    "full": fa.FullParticipation(),
    "uniform": fa.UniformSampling(2),
    "bernoulli": fa.BernoulliSampling(0.5),
    "blocks": fa.NonOverlappingSampling(3),
}


def certified(method: Any, problem: fa.Problem, rounds: int = 15, **options: Any) -> fa.Result:
    theorem = options.pop("theorem", "auto")
    callbacks = [fa.Certificate(theorem), *options.pop("callbacks", ())]
    return fa.simulate(method, problem, rounds, evaluate=False, callbacks=callbacks, **options)


def accurate(M: float, L: float, weight: float) -> dict[str, Any]:
    """Gradient steps until the distance to the exact solution is certified."""
    rule = fa.stopping.ProxAccuracy(M, weak_convexity=L, max_epochs=2000)
    return {"solver": fa.GradientDescent(lr=1 / (L + weight)), "stop": rule}


def curves(result: fa.Result) -> tuple[list[float], list[float]]:
    rounds = [record for record in result.history if record["round"] > 0]
    measured = [record["callbacks"]["certificate_measured"] for record in rounds]
    return measured, [record["callbacks"]["certificate_bound"] for record in rounds]


def assert_holds(result: fa.Result) -> None:
    measured, bounds = curves(result)
    assert all(math.isfinite(bound) and bound > 0 for bound in bounds)
    assert all(value <= bound for value, bound in zip(measured, bounds, strict=True))


METHODS = {
    "feddr": lambda L: (fa.FedDR(0.3 / L, 1.0), 1 / 0.3, "feddr"),
    "feddr relaxed": lambda L: (fa.FedDR(0.15 / L, 1.6, "prox"), 1 / 0.15, "feddr"),
    "wang": lambda L: (fa.FedADMM(2.5 * L), 2.5, "wang"),
    "gong": lambda L: (fa.FedADMM(4.0 * L), 4.0, "gong"),
    "wang, first gradients": lambda L: (fa.FedADMM(2.5 * L, dual="gradient"), 2.5, "wang"),
    "gong, first gradients": lambda L: (fa.FedADMM(4.0 * L, dual="gradient"), 4.0, "gong"),
}
