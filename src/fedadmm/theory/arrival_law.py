"""Who replies when in a run without rounds: tau, T and p_hat of FedDR's Assumption 4.1."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedadmm.core.errors import PairingError
from fedadmm.core.protocols import Sampler
from fedadmm.core.sampling import (
    CyclicSampling,
    NonOverlappingSampling,
    TraceSampling,
    UniformSampling,
    WeightedSampling,
)
from fedadmm.run.client import Job
from fedadmm.run.engines.choice import EngineChoice
from fedadmm.run.engines.given_delays import GivenDelays
from fedadmm.run.engines.virtual_time import VirtualTime
from fedadmm.run.loop import Record

Law = Callable[[Record | None], tuple[int, int, float]]
"""A step's record, None before the first -> tau, T and p_hat of Assumption 4.1."""


def arrival_law(job: Job, sampler: Sampler, engine: EngineChoice) -> Law:
    """Set by a law that is given, or else measured.

    Under a clock the delays and absences that did occur stand for tau and T; the schedule has no
    dice left, so that p_hat is 1.
    """
    if isinstance(engine, GivenDelays):
        turns = _turns(job, sampler)
        return lambda record: (engine.max_delay, *turns)
    assert isinstance(engine, VirtualTime)
    if engine.buffer != 1 or engine.policy == "wait":
        raise PairingError(
            "certificate: the asynchronous theorem needs one reply a step: buffer=1, no "
            "policy='wait'"
        )

    def measured(record: Record | None) -> tuple[int, int, float]:
        if record is None:
            return 0, 0, 1.0
        return record["staleness_quantiles"][-1], record["longest_absence"], 1.0

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
        raise PairingError(
            "certificate: the asynchronous theorem needs one client a step, but the sampler is "
            f"{sampler}; use UniformSampling(1), WeightedSampling with size=1, CyclicSampling(1) "
            "or a trace"
        )
    return turn
