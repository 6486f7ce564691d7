"""What the C library does with memory that was freed; only the GNU library can be asked.

Elsewhere these functions do nothing, and nothing is lost but a little time or memory.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_REUSED_BYTES = (2**30, 2**25)
"""The largest piece that is kept; older versions of the library accept the second only."""


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
