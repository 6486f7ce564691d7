"""Why something that arrived does not count: one word for programs, a sentence for people."""

from __future__ import annotations

from enum import StrEnum

from fedadmm.core.errors import StateError

LONGEST_TEXT = 500
"""Characters of a text that a site may send."""


class Word(StrEnum):
    """What became of a task or of its reply; each is counted under this name."""

    ERROR = "error"
    GARBAGE = "garbage"
    SIZE = "size"
    SHAPE = "shape"
    DTYPE = "dtype"
    RANGE = "range"
    DIGEST = "digest"
    FINITE = "finite"
    NORM = "norm"
    PROTOCOL = "protocol"
    ROLLBACK = "rollback"
    LOST = "lost"
    MISSING = "missing"
    DUPLICATE = "duplicate"
    LEDGER = "ledger"
    REPAIRED = "repaired"
    DECLINED = "declined"
    VOID = "void"


class RefusedError(StateError):
    """Something that a site sent is not taken; it costs its sender only."""

    def __init__(self, word: Word, detail: str) -> None:
        self.word = word
        self.detail = printable(detail)
        super().__init__(f"{word}: {self.detail}")


def printable(text: str, most: int = LONGEST_TEXT) -> str:
    """A text of somebody else's as it may stand in a log: one line, no control characters."""
    letters = (x if x.isprintable() else "\N{REPLACEMENT CHARACTER}" for x in text[:most])
    return "".join(letters)
