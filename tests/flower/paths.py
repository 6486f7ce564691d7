"""Which functions of the package a task passes at a site, measured on a run of the harness."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import fedadmm as fa
from fedadmm.core import clock
from fedadmm.flower.protocol import wire
from fedadmm.run.client import client_round

from .harness import Clock, FakeGrid, federation, run_through

_PACKAGE = str(Path(fa.__file__).parent)


def functions_before_client_round() -> list[str]:
    """Return the functions of fedadmm that are on the stack when a site begins its local round.

    Outermost first: from the function that Flower's ClientApp calls to the caller of
    `client_round`.
    """
    found: list[str] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is client_round.__code__ and not found:
            found.extend(reversed(_callers(frame)))

    _profiled_run(look)
    return found


def parses_of_a_task() -> int:
    """Return how often the head of one task is read at its site."""
    count = 0

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code is wire.read_task.__code__

    _profiled_run(look)
    return count


def _callers(frame: FrameType) -> list[str]:
    """The functions of the package between a frame and the harness, which plays the network."""
    names = []
    caller = frame.f_back
    while caller is not None and caller.f_code is not FakeGrid._deliver.__code__:
        if caller.f_code.co_filename.startswith(_PACKAGE):
            names.append(f"{Path(caller.f_code.co_filename).stem}.{caller.f_code.co_name}")
        caller = caller.f_back
    return names


def _profiled_run(look: Callable[[FrameType, str, Any], None]) -> None:
    """One task of one site, with a profile function while it is answered."""
    with tempfile.TemporaryDirectory() as folder, clock.using(Clock()):
        settings = federation(fa.FedADMM(rho=1.0), rounds=1, clients=1)
        grid = FakeGrid(settings, Path(folder))
        answer = grid._app

        def profiled(message: Any, context: Any) -> Any:
            if wire.HEAD not in message.content:
                return answer(message, context)
            sys.setprofile(look)
            try:
                return answer(message, context)
            finally:
                sys.setprofile(None)

        grid._app = profiled
        run_through(settings, grid, Path(folder))


if __name__ == "__main__":
    print(functions_before_client_round(), parses_of_a_task())
