"""The engine that suits a job, chosen from its work and not from the clock."""

from __future__ import annotations

import logging
import multiprocessing

from fedadmm.core.messages import ClientRecords, Engine
from fedadmm.core.parts import Count, is_external, name_of, part
from fedadmm.run.client import Job
from fedadmm.run.engines.choice import EngineChoice, Sequential, client_work, samples_per_step
from fedadmm.run.engines.vectorised import FEWEST_STACKED, Vectorised, stacking_obstacle
from fedadmm.run.engines.workers import Workers, usable_cores

STACKED_WORK = 1.25e6
"""Multiplications of a step up to which a stack pays: half of such a step is spent in Python."""
STACKED_PARAMETERS = 200_000
"""Larger vectors are bound by memory, which a stack does not save."""
WORKERS_WORK = 3e7
"""Multiplications of a client's round from which a process of its own pays for the exchange."""
STEP_OVERHEAD = 1.5e6
"""What a step costs apart from its gradient, in multiplications."""

log = logging.getLogger(__name__)


@part("engine", "auto")
class Auto(EngineChoice):
    """Stacks for small steps, processes for large ones; `workers` is how many may be used.

    The choice counts multiplications and times nothing.  Stacks round differently from the other
    engines, so that with a timed choice the last digits of a run would depend on what else the
    machine did when it began.
    """

    workers: Count | None = None

    def start(self, job: Job, store: ClientRecords) -> Engine:
        choice = self.chosen(job)
        log.info("engine auto chose %s", choice.name)
        return choice.start(job, store)

    def chosen(self, job: Job) -> EngineChoice:
        """The engine of a job; whether it stacks does not depend on the machine."""
        client = job.problem.clients[0]
        samples = samples_per_step(job)
        work = client.work(samples)
        small = work <= STACKED_WORK and job.initial.numel() <= STACKED_PARAMETERS
        stacks = small and job.problem.num_clients >= FEWEST_STACKED and not _has_external(job)
        if stacks and stacking_obstacle(job) is None:
            return Vectorised(workers=self.workers)
        cores = self.workers or usable_cores()
        fork = "fork" in multiprocessing.get_all_start_methods()
        if client_work(job, STEP_OVERHEAD) < WORKERS_WORK or cores == 1 or not fork:
            return Sequential()
        return Workers(cores) if job.initial.device.type == "cpu" else Sequential()


def _has_external(job: Job) -> bool:
    """Whether a part from elsewhere works on clients; it may be written for one at a time."""
    parts = (job.algorithm, job.solver, job.stop)
    return any(is_external(name_of(type(one))) for one in parts if one is not None)
