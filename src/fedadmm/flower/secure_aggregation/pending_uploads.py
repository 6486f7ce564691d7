"""Secure aggregation at a site: store an upload, and release it for one set of sites only.

    held-update.safetensors   the words of the pending upload, its task, and its private key
    sets-update.json          the set for which each upload of the run was released

The answers to requests for metrics are stored in the same way.  The site trusts its own disk and
not the server: it refuses to release an upload for a second set.  Words and key are removed when
the server has acknowledged the upload.  The sets are kept as long as the run, because a server
can acknowledge an upload, or restart a client, and have the same upload computed again.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fedadmm.core import atomic_files, codec, trees
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
from fedadmm.flower.site.site_state import SiteState
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
    """The identity of a site, those of the others, and its conditions on a set of sites."""

    client: int
    identity: bytes
    known: Mapping[int, bytes]
    """The public identities of all sites, which this one got independently of the server."""
    minimum: int = 3
    """The smallest size of a set, including this site."""
    apart: bool = False
    """Whether the set must also be that of every upload from the same model, and of every one that
    was not acknowledged, or differ from it by `minimum` sites."""


def client_of(node: Mapping[str, Any]) -> int:
    """Return the number of the client, from the configuration of its node."""
    number: Any = node.get("partition-id")
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigError(
            f"node-config: partition-id: got {number!r}, expected the number of this client, as "
            "in --node-config 'partition-id=0 state-dir=\"/var/lib/fedadmm\"'"
        )
    return number


def read_peers(node: Mapping[str, Any], policy: SitePolicy) -> Peers:
    """Read the two files of identities, next to the state folder unless the node names others."""
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
    raise ConfigError(f"node-config: {name}: got {given!r}, expected the path of a file")


def _text(path: Path) -> str:
    data = atomic_files.read_if_there(path)
    if data is None:
        raise ConfigError(
            f"{path} is not there, but only masked sums may leave this site; `fedadmm deploy init` "
            "makes identities for all sites, `fedadmm deploy identity` one for this"
        )
    return data.decode(errors="replace")


class Origin(NamedTuple):
    """The inputs from which an upload was computed."""

    round: str
    """The round; it determines the random numbers, so that equal models give equal uploads."""
    model: str
    """The digest of the model that the site received."""


class PendingUpload(NamedTuple):
    """An upload that is stored until its set of sites is known."""

    task: str
    subject: str
    share: Share
    private: bytes
    words: Words
    reported: Mapping[str, Any]
    """What is sent to the server along with the key."""
    origin: Origin


class ReleasedUpload(NamedTuple):
    """The set of sites for which an upload was released."""

    task: str
    set: str
    clients: Sequence[int]
    origin: Origin


class PendingUploads:
    """The pending and released uploads of one kind in the folder of a client."""

    def __init__(self, folder: Path, purpose: str) -> None:
        self._held = folder / f"held-{purpose}.safetensors"
        self._sets = folder / f"sets-{purpose}.json"
        self._same = "round" if purpose == "update" else "model"

    def store(
        self,
        peers: Peers,
        task: str,
        subject: str,
        words: Words,
        reported: Mapping[str, Any],
        origin: Origin,
    ) -> Share:
        """Store an upload with a new key for this upload only; return the signed public key."""
        share, private = new_share(peers.client, subject, peers.identity)
        plain: dict[str, Any] = {
            "task": task,
            "subject": subject,
            "client": share.client,
            "public": share.public.hex(),
            "signature": share.signature.hex(),
            "private": private.hex(),
            "reported": json.dumps(reported),
            **origin._asdict(),
        }
        codec.write_checksummed(self._held, Packed({"words": as_tensor(words)}, plain))
        return share

    def find(self, task: str) -> PendingUpload | None:
        """Return the upload to this task; None if another one is stored or the file is damaged."""
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
        reported, private = json.loads(plain["reported"]), bytes.fromhex(plain["private"])
        origin = Origin(plain["round"], plain["model"])
        return PendingUpload(task, plain["subject"], share, private, words, reported, origin)

    def discard(self) -> None:
        """Remove the stored upload and its key after the server has acknowledged it."""
        if atomic_files.exists(self._held):
            atomic_files.remove(self._held)

    def released(self) -> list[ReleasedUpload]:
        """Return the sets for which the uploads of this run were released, oldest first."""
        if not atomic_files.exists(self._sets):
            return []
        try:
            found = codec.read_json(self._sets)["released"]
        except DamageError as error:
            raise StateError(
                f"{error}; only this file has the sets for which uploads were released. Restore it "
                "from a backup, or begin a new run"
            ) from None
        return [
            ReleasedUpload(task, chosen, clients, Origin(*origin))
            for task, chosen, clients, origin in found
        ]

    def requirement(self, peers: Peers, held: PendingUpload, acknowledged: str) -> SetRequirement:
        """Return the conditions on the set of this upload; otherwise two sums could reveal it.

        Within a round only one set is allowed, however much another one differs from it: of three
        sets that differ pairwise by many sites, two sums minus the third can still be the upload of
        one site.
        """
        before = self.released()
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
        """Mask an upload for a set of sites; the set is on the disk before the words are returned.

        Args:
            peers: the identities of the sites.
            task: the id of the task that the upload answers.
            shares: the signed keys of all sites of the set.
            least: the smallest size of a set in this run.
            acknowledged: the task of the last upload that the server has aggregated.
            spend: charges the privacy account for an upload that is released for the first time.

        Raises:
            StateError: the upload must not be released for this set.
        """
        held = self.find(task)
        if held is None:
            raise StateError("this site has no upload to this task")
        if held.share not in shares:
            raise StateError("the set lacks the key that this site created for this upload")
        fewest = max(least, peers.minimum)
        if len(shares) < fewest:
            raise StateError(
                f"the set has {len(shares)} sites, but this site requires at least {fewest}"
            )
        check_shares(held.subject, shares, peers.known)
        digest, before = set_digest(held.subject, shares), self.released()
        used = next((one.set for one in before if one.task == task), None)
        if used not in (None, digest):
            raise StateError(
                "this upload was released for another set, and is not released for a second one"
            )
        clients = [share.client for share in shares]
        requirement = self.requirement(peers, held, acknowledged)
        if requirement.same and requirement.same != set(clients):
            raise StateError(
                f"an upload of this {self._same} was released for clients "
                f"{sorted(requirement.same)}, and no other one is released for another set"
            )
        if not requirement.allows(clients):
            sets = " and ".join(str(sorted(one)) for one in requirement.others)
            raise StateError(
                f"uploads were released for clients {sets} that were not acknowledged or came from "
                "the same model; this site then requires the same set, or one that differs by at "
                f"least {requirement.apart} sites"
            )
        words = masked(held.words, peers.client, held.private, held.subject, shares)
        if used is None:
            spend()
            made = [*before, ReleasedUpload(task, digest, clients, held.origin)]
            codec.write_json(self._sets, {"released": made})
        return words


class SiteMasking(NamedTuple):
    """Secure aggregation at one site, in the folder of one client and run."""

    part: MaskedSum
    peers: Peers
    folder: Path
    length: float | None = None
    """The length of the local work in the task, where a penalty is fitted to it."""

    def pending(self, purpose: str = "update") -> PendingUploads:
        """Return the stored uploads, or the stored answers to requests for metrics."""
        return PendingUploads(self.folder, purpose)

    def ready(
        self,
        job: Job,
        state: SiteState,
        task: Task,
        payload: TaskPayload,
        record: ClientRecord | None,
        done: ClientRound,
    ) -> Reply:
        """Store an upload until its set is known, and return the READY reply.

        The reply does not depend on the data.  A server that learned from the kind of a reply
        that the result of one site overflows could read a feature by choosing models.  Therefore a
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
            done = zero_round(job, record, payload.download, done.info)
            words = upload_words(job, part, task.client, done)
        assert done.record is not None
        reported = {}
        if job.solver is not None and job.solver.noise is not None:
            solve = done.info.solve  # the server's own account; how many rows there are is public
            reported = {"steps": solve.steps, "epochs": solve.epochs, "noised": done.info.noised}
        sent = shared_digest(payload, self.length)
        about = subject("update", task.run, task.sequence, sent)
        model = codec.digest(codec.encode(codec.pack(payload.download)))
        origin = Origin(str(payload.round_index), model)
        share = self.pending().store(self.peers, task.id, about, words, reported, origin)
        # The key is new for every upload, so that the digest of the state that is acknowledged is
        # that of this upload, also if the same task is computed again with other random numbers.
        reply = seal(reply_to(task, ReplyKind.READY), share.public)
        state.commit(reply, share.public, done.record)
        return reply

    def replays(self, task: Task, key: bytes) -> bool:
        """Return whether the upload with this public key is stored, so that READY can be repeated.

        Otherwise the task is computed again.

        Raises:
            StateError: the words were released already, so that the stored state is the one that
                the server may have aggregated.
        """
        waiting = self.pending()
        held = waiting.find(task.id)
        if held is not None and held.share.public == key:
            return True
        if any(one.task == task.id for one in waiting.released()):
            raise StateError(
                "the upload to this task was released, and its words were removed since"
            )
        return False

    def attachments(
        self, task: str, purpose: str = "update", acknowledged: str = ""
    ) -> dict[str, dict[str, Any]]:
        """Return what is sent with READY: the key, and the conditions on the set."""
        waiting = self.pending(purpose)
        held = waiting.find(task)
        if held is None:
            raise StateError("the stored upload is damaged; the task must be sent again")
        requirement = write_requirement(waiting.requirement(self.peers, held, acknowledged))
        return {wire.SHARE: write_share(held.share, **held.reported, **requirement)}

    def release(
        self, state: SiteState, task: Task, content: RecordDict, spend: Callable[[], None]
    ) -> tuple[Reply, bytes]:
        """Return the stored upload, masked for the set in the message."""
        shares, acknowledged = read_set(content), last_acknowledged(state)
        stored, held = state.pending(), self.pending().find(task.id)
        if stored is None or (held is not None and held.share.public != stored[1]):
            raise StateError("the stored upload does not belong to the stored state")
        words = self.pending().release(
            self.peers, task.id, shares, self.part.minimum, acknowledged, spend
        )
        body = to_body(words)
        return seal(reply_to(task, ReplyKind.MASKED), body), body


def zero_round(
    job: Job, record: ClientRecord | None, download: Download, info: ClientInfo
) -> ClientRound:
    """Return a round without effect: an increment of zero, and the record from before the round.

    The statistics are those of the requested work: their sums are known beforehand, so that a
    smaller one would reveal that the result of some site was not usable.
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
    """Return a round whose local work raised an error: no result, the statistics of a full one."""
    before = first_record(job) if record is None else record
    first = torch.tensor([is_first(record, download)], device=job.initial.device)
    problem = job.local.problem(job.algorithm, download.broadcast, before.state, first)
    per_epoch = steps_per_epoch(job, client)
    steps = job.stop.largest_budget(per_epoch, client)
    solve = SolveInfo(steps, steps / per_epoch, steps / per_epoch, "failed", math.nan)
    info = ClientInfo(client, solve, float(problem.weight), 0.0, 0.0, finite=False)
    return zero_round(job, record, download, info)._replace(record=None)


def last_acknowledged(state: SiteState) -> str:
    """Return the task of the last upload that the server is known to have aggregated."""
    acked = state.ledger().acked
    return "" if acked is None else acked.task


def site_masking(
    federation: Federation,
    node: Mapping[str, Any],
    policy: SitePolicy,
    folder: Path,
    length: float | None = None,
) -> SiteMasking | None:
    """Return the secure aggregation of a site; None for a federation without it."""
    run = federation.experiment
    part = as_masked_sum(run.aggregator.fitted(UpdatePipeline.of(run.pipeline)))
    return None if part is None else SiteMasking(part, read_peers(node, policy), folder, length)
