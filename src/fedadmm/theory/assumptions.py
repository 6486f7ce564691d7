"""Quantities in the theorems' assumptions, derived from a run: local accuracy, delays, sampling.

The theorems use the distance eps_{i,k} of x_i^k from the exact solution of its local problem.  A
stopping rule bounds it through the strong convexity of the local problem, which requires an upper
bound on the weak convexity of the f_i.  A rule with a smaller modulus than the problem's gives no
bound and is rejected.
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
    """Upper bounds on the errors of the local solves."""

    total: Callable[[int], float]
    """Function K -> (1/n) sum_i sum_k E[eps_{i,k}²].  The sum over k ends at K + 1; it begins at 0
    if the x_i^0 come from an initial round with all clients, otherwise at 1."""
    initial: float
    """The largest eps_{i,0} of an initial round with all clients; 0 without one."""
    gradient: float
    """The largest ||grad L_i||²."""


EXACT = LocalErrors(lambda rounds: 0.0, 0.0, 0.0)


def local_errors(job: Job, weight: float, p_hat: float) -> LocalErrors:
    """Return the bounds on local errors that the solver or the stopping rule of a run guarantees.

    A client that is not sampled keeps its error.  It solves in round k with probability p_i and
    keeps that error for an expected 1/p_i rounds, so that each round adds eps_k² to the sum; the
    error from an initial round, in which all clients solve, adds eps² / p_i.

    Args:
        job: The run's problem, method, solver and stopping rule.
        weight: The coefficient of the quadratic term of the local problems.
        p_hat: The smallest probability with which a client is sampled.

    Raises:
        CompatibilityError: The stopping rule bounds no error, or its modulus is too small.
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
                f"certificate: ProxAccuracy.weak_convexity: got {stop.weak_convexity:g}, expected "
                f"at least {modulus:g} for the problem {job.problem.name}.  With a smaller value a "
                "small gradient does not bound the distance to the solution."
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
        f"certificate: stop: got {type(stop).__name__}, expected local solves of known accuracy: "
        "ExactSolver, ProxAccuracy or GradientTolerance."
    )


Law = Callable[[Record | None], tuple[int, int, float]]
"""Function of a server step's record (None before the first) that returns tau, T and p_hat of
Assumption 4.1."""


def arrival_law(job: Job, sampler: Sampler, engine: EngineChoice) -> Law:
    """Return tau, T and p_hat of an asynchronous run, known beforehand or measured.

    Under a virtual clock, tau and T are the largest delay and the longest absence observed so far;
    the schedule is then not random, so that p_hat is 1.

    Raises:
        CompatibilityError: The server does not process exactly one client result per step.
    """
    if not isinstance(engine, VirtualTime):
        delay, turns = engine.expected_delay(job.problem.num_clients), _turns(job, sampler)
        assert delay is not None, "an engine without rounds knows its delays"
        return lambda record: (delay, *turns)
    if engine.buffer != 1 or engine.policy == "wait":
        raise CompatibilityError(
            f"certificate: got buffer {engine.buffer} and policy {engine.policy!r}, expected "
            "buffer=1 and another policy than 'wait', because the asynchronous theorem is about "
            "one client result per server step."
        )

    def measured(record: Record | None) -> tuple[int, int, float]:
        if record is None:
            return 0, 0, 1.0
        clock = record["clock"]
        return clock["staleness_quantiles"][-1], clock["longest_absence"], 1.0

    return measured


def _turns(job: Job, sampler: Sampler) -> tuple[int, float]:
    """Return T and p_hat of a sampler that chooses one client per step."""
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
            f"certificate: got the sampler {sampler}, expected one client per step, as in the "
            "asynchronous theorem.  Use UniformSampling(1), WeightedSampling with size=1, "
            "CyclicSampling(1) or a trace."
        )
    return turn
