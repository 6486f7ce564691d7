"""A site's half of a masked sum: an upload waits here, and leaves under one set of sites for ever.

    held-update.safetensors   the words of the upload that waits, its task, and its private key
    sets-update.json          under which set each upload of the run left

and the same for the answers to questions for metrics.  What the disk says counts, whatever the
server says: another set for an upload that left is refused.  The words and their key are removed
when the server has acknowledged them; the sets are kept as long as the run, because a server can
acknowledge an upload, or start a client again, and have the same upload computed once more.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fedadmm.core import codec, files, trees
from fedadmm.core.aggregation import MaskedSum
from fedadmm.core.codec import DamageError, Packed
from fedadmm.core.errors import ConfigError, StateError
from fedadmm.core.local_work import SolveInfo
from fedadmm.core.messages import ClientInfo, ClientRecord, Download, Upload
from fedadmm.core.pairwise_masks import (
    RangeError,
    Share,
    Words,
    check_shares,
    masked,
    new_share,
    set_digest,
)
from fedadmm.core.pipeline import UpdatePipeline
from fedadmm.flower.federation import Federation
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.admission import seal
from fedadmm.flower.protocol.ledger import Reply, ReplyKind, Task, reply_to
from fedadmm.flower.protocol.payloads import TaskPayload
from fedadmm.flower.secure_aggregation.masked_messages import (
    SetRequirement,
    as_masked_sum,
    as_tensor,
    read_set,
    shared_digest,
    subject,
    to_body,
    upload_words,
    write_requirement,
    write_share,
)
from fedadmm.flower.site.policy import SitePolicy
from fedadmm.flower.site.state import SiteState
from fedadmm.run.client import (
    ClientRound,
    Job,
    first_record,
    is_first,
    message_template,
    record_layout,
)
from fedadmm.run.privacy import steps_per_epoch

if TYPE_CHECKING:
    from flwr.app import RecordDict

_logger = logging.getLogger("fedadmm")
IDENTITY, PEERS = "identity", "peers"
FILES = {IDENTITY: "identity", PEERS: "peers.json"}


class Peers(NamedTuple):
    """Who a site is, whom it knows, and what it demands of a set; all from its own node."""

    client: int
    identity: bytes
    known: Mapping[int, bytes]
    """The public identities of all sites, as they were given to this one."""
    minimum: int = 3
    """The fewest sites of a set, this one included."""
    apart: bool = False
    """Whether the set must also be that of every upload from the same model, and of every one that
    was not acknowledged, or differ from it by `minimum` sites."""


def client_of(node: Mapping[str, Any]) -> int:
    """Which client a node is, from its own configuration."""
    number: Any = node.get("partition-id")
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigError(
            f"node-config: partition-id is {number!r}, but must be the number of this client, as "
            "in --node-config 'partition-id=0 state-dir=\"/var/lib/fedadmm\"'"
        )
    return number


def read_peers(node: Mapping[str, Any], policy: SitePolicy) -> Peers:
    """A site's two files, beside its state folder unless its node says where, and its demands."""
    identity, peers = (_beside_state(node, name) for name in (IDENTITY, PEERS))
    written, listed = _text(identity), _text(peers)
    try:
        own = bytes.fromhex(written)
        known = {int(number): bytes.fromhex(key) for number, key in json.loads(listed).items()}
        right = all(len(key) == 32 for key in (own, *known.values()))
    except (ValueError, AttributeError, TypeError, RecursionError):
        right = False
    if not right:
        raise ConfigError(
            f"{identity} must hold 64 hexadecimal digits, and {peers} a JSON object from client "
            "numbers to such digits"
        )
    return Peers(client_of(node), own, known, policy.minimum_sites, policy.sets_apart)


def _beside_state(node: Mapping[str, Any], name: str) -> Path:
    given, state = node.get(name), node.get("state-dir")
    if isinstance(given, str):
        return Path(given)
    if given is None and isinstance(state, str):
        return Path(state).parent / FILES[name]
    raise ConfigError(f"node-config: {name} is {given!r}, but must be the path of a file")


def _text(path: Path) -> str:
    data = files.read_if_there(path)
    if data is None:
        raise ConfigError(
            f"{path} is not there, but only masked sums may leave this site; `fedadmm deploy init` "
            "makes identities for all sites, `fedadmm deploy identity` one for this"
        )
    return data.decode(errors="replace")


class Origin(NamedTuple):
    """What an upload was computed from."""

    round: str
    """Its random numbers; uploads of one round are equal if their model and state are."""
    model: str
    """The digest of the model that the site was sent."""


class PendingUpload(NamedTuple):
    """An upload that waits."""

    task: str
    subject: str
    share: Share
    private: bytes
    words: Words
    told: Mapping[str, Any]
    """What the server may know besides the key."""
    origin: Origin


class ReleasedUpload(NamedTuple):
    """Under which set an upload left."""

    task: str
    set: str
    clients: Sequence[int]
    origin: Origin


class PendingUploads:
    """The uploads of one kind that wait in a client's folder."""

    def __init__(self, folder: Path, purpose: str) -> None:
        self._held = folder / f"held-{purpose}.safetensors"
        self._sets = folder / f"sets-{purpose}.json"
        self._same = "round" if purpose == "update" else "model"

    def hold(
        self,
        peers: Peers,
        task: str,
        subject: str,
        words: Words,
        told: Mapping[str, Any],
        origin: Origin,
    ) -> Share:
        """Keep an upload, with a fresh key that is good for it alone; returns its public half."""
        share, private = new_share(peers.client, subject, peers.identity)
        plain: dict[str, Any] = {
            "task": task,
            "subject": subject,
            "client": share.client,
            "public": share.public.hex(),
            "signature": share.signature.hex(),
            "private": private.hex(),
            "told": json.dumps(told),
            **origin._asdict(),
        }
        codec.write_checksummed(self._held, Packed({"words": as_tensor(words)}, plain))
        return share

    def held(self, task: str) -> PendingUpload | None:
        """The upload that waits for this task; None when another does, or it is damaged."""
        try:
            packed = codec.read_checksummed(self._held)
        except DamageError:
            return None
        if packed is None or packed.plain["task"] != task:
            return None
        plain: dict[str, Any] = dict(packed.plain)
        share = Share(
            plain["client"], bytes.fromhex(plain["public"]), bytes.fromhex(plain["signature"])
        )
        words = packed.tensors["words"].numpy()
        words = words.view("uint32" if words.itemsize == 4 else "uint64")
        told, private = json.loads(plain["told"]), bytes.fromhex(plain["private"])
        origin = Origin(plain["round"], plain["model"])
        return PendingUpload(task, plain["subject"], share, private, words, told, origin)

    def settled(self) -> None:
        """What waited is acknowledged: its words and its key are needed no more."""
        if files.exists(self._held):
            files.remove(self._held)

    def left(self) -> list[ReleasedUpload]:
        """Under which sets the uploads of this run left, oldest first."""
        if not files.exists(self._sets):
            return []
        try:
            found = codec.read_json(self._sets)["left"]
        except DamageError as error:
            raise StateError(
                f"{error}; only it says under which sets uploads left this site, so bring it back "
                "from a backup, or begin a new run"
            ) from None
        return [
            ReleasedUpload(task, chosen, clients, Origin(*origin))
            for task, chosen, clients, origin in found
        ]

    def demand(self, peers: Peers, held: PendingUpload, acknowledged: str) -> SetRequirement:
        """Which set this upload must have, so that two sums do not show what one site sent.

        A set other than that of an upload of the same round is never allowed: with three sets each
        pair of which differs by many sites, two sums less the third can still be one site's upload.
        """
        before = self.left()
        tasks = [one.task for one in before]
        acked = tasks.index(acknowledged) + 1 if acknowledged in tasks else 0
        sets = [frozenset(one.clients) for one in before]
        same = [
            chosen
            for chosen, one in zip(sets, before, strict=True)
            if one.task == held.task or one.origin.round == held.origin.round
        ]
        others = [
            chosen
            for k, (chosen, one) in enumerate(zip(sets, before, strict=True))
            if peers.apart and (k >= acked or one.origin.model == held.origin.model)
        ]
        first = same[0] if same else frozenset[int]()
        return SetRequirement(peers.minimum, first, tuple(dict.fromkeys(others)), peers.minimum)

    def release(
        self,
        peers: Peers,
        task: str,
        shares: Sequence[Share],
        least: int,
        acknowledged: str,
        spend: Callable[[], None] = lambda: None,
    ) -> Words:
        """The upload under the masks of a set, which is on the disk before the words leave.

        `acknowledged` is the task of the last upload that the server is known to have folded;
        `spend` counts an upload that leaves for the first time.
        """
        held = self.held(task)
        if held is None:
            raise StateError("no upload for this task waits here")
        if held.share not in shares:
            raise StateError("the set does not hold the key that this site made for this upload")
        fewest = max(least, peers.minimum)
        if len(shares) < fewest:
            raise StateError(
                f"the set has {len(shares)} sites, but this site adds its uploads to those of at "
                f"least {fewest - 1} others"
            )
        check_shares(held.subject, shares, peers.known)
        digest, before = set_digest(held.subject, shares), self.left()
        used = next((one.set for one in before if one.task == task), None)
        if used not in (None, digest):
            raise StateError("this upload left under another set, and leaves under no second one")
        clients = [share.client for share in shares]
        demand = self.demand(peers, held, acknowledged)
        if demand.same and demand.same != set(clients):
            raise StateError(
                f"an upload of this {self._same} left under clients {sorted(demand.same)}, and no "
                "other of it leaves under other ones"
            )
        if not demand.allows(clients):
            sets = " and ".join(str(sorted(one)) for one in demand.others)
            raise StateError(
                f"uploads left under clients {sets} that were not acknowledged or came from the "
                "same model; this site then demands the same set, or one that differs by at least "
                f"{demand.apart} sites"
            )
        words = masked(held.words, peers.client, held.private, held.subject, shares)
        if used is None:
            spend()
            made = [*before, ReleasedUpload(task, digest, clients, held.origin)]
            codec.write_json(self._sets, {"left": made})
        return words


class SiteMasking(NamedTuple):
    """What a site does where only masked sums may leave."""

    part: MaskedSum
    peers: Peers
    folder: Path
    length: float | None = None
    """The length of the local work in the task, where a penalty is fitted to it."""

    def waiting(self, purpose: str = "update") -> PendingUploads:
        """The uploads, or the answers, that wait."""
        return PendingUploads(self.folder, purpose)

    def ready(
        self,
        job: Job,
        state: SiteState,
        task: Task,
        parcel: TaskPayload,
        record: ClientRecord | None,
        done: ClientRound,
    ) -> Reply:
        """Store an upload until its set is known, and answer READY.

        The answer is the same whatever the data are.  A server that learned from the kind of an
        answer that one site's result overflows could choose models until it knew a feature, so a
        site without a usable result takes part with an increment of zero and keeps its state.
        """
        part = as_masked_sum(job.aggregator)
        assert part is not None
        try:
            if done.record is None:
                raise RangeError("the local result holds NaN or infinite entries")
            words = upload_words(job, part, task.client, done)
        except RangeError as error:
            _logger.warning(
                "run %s, task %d: the upload is an increment of zero, because the local work has "
                "no usable result: %s",
                *(task.run, task.sequence, error),
            )
            done = zero_round(job, record, parcel.download, done.info)
            words = upload_words(job, part, task.client, done)
        assert done.record is not None
        told = {}
        if job.solver is not None and job.solver.noise is not None:
            solve = done.info.solve  # the server's own account; how many rows there are is public
            told = {"steps": solve.steps, "epochs": solve.epochs, "noised": done.info.noised}
        sent = shared_digest(parcel, self.length)
        about = subject("update", task.run, task.sequence, sent)
        model = codec.digest(codec.encode(codec.pack(parcel.download)))
        origin = Origin(str(parcel.round_index), model)
        share = self.waiting().hold(self.peers, task.id, about, words, told, origin)
        # The key is new for every upload, so that the digest of the state that is acknowledged is
        # that of this upload, also if the same task is computed again with other random numbers.
        reply = seal(reply_to(task, ReplyKind.READY), share.public)
        state.commit(reply, share.public, done.record)
        return reply

    def replays(self, task: Task, key: bytes) -> bool:
        """Whether the upload with this public key waits for its set, so that READY can be repeated.

        Otherwise the task is computed again, unless the words have left: the state that is kept is
        then the one that the server may have folded.
        """
        waiting = self.waiting()
        held = waiting.held(task.id)
        if held is not None and held.share.public == key:
            return True
        if any(one.task == task.id for one in waiting.left()):
            raise StateError("the upload to this task has left, and its words are gone since")
        return False

    def beside(
        self, task: str, purpose: str = "update", acknowledged: str = ""
    ) -> dict[str, dict[str, Any]]:
        """What travels with READY: the key, and which set the site demands."""
        waiting = self.waiting(purpose)
        held = waiting.held(task)
        if held is None:
            raise StateError("the upload that waited here is damaged; the task must come again")
        demand = write_requirement(waiting.demand(self.peers, held, acknowledged))
        return {wire.SHARE: write_share(held.share, **held.told, **demand)}

    def release(
        self, state: SiteState, task: Task, content: RecordDict, spend: Callable[[], None]
    ) -> tuple[Reply, bytes]:
        """The upload that waits, under the masks of the set that came."""
        shares, acknowledged = read_set(content), last_acknowledged(state)
        stored, held = state.pending(), self.waiting().held(task.id)
        if stored is None or (held is not None and held.share.public != stored[1]):
            raise StateError("the upload that waits here is not that of the state kept here")
        words = self.waiting().release(
            self.peers, task.id, shares, self.part.minimum, acknowledged, spend
        )
        body = to_body(words)
        return seal(reply_to(task, ReplyKind.MASKED), body), body


def zero_round(
    job: Job, record: ClientRecord | None, download: Download, info: ClientInfo
) -> ClientRound:
    """A round that changes nothing: an increment of zero, and the record from before the round.

    The numbers about the work are those of the work that was asked for: their sums are known
    beforehand, so that a smaller one would show that somebody's result was not usable.
    """
    layout, keeps = record_layout(job), job.problem.buffers == "keep-local"
    before = first_record(job) if record is None else record
    kept = before._replace(
        buffers=before.buffers if keeps else None,
        error_feedback=before.error_feedback or layout.error_feedback,
    )
    message = trees.map_tensors(torch.zeros_like, message_template(job, download.broadcast))
    buffers, within = None, None
    if job.problem.buffers == "average":
        bound = job.aggregator.fixed_point.bound if isinstance(job.aggregator, MaskedSum) else 0.0
        sent = job.initial_buffers if download.buffers is None else download.buffers
        assert sent is not None
        buffers = torch.nan_to_num(sent).clamp(-bound, bound)  # as they came, within the range
    if job.pipeline.adapts_clip:
        within = job.initial.new_full((1,), 0.5)  # nothing is shorter than any bound
    return ClientRound(kept, Upload(message, buffers, within), info._replace(drift=0.0))


def failed_round(
    job: Job, client: int, record: ClientRecord | None, download: Download
) -> ClientRound:
    """A round whose local work raised an error: no result, after the work of a whole round."""
    before = first_record(job) if record is None else record
    first = torch.tensor([is_first(record, download)], device=job.initial.device)
    problem = job.local.problem(job.algorithm, download.broadcast, before.state, first)
    per_epoch = steps_per_epoch(job, client)
    steps = job.stop.largest_budget(per_epoch, client)
    solve = SolveInfo(steps, steps / per_epoch, steps / per_epoch, "failed", math.nan)
    info = ClientInfo(client, solve, float(problem.weight), 0.0, 0.0, finite=False)
    return zero_round(job, record, download, info)._replace(record=None)


def last_acknowledged(state: SiteState) -> str:
    """The task of the last upload that the server is known to have folded."""
    acked = state.ledger().acked
    return "" if acked is None else acked.task


def site_masking(
    federation: Federation,
    node: Mapping[str, Any],
    policy: SitePolicy,
    folder: Path,
    length: float | None = None,
) -> SiteMasking | None:
    """A site's half of masked sums; None for a federation without them."""
    run = federation.experiment
    part = as_masked_sum(run.aggregator.fitted(UpdatePipeline.of(run.pipeline)))
    return None if part is None else SiteMasking(part, read_peers(node, policy), folder, length)
