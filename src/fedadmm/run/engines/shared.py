"""Memory of worker processes: what they share, and what the C library does with what was freed.

Trees of tensors lie in memory that several processes share: vectors are copied, never pickled.
Only the GNU library can be asked about freed memory; elsewhere those functions do nothing, and
nothing is lost but a little time or memory.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.errors import EngineError

ALIGNMENT = 64
"""A cache line."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_REUSED_BYTES = (2**30, 2**25)
"""The largest piece that is kept; older versions of the library accept the second only."""


@dataclass(frozen=True)
class _Leaf:
    """Where a tensor lies within its region."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def region_bytes(tree: object) -> int:
    """How large a region must be to hold a tree."""
    return sum(_aligned(leaf.numel() * leaf.element_size()) for leaf in trees.tensors(tree))


def start_method() -> Literal["fork", "spawn"]:
    """How worker processes start here: a fork sees everything as it is, a spawned one a copy."""
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
        """Copy a tree's tensors into a region; what is returned is small and finds them again."""
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
        """The tree that was written, as views: the next write into the region changes them."""
        if isinstance(skeleton, _Leaf):
            return self._tensor(region, skeleton)
        if isinstance(skeleton, tuple):
            parts = [self.read(region, part) for part in skeleton]
            return type(skeleton)(*parts) if hasattr(skeleton, "_fields") else tuple(parts)
        return skeleton

    def _tensor(self, region: int, leaf: _Leaf) -> Tensor:
        count = 1
        for length in leaf.shape:
            count *= length
        if count == 0:
            return torch.empty(leaf.shape, dtype=leaf.dtype)
        begin = region * self.size + leaf.offset
        flat = self._bytes[begin : begin + count * leaf.dtype.itemsize].view(leaf.dtype)
        return flat.view(leaf.shape)


def _library_call(name: str) -> Any:
    if os.name == "nt":  # which has no handle on the whole program
        return None
    return getattr(ctypes.CDLL(None), name, None)


def give_back_freed_memory() -> None:
    """Return freed memory to the system, for a process that is about to fork.

    A child would hold on to those pages for as long as it lives.
    """
    trim = _library_call("malloc_trim")
    if trim is not None:
        trim(0)


def keep_freed_memory() -> None:
    """Let a worker reuse freed memory instead of asking the system for it again and again.

    A client's round makes and drops vectors of D numbers all the time, and fresh pages cost more
    than the arithmetic on them: for 1.7 million parameters 3 to 6 % of a client's time.
    """
    option = _library_call("mallopt")
    if option is not None:
        any(option(_MMAP_THRESHOLD, size) for size in _REUSED_BYTES)
        option(_TRIM_THRESHOLD, 2**31 - 1)
