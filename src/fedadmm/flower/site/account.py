"""What a site has given so far, over all runs; kept above their folders, so that none resets it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.core import clock, files
from fedadmm.core.errors import ParameterError, StateError
from fedadmm.core.protocols import RecordNoise

ACCOUNT, FOLDER = "account.json", "ledger_{}"
_WAIT = 60.0
"""Seconds to wait for another task of this site."""


class Steps(NamedTuple):
    """A kind of noised step: its noise, and one over the share of the rows that it draws."""

    multiplier: float
    per_epoch: int


class OverBudgetError(ParameterError):
    """The rows have spent what they may."""


class SiteAccount:
    """The counts of one client in its site's state folder, which means one data set.

        ledger_0/account.json

    holds how many questions were answered on a day, how many noised steps of each kind its rows
    ever took part in, and how many of them in each run.  What is counted is on the disk before what
    it counts leaves the site, and is never taken back: not when a reply gets lost, nor when a
    server begins another run or lets the client start again.
    """

    def __init__(self, base: Path, client: int) -> None:
        self._folder = base / FOLDER.format(client)  # no run has a name with such a line

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
        self._write(evaluations={"day": day, "answered": self.answered() + 1})

    def spent(self) -> dict[Steps, int]:
        """How many noised steps of each kind were ever made."""
        rows = self._read("noised", _are_steps, [])
        return {Steps(row["multiplier"], row["per_epoch"]): row["steps"] for row in rows}

    def epsilon(self, delta: float) -> float:
        """What all noised steps so far have spent together."""
        return _epsilon(self.spent(), delta)

    def made(self, run: str) -> int:
        """How many noised steps were made in a run."""
        found = self._read("runs", _are_counts, {})
        return int(found.get(run, 0))

    def count_steps(self, run: str, kind: Steps, steps: int) -> int:
        """Count noised steps; returns how many were made in this run."""
        counts, made = self.spent(), self.made(run) + steps
        counts[kind] = counts.get(kind, 0) + steps
        rows = [{**one._asdict(), "steps": count} for one, count in counts.items()]
        runs = {**self._read("runs", _are_counts, {}), run: made}
        self._write(noised=rows, runs=runs)
        return made

    def check_budget(self, noise: RecordNoise, kind: Steps, more: int, own: float | None) -> None:
        """Refuse steps after which more would be spent than the solver or the site allows."""
        budgets = [budget for budget in (noise.budget, own) if budget is not None]
        if not budgets:
            return
        before = self.spent()
        epsilon = _epsilon({**before, kind: before.get(kind, 0) + more}, noise.delta)
        if epsilon > min(budgets):
            raise OverBudgetError(
                f"this site's budget is {min(budgets):g} over all runs, but a round has {more} "
                f"noised steps, after {sum(before.values())} that its rows took part in, and "
                f"epsilon would be {epsilon:.4g} at delta {noise.delta:g}"
            )

    def _read(self, name: str, is_right: Callable[[Any], bool], otherwise: Any) -> Any:
        found = self._all().get(name, otherwise)
        if not is_right(found):
            raise _damaged(self._folder / ACCOUNT)
        return found

    def _write(self, **values: Any) -> None:
        text = json.dumps(self._all() | values, indent=1)
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


def _epsilon(steps: dict[Steps, int], delta: float) -> float:
    from fedadmm.core.privacy import composed_epsilon

    rates = {(one.multiplier, 1 / one.per_epoch): count for one, count in steps.items()}
    return composed_epsilon(rates, delta) if rates else 0.0


def _today() -> str:
    return clock.timestamp()[:10]


def _is_day(found: Any) -> bool:
    return (
        isinstance(found, dict) and isinstance(found.get("day"), str) and _count(found, "answered")
    )


def _are_steps(found: Any) -> bool:
    return isinstance(found, list) and all(
        isinstance(row, dict)
        and type(row.get("multiplier")) is float
        and 0 < row["multiplier"] < math.inf
        and _count(row, "per_epoch")
        and row["per_epoch"] > 0
        and _count(row, "steps")
        for row in found
    )


def _are_counts(found: Any) -> bool:
    return isinstance(found, dict) and all(_count(found, run) for run in found)


def _count(found: Any, name: str) -> bool:
    return type(found.get(name)) is int and found[name] >= 0


def _damaged(path: Path) -> StateError:
    return StateError(
        f"{path} is damaged, and only it says what this site has given so far; bring it back from "
        "a backup"
    )
