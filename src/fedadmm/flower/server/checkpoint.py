"""Checkpoints of the server: its state and the aggregated versions, replaced atomically.

    server.safetensors             the server's state, the ledger, the roster
    contribution-3-1-12.safetensors    ledger="disk": what client 3 (incarnation 1) has sent up
                                       to version 12, already weighted

Contributions are written first and named by version, so that after a crash at any moment all files
that server.safetensors refers to exist.  A missing or damaged one is never replaced by zero: its
client cannot be removed any more, which is logged.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedadmm.core import atomic_files, codec, trees
from fedadmm.core.codec import DamageError, Packed, pack, params_sha256, unpack
from fedadmm.core.errors import ANOTHER_VERSION, StateError
from fedadmm.flower.federation import Federation
from fedadmm.flower.protocol.admission import UploadHistory
from fedadmm.flower.protocol.ledger import LedgerEntry, ServerLedger
from fedadmm.run.client import Job
from fedadmm.run.state import RunState, pack_state, unpack_state

SERVER, _CONTRIBUTION = "server.safetensors", "contribution-"
FORMAT = 4
_OTHER_SITES = (
    "; if a site was added, start it with accept-sites=true in its --run-config (fedadmm deploy "
    "add-site)"
)
_VALUES, _OWNER, _WEIGHT = "values", "owner", "weight"


class ServerCheckpoint(NamedTuple):
    """Everything that a server needs to resume."""

    state: RunState
    ledger: ServerLedger
    roster: Mapping[int, int]
    """Node id -> client."""
    boots: int = 0
    """Number of server starts in this run; asynchronous tasks are numbered from it."""
    empty: int = 0
    """Rounds without any update; the run is extended by as many."""
    norms: Mapping[int, UploadHistory] = {}
    """The norms of the past uploads of every client."""
    holders: Mapping[int, str] = {}
    """Client -> identity of its node."""
    length: float | None = None
    """Length of the sites' local work, if a penalty was fitted to it."""
    weights: Sequence[float] = ()
    """Weights of the clients; 0 for those that were removed."""


def new_run() -> ServerLedger:
    """Create the ledger of a new run with a unique name."""
    return ServerLedger(uuid.uuid4().hex)


def fingerprint(federation: Federation, job: Job) -> dict[str, str]:
    """Return what must not change when a run is resumed."""
    # Weights are normalised again by every copy of a federation, which changes their last digits.
    weights = [round(federation.problem.weight(c), 12) for c in range(federation.clients)]
    run = federation.experiment
    parts: dict[str, Any] = {
        "algorithm": run.algorithm,
        "clients": federation.clients,
        "solver": job.solver,
        "stop": job.stop,
        "start": job.local.start,
        "personal": job.local.personal,
        "sampler": run.sampler,
        "seed": run.seed,
        "regularizer": job.problem.regularizer,
        "output": run.output,
        "pipeline": run.pipeline,
        "aggregator": run.aggregator,
        "mode": federation.mode,
        "ledger": federation.ledger,
        "vector": f"{job.initial.numel()} x {job.initial.dtype}",
        "initial": params_sha256(job.initial)[:16],
        "weights": params_sha256(torch.tensor(weights, dtype=torch.float64))[:16],
        **federation.identity,
    }
    return {key: json.dumps(repr(value))[1:-1] for key, value in parts.items()}


class ServerState:
    """The checkpoint folder of one run."""

    def __init__(
        self, folder: Path, keep_contributions: bool, fingerprint: Mapping[str, str]
    ) -> None:
        atomic_files.make_private_directory(folder)
        atomic_files.remove_leftovers(folder)
        self._folder = folder
        self._keep = keep_contributions
        self._fingerprint = dict(fingerprint)

    def load(self, template: RunState, *, accept_sites: bool = False) -> ServerCheckpoint | None:
        """Read the last checkpoint; None for a new run."""
        path = self._folder / SERVER
        packed = _read(path)
        if packed is None:
            return None
        with _understanding(path):
            values = _values(path, packed)
            self._compare(values["fingerprint"], ("clients", "weights") if accept_sites else ())
            return ServerCheckpoint(
                unpack_state(template, None, packed.tensors, values["state"]),
                ServerLedger(values["run"], _entries(values)),
                {int(node): client for node, client in values["roster"].items()},
                values["boots"],
                values["empty"],
                {int(client): UploadHistory(*one) for client, one in values["norms"].items()},
                {int(client): str(one) for client, one in values["holders"].items()},
                values.get("length"),
                tuple(values.get("weights", ())),
            )

    def _compare(self, before: Mapping[str, str], may_differ: Collection[str]) -> None:
        now = self._fingerprint
        keys = (before.keys() | now.keys()) - set(may_differ)
        changed = [key for key in keys if before.get(key) != now.get(key)]
        if changed:
            shown = ", ".join(f"{k} ({before.get(k)} -> {now.get(k)})" for k in sorted(changed))
            sites = "" if "clients" not in changed else _OTHER_SITES
            raise StateError(f"{self._folder}: holds another run, which differs in {shown}{sites}")

    def save(self, saved: ServerCheckpoint, updates: Mapping[int, Any]) -> dict[int, str]:
        """Write a checkpoint.

        Args:
            saved: the state after a step.
            updates: the weighted updates that were aggregated in it, by client.

        Returns:
            The clients whose contribution could not be stored, and why.
        """
        unkept = self._add(saved, updates) if self._keep else {}
        tensors, state = pack_state(saved.state)
        values = {
            "format": FORMAT,
            "state": state,
            "fingerprint": self._fingerprint,
            "run": saved.ledger.run,
            "entries": {str(client): list(entry) for client, entry in saved.ledger.entries.items()},
            "roster": {str(node): client for node, client in saved.roster.items()},
            "boots": saved.boots,
            "empty": saved.empty,
            "norms": {str(client): list(one) for client, one in saved.norms.items()},
            "holders": {str(client): one for client, one in saved.holders.items()},
            "length": saved.length,
            "weights": list(saved.weights),
        }
        packed = Packed(tensors, {_VALUES: json.dumps(values)})
        codec.write_checksummed(self._folder / SERVER, packed)
        if self._keep:
            self._sweep(saved.ledger)
        return unkept

    def contribution(
        self, run: str, client: int, entry: LedgerEntry, template: Any, weight: float
    ) -> Any | None:
        """Return the sum of all uploads of a client times its present weight; None without uploads.

        Raises:
            DamageError: the file is missing or damaged.
        """
        if entry.version == 0:
            return None
        path = self._path(client, entry)
        packed = codec.read_checksummed(path)
        if packed is None:
            raise DamageError(f"{path} is not there")
        if packed.plain.pop(_OWNER, None) != f"{run} {path.name}":
            raise DamageError(f"{path} is another client's, version's or run's")
        counted = float(packed.plain.pop(_WEIGHT, weight))
        past = unpack(template, packed)
        return past if counted == weight else trees.scaled(past, weight / counted)

    def _add(self, saved: ServerCheckpoint, updates: Mapping[int, Any]) -> dict[int, str]:
        unkept, ledger = {}, saved.ledger
        for client, message in updates.items():
            entry = ledger.entry(client)
            before = entry._replace(version=entry.version - 1)
            # Sums in double precision, so that a removal subtracts what was added.
            total = trees.map_tensors(lambda leaf: leaf.double(), message)
            try:
                weight = saved.weights[client]
                past = self.contribution(ledger.run, client, before, message, weight)
            except DamageError as error:
                unkept[client] = str(error)
                continue
            if past is not None:
                total = trees.add_scaled_(trees.clone(total), past, 1.0)
            path, packed = self._path(client, entry), pack(total)
            packed.plain[_OWNER] = f"{ledger.run} {path.name}"  # detects a copied file
            packed.plain[_WEIGHT] = weight  # which changes when sites join or leave
            codec.write_checksummed(path, packed)
        return unkept

    def _sweep(self, ledger: ServerLedger) -> None:
        needed = {self._path(client, entry).name for client, entry in ledger.entries.items()}
        for name in atomic_files.names(self._folder):
            if name.startswith(_CONTRIBUTION) and name not in needed:
                atomic_files.remove(self._folder / name)

    def _path(self, client: int, entry: LedgerEntry) -> Path:
        number = f"{client}-{entry.incarnation}-{entry.version}"
        return self._folder / f"{_CONTRIBUTION}{number}.safetensors"


class CheckpointSummary(NamedTuple):
    """The part of a checkpoint that describes the clients."""

    entries: Mapping[int, LedgerEntry]
    nodes: Mapping[int, int]
    """Client -> id of its node."""
    length: float | None = None
    weights: Sequence[float] = ()


def read_summary(folder: Path) -> CheckpointSummary:
    """Read what a checkpoint says of the clients, without the model; empty before the first one."""
    path = folder / SERVER
    packed = _read(path)
    if packed is None:
        return CheckpointSummary({}, {})
    with _understanding(path):
        values = _values(path, packed)
        nodes = {int(client): int(node) for node, client in values["roster"].items()}
        length, weights = values.get("length"), values.get("weights", ())
        return CheckpointSummary(_entries(values), nodes, length, weights)


def _read(path: Path) -> Packed | None:
    try:
        return codec.read_checksummed(path)
    except DamageError:
        if _had_no_digest(path):
            raise _of_an_earlier_version(path) from None
        raise


def _values(path: Path, packed: Packed) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(str(packed.plain.pop(_VALUES)))
    if values.get("format") != FORMAT:
        raise _of_an_earlier_version(path)
    return values


@contextmanager
def _understanding(path: Path) -> Iterator[None]:
    """Raise a StateError for a file that is undamaged and has other contents."""
    try:
        yield
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise StateError(f"{path} cannot be understood; {ANOTHER_VERSION}") from error


def _entries(values: Mapping[str, Any]) -> dict[int, LedgerEntry]:
    return {int(client): LedgerEntry(*entry) for client, entry in values["entries"].items()}


def _of_an_earlier_version(path: Path) -> StateError:
    return StateError(
        f"{path} was written by an earlier version of fedadmm; finish the run with that one, or "
        "begin a new one in another folder"
    )


def _had_no_digest(path: Path) -> bool:
    """Return whether a file has the format from before digests covered the whole file."""
    with suppress(StateError):
        return _VALUES in codec.metadata(atomic_files.read(path))
    return False
