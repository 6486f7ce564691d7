"""The durable state of a site: a client's state in a run, and its privacy account over all runs.

Files of a run, each replaced in one rename:

    acked.safetensors     the state of the last version that the server has aggregated
    pending.safetensors   the state of the last upload, with the bytes of its reply

An acknowledgement renames pending to acked; a new upload replaces pending.  All files are whole
whenever a crash happens.  The privacy account is kept above all runs, so that no run resets it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedadmm.core import atomic_files, clock, codec
from fedadmm.core.codec import DamageError, Packed, pack, unpack
from fedadmm.core.errors import ParameterError, StateError
from fedadmm.core.messages import ClientRecord
from fedadmm.core.solvers.private import RecordNoise
from fedadmm.flower.protocol.admission import is_sealed
from fedadmm.flower.protocol.ledger import (
    ClientLedger,
    Reply,
    ReplyKind,
    StoredVersion,
    stored_version,
)

ACKED, PENDING, DAMAGED = "acked.safetensors", "pending.safetensors", ".damaged"
_REPLY, _BODY = "reply", "body"


class _File(NamedTuple):
    """The content of one state file."""

    reply: Reply
    packed: Packed

    @property
    def body(self) -> bytes:
        """The body of the reply."""
        return bytes(self.packed.tensors[_BODY].numpy())


class SiteState:
    """The state of one client in one run, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        atomic_files.make_private_directory(folder.parent)
        atomic_files.make_private_directory(folder)
        self._folder = folder
        self._files: dict[str, _File] = {}

    @contextmanager
    def locked(self, timeout: float = 60.0) -> Iterator[None]:
        """Lock the folder: the process of an earlier start of the node may still run."""
        with atomic_files.locked(self._folder, timeout):
            atomic_files.remove_leftovers(self._folder)
            self._files = {}
            yield

    def ledger(self) -> ClientLedger:
        """Return the versions on the disk; a damaged file is put aside and counts as missing."""
        return ClientLedger(self._slot(ACKED), self._slot(PENDING))

    def promote(self) -> None:
        """Make the state of the last upload the acknowledged one: the server has aggregated it."""
        atomic_files.replace(self._folder / PENDING, self._folder / ACKED)
        self._files[ACKED] = self._files.pop(PENDING)

    def forget(self) -> None:
        """Remove all state: the server has started this client again."""
        for name in (PENDING, ACKED):
            atomic_files.remove(self._folder / name)
            self._files.pop(name, None)
        atomic_files.sync(self._folder)

    def acked(self, template: ClientRecord) -> ClientRecord | None:
        """Return the acknowledged state; None is the initial one."""
        file = self._read(ACKED)
        return None if file is None else unpack(template, file.packed)

    def pending(self) -> tuple[Reply, bytes] | None:
        """Return the last reply and its body, to be sent again; None if they are damaged."""
        file = self._read(PENDING)
        if file is None:
            raise StateError(f"{self._folder / PENDING} is not there")
        if not is_sealed(file.reply, file.body):
            self._put_aside(PENDING)
            return None
        # The process that committed it may have died before its name was on the disk.
        atomic_files.sync(self._folder)
        return file.reply, file.body

    def commit(self, reply: Reply, body: bytes, record: ClientRecord) -> None:
        """Store a new state together with the reply that leads to it, before that reply leaves."""
        packed = pack(record)
        packed.plain[_REPLY] = json.dumps(reply._asdict())
        content = torch.empty(0, dtype=torch.uint8)
        if body:
            content = torch.frombuffer(bytearray(body), dtype=torch.uint8)
        codec.write_checksummed(self._folder / PENDING, packed, body=content)
        self._files.pop(PENDING, None)

    def _slot(self, name: str) -> StoredVersion | None:
        file = self._read(name)
        return None if file is None else stored_version(file.reply)

    def _read(self, name: str) -> _File | None:
        if name not in self._files:
            try:
                file = _read_file(self._folder / name)
            except DamageError:
                self._put_aside(name)
                return None
            if file is not None:
                self._files[name] = file
        return self._files.get(name)

    def _put_aside(self, name: str) -> None:
        atomic_files.replace(self._folder / name, self._folder / (name + DAMAGED))
        self._files.pop(name, None)


def _read_file(path: Path) -> _File | None:
    # The reply contains the digest of the body, so that it is hashed only if it is sent again.
    packed = codec.read_checksummed(path, _BODY)
    if packed is None:
        return None
    try:
        fields = json.loads(str(packed.plain.pop(_REPLY)))
        reply = Reply(**fields)._replace(kind=ReplyKind(fields["kind"]))
        packed.tensors[_BODY]
    except (KeyError, TypeError, ValueError):
        raise DamageError(f"{path} is damaged: it holds no reply") from None
    return _File(reply, packed)


ACCOUNT, FOLDER = "account.json", "ledger_{}"
_WAIT = 60.0
"""Seconds to wait for another task of this site."""


class NoisedStep(NamedTuple):
    """A kind of noised step: its noise multiplier, and the number of such steps in an epoch."""

    multiplier: float
    per_epoch: int


class OverBudgetError(ParameterError):
    """The privacy budget of a site does not allow another step."""


class SiteAccount:
    """The privacy account of one client, which means of one data set.

        ledger_0/account.json

    holds the number of evaluations on a day, the number of noised steps of each kind over all runs
    and in each run, and the uploads of approved runs.  A count is on the disk before the result
    leaves the site, and is never taken back: not if a reply gets lost, nor if a server begins
    another run or starts the client again.

    Only results that may leave are charged.  With secure aggregation an upload waits at the site,
    and the reply that it is ready has a fresh key and nothing that depends on the data; if its sum
    is void, the result is computed again with new noise and the first one is never released, so
    that it consumes no privacy.  The account is charged before the masked words leave.
    """

    def __init__(self, base: Path, client: int) -> None:
        self._folder = base / FOLDER.format(client)  # no run has a name with such a line

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the account: two runs may use the same site at once."""
        atomic_files.make_private_directory(self._folder)
        with atomic_files.locked(self._folder, _WAIT):
            atomic_files.remove_leftovers(self._folder)
            yield

    def answered(self) -> int:
        """Return the number of evaluations on this day, or on a later one.

        A clock that was set back starts no new day.
        """
        found = self._read("evaluations", _is_day, {"day": "", "answered": 0})
        today: bool = found["day"] >= _today()
        return int(found["answered"]) if today else 0

    def count_answer(self) -> None:
        """Count one more evaluation."""
        found = self._read("evaluations", _is_day, {"day": "", "answered": 0})
        day = max(found["day"], _today())
        self._write(evaluations={"day": day, "answered": self.answered() + 1})

    def spent(self) -> dict[NoisedStep, int]:
        """Return the number of released noised steps of each kind, over all runs."""
        rows = self._read("noised", _are_steps, [])
        return {NoisedStep(row["multiplier"], row["per_epoch"]): row["steps"] for row in rows}

    def epsilon(self, delta: float) -> float:
        """Return the epsilon that all noised steps so far have consumed."""
        return _epsilon(self.spent(), delta)

    def made(self, run: str) -> int:
        """Return the number of noised steps in a run."""
        found = self._read("runs", _are_counts, {})
        return int(found.get(run, 0))

    def count_steps(self, run: str, kind: NoisedStep, steps: int) -> int:
        """Count noised steps; return their number in this run."""
        made = self.made(run) + steps
        runs = {**self._read("runs", _are_counts, {}), run: made}
        self._write(noised=self._with(kind, steps), runs=runs)
        return made

    def count_evaluation(self, noise: float) -> None:
        """Count an evaluation with noise, a Gaussian mechanism on all samples of sensitivity 1."""
        self._write(noised=self._with(NoisedStep(noise, 1), 1))

    def _with(self, kind: NoisedStep, steps: int) -> list[dict[str, Any]]:
        counts = self.spent()
        counts[kind] = counts.get(kind, 0) + steps
        return [{**one._asdict(), "steps": count} for one, count in counts.items()]

    def uploads(self, run: str, additional: str) -> int:
        """Return how many uploads of a run left, without that of the task `additional`."""
        found = self._read("uploads", _are_uploads, {}).get(run, [])
        return len(found) - (additional in found)

    def count_upload(self, run: str, task: str) -> None:
        """Count the upload to a task; one that is sent again counts once."""
        found = self._read("uploads", _are_uploads, {})
        if task not in found.get(run, []):
            self._write(uploads={**found, run: [*found.get(run, []), task]})

    def check_budget(
        self,
        noise: RecordNoise,
        kind: NoisedStep,
        more: int,
        own: float | None,
        what: str = "a round",
    ) -> None:
        """Check that the budgets of the solver and of the site allow more noised steps.

        Raises:
            OverBudgetError: epsilon would exceed the smaller of the two.
        """
        budgets = [budget for budget in (noise.budget, own) if budget is not None]
        if not budgets:
            return
        before = self.spent()
        epsilon = _epsilon({**before, kind: before.get(kind, 0) + more}, noise.delta)
        if epsilon > min(budgets):
            raise OverBudgetError(
                f"this site's budget is {min(budgets):g} over all runs, but {what} has {more} "
                f"noised steps, after {sum(before.values())} with its samples, and "
                f"epsilon would be {epsilon:.4g} at delta {noise.delta:g}"
            )

    def _read(self, name: str, is_right: Callable[[Any], bool], otherwise: Any) -> Any:
        found = self._all().get(name, otherwise)
        if not is_right(found):
            raise _damaged(self._folder / ACCOUNT)
        return found

    def _write(self, **values: Any) -> None:
        text = json.dumps(self._all() | values, indent=1)
        atomic_files.write(self._folder / ACCOUNT, text.encode())

    def _all(self) -> dict[str, Any]:
        path = self._folder / ACCOUNT
        data = atomic_files.read_if_there(path)
        try:
            found = {} if data is None else json.loads(data)
        except (ValueError, RecursionError):
            raise _damaged(path) from None
        if not isinstance(found, dict):
            raise _damaged(path)
        return found


def _epsilon(steps: dict[NoisedStep, int], delta: float) -> float:
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


def _are_uploads(found: Any) -> bool:
    return isinstance(found, dict) and all(isinstance(tasks, list) for tasks in found.values())


def _count(found: Any, name: str) -> bool:
    return type(found.get(name)) is int and found[name] >= 0


def _damaged(path: Path) -> StateError:
    return StateError(
        f"{path} is damaged, and only it says what this site has given so far; bring it back from "
        "a backup"
    )
