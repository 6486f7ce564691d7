"""Requests to end: ignored, deferred, or turned into Ctrl-C, and as before afterwards."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from fedadmm.core import signals


def _send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Whatever happens, every signal has its own handler again."""
    before = {number: signal.getsignal(number) for number in signals.END}
    yield
    after = {number: signal.getsignal(number) for number in signals.END}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


def test_ignored_signals_do_nothing() -> None:
    with signals.ignored(*signals.END):
        for number in signals.END:
            _send(number)


def test_a_signal_acts_like_ctrl_c_and_is_remembered() -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        signals.as_interrupt(signal.SIGTERM, signal.SIGHUP) as received,
    ):
        _send(signal.SIGHUP)
    assert received == [signal.SIGHUP]


def test_ctrl_c_waits_for_what_is_being_written() -> None:
    written = []

    def write() -> None:
        with signals.interrupts_deferred():
            _send(signal.SIGINT)
            _send(signal.SIGINT)
            written.append("whole")
        written.append("never")

    with pytest.raises(KeyboardInterrupt):
        write()
    assert written == ["whole"]


def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    with signals.ignored(signal.SIGINT), signals.interrupts_deferred():
        _send(signal.SIGINT)


def _in_thread(call: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert failed == []


def test_in_another_thread_nothing_is_changed() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def enter() -> None:
        with signals.ignored(signal.SIGTERM), signals.interrupts_deferred():
            assert signal.getsignal(signal.SIGTERM) is before
        with signals.as_interrupt(signal.SIGTERM) as received:
            assert received == []

    _in_thread(enter)
