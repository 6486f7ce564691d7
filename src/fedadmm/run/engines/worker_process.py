"""The child's side of the workers engine: one client after the other, on one thread."""

from __future__ import annotations

import gc
import io
import os
import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from fedadmm.core.protocols import ClientInfo, Download
from fedadmm.run.client import Job, client_round
from fedadmm.run.engines.shared import SharedMemory, keep_freed_memory

ORPHAN_CHECK_SECONDS = 1.0
"""How long a child waits before it looks whether its parent still lives."""


class Memory(NamedTuple):
    """What parent and children share: the broadcast, and one slot a client in work."""

    download: SharedMemory
    inputs: SharedMemory
    outputs: SharedMemory


class RoundBegins(NamedTuple):
    """A new broadcast has been written."""

    round_index: int
    download: Any


class RunClient(NamedTuple):
    """A client's record has been written into the inputs of a slot; None for a new client."""

    client: int
    slot: int
    record: Any


class Finished(NamedTuple):
    """A client's new record (None when it is not finite) and upload are in the slot's outputs."""

    client: int
    results: Any
    info: ClientInfo


class Failed(NamedTuple):
    """A client raised."""

    client: int
    kind: str
    message: str
    traceback: str


def work(job: Job, memory: Memory, connection: Connection, parent: int) -> None:
    """Serve until the parent says None, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it ends its children
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()  # what the parent made is not collected here, so its pages stay shared
    torch.set_num_threads(1)
    keep_freed_memory()
    round_index, download = 0, Download(None)
    with torch.no_grad():
        while True:
            command = _next(connection, parent)
            if command is None:
                return
            if isinstance(command, RoundBegins):
                round_index = command.round_index
                download = memory.download.read(0, command.download)
            else:
                connection.send(_run(job, memory, command, download, round_index))


def work_on_copy(job: bytes, memory: Memory, connection: Connection, parent: int) -> None:
    """Serve in a spawned process, which has nothing of its parent's but a copy of the job."""
    made: Job = torch.load(io.BytesIO(job), weights_only=False)  # the parent wrote it
    work(made, memory, connection, parent)


def _next(connection: Connection, parent: int) -> RoundBegins | RunClient | None:
    while not connection.poll(ORPHAN_CHECK_SECONDS):
        if os.getppid() != parent:
            return None
    try:
        command: RoundBegins | RunClient | None = connection.recv()
    except EOFError:
        return None
    return command


def _run(
    job: Job, memory: Memory, command: RunClient, download: Download, round_index: int
) -> Finished | Failed:
    try:
        record = None
        if command.record is not None:
            record = memory.inputs.read(command.slot, command.record)
        done = client_round(job, command.client, record, download, round_index)
        results = memory.outputs.write(command.slot, (done.record, done.upload))
    except Exception as error:
        text = traceback.format_exc()
        return Failed(command.client, type(error).__name__, str(error), text)
    return Finished(command.client, results, done.info)
