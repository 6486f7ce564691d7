"""The child's side of the workers engine: one task after the other, on one thread.

Trees of tensors lie in memory that all processes share: vectors are copied, never pickled.  What
the C library does with memory that was freed, only the GNU library can be asked; elsewhere those
functions do nothing, and nothing is lost but a little time or memory.
"""

from __future__ import annotations

import gc
import io
import math
import mmap
import multiprocessing
import os
import traceback
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fedadmm.core import signals, trees
from fedadmm.core.errors import EngineError
from fedadmm.run.client import Job
from fedadmm.run.process_memory import keep_freed_memory

ORPHAN_CHECK_SECONDS = 1.0
"""Seconds after which a child checks whether its parent is alive."""
ALIGNMENT = 64
"""Alignment in bytes: a cache line."""


@dataclass(frozen=True)
class _Leaf:
    """Position of a tensor in its region."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def region_bytes(tree: object) -> int:
    """Return the size of a region for a tree."""
    return sum(_aligned(leaf.numel() * leaf.element_size()) for leaf in trees.tensors(tree))


def start_method() -> Literal["fork", "spawn"]:
    """Return the start method of processes: fork shares all objects, spawn copies them."""
    return "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"


class SharedMemory:
    """`regions` pieces of `size` bytes each.

    Where processes are forked it is anonymous, so limited by memory alone, and those forked after
    its creation see the same bytes; spawned ones get a handle on it when they start.
    """

    def __init__(self, regions: int, size: int) -> None:
        self.size = max(ALIGNMENT, _aligned(size))
        count = regions * self.size
        if start_method() == "fork":
            self._bytes = torch.frombuffer(mmap.mmap(-1, count), dtype=torch.uint8)
        else:
            self._bytes = torch.empty(count, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]

    def write(self, region: int, tree: object) -> Any:
        """Copy a tree's tensors into a region, and return a small reference to them."""
        needed, end = region_bytes(tree), 0
        if needed > self.size:
            raise EngineError(
                f"shared memory: a client's vectors take {needed} bytes, but there is room for "
                f"{self.size}, because those of its first round were smaller"
            )

        def place(leaf: Tensor) -> _Leaf:
            nonlocal end
            spot = _Leaf(leaf.dtype, tuple(leaf.shape), end)
            self._tensor(region, spot).copy_(leaf)
            end += _aligned(leaf.numel() * leaf.element_size())
            return spot

        return trees.map_tensors(place, tree)

    def read(self, region: int, skeleton: Any) -> Any:
        """Return a tree as views of the region, which the next write changes."""
        return trees.map_tensors(partial(self._tensor, region), skeleton, _Leaf)

    def _tensor(self, region: int, leaf: _Leaf) -> Tensor:
        count = math.prod(leaf.shape)
        if count == 0:
            return torch.empty(leaf.shape, dtype=leaf.dtype)
        begin = region * self.size + leaf.offset
        flat = self._bytes[begin : begin + count * leaf.dtype.itemsize].view(leaf.dtype)
        return flat.view(leaf.shape)


class Memory(NamedTuple):
    """Memory shared with children: the broadcast, and a slot for each running task."""

    shared: SharedMemory
    inputs: SharedMemory
    outputs: SharedMemory


class Piece(Protocol):
    """Work of a task; it is sent through a pipe and contains plain values only."""

    def __call__(self, job: Job, shared: Any, number: int, given: Any) -> Any:
        """Return the result as a tree, from the shared and the own inputs."""

    def named(self, number: int) -> str:
        """Return the name of the task in messages."""


class Begins(NamedTuple):
    """Message: the following tasks are of this kind, and their shared inputs are written."""

    piece: Piece
    shared: Any


class WorkItem(NamedTuple):
    """Message: the inputs of a task are in its slot."""

    number: int
    slot: int
    given: Any


class Finished(NamedTuple):
    """Message: a task's result is in its slot."""

    number: int
    result: Any


class Failed(NamedTuple):
    """Message: a task raised an exception."""

    number: int
    kind: str
    message: str
    traceback: str


def work(job: Job, memory: Memory, connection: Connection, parent: int) -> None:
    """Run tasks until the parent sends None or has exited."""
    signals.leave_to_parent()
    gc.freeze()  # what the parent made is not collected here, so its pages stay shared
    torch.set_num_threads(1)
    keep_freed_memory()
    with torch.no_grad():
        while True:
            while not connection.poll(ORPHAN_CHECK_SECONDS):
                if os.getppid() != parent:
                    return
            try:
                command: Begins | WorkItem | None = connection.recv()
            except EOFError:
                return
            if command is None:
                return
            if isinstance(command, Begins):
                piece, shared = command.piece, memory.shared.read(0, command.shared)
                continue
            number, slot, given = command
            try:
                result = piece(job, shared, number, memory.inputs.read(slot, given))
                reply: Finished | Failed = Finished(number, memory.outputs.write(slot, result))
            except Exception as error:
                text = traceback.format_exc()
                reply = Failed(number, type(error).__name__, str(error), text)
            connection.send(reply)


def work_on_copy(job: bytes, memory: Memory, connection: Connection, parent: int) -> None:
    """Run tasks in a spawned process, which has a copy of the job."""
    made: Job = torch.load(io.BytesIO(job), weights_only=False)  # the parent wrote it
    work(made, memory, connection, parent)
