"""What a run fulfils of the theorems' assumptions: how exact its solves are, and who replies when.

The theorems take the distance eps_{i,k} of x_i^k from the exact solution of its local problem.  A
rule certifies it through strong convexity, which holds only if it knows how far the f_i are from
convex: a modulus below the problem's own certifies nothing, and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from fedadmm.core.errors import CompatibilityError
from fedadmm.core.sampling import (
    CyclicSampling,
    NonOverlappingSampling,
    Sampler,
    TraceSampling,
    UniformSampling,
    WeightedSampling,
)
from fedadmm.core.solvers import ExactSolver
from fedadmm.core.stopping import GradientTolerance, ProxAccuracy
from fedadmm.run.client import Job
from fedadmm.run.engines.choice import EngineChoice
from fedadmm.run.engines.virtual_time import VirtualTime
from fedadmm.run.record import Record


class LocalErrors(NamedTuple):
    """How inexact the local solves may be."""

    total: Callable[[int], float]
    """K -> (1/n) sum_i sum_k E[eps_{i,k}²] up to k = K + 1: from k = 0 when an initial round with
    all clients made the x_i^0, or else from k = 1."""
    initial: float
    """The largest eps_{i,0} of an initial round with all clients; 0 without one."""
    gradient: float
    """The largest ||grad L_i||²."""


EXACT = LocalErrors(lambda rounds: 0.0, 0.0, 0.0)


def local_errors(job: Job, weight: float, p_hat: float) -> LocalErrors:
    """What the solver or the stopping rule guarantees; a CompatibilityError when that is nothing.

    A client that sits a round out keeps its error.  It solves in round k with probability p_i and
    keeps that error for an expected 1/p_i rounds, so that the rounds add eps_k² each; what it has
    from the initial round, in which all clients solve, adds eps² / p_i.
    """
    stop, everyone = job.stop, job.algorithm.requirements.initial_round is not None
    facts = job.problem.facts
    modulus = facts.smoothness if facts.weak_convexity is None else facts.weak_convexity
    if isinstance(job.solver, ExactSolver):
        return EXACT
    assert modulus is not None
    if isinstance(stop, ProxAccuracy):
        if stop.weak_convexity < modulus:
            raise CompatibilityError(
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
    raise CompatibilityError(
        f"certificate: needs local solves of known accuracy, but stop is {type(stop).__name__}; "
        "use ExactSolver, ProxAccuracy or GradientTolerance"
    )


Law = Callable[[Record | None], tuple[int, int, float]]
"""A step's record, None before the first -> tau, T and p_hat of Assumption 4.1."""


def arrival_law(job: Job, sampler: Sampler, engine: EngineChoice) -> Law:
    """Who replies when in a run without rounds: by a given law, or else as measured.

    Under a clock tau and T are the delays and absences that did occur; the schedule is no longer
    random, so p_hat is 1.
    """
    if not isinstance(engine, VirtualTime):
        delay, turns = engine.expected_delay(job.problem.num_clients), _turns(job, sampler)
        assert delay is not None, "an engine without rounds knows its delays"
        return lambda record: (delay, *turns)
    if engine.buffer != 1 or engine.policy == "wait":
        raise CompatibilityError(
            "certificate: the asynchronous theorem needs one reply a step: buffer=1, no "
            "policy='wait'"
        )

    def measured(record: Record | None) -> tuple[int, int, float]:
        if record is None:
            return 0, 0, 1.0
        clock = record["clock"]
        return clock["staleness_quantiles"][-1], clock["longest_absence"], 1.0

    return measured


def _turns(job: Job, sampler: Sampler) -> tuple[int, float]:
    """T and p_hat of a sampler with one client a step."""
    n, single = job.problem.num_clients, False
    probabilities = sampler.probabilities(n)
    turn = (0, 0.0 if probabilities is None else float(min(probabilities)))
    if isinstance(sampler, CyclicSampling | TraceSampling):
        period = len(sampler.rounds) if isinstance(sampler, TraceSampling) else n
        order = [tuple(sampler.sample(job.seed, step, n)) for step in range(period)]
        single = all(len(ids) == 1 for ids in order)
        last = {ids: step - period for step, ids in enumerate(order)}
        longest = 0
        for step, ids in enumerate(order):
            longest, last[ids] = max(longest, step - last[ids] - 1), step
        turn = (longest, 1.0)
    elif isinstance(sampler, UniformSampling | WeightedSampling | NonOverlappingSampling):
        single = probabilities is not None and math.isclose(sum(probabilities), 1.0)
    if not single:
        raise CompatibilityError(
            "certificate: the asynchronous theorem needs one client a step, but the sampler is "
            f"{sampler}; use UniformSampling(1), WeightedSampling with size=1, CyclicSampling(1) "
            "or a trace"
        )
    return turn
