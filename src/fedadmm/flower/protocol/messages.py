"""What travels beside a task and beside a reply, and how it must look."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from fedadmm.core.protocols import (
    ClientInfo,
    ClientRecord,
    Download,
    SolveInfo,
    Upload,
)
from fedadmm.run.client import Job, message_template, record_layout, this_round


class Parcel(NamedTuple):
    """Down: the broadcast, the round it belongs to, and what a newcomer starts from."""

    download: Download
    round_index: int
    precision: str
    """The type of all vectors, which a client cannot see when a round brings none."""
    initial: Tensor | None = None
    initial_buffers: Tensor | None = None
    missed: Tensor | None = None
    """The virtual steps that this client missed, for a method that makes them."""


class Answer(NamedTuple):
    """Up: the upload and what observers may know about how it came about."""

    upload: Upload
    info: ClientInfo


class Question(NamedTuple):
    """Down: a model, to be measured at the sites."""

    params: Tensor
    buffers: Tensor | None


def parcel(
    job: Job, download: Download, round_index: int, newcomer: bool, missed: Tensor | None = None
) -> Parcel:
    """The parcel for one client; only a newcomer needs the initial vector."""
    precision = str(job.initial.dtype).removeprefix("torch.")
    shared = download._replace(missed=None)
    if not newcomer:
        return Parcel(shared, round_index, precision, missed=missed)
    return Parcel(shared, round_index, precision, job.initial, job.initial_buffers, missed)


def parcel_template(job: Job) -> Parcel:
    """How parcels look: types only, because some fields come and go from round to round."""
    algorithm = job.algorithm
    server = algorithm.init_server(job.initial)
    download = Download(algorithm.broadcast(server, this_round(job, 0)), job.initial_buffers)
    return parcel(job, download, 0, newcomer=True, missed=algorithm.virtual_steps(server))


def answer_template(job: Job, download: Download) -> Answer:
    """How every answer to this broadcast must look: names, shapes, types."""
    message = message_template(job, download.cast)
    averaged = job.problem.buffers == "average"
    info = ClientInfo(0, SolveInfo(0, 0.0, 0.0, "", math.nan), 0.0, 0.0, 0.0, True)
    return Answer(Upload(message, job.initial_buffers if averaged else None), info)


def record_template(job: Job) -> ClientRecord:
    """How a client's record looks."""
    return record_layout(job)
