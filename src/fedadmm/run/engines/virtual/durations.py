"""How long a client's work takes in virtual seconds, from keys: the same seed, the same clock."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from fedadmm.core.errors import DataError
from fedadmm.core.rng import Key, derive, numpy_generator

Kind = Literal["constant", "uniform", "log-normal", "trace"]
Trace = dict[int, tuple[float, ...]]


@dataclass(frozen=True)
class Duration:
    """One distribution of times; a client's own factor is drawn once, or anew for every turn.

    constant     fastest
    uniform      fastest * U[1, ratio]
    log-normal   fastest * exp(spread * N(0, 1)): `fastest` is then the median
    trace        the client's times in a file, one after the other, again from the first
    """

    purpose: str
    kind: Kind
    fastest: float
    ratio: float = 2.0
    spread: float = 0.5
    redraw: bool = False
    trace: str | None = None

    def seconds(self, seed: Key, client: int, turn: int) -> float:
        """The time that a client's piece of work number `turn` takes."""
        if self.kind == "constant" or self.fastest == 0.0:
            return self.fastest
        if self.kind == "trace":
            assert self.trace is not None
            return _traced(self.trace, client, turn)
        indices = (client, turn) if self.redraw else (client,)
        draws = numpy_generator(derive(seed, f"virtual-time/{self.purpose}", *indices))
        if self.kind == "uniform":
            return self.fastest * float(draws.uniform(1.0, self.ratio))
        return self.fastest * math.exp(self.spread * float(draws.standard_normal()))


def _traced(path: str, client: int, turn: int) -> float:
    times = read_trace(path).get(client)
    if times is None:
        raise DataError(f"{path}: has no line for client {client}, but needs one for every client")
    return times[turn % len(times)]


@cache
def read_trace(path: str) -> Trace:
    """The times of each client from lines `client,seconds`; a first line of words is a heading."""
    times: dict[int, list[float]] = {}
    try:
        with Path(path).open(newline="", encoding="utf-8") as stream:
            for number, row in enumerate(csv.reader(stream), 1):
                if not row or (number == 1 and not row[0].strip().isdecimal()):
                    continue
                client, seconds = _entry(path, number, row)
                times.setdefault(client, []).append(seconds)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a trace ({error})") from None
    if not times:
        raise DataError(f"{path}: holds no line 'client,seconds'")
    return {client: tuple(found) for client, found in times.items()}


def _entry(path: str, number: int, row: list[str]) -> tuple[int, float]:
    try:
        client, seconds = int(row[0]), float(row[1])
    except (IndexError, ValueError):
        raise DataError(
            f"{path}: line {number} is {','.join(row)!r}, but must be client,seconds"
        ) from None
    if client < 0 or not 0.0 < seconds < math.inf:
        raise DataError(
            f"{path}: line {number} is {','.join(row)!r}, but needs a client of at least 0 and "
            "finite seconds above 0"
        )
    return client, seconds
