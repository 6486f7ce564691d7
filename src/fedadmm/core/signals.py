"""Ctrl-C, SIGTERM and SIGHUP: which process they interrupt, and when.

Handlers belong to the main thread.  In any other thread these contexts do nothing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

END = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""All requests to end; Windows has no SIGHUP."""


@contextmanager
def _handled(numbers: tuple[int, ...], handler: Any) -> Iterator[None]:
    """Set a handler for some signals; afterwards they have their own again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            if previous is not None:  # set by a library in C: Python cannot set it again
                signal.signal(number, previous)


def ignored(*numbers: int) -> AbstractContextManager[None]:
    """Ignore some signals; processes that are started meanwhile ignore them too."""
    return _handled(numbers, signal.SIG_IGN)


@contextmanager
def as_interrupt(*numbers: int) -> Iterator[list[int]]:
    """Let some signals act like Ctrl-C; the list holds those that arrived."""
    received: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    with _handled(numbers, interrupt):
        yield received


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Let Ctrl-C wait: what is written between two rounds is written whole or not at all."""
    previous = signal.getsignal(signal.SIGINT)
    received: list[Any] = []
    if not callable(previous):  # it is ignored, or ends the process at once
        yield
        return
    try:
        with _handled((signal.SIGINT,), lambda *arguments: received.append(arguments)):
            yield
    finally:
        if received:
            previous(*received[0])


def leave_to_parent() -> None:
    """For a worker: Ctrl-C is the parent's, which ends its children by SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def accept_interrupts() -> None:
    """For a process that was started while Ctrl-C was ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
