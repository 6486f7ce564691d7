"""How inexact the local solves of a run may be, as the theorems count it.

The theorems take the distance eps_{i,k} of x_i^k from the exact solution of its local problem.  A
rule certifies it through strong convexity, which holds only if it knows how far the f_i are from
convex: a modulus below the problem's own certifies nothing, and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from fedadmm.core.errors import PairingError
from fedadmm.core.solvers import ExactSolver
from fedadmm.core.stopping import GradientTolerance, ProxAccuracy
from fedadmm.run.client import Job


class LocalErrors(NamedTuple):
    """How inexact the local solves may be."""

    total: Callable[[int], float]
    """K -> (1/n) sum_i sum_k E[eps_{i,k}²] up to k = K + 1: from k = 0 when an initial round with
    everybody made the x_i^0, or else from k = 1."""
    initial: float
    """The largest eps_{i,0} of an initial round with everybody; 0 without one."""
    gradient: float
    """The largest ||grad L_i||²."""


EXACT = LocalErrors(lambda rounds: 0.0, 0.0, 0.0)


def local_errors(job: Job, weight: float, p_hat: float) -> LocalErrors:
    """What the solver or the stopping rule guarantees; a PairingError when that is nothing.

    A client that sits a round out keeps its error.  It solves in round k with probability p_i and
    keeps that error for an expected 1/p_i rounds, so that the rounds add eps_k² each; what it has
    from the initial round, in which everybody solves, adds eps² / p_i.
    """
    stop, everyone = job.stop, job.algorithm.starts_with_everyone
    modulus = job.problem.facts.least_modulus
    if isinstance(job.solver, ExactSolver):
        return EXACT
    assert modulus is not None
    if isinstance(stop, ProxAccuracy):
        if stop.weak_convexity < modulus:
            raise PairingError(
                f"certificate: ProxAccuracy has weak_convexity {stop.weak_convexity:g}, but the "
                f"problem {job.problem.name} needs at least {modulus:g}: below it a small gradient "
                "does not tell how far the solution is"
            )
        rule = stop
        initial = rule.epsilon(-1) if everyone else 0.0

        def total(rounds: int) -> float:
            return sum(rule.epsilon(k) ** 2 for k in range(rounds + 1)) + initial**2 / p_hat

        gradient = (rule.epsilon(0) * (weight - rule.weak_convexity)) ** 2
        return LocalErrors(total, initial, gradient)
    if isinstance(stop, GradientTolerance):
        distance = (
            math.sqrt(stop.largest_epsilon) / (weight - modulus) if weight > modulus else math.inf
        )
        return LocalErrors(
            lambda rounds: (rounds + 1 + everyone) * distance**2,
            distance if everyone else 0.0,
            stop.largest_epsilon,
        )
    raise PairingError(
        f"certificate: needs local solves of known accuracy, but stop is {type(stop).__name__}; "
        "use ExactSolver, ProxAccuracy or GradientTolerance"
    )
