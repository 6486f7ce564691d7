"""What a site has given so far, over all runs; kept above their folders, so that none resets it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedadmm.core import clock, files
from fedadmm.core.errors import StateError

ACCOUNT = "account.json"
_WAIT = 60.0
"""Seconds to wait for another task of this site."""


class SiteAccount:
    """The counts of one client in its site's state folder, which stands for one data set.

        ledger_0/account.json   {"evaluations": {"day": "2026-11-18", "answered": 3}}

    What is counted is on the disk before what it counts leaves the site.
    """

    def __init__(self, base: Path, client: int) -> None:
        self._folder = base / f"ledger_{client}"  # no run has a name with such a line

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the account: two runs may ask the same site at once."""
        files.make_private_directory(self._folder)
        with files.locked(self._folder, _WAIT):
            files.remove_leftovers(self._folder)
            yield

    def answered(self) -> int:
        """How many questions for metrics were answered on this day, or on a later one.

        A clock that went back gives no new day.
        """
        found = self._read("evaluations", _is_day, {"day": "", "answered": 0})
        today: bool = found["day"] >= _today()
        return int(found["answered"]) if today else 0

    def count_answer(self) -> None:
        """Count one more."""
        found = self._read("evaluations", _is_day, {"day": "", "answered": 0})
        day = max(found["day"], _today())
        self._write("evaluations", {"day": day, "answered": self.answered() + 1})

    def _read(self, name: str, is_right: Callable[[Any], bool], otherwise: Any) -> Any:
        found = self._all().get(name, otherwise)
        if not is_right(found):
            raise _damaged(self._folder / ACCOUNT)
        return found

    def _write(self, name: str, value: Any) -> None:
        text = json.dumps(self._all() | {name: value}, indent=1)
        files.write(self._folder / ACCOUNT, text.encode())

    def _all(self) -> dict[str, Any]:
        path = self._folder / ACCOUNT
        data = files.read_if_there(path)
        try:
            found = {} if data is None else json.loads(data)
        except (ValueError, RecursionError):
            raise _damaged(path) from None
        if not isinstance(found, dict):
            raise _damaged(path)
        return found


def _today() -> str:
    return clock.timestamp()[:10]


def _is_day(found: Any) -> bool:
    return (
        isinstance(found, dict) and isinstance(found.get("day"), str) and _count(found, "answered")
    )


def _count(found: Any, name: str) -> bool:
    return type(found.get(name)) is int and found[name] >= 0


def _damaged(path: Path) -> StateError:
    return StateError(
        f"{path} is damaged, and only it says what this site has given so far; bring it back from "
        "a backup"
    )
