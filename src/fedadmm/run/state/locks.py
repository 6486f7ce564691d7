"""One process at a time in a folder, however the one before it ended."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from fedadmm.core.errors import StateError
from fedadmm.run.state.files import explained

_LOCK = ".lock"
_LOOK_AGAIN = 0.05
_held: set[TextIO] = set()


@contextmanager
def locked(folder: Path, timeout: float) -> Iterator[None]:
    """Hold a folder; after `timeout` seconds of somebody else holding it, refuse.

    The system lets go of the lock when the process ends, killed or not.  The file stays behind: who
    removes it may remove the one that another process has just locked.
    """
    deadline = time.monotonic() + timeout
    with explained("lock", folder / _LOCK):
        opened = (folder / _LOCK).open("a+")
    with opened as handle:
        while not _taken(handle):
            if time.monotonic() > deadline:
                handle.seek(0)
                owner = handle.read().strip()
                raise StateError(
                    f"{folder} is in use by process {owner or 'unknown'}; "
                    f"waited {timeout:g} s for it to end"
                )
            time.sleep(_LOOK_AGAIN)
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        _held.add(handle)
        try:
            yield
        finally:
            _held.discard(handle)


def _taken(handle: TextIO) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _let_go_in_child() -> None:
    """A forked worker shares its parent's lock, and would keep it when the parent is killed."""
    for handle in _held:
        handle.close()
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
