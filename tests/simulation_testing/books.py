"""What must always hold, kept beside the system by somebody who sees every disk and every message.

acknowledged is durable    a task names what the server's disk says after any power cut, and an
                           update leaves a site whose disk would still know it
nothing lost or doubled    a client's version grows by one with an upload that was sent, and the
                           server's mean is the start plus all of these, each once
a site's own state         is the sum of what the server folded of it, and of what was cut off
absent clients             have moved by the virtual steps of every round that they were not in
masked sums                an upload leaves under one set of three or more, and no mask hides two
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import RecordDict
from numpy.typing import NDArray

from fedadmm.core import trees
from fedadmm.flower.federation import Federation
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.admission import is_sealed
from fedadmm.flower.protocol.ledger import LedgerEntry, Reply, ReplyKind, Task
from fedadmm.flower.protocol.payloads import payload_template
from fedadmm.flower.site.site_state import ACKED, PENDING
from fedadmm.run.client import message_template

from .plan import Plan

Arrays = Mapping[str, NDArray[np.float64]]
Look = Callable[[str], bytes | None]
"""What a file holds, now or after any power cut."""
Numbers = tuple[NDArray[np.float64], ...]
_TYPES = {"F64": np.float64, "U8": np.uint8, "I32": np.uint32, "I64": np.uint64}


class Violation(AssertionError):  # noqa: N818
    """Something that must hold did not."""


class Sums(NamedTuple):
    """How a method's server sums what its clients stand for, written down from the papers."""

    kept: tuple[str, ...]
    """Where the server keeps it."""
    sent: Callable[[Arrays], Numbers]
    """What an upload adds to it."""
    state: Callable[[Arrays], Numbers]
    """What a client's state stands for."""


def is_aligned(algorithm: Any) -> bool:
    """Whether absent clients move along."""
    return algorithm.name == "aligned-admm"


def sums_of(algorithm: Any, length: int) -> Sums | None:
    """None for a method that sums nothing."""
    name, up = algorithm.name, "upload.message."
    if is_aligned(algorithm):
        return Sums(("h",), lambda m: (_vector(m, up + "step", length),), lambda s: (s["state.y"],))
    if name == "fedadmm" and algorithm.members == "all":
        return Sums(
            ("mean",),
            lambda m: (_vector(m, up + "increment", length),),
            lambda s: (s["state.w"] + s["state.y"] / s["state.rho"],),
        )
    if name == "fedadmm-insa":
        return Sums(
            ("numerator", "denominator"),
            lambda m: (m[up + "numerator"], m[up + "denominator"]),
            lambda s: (s["state.sent"] * s["state.w"] + s["state.y"], s["state.sent"]),
        )
    if name == "feddr":
        return Sums(
            ("xtilde",),
            lambda m: (_vector(m, up + "increment", length),),
            lambda s: (2 * s["state.x"] - s["state.v"],),
        )
    if name == "scaffold":
        return Sums(("c",), lambda m: (m[up + "control"],), lambda s: (s["state.c_i"],))
    if name == "feddyn":
        return Sums(("h",), lambda m: (m[up + "delta"] / algorithm.eta,), lambda s: (s["state.y"],))
    return None


def _vector(message: Arrays, name: str, length: int) -> NDArray[np.float64]:
    """A vector of a message, whole or as its largest entries with a bit for every place."""
    if name in message:
        return message[name]
    bits = np.unpackbits(message[name + ".where"].astype(np.uint8), bitorder="little")
    whole = np.zeros(length)
    whole[bits[:length] == 1] = message[name + ".values.codes"]
    return whole


class Checkpoint(NamedTuple):
    """What a server's file says."""

    run: str
    round: int
    entries: Mapping[int, LedgerEntry]
    arrays: Arrays


class Held(NamedTuple):
    """What a site's file says."""

    digest: str
    arrays: Arrays


def packed(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """What stands in a file or a message; read here without the code that wrote it."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    plain = json.loads(header.pop("__metadata__")["plain"])
    arrays = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        flat = np.frombuffer(data[end + first : end + last], _TYPES[entry["dtype"]])
        arrays[name] = flat.reshape(entry["shape"])
    return plain, arrays


@lru_cache(512)
def checkpoint(data: bytes) -> Checkpoint:
    """A server's file."""
    plain, arrays = packed(data)
    values = json.loads(plain["values"])
    entries = {int(client): LedgerEntry(*entry) for client, entry in values["entries"].items()}
    return Checkpoint(values["run"], int(values["state"]["plain"]["round"]), entries, arrays)


@lru_cache(512)
def held(data: bytes) -> Held | None:
    """A site's file; None when it is damaged."""
    try:
        plain, arrays = packed(data)
        reply = Reply(**json.loads(plain["reply"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return Held(reply.digest, arrays)


def _largest(body: bytes) -> float:
    """The largest number in a message; 0 when it is none."""
    try:
        arrays = packed(body)[1].values()
    except (KeyError, TypeError, ValueError, AttributeError):
        return 0.0
    return max((float(abs(one).max()) for one in arrays if one.size), default=0.0)


class Chain(NamedTuple):
    """What was folded of one client since its last incarnation began."""

    entry: LedgerEntry
    total: Numbers
    held: Numbers
    """`total` when the client's own last upload was folded, as far as the client can know."""


class Virtual(NamedTuple):
    """What clients that were never seen have been moved by, and how many these may be."""

    total: Numbers
    unseen: float = 1.0


class Upload(NamedTuple):
    """An update that left somebody."""

    reply: Reply
    numbers: Numbers
    at: float
    honest: bool
    size: float
    """Its largest number."""


def _layout(settings: Federation) -> list[tuple[str, int]]:
    """The names of what an upload holds, and how many numbers each."""
    job = settings.server_job()
    message = message_template(job, payload_template(job).download.broadcast)
    named = trees.named_tensors(message, "upload.message")
    return [(name, leaf.numel()) for name, leaf in named]


class Books:
    """Sees every checkpoint, every task and every reply."""

    def __init__(self, plan: Plan, peek: Look, survivor: Look) -> None:
        self._peek, self._survivor = peek, survivor
        settings, weights, self._policies = plan.federation, plan.weights, plan.policies
        algorithm, initial = settings.experiment.algorithm, settings.problem.initial
        assert isinstance(initial, torch.Tensor)
        self._sums = sums_of(algorithm, initial.numel())
        self._sigma = algorithm.sigma if is_aligned(algorithm) else 0.0
        self._weights = [weight / sum(weights) for weight in weights]
        self._start = self._initial(algorithm.init_server(initial))
        self._nothing = tuple(np.zeros_like(one) for one in self._start)
        self._known: dict[bytes, tuple[Checkpoint, dict[int, Chain], Virtual]] = {}
        self._before_flips: dict[bytes, bytes] = {}
        self.uploads: dict[str, Upload] = {}
        self.tampered: dict[int, float] = {}
        """Whose disks somebody meddled with, and when: their state is nobody's promise."""
        self.ever_tampered: set[int] = set()
        self._sets: dict[tuple[str, str], tuple[tuple[int, ...], bytes]] = {}
        self._masks: dict[bytes, tuple[str, bytes]] = {}
        self._digests: dict[str, str] = {}
        """The digests of uploads that wait to be masked, by their tasks."""
        self._last_sets: dict[tuple[str, str], tuple[str, frozenset[int]]] = {}
        """By machine and run: the task and the set of the upload that left last."""
        self._rounds: dict[str, int] = {}
        """The rounds of tasks."""
        self._round_sets: dict[tuple[str, str, int], tuple[int, ...]] = {}
        """By machine, run and round: the set under which uploads of that round left."""
        self._step, self._layout = 0.0, list[tuple[str, int]]()
        self._signed, self._noised = "i8", False
        if settings.experiment.aggregator.is_secure:
            point = settings.server_job().aggregator.fixed_point
            self._step, self._layout = point.step, _layout(settings)
            self._signed = f"i{point.bits // 8}"
            self._noised = settings.server_job().pipeline.noise is not None
        self._peak = 1.0
        self._largest_truth = 0.0
        self.swallowed_a_lie = False
        """Whether something was folded that is far larger than what honest sites had sent."""

    def meddled(self, client: int, now: float) -> None:
        """Somebody wiped, restored or damaged this client's disk."""
        self.tampered[client] = now
        self.ever_tampered.add(client)

    def flipped(self, whole: bytes, damaged: bytes) -> None:
        """A bit of the server's file changed: whoever still knows the state goes on from it."""
        self._before_flips[damaged] = self._whole(whole)
        self._known[damaged] = self._known[whole]

    def _whole(self, data: bytes) -> bytes:
        return self._before_flips.get(data, data)

    def checkpoint(self, data: bytes) -> Checkpoint:
        """What a server's file said before it was damaged, if it was."""
        return checkpoint(self._whole(data))

    def is_damaged(self, data: bytes) -> bool:
        """Whether this is a server's file with a bit changed."""
        return data in self._before_flips

    def _initial(self, server: Any) -> Numbers:
        names = self._sums.kept if self._sums is not None else ()
        return tuple(getattr(server, name).double().numpy() for name in names)

    # what is seen -------------------------------------------------------------------------------

    def task(self, task: Task, body: bytes) -> None:
        """A task leaves the server: its acknowledgement must survive a power cut."""
        if body:
            self._rounds[task.id] = packed(body)[0]["round_index"]
        data = self._survivor("/server/run/checkpoint/server.safetensors")
        if data is None:
            raise Violation(f"a task for client {task.client} left before the state was durable")
        saved = self.checkpoint(data)
        entry = saved.entries.get(task.client, LedgerEntry())
        told = (task.run, task.incarnation, task.acked_version, task.acked_digest)
        durable = (saved.run, entry.incarnation, entry.version, entry.digest)
        if told != durable:
            raise Violation(f"client {task.client} was told {told}, but the disk says {durable}")

    def reply(
        self, reply: Reply, body: bytes, now: float, machine: str | None, holder: str
    ) -> None:
        """An update leaves somebody; an honest one's disk must know it after a power cut.

        One that is to be masked waits on the disk of `holder`.
        """
        ready = reply.kind is ReplyKind.READY
        if ready:
            self._digests[reply.task] = reply.digest
        if not (reply.kind is ReplyKind.UPDATE or ready) or not is_sealed(reply, body):
            return
        if machine is not None:
            digests = [
                file.digest
                for file in self._files(self._survivor, machine, reply.run, reply.client)
            ]
            if reply.digest not in digests:
                raise Violation(f"version {reply.version} left {machine} before it was durable")
        before = self.uploads.get(reply.digest)
        self.uploads[reply.digest] = Upload(
            reply,
            self._waiting(holder, reply) if ready else self._sent(body),
            now if before is None else before.at,
            machine is not None,
            _largest(body),
        )

    def _held(self, machine: str, reply: Reply) -> tuple[dict[str, Any], NDArray[Any]] | None:
        """What waits on a site's disk for the task that this answers, before any mask."""
        folder = f"/{machine}/state/{reply.run}/client-{reply.client}"
        data = self._peek(f"{folder}/held-update.safetensors")
        if data is None:
            return None
        try:
            plain, arrays = packed(data)
            return (plain, arrays["words"]) if plain["task"] == reply.task else None
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    def _waiting(self, machine: str, reply: Reply) -> Numbers:
        """The upload that waits, as its client meant it."""
        found = self._held(machine, reply)
        if found is None or self._sums is None:
            return ()
        values = found[1].view(self._signed) * self._step / self._weights[reply.client]
        message, first = {}, 0
        for name, size in self._layout:
            message[name] = values[first : first + size]
            first += size
        return self._sums.sent(message)

    def masked(self, asked: RecordDict, answered: RecordDict, machine: str) -> None:
        """Words leave a site: for three or more, under one set, and each mask for one upload."""
        reply, body = wire.read_reply(answered, 10**9)
        if reply.kind is not ReplyKind.MASKED:
            return
        found: Any = asked[wire.SET]
        clients, publics = tuple(found["clients"]), bytes(found["publics"])
        agreed = self._policies[reply.client]
        fewest = agreed.get("minimum_sites", 3)
        if len(set(clients)) < fewest or reply.client not in clients:
            raise Violation(f"client {reply.client} was summed with {clients}")
        held = self._held(machine, reply)
        if held is None:
            raise Violation(f"client {reply.client} sent words that its disk does not have")
        upload, chosen = (machine, held[0]["public"]), (clients, publics)
        # A disk that was brought back does not know what left it since.
        if self._sets.setdefault(upload, chosen) != chosen and reply.client not in self.tampered:
            raise Violation(f"an upload of client {reply.client} left under two sets")
        task = wire.read_task(asked)[0]
        place = machine, task.run, self._rounds[task.id]
        known = reply.client in self.ever_tampered  # its disk may have forgotten the set
        if self._round_sets.setdefault(place, clients) != clients and not known:
            raise Violation(f"client {reply.client} left with two sets in round {place[2]}")
        self._check_apart(task, machine, frozenset(clients), fewest)
        words, sent = held[1], packed(body)[1]["words"]
        mask = (sent - words).tobytes()
        if not any(mask):
            raise Violation(f"client {reply.client} sent words without a mask")
        if self._masks.setdefault(mask, (machine, words.tobytes())) != (machine, words.tobytes()):
            raise Violation(f"a mask of client {reply.client} hid two uploads")

    def _check_apart(self, task: Task, machine: str, chosen: frozenset[int], fewest: int) -> None:
        """After an upload that was not acknowledged: the same set, or one that is far from it."""
        before = self._last_sets.get((machine, task.run))
        self._last_sets[machine, task.run] = task.id, chosen
        demands = self._policies[task.client].get("sets_apart", False)
        if not demands or before is None or task.client in self.tampered:
            return
        last, old = before
        acknowledged = self._digests.get(last) == task.acked_digest
        if last != task.id and not acknowledged and 0 < len(chosen ^ old) < fewest:
            raise Violation(f"client {task.client} left with {set(old)}, then with {set(chosen)}")

    def _sent(self, body: bytes) -> Numbers:
        try:
            return self._sums.sent(packed(body)[1]) if self._sums is not None else ()
        except (KeyError, TypeError, ValueError, AttributeError):
            return ()

    def saved(self, old: bytes | None, new: bytes) -> None:
        """The server's file was replaced."""
        before: Checkpoint | None = None
        earlier: dict[int, Chain] = {}
        virtual = Virtual(self._nothing)
        if old is not None:
            if old not in self._known:
                raise Violation("the server went on from a file that it never wrote")
            before, earlier, virtual = self._known[old]
        now = checkpoint(new)
        if before is not None and before.run != now.run:
            raise Violation("another run took the place of one that had begun")
        if before is not None and now.round not in (before.round, before.round + 1):
            raise Violation(f"round {now.round} follows round {before.round}")
        first = Chain(LedgerEntry(), virtual.total, virtual.total)
        chains = {
            c: self._next(c, earlier.get(c, first), first, entry)
            for c, entry in now.entries.items()
        }
        self._known[new] = now, *self._moved(earlier, chains, virtual)
        self._compare(*self._known[new])

    def _next(self, client: int, chain: Chain, first: Chain, entry: LedgerEntry) -> Chain:
        before = chain.entry
        if (entry.incarnation, entry.version) == (before.incarnation, before.version):
            if entry.digest != before.digest:
                raise Violation(f"client {client}: version {entry.version} is another one now")
            return chain
        if (entry.incarnation, entry.version) == (before.incarnation + 1, 0):
            return first._replace(entry=entry)
        if (entry.incarnation, entry.version) != (before.incarnation, before.version + 1):
            raise Violation(f"client {client}: {entry} follows {before}")
        upload = self.uploads.get(entry.digest)
        if upload is None or upload.reply.client != client:
            raise Violation(f"client {client}: version {entry.version} was never sent")
        if upload.reply.version != entry.version or upload.reply.incarnation != entry.incarnation:
            raise Violation(f"client {client}: {upload.reply} was folded as {entry}")
        if upload.at > self.tampered.get(client, upload.at):
            del self.tampered[client]
        if upload.honest:
            self._largest_truth = max(self._largest_truth, upload.size)
        elif upload.size > 10 * self._largest_truth:
            self.swallowed_a_lie = True
        total = tuple(a + b for a, b in zip(chain.total, upload.numbers, strict=True))
        self._peak = max([self._peak, *(float(abs(one).max()) for one in total)])
        return Chain(entry, total, total)

    def _moved(
        self, earlier: Mapping[int, Chain], chains: dict[int, Chain], virtual: Virtual
    ) -> tuple[dict[int, Chain], Virtual]:
        """Whoever was not part of a step has moved by sigma times its mean."""
        nobody = Chain(LedgerEntry(), self._nothing, self._nothing)
        counted = {
            c: self._weights[c]
            for c, chain in chains.items()
            if chain.entry.version > earlier.get(c, nobody).entry.version
        }
        if self._sigma == 0.0 or not counted:
            return chains, virtual
        share = sum(counted.values())
        sigma = self._sigma
        if sigma == "auto":
            sigma = min(1.0, len(counted) / 10) * (1 - virtual.unseen)
        steps = [self.uploads[chains[c].entry.digest].numbers[0] for c in counted]
        mean = sum(w * step for w, step in zip(counted.values(), steps, strict=True)) / share
        moved = {
            c: chain if c in counted else chain._replace(total=(chain.total[0] + sigma * mean,))
            for c, chain in chains.items()
        }
        return moved, Virtual((virtual.total[0] + sigma * mean,), virtual.unseen * (1 - share))

    def _compare(self, now: Checkpoint, chains: Mapping[int, Chain], virtual: Virtual) -> None:
        """The server's mean is the start plus all that counts, each upload once."""
        if self._sums is None:
            return
        wanted = list(self._start)
        for client, share in enumerate(self._weights):
            total = chains[client].total if client in chains else virtual.total
            wanted = [a + share * b for a, b in zip(wanted, total, strict=True)]
        for name, expected in zip(self._sums.kept, wanted, strict=True):
            off = float(abs(now.arrays[f"server.{name}"] - expected).max())
            if off > self.tolerance:
                raise Violation(f"round {now.round}: {name} is off by {off:.3g}")

    @property
    def tolerance(self) -> float:
        """Rounding, in view of the largest number there was."""
        return 1e-12 * (1 + self._peak)

    # what is looked at --------------------------------------------------------------------------

    def sites(self, data: bytes, machines: Mapping[int, list[str]], liar: int | None) -> None:
        """The state of each of these sites is what the server folded of it."""
        if data not in self._known:
            return  # it was wrong when it was written, which is being said
        now, chains, _ = self._known[data]
        for client in machines.keys() & chains.keys():
            chain = chains[client]
            entry = chain.entry
            if client in self.tampered or client == liar or entry.version == 0:
                continue
            files = [
                f for m in machines[client] for f in self._files(self._peek, m, now.run, client)
            ]
            found = [file for file in files if file.digest == entry.digest]
            if not found:
                raise Violation(f"client {client} does not hold version {entry.version}")
            if self._sums is not None:
                self._compare_state(client, found[0], chain)

    def _compare_state(self, client: int, file: Held, chain: Chain) -> None:
        assert self._sums is not None
        start = self._start
        if self._sums.kept in (("c",), ("h",)):
            start = self._nothing
        state, rest = (
            self._sums.state(file.arrays),
            file.arrays.get("error_feedback.0", np.zeros(1)),
        )
        if self._noised:
            return  # the noise is in what was counted, and not in the state
        rounding = chain.entry.version * self._step / self._weights[client]
        if self._step <= 2.0**-50:
            rounding = 0.0  # as fine as doubles
        for name, one, first, moved in zip(self._sums.kept, state, start, chain.held, strict=True):
            off = float(abs(one - rest - first - moved).max())
            if off > self.tolerance + rounding:
                raise Violation(f"client {client} stands {off:.3g} from what was folded ({name})")

    def _files(self, look: Look, machine: str, run: str, client: int) -> list[Held]:
        folder = f"/{machine}/state/{run}/client-{client}"
        contents = [look(f"{folder}/{name}") for name in (ACKED, PENDING)]
        return [file for data in contents if data is not None and (file := held(data)) is not None]
