"""A second audit of a simulated federation: double-entry books of what was sent and what counted.

It is written from the specification of exactly-once updates alone and shares no code with
`books.py`.  An upload is identified by its content, not by its task.  Two books are kept:

* **Posted:** every upload that a site sent, with the state from which it was computed (`before`)
  and the state that it leads to (`after`), both read from the disk of the site.
* **Credited:** for every checkpoint that the server writes, the uploads that it counts.

They must balance:

1. A site posts only what its disk holds after a power cut.
2. A site computes only from its initial state, or from a state whose upload was credited.
3. A checkpoint credits only uploads that were posted, each once, and an honest client's next upload
   was computed from the state of the one that was credited before it.
4. The server's state in a checkpoint is the algorithm's server update, applied to the state of the
   checkpoint before it and to the weighted sum of the uploads that are credited in between.
5. The uploads of a client that is removed are taken out of the server's state.
6. All masked uploads of one round leave a site for one set of at least three sites; those of a site
   with `sets_apart` that are equal leave for one set in a run, or for sets that are far apart.
7. A site's privacy account counts every upload with noise before it leaves, and such an upload has
   no entries besides those of the message.
8. A mean of masked metrics is finite and within the range of the sites' values.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import RecordDict

from fedadmm.core import codec, trees
from fedadmm.core.capabilities import AbsentClientAlignment, ClientRemoval
from fedadmm.core.codec import unpack
from fedadmm.core.contracts import Cohort
from fedadmm.core.errors import FedADMMError
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.ledger import Reply, ReplyKind
from fedadmm.flower.protocol.payloads import check_like, payload_template, result_template
from fedadmm.run.client import message_template
from fedadmm.run.evaluation import Evaluation
from fedadmm.run.loop import initial_state
from fedadmm.run.round_callbacks import RunPlan
from fedadmm.run.state import RunState, unpack_state

from .books import Violation
from .plan import Plan

INITIAL = "the initial state"
_TOLERANCE = 1e-11


class Posting(NamedTuple):
    """An upload that a site sent."""

    content: str
    """Digest of the upload; of the key of a masked one, which is new for every upload."""
    before: str | None
    """Digest of the state that it was computed from; None where a lying site sent it."""
    after: str | None
    message: Any
    """The decoded upload; None if it is masked."""


class Checkpoint(NamedTuple):
    """What a checkpoint of the server says."""

    run: str
    state: RunState
    entries: Mapping[int, tuple[int, int, str]]
    """Client -> incarnation, version and digest."""


Credited = Mapping[int, tuple[str, ...]]
"""Client -> digests of the replies that a checkpoint counts, oldest first."""


class DoubleEntry:
    """The books of one simulated federation.

    Args:
        plan: the federation.
        survivor: what a power cut would leave of a file.
        touched: clients whose disk somebody wiped, restored or damaged; grows during a run.
    """

    def __init__(
        self, plan: Plan, survivor: Callable[[str], bytes | None], touched: set[int]
    ) -> None:
        self._plan, self._survivor, self._touched = plan, survivor, touched
        self._job = job = plan.federation.server_job()
        self._first = initial_state(job, RunPlan(1, Evaluation()))
        self._download = payload_template(job).download
        self._message = message_template(job, self._download.broadcast)
        self._posted: dict[tuple[int, str], Posting] = {}
        self._credited: dict[str, Credited] = {}
        """By the digest of a checkpoint."""
        self._whole: dict[bytes, bytes] = {}
        """Damaged checkpoints, and what they were."""
        self._states: dict[int, set[str]] = {c: {INITIAL} for c in range(plan.federation.clients)}
        """The states of each client whose uploads were ever credited."""
        self._words: dict[tuple[int, bytes], list[bytes]] = {}
        """Masked words by client and key."""
        self._rounds: dict[tuple[int, bytes], tuple[str, int]] = {}
        """Run and round of the task to which a client made this key."""
        self._sets: dict[tuple[int, str, int], set[frozenset[int]]] = {}
        self._content: dict[tuple[int, bytes], str] = {}
        """The digest of the upload under this key, before masks; empty for zero."""
        self._equal: dict[tuple[int, str, str], set[frozenset[int]]] = {}
        self._noised: dict[str, set[bytes]] = {}
        self.counts: Counter[str] = Counter()

    # what leaves a site ---------------------------------------------------------------------------

    def answered(self, client: int, machine: str, question: RecordDict, answer: RecordDict) -> None:
        """Audit what an honest site answered, whether or not the answer arrives anywhere."""
        if wire.HEAD not in answer:
            return
        reply, body = wire.read_reply(answer, 10**9)
        if reply.kind is ReplyKind.READY:
            key = _public(answer)
            packed = codec.decode(wire.read_body(question), codec.MESSAGE)
            self._rounds[client, key] = reply.run, int(packed.plain["round_index"])
        if reply.kind is ReplyKind.MASKED:
            self._check_set(client, machine, question)
            self._check_length(machine, body)
        if reply.kind in (ReplyKind.UPDATE, ReplyKind.READY):
            self._post(client, machine, reply, answer, body)

    def arrived(self, client: int, question: RecordDict, answer: RecordDict) -> None:
        """Note what reaches the network on its way to the server, also from a lying site."""
        if wire.HEAD not in answer:
            return
        try:
            reply, body = wire.read_reply(answer, 10**9)
            if reply.kind is ReplyKind.MASKED:
                clients, publics = _members(question)
                key = publics[clients.index(client)]
                self._words.setdefault((client, key), []).append(body)
            elif reply.kind is ReplyKind.UPDATE and (client, reply.digest) not in self._posted:
                content = hashlib.sha256(body).hexdigest()
                message = self._decoded(body)
                self._posted[client, reply.digest] = Posting(content, None, None, message)
            elif reply.kind is ReplyKind.READY and (client, reply.digest) not in self._posted:
                key = _public(answer)
                self._posted[client, reply.digest] = Posting(key.hex(), None, None, None)
        except (FedADMMError, ValueError, KeyError):
            return  # a lie that cannot be read, which the server must refuse

    def _post(
        self, client: int, machine: str, reply: Reply, answer: RecordDict, body: bytes
    ) -> None:
        folder = f"/{machine}/state/{reply.run}/client-{client}"
        after = self._state(f"{folder}/pending.safetensors", reply.digest)
        if after is None:
            raise Violation(f"{machine} sent an upload that its disk does not hold")
        before = self._state(f"{folder}/acked.safetensors") or INITIAL
        if before not in self._states[client]:
            raise Violation(f"{machine} computed from a state whose upload was never credited")
        self.counts["uploads audited"] += 1
        if reply.kind is ReplyKind.READY:
            content, message = _public(answer).hex(), None
        else:
            content, message = hashlib.sha256(body).hexdigest(), self._decoded(body)
        known = self._posted.get((client, reply.digest))
        if known is None or known.before is None:
            self._posted[client, reply.digest] = Posting(content, before, after, message)
        elif (known.content, known.before, known.after) != (content, before, after):
            raise Violation(f"{machine} sent two uploads under one digest")

    def _state(self, path: str, digest: str | None = None) -> str | None:
        """The digest of the durable state in a file of a site; None if it is not there."""
        data = self._survivor(path)
        if data is None:
            return None
        try:
            packed = codec.decode(data)
        except FedADMMError:
            return None
        if digest is not None and json.loads(str(packed.plain["reply"]))["digest"] != digest:
            return None
        whole = hashlib.sha256()
        for name in sorted(packed.tensors):
            if name != "body":
                whole.update(name.encode() + packed.tensors[name].numpy().tobytes())
        return whole.hexdigest()

    def _decoded(self, body: bytes) -> Any:
        job, packed = self._job, codec.decode(body, codec.MESSAGE)
        template = result_template(job, self._download)
        check_like(template, packed)
        message = unpack(template, packed).upload.message
        if job.pipeline.changes_messages:
            message = job.pipeline.decode_message(message, self._message)
        return message

    # what the server counts -----------------------------------------------------------------------

    def flipped(self, whole: bytes, damaged: bytes) -> None:
        """Note that a bit of a checkpoint changed; a running server goes on from the whole one."""
        self._whole[damaged] = self._whole.get(whole, whole)

    def checkpoint(self, old: bytes | None, new: bytes) -> None:
        """Audit a checkpoint that takes the place of another one."""
        if old is not None:
            old = self._whole.get(old, old)
        after, before = self._read(new), None if old is None else self._read(old)
        assert after is not None
        if before is None or before.run != after.run:
            if after.entries or not _equal(after.state.server, self._first.server, 0.0):
                raise Violation("a run begins with something that nobody sent")
            before = after._replace(state=self._first._replace(round=after.state.round))
        known = {} if old is None else self._credited.get(_digest(old))
        if known is None:
            raise Violation("the server went on from a checkpoint that it never wrote")
        credited = {c: tuple(known.get(c, ())) for c in range(self._plan.federation.clients)}
        server, fresh = before.state.server, dict[int, Posting]()
        for client, (incarnation, version, digest) in after.entries.items():
            was = before.entries.get(client, (0, 0, ""))
            if (incarnation, version, digest) == was:
                continue
            if (incarnation, version) == (was[0] + 1, 0):
                if server is not None:
                    server = self._removed(server, client, credited[client])
                credited[client] = ()
                continue
            if (incarnation, version) != (was[0], was[1] + 1):
                raise Violation(f"client {client} goes from version {was[1]} to {version}")
            fresh[client] = self._credit(client, digest, credited[client])
            credited[client] += (digest,)
        self._check_server(before.state, after.state, server, fresh)
        self._credited[_digest(new)] = credited
        self.counts["checkpoints audited"] += 1

    def _credit(self, client: int, digest: str, before: tuple[str, ...]) -> Posting:
        posting = self._posted.get((client, digest))
        if posting is None:
            raise Violation(f"an upload of client {client} counts that nobody sent")
        past = [self._posted[client, one] for one in before]
        if any(one.content == posting.content for one in past if posting.before is not None):
            raise Violation(f"an upload of client {client} counts twice")
        if client != self._plan.liar and posting.before is not None:
            last = past[-1].after if past else INITIAL
            if last is not None and posting.before != last:
                raise Violation(f"client {client} moved before its last upload counted")
        if posting.after is not None:
            self._states[client].add(posting.after)
        return posting

    def _check_server(
        self, before: RunState, after: RunState, server: Any, fresh: Mapping[int, Posting]
    ) -> None:
        job = self._job
        if server is None:
            return
        if not fresh:
            if not _equal(server, after.server, _TOLERANCE):
                raise Violation("the server's state moved and no upload was counted")
            return
        weights = {c: job.problem.weight(c) for c in fresh}
        if job.aggregator.is_secure:
            total = self._masked_total(fresh)
            if total is None:
                return  # a lying site sent several words, and we cannot know which were added
        else:
            total = self._weighted({c: [posting.message] for c, posting in fresh.items()})
        n = job.problem.num_clients
        cohort = Cohort(len(fresh), sum(weights.values()), n, before.round)
        wanted = job.algorithm.server_update(server, total, cohort, job.problem.regularizer)
        if not _equal(wanted, after.server, _TOLERANCE):
            raise Violation("the server's state is not that of the uploads that it counts")
        self.counts["server updates audited"] += 1

    def _masked_total(self, fresh: Mapping[int, Posting]) -> Any:
        words = []
        for client, posting in fresh.items():
            key = bytes.fromhex(posting.content)
            sent = {bytes(one) for one in self._words.get((client, key), [])}
            if not sent:
                raise Violation(f"a masked upload of client {client} counts that nobody sent")
            if len(sent) > 1:
                return None
            words.append(codec.decode(sent.pop(), codec.MESSAGE).tensors["words"].numpy())
        point: Any = self._job.aggregator.fixed_point
        total = sum(one.view(point.dtype) for one in words[1:]) + words[0].view(point.dtype)
        size = sum(leaf.numel() for leaf in trees.tensors(self._message))
        signed = total[:size].view(f"i{point.dtype().itemsize}")
        entries = torch.from_numpy(signed.astype(np.float64) * point.step)
        leaves = iter(entries.split([leaf.numel() for leaf in trees.tensors(self._message)]))
        return trees.map_tensors(
            lambda leaf: next(leaves).reshape(leaf.shape).to(leaf.dtype), self._message
        )

    def _removed(self, server: Any, client: int, past: tuple[str, ...]) -> Any:
        method, job = self._job.algorithm, self._job
        messages = [self._posted[client, digest].message for digest in past]
        if isinstance(method, AbsentClientAlignment) and messages:
            return None  # the virtual steps of its rounds are not in these books
        if not messages or not isinstance(method, ClientRemoval):
            return server
        total = self._weighted({client: messages})
        without = method.remove_client(server, total, job.problem.regularizer)
        self.counts["removals audited"] += 1
        return server if without is None else without

    def _weighted(self, messages: Mapping[int, list[Any]]) -> Any:
        """The sum of these clients' messages, each times the client's weight."""
        total = trees.map_tensors(torch.zeros_like, self._message)
        for client, several in sorted(messages.items()):
            for message in several:
                trees.add_scaled_(total, message, self._job.problem.weight(client))
        return total

    def _read(self, data: bytes) -> Checkpoint | None:
        try:
            packed = codec.decode(data)
            if packed.plain.pop("sha256", None) is None:
                return None
            values = json.loads(str(packed.plain["values"]))
            state = unpack_state(self._first, None, packed.tensors, values["state"])
            entries = {int(c): tuple(one[:3]) for c, one in values["entries"].items()}
            return Checkpoint(values["run"], state, entries)  # type: ignore[arg-type]
        except (FedADMMError, ValueError, KeyError, TypeError):
            return None

    # what masks hide ------------------------------------------------------------------------------

    def masking(self, client: int, key: bytes, words: Any) -> None:
        """Note the words of an upload before they are masked."""
        size = sum(leaf.numel() for leaf in trees.tensors(self._message))
        zero = not words[:size].any()
        content = "" if zero else hashlib.sha256(words[:size].tobytes()).hexdigest()
        self._content[client, key] = content

    def _check_set(self, client: int, machine: str, question: RecordDict) -> None:
        clients, publics = _members(question)
        group, key = frozenset(clients), publics[clients.index(client)]
        if len(group) < 3:
            raise Violation(f"{machine} is summed with {len(group) - 1} others")
        run_round = self._rounds.get((client, key))
        if run_round is None:
            raise Violation(f"{machine} sent an upload under a key that it never announced")
        self.counts["sets audited"] += 1
        self._check_account(client, machine, key)
        if client in self._touched:
            return  # it may have forgotten its sets; the operator then begins another run
        sets = self._sets.setdefault((client, *run_round), set())
        sets.add(group)
        if len(sets) > 1:
            raise Violation(f"uploads of one round left {machine} under {len(sets)} sets")
        agreed = self._plan.policies[client]
        apart = agreed.get("minimum_sites", 3)
        if not agreed.get("sets_apart"):
            return
        content = self._content.get((client, key), "")
        if not content:
            return  # an increment of zero shows nothing
        groups = self._equal.setdefault((client, run_round[0], content), set())
        groups.add(group)
        if any(0 < len(one ^ group) < apart for one in groups):
            raise Violation(f"equal uploads left {machine} under sets that are close")

    def _check_length(self, machine: str, body: bytes) -> None:
        if self._job.pipeline.noise is None:
            return
        size = sum(leaf.numel() for leaf in trees.tensors(self._message))
        if codec.decode(body, codec.MESSAGE).tensors["words"].numel() != size:
            raise Violation(f"{machine} sent statistics that no noise covers")

    def _check_account(self, client: int, machine: str, key: bytes) -> None:
        noise = self._job.pipeline.noise
        if noise is None or client in self._touched:
            return
        left = self._noised.setdefault(machine, set())
        left.add(key)
        data = self._survivor(f"/{machine}/state/ledger_{client}/account.json")
        rows = [] if data is None else json.loads(data).get("noised", [])
        if sum(row["steps"] for row in rows) < len(left):
            raise Violation(f"{machine} sent uploads with noise that its account does not count")
        self.counts["privacy accounts audited"] += 1

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Audit the sites' metrics in a record of a round."""
        found = record.get("network", {}).get("sites", {}).get("metrics", {})
        if self._plan.masked and "accuracy" in found:
            if not 0 <= found["accuracy"] <= 1:
                raise Violation(f"the mean of the accuracies is {found['accuracy']}")
            self.counts["metrics audited"] += 1


def _public(answer: RecordDict) -> bytes:
    return bytes(wire.read_record(answer, wire.SHARE).get("public", b""))


def _members(question: RecordDict) -> tuple[list[int], list[bytes]]:
    found = wire.read_record(question, wire.SET)
    clients, publics = list(found["clients"]), bytes(found["publics"])
    return clients, [publics[32 * k : 32 * k + 32] for k in range(len(clients))]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _equal(one: Any, other: Any, tolerance: float) -> bool:
    for a, b in zip(trees.tensors(one), trees.tensors(other), strict=True):
        if a.numel() and not bool(((a - b).abs() <= tolerance * (1 + a.abs().max())).all()):
            return False
    return True
