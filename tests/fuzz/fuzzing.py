"""Feeds changed inputs to a parser and notes everything that is neither a result nor declared."""

from __future__ import annotations

import hashlib
import random
import resource
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fuzz.mutation import mutate
from fuzz.parsers import Parser

CORPUS = Path(__file__).parent / "corpus"
MOST_SECONDS = 5.0
"""Of the processor, for one input: how busy the machine is otherwise does not count."""
MOST_MEMORY = 256 * 2**20
"""Bytes that one input may add to the process."""


class Finding(NamedTuple):
    """An input that a parser does not end well with."""

    parser: str
    data: bytes
    why: str

    @property
    def name(self) -> str:
        """The name of its file in the corpus."""
        return hashlib.sha256(self.data).hexdigest()[:12]


class Overtime(BaseException):
    """Not an Exception: no parser may catch it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Interrupt whoever takes longer."""

    def interrupt(number: int, frame: object) -> None:
        raise Overtime

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def judged(parser: Parser, data: bytes) -> Finding | None:
    """What is wrong with how a parser takes an input; None when nothing is."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    why = None
    try:
        with limited(4 * MOST_SECONDS), warnings.catch_warnings():
            warnings.simplefilter("error")
            parser.parse(data)
    except parser.declared:
        pass
    except Overtime:
        why = f"more than {4 * MOST_SECONDS:g} s"
    except BaseException as error:
        why = f"{type(error).__name__}: {str(error)[:200]}"
    seconds = time.process_time() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
    if why is None and seconds > MOST_SECONDS:
        why = f"{seconds:.1f} s"
    if why is None and grown > MOST_MEMORY:
        why = f"{grown >> 20} MiB"
    return None if why is None else Finding(parser.name, data, why)


def fuzz(parser: Parser, inputs: int, seed: int) -> Iterator[Finding]:
    """The findings of so many inputs; the seed and the number fix each of them."""
    for number in range(inputs):
        draw = random.Random(f"{parser.name} {seed} {number}")
        found = judged(parser, mutate(draw, parser.seeds, parser.kind))
        if found is not None:
            yield found
