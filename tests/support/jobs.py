"""Jobs of runs that tests drive by hand."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedadmm.core.local_work import LocalWork
from fedadmm.core.problem import Problem
from fedadmm.run.client import Job
from fedadmm.run.experiment import Experiment
from fedadmm.run.simulate import make_job


def job_of(
    algorithm: Any,
    problem: Problem,
    local: LocalWork,
    seed: int,
    initial: Tensor,
    **fields: Any,
) -> Job:
    """Return the job of an experiment with these components."""
    experiment = Experiment(problem, algorithm, local=local, seed=seed, **fields)
    return make_job(experiment.resolve(), problem, initial)
