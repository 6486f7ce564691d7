"""What travels for a masked sum, in two phases; only words under masks leave a site.

    server -> site   a task                       as ever
    site -> server   READY, and a signed key      the upload waits on the site's disk
    server -> site   the task again, and a set    whose uploads are to be added up: all their keys
    site -> server   MASKED, and words            once for every upload, under one set for ever

A key is made for one upload and signed by the site's identity; the sites know each other's
identities without the server.  Questions for metrics go the same way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.aggregation import Aggregator, MaskedSum
from fedadmm.core.codec import digest, encode, pack, unpack
from fedadmm.core.local_work import SolveInfo
from fedadmm.core.messages import ClientInfo, Download, Upload
from fedadmm.core.pairwise_masks import FixedPoint, Share, Words
from fedadmm.core.pipeline.postprocessors import joint_norm, vectors_of
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.ledger import RefusalReason, RefusedError
from fedadmm.flower.protocol.payloads import TaskPayload, check_like, decode
from fedadmm.run.client import ClientRound, Job, message_template

if TYPE_CHECKING:
    from flwr.app import RecordDict

_COUNTS = 5
_MIDDLE = 2.0**22
"""What is added to a metric, so that it is not negative."""
_WORDS = {32: torch.int32, 64: torch.int64}


class Body(NamedTuple):
    """Up: one vector of words."""

    words: Tensor


class SetRequirement(NamedTuple):
    """What a site demands of the set in which its upload is summed."""

    fewest: int = 0
    """The set has at least this many sites."""
    same: frozenset[int] = frozenset()
    """The set that an upload of this round left under, the only one allowed; empty allows any."""
    others: tuple[frozenset[int], ...] = ()
    """Sets that uploads left under which this one may resemble."""
    apart: int = 0
    """The set must be each of `others`, or differ from it by this many sites."""

    def allows(self, group: Collection[int]) -> bool:
        """Whether the site lets its upload be added to those of this group."""
        wanted = not self.same or self.same == set(group)
        far = (len(one.symmetric_difference(group)) for one in self.others)
        return len(group) >= self.fewest and wanted and all(n == 0 or n >= self.apart for n in far)

    @property
    def wanted(self) -> tuple[frozenset[int], ...]:
        """The sets of before that the site lets its upload leave under again."""
        return (self.same,) if self.same else self.others


def as_masked_sum(aggregate: Aggregator) -> MaskedSum | None:
    """The part that lets sums alone be seen, if the aggregation is one."""
    return aggregate if isinstance(aggregate, MaskedSum) else None


def subject(purpose: str, run: str, number: int, content: str) -> str:
    """What a key is good for: one kind of sum, in one round of one run, of one model.

    `content` is the digest of what the site was sent.  A server that sends the others a model whose
    upload it can predict would otherwise find the upload of one site in the sum (Pasquini et al.,
    Eluding Secure Aggregation in Federated Learning via Model Inconsistency, CCS 2022).
    """
    return f"{purpose}\n{run}\n{number}\n{content}"


def shared_digest(parcel: TaskPayload, length: float | None) -> str:
    """The digest of what all sites of a sum are sent alike, with the length of their local work.

    Left out are the initial vector of a newcomer and the steps that an absent client missed.
    """
    shared = parcel._replace(initial=None, initial_buffers=None, missed=None)
    return digest(encode(pack(shared)), {"length": str(length)})


# A site's upload as words -----------------------------------------------------------------------


def upload_words(job: Job, part: MaskedSum, client: int, done: ClientRound) -> Words:
    """A client's weighted upload with its share of the noise, or with statistics of its work."""
    weight, info, point = job.problem.weight(client), done.info, part.fixed_point
    if job.pipeline.noise is not None:
        largest = max(job.problem.weight(one) for one in range(job.problem.num_clients))
        return point.encode(done.upload, weight, part.noise * largest)
    solve = info.solve
    counts = (solve.steps, solve.epochs, solve.passes, info.weight, weight * info.drift**2)
    return np.concatenate([point.encode(done.upload, weight), point.counts(counts)])


def upload_template(job: Job, download: Download) -> Upload:
    """How an upload looks before it becomes words."""
    buffers = job.initial_buffers if job.problem.buffers == "average" else None
    within = None if not job.pipeline.adapts_clip else job.initial.new_zeros(1)
    return Upload(message_template(job, download.broadcast), buffers, within)


def length_of(job: Job, template: Upload) -> int:
    """How many words an upload has."""
    return sum(leaf.numel() for leaf in trees.tensors(template)) + _statistics_length(job)


def _statistics_length(job: Job) -> int:
    """How many words hold statistics of the local work: none with noise, which covers none."""
    return 0 if job.pipeline.noise is not None else 3 * _COUNTS


def read_sum(
    job: Job, part: MaskedSum, clients: Sequence[int], total: Words, template: Upload
) -> tuple[Upload, list[ClientInfo]]:
    """The sum of some clients' uploads; of their work each is said to have done the mean.

    With noise nothing is known of the work.  A RefusedError when the sum is longer than all their
    clips together.
    """
    point, count = part.fixed_point, len(clients)
    size = len(total) - _statistics_length(job)
    upload = point.decode(total[:size], template)
    weight = sum(job.problem.weight(client) for client in clients)
    clip, noise = job.pipeline.clip, job.pipeline.noise
    if clip is not None and noise is None and not job.pipeline.adapts_clip:
        vectors = vectors_of(job.algorithm, upload.message)
        length = joint_norm({name: vector.double() for name, vector in vectors.items()})
        entries = sum(vector.numel() for vector in vectors.values())
        most = weight * clip.norm * (1 + 1e-4) + count * point.step * math.sqrt(entries)
        if length > most:
            raise RefusedError(
                RefusalReason.NORM,
                f"their sum has norm {length:.6g}, but their clips allow {most:.6g}",
            )
    if noise is not None:
        solve = SolveInfo(0, math.nan, math.nan, "masked", math.nan)
        unknown = ClientInfo(0, solve, math.nan, math.nan, math.nan, finite=True)
        return upload, [unknown._replace(client=client) for client in clients]
    steps, epochs, passes, penalty, drift = point.total(total[size:])
    drift = math.sqrt(max(0.0, drift / weight))
    each, more = divmod(round(steps), count)
    infos = [
        ClientInfo(
            client,
            SolveInfo(each + (k < more), epochs / count, passes / count, "masked", math.nan),
            *(penalty / count, math.nan, drift, True),
        )
        for k, client in enumerate(clients)
    ]
    return upload, infos


# Metrics as words -------------------------------------------------------------------------------


def metric_words(part: MaskedSum, weight: float, metrics: Mapping[str, float]) -> Words:
    """A site's weighted metrics, in the order of their names, and for each whether it counts.

    A value that is not finite, or too large for the sum, counts as none, so that the server sees
    for how many sites a metric is missing and not for which.
    """
    values = [weight * metrics[name] for name in sorted(metrics)]
    counted = [math.isfinite(value) and abs(value) < _MIDDLE for value in values]
    shifted = [v + _MIDDLE if ok else _MIDDLE for v, ok in zip(values, counted, strict=True)]
    return part.fixed_point.counts([*shifted, *map(float, counted)])


class MetricSum(NamedTuple):
    """The weighted mean of some sites' metric."""

    mean: float
    """NaN where the metric is missing for some of them."""
    missing: int
    """The number of sites without a value that counts."""


def read_metrics(part: MaskedSum, total: Words, weight: float, count: int) -> list[MetricSum]:
    """The weighted means of some sites' metrics, from their sum."""
    numbers = part.fixed_point.total(total)
    half = len(numbers) // 2
    sums = []
    for value, counted in zip(numbers[:half], numbers[half:], strict=True):
        missing = count - round(counted)
        mean = (value - count * _MIDDLE) / weight if missing == 0 else math.nan
        sums.append(MetricSum(mean, missing))
    return sums


def metrics_length(names: Sequence[str]) -> int:
    """How many words metrics have."""
    return 6 * len(names)


# Bytes ------------------------------------------------------------------------------------------


def to_body(words: Words) -> bytes:
    """Words as they travel."""
    return encode(pack(Body(as_tensor(words))))


def from_body(body: bytes, point: FixedPoint, length: int) -> Words:
    """The words of a body, which must be this many."""
    template = Body(torch.empty(length, dtype=_WORDS[point.bits]))
    packed = decode(body)
    check_like(template, packed)
    words: Words = unpack(template, packed).words.numpy().view(point.dtype)
    return words


def body_size(point: FixedPoint, length: int) -> int:
    """How many bytes they take."""
    return len(encode(pack(Body(torch.zeros(length, dtype=_WORDS[point.bits])))))


def as_tensor(words: Words) -> Tensor:
    """The same bits as integers that torch has."""
    return torch.from_numpy(words.view("int32" if words.itemsize == 4 else "int64").copy())


# Keys and sets beside a head --------------------------------------------------------------------


def write_share(share: Share, **more: Any) -> dict[str, Any]:
    """A site's key, and what else it says when it is ready."""
    return {"public": share.public, "signature": share.signature, **more}


def read_share(content: RecordDict, client: int) -> Share:
    """The key that came with a READY."""
    found = wire.read_record(content, wire.SHARE)
    public, signature = found.get("public"), found.get("signature")
    if not (_is_bytes(public, 32) and _is_bytes(signature, 64)):
        raise RefusedError(RefusalReason.GARBAGE, "there is no signed key beside it")
    return Share(client, bytes(public or b""), bytes(signature or b""))


def write_requirement(demand: SetRequirement) -> dict[str, Any]:
    """What a site demands, beside its key; each of the other sets follows its length."""
    others = [number for one in demand.others for number in (len(one), *sorted(one))]
    same = sorted(demand.same)
    return {"fewest": demand.fewest, "same": same, "others": others, "apart": demand.apart}


def read_requirement(content: RecordDict) -> SetRequirement:
    """What came with a READY; a site enforces it itself, so a strange one is no matter."""
    found = wire.read_record(content, wire.SHARE)
    fewest, apart = found.get("fewest"), found.get("apart")
    lists = [found.get(name) for name in ("same", "others")]
    whole = all(isinstance(one, list) and all(type(c) is int for c in one) for one in lists)
    if not whole or type(fewest) is not int or type(apart) is not int:
        raise RefusedError(RefusalReason.GARBAGE, "it does not say which set it demands")
    same, others = (list[int](one or ()) for one in lists)
    sets = []
    while others:
        length = others.pop(0)
        if not 0 < length <= len(others):
            raise RefusedError(RefusalReason.GARBAGE, "it does not say which set it demands")
        sets.append(frozenset(others[:length]))
        del others[:length]
    return SetRequirement(fewest, frozenset(same), tuple(sets), apart)


def write_set(shares: Sequence[Share]) -> dict[str, Any]:
    """Whose uploads are added up."""
    clients, publics, signatures = zip(*shares, strict=True)
    return {
        "clients": list(clients),
        "publics": b"".join(publics),
        "signatures": b"".join(signatures),
    }


def read_set(content: RecordDict) -> list[Share]:
    """The set that came with a task."""
    found = wire.read_record(content, wire.SET)
    clients, publics = found.get("clients"), found.get("publics")
    signatures, count = found.get("signatures"), 0
    if isinstance(clients, list | tuple) and all(type(client) is int for client in clients):
        count = len(clients)
    if not count or not (_is_bytes(publics, 32 * count) and _is_bytes(signatures, 64 * count)):
        raise RefusedError(RefusalReason.GARBAGE, "there is no proper set beside the task")
    publics, signatures = bytes(publics or b""), bytes(signatures or b"")
    return [
        Share(client, publics[32 * k : 32 * k + 32], signatures[64 * k : 64 * k + 64])
        for k, client in enumerate(clients or ())
    ]


def _is_bytes(found: object, length: int) -> bool:
    return isinstance(found, bytes) and len(found) == length
