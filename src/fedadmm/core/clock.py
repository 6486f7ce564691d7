"""Time as whoever waits asks for it; a simulation puts its own in its place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds that only go forward."""

    def now(self) -> float:
        """The seconds since some moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)


_clock = Clock()


def now() -> float:
    """The seconds since some moment."""
    return _clock.now()


def sleep(seconds: float) -> None:
    """Let time pass."""
    _clock.sleep(seconds)


@contextmanager
def using(clock: Clock) -> Iterator[None]:
    """Ask another clock."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before
