"""The time, for everything that waits; a simulation replaces it by its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime


class Clock:
    """Monotonic seconds, and the wall clock."""

    def now(self) -> float:
        """The seconds since some moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def date(self) -> datetime:
        """Return the wall clock, which may jump and is not used for waiting."""
        return datetime.now(UTC)


_clock = Clock()


def now() -> float:
    """The seconds since some moment."""
    return _clock.now()


def sleep(seconds: float) -> None:
    """Let time pass."""
    _clock.sleep(seconds)


def timestamp() -> str:
    """The date and time as files hold them; for people, not for measuring."""
    return _clock.date().isoformat(timespec="seconds")


@contextmanager
def using(clock: Clock) -> Iterator[None]:
    """Use another clock."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before
