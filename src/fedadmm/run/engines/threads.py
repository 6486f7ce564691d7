"""How many threads torch may use while clients run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from fedadmm.run.client import Job

Threads = int | Literal["auto"]

WORTH_SPLITTING = 2e7
"""Multiplications in a gradient from which on further threads pay.

Measured by `benchmarks/threads.py`: with two threads a gradient of a million takes as long as with
one, of five million 0.7 to 0.8 times as long, of twenty million 0.6 times (perceptrons; larger
gradients, and convolutions, were measured beside other work only, where the ratio is noise).  The
limit stands where the gain is clear and not where it begins, because what a wrong choice costs is
not symmetric: beside other work twenty rounds of the digits took 27 s with two threads and 0.8 s
with one.
"""


def chosen_threads(job: Job, threads: Threads) -> int:
    """The number itself, or with "auto" one thread for small gradients and all for large ones.

    "All" is what torch was given: its default, OMP_NUM_THREADS or `torch.set_num_threads`.

    The rule counts multiplications in a gradient of the first client, and times nothing: sums of
    floating-point numbers depend on how they are split among threads, so that with a timed choice
    the last digits of a run would depend on what else the machine did when it began.
    """
    if threads != "auto":
        return int(threads)
    given = torch.get_num_threads()
    if given == 1:
        return 1
    work = job.problem.clients[0].work(rows_of_a_step(job))
    return given if work >= WORTH_SPLITTING else 1


def rows_of_a_step(job: Job) -> int:
    """The rows in a gradient of the first client."""
    rows, solver = job.problem.clients[0].num_samples, job.solver
    if job.algorithm.needs.local_solve and solver is not None and solver.batch_size:
        return min(rows, solver.batch_size)
    return rows


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads inside the block.

    Threads that wait for each other at the end of every small operation cost more than they
    bring, and on a busy machine far more.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
