"""Messages of secure aggregation in two phases; only masked words leave a site.

    server -> site   a task                       as without masks
    site -> server   READY, and a signed key      the upload is stored on the site's disk
    server -> site   the task again, and a set    the keys of all sites in the sum
    site -> server   MASKED, and words            once per upload, for one set only

Every upload has a key of its own, signed by the identity of its site.  The sites have each other's
public identities independently of the server.  Metrics are requested in the same way.
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
"""Added to every metric, so that it is not negative."""
_WORDS = {32: torch.int32, 64: torch.int64}


class Body(NamedTuple):
    """The body of a masked upload: one vector of words."""

    words: Tensor


class SetRequirement(NamedTuple):
    """The conditions of a site on the set of sites in whose sum its upload is included."""

    fewest: int = 0
    """The smallest size of the set."""
    same: frozenset[int] = frozenset()
    """The set for which an upload of this round was released: the only one; empty allows any."""
    others: tuple[frozenset[int], ...] = ()
    """Sets for which uploads were released that this one may resemble."""
    apart: int = 0
    """The set must be each of `others`, or differ from it by this many sites."""

    def allows(self, group: Collection[int]) -> bool:
        """Return whether the upload may be summed with those of this group."""
        wanted = not self.same or self.same == set(group)
        far = (len(one.symmetric_difference(group)) for one in self.others)
        return len(group) >= self.fewest and wanted and all(n == 0 or n >= self.apart for n in far)

    @property
    def wanted(self) -> tuple[frozenset[int], ...]:
        """The earlier sets for which the upload may be released again."""
        return (self.same,) if self.same else self.others


def as_masked_sum(aggregate: Aggregator) -> MaskedSum | None:
    """Return the aggregator if it is a MaskedSum, else None."""
    return aggregate if isinstance(aggregate, MaskedSum) else None


def subject(purpose: str, run: str, number: int, content: str) -> str:
    """Return what a key is bound to: the kind of sum, the run, the round and the model.

    `content` is the digest of what the site was sent.  A server that sends the others a model whose
    upload it can predict would otherwise find the upload of one site in the sum (Pasquini et al.,
    Eluding Secure Aggregation in Federated Learning via Model Inconsistency, CCS 2022).
    """
    return f"{purpose}\n{run}\n{number}\n{content}"


def shared_digest(payload: TaskPayload, length: float | None) -> str:
    """Digest of what all sites of a sum receive, and of the length of their local work.

    It excludes the initial vector of a new client and the catch-up vector of an absent one.
    """
    shared = payload._replace(initial=None, initial_buffers=None, missed=None)
    return digest(encode(pack(shared)), {"length": str(length)})


# A site's upload as words -----------------------------------------------------------------------


def upload_words(job: Job, part: MaskedSum, client: int, done: ClientRound) -> Words:
    """Encode a weighted upload with its share of the noise, or with statistics of its work."""
    weight, info, point = job.problem.weight(client), done.info, part.fixed_point
    if job.pipeline.noise is not None:
        largest = max(job.problem.weight(one) for one in range(job.problem.num_clients))
        return point.encode(done.upload, weight, part.noise * largest)
    solve = info.solve
    counts = (solve.steps, solve.epochs, solve.passes, info.weight, weight * info.drift**2)
    return np.concatenate([point.encode(done.upload, weight), point.counts(counts)])


def upload_template(job: Job, download: Download) -> Upload:
    """Template of an upload before it is encoded as words."""
    buffers = job.initial_buffers if job.problem.buffers == "average" else None
    within = None if not job.pipeline.adapts_clip else job.initial.new_zeros(1)
    return Upload(message_template(job, download.broadcast), buffers, within)


def length_of(job: Job, template: Upload) -> int:
    """Return the number of words of an upload."""
    return sum(leaf.numel() for leaf in trees.tensors(template)) + _statistics_length(job)


def _statistics_length(job: Job) -> int:
    """Return the number of words for statistics of the local work: none if there is noise."""
    return 0 if job.pipeline.noise is not None else 3 * _COUNTS


def read_sum(
    job: Job, part: MaskedSum, clients: Sequence[int], total: Words, template: Upload
) -> tuple[Upload, list[ClientInfo]]:
    """Decode the sum of some clients' uploads and the statistics of their local work.

    The statistics are sums, so that every client is recorded with their mean; with noise there are
    none.

    Raises:
        RefusedError: the norm of the sum exceeds that of all clips together.
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
    """Encode a site's weighted metrics in the order of their names, each with a flag.

    A value that is not finite, or too large for the sum, is flagged as missing.  The server sees
    for how many sites a metric is missing and not for which.
    """
    values = [weight * metrics[name] for name in sorted(metrics)]
    counted = [math.isfinite(value) and abs(value) < _MIDDLE for value in values]
    shifted = [v + _MIDDLE if ok else _MIDDLE for v, ok in zip(values, counted, strict=True)]
    return part.fixed_point.counts([*shifted, *map(float, counted)])


class MetricSum(NamedTuple):
    """The weighted mean of a metric over several sites."""

    mean: float
    """NaN if the metric is missing for some of them."""
    missing: int
    """The number of sites without a usable value."""


def read_metrics(part: MaskedSum, total: Words, weight: float, count: int) -> list[MetricSum]:
    """Decode the weighted means of the metrics of several sites from the sum of their words."""
    numbers = part.fixed_point.total(total)
    half = len(numbers) // 2
    sums = []
    for value, counted in zip(numbers[:half], numbers[half:], strict=True):
        missing = count - round(counted)
        mean = (value - count * _MIDDLE) / weight if missing == 0 else math.nan
        sums.append(MetricSum(mean, missing))
    return sums


def metrics_length(names: Sequence[str]) -> int:
    """Return the number of words of these metrics."""
    return 6 * len(names)


# Bytes ------------------------------------------------------------------------------------------


def to_body(words: Words) -> bytes:
    """Encode words as the body of a message."""
    return encode(pack(Body(as_tensor(words))))


def from_body(body: bytes, point: FixedPoint, length: int) -> Words:
    """Decode the body of a message with this many words."""
    template = Body(torch.empty(length, dtype=_WORDS[point.bits]))
    packed = decode(body)
    check_like(template, packed)
    words: Words = unpack(template, packed).words.numpy().view(point.dtype)
    return words


def body_size(point: FixedPoint, length: int) -> int:
    """Return the size of a body with this many words."""
    return len(encode(pack(Body(torch.zeros(length, dtype=_WORDS[point.bits])))))


def as_tensor(words: Words) -> Tensor:
    """View words as integers of a type that torch has."""
    return torch.from_numpy(words.view("int32" if words.itemsize == 4 else "int64").copy())


# Keys and sets next to a header -----------------------------------------------------------------


def write_share(share: Share, **more: Any) -> dict[str, Any]:
    """Write the key of a site, and what else it reports with READY."""
    return {"public": share.public, "signature": share.signature, **more}


def read_share(content: RecordDict, client: int) -> Share:
    """Read the key of a READY."""
    found = wire.read_record(content, wire.SHARE)
    public, signature = found.get("public"), found.get("signature")
    if not (_is_bytes(public, 32) and _is_bytes(signature, 64)):
        raise RefusedError(RefusalReason.GARBAGE, "there is no signed key with it")
    return Share(client, bytes(public or b""), bytes(signature or b""))


def write_requirement(requirement: SetRequirement) -> dict[str, Any]:
    """Write the conditions of a site; each of the other sets follows its length."""
    others = [number for one in requirement.others for number in (len(one), *sorted(one))]
    same = sorted(requirement.same)
    return {
        "fewest": requirement.fewest,
        "same": same,
        "others": others,
        "apart": requirement.apart,
    }


def read_requirement(content: RecordDict) -> SetRequirement:
    """Read the conditions of a READY; the site enforces them itself, whatever it sends here."""
    found = wire.read_record(content, wire.SHARE)
    fewest, apart = found.get("fewest"), found.get("apart")
    lists = [found.get(name) for name in ("same", "others")]
    whole = all(isinstance(one, list) and all(type(c) is int for c in one) for one in lists)
    if not whole or type(fewest) is not int or type(apart) is not int:
        raise RefusedError(RefusalReason.GARBAGE, "the required set is missing")
    same, others = (list[int](one or ()) for one in lists)
    sets = []
    while others:
        length = others.pop(0)
        if not 0 < length <= len(others):
            raise RefusedError(RefusalReason.GARBAGE, "the required set is missing")
        sets.append(frozenset(others[:length]))
        del others[:length]
    return SetRequirement(fewest, frozenset(same), tuple(sets), apart)


def write_set(shares: Sequence[Share]) -> dict[str, Any]:
    """Write the keys of the sites in a sum."""
    clients, publics, signatures = zip(*shares, strict=True)
    return {
        "clients": list(clients),
        "publics": b"".join(publics),
        "signatures": b"".join(signatures),
    }


def read_set(content: RecordDict) -> list[Share]:
    """Read the keys of the sites in a sum."""
    found = wire.read_record(content, wire.SET)
    clients, publics = found.get("clients"), found.get("publics")
    signatures, count = found.get("signatures"), 0
    if isinstance(clients, list | tuple) and all(type(client) is int for client in clients):
        count = len(clients)
    if not count or not (_is_bytes(publics, 32 * count) and _is_bytes(signatures, 64 * count)):
        raise RefusedError(RefusalReason.GARBAGE, "there is no proper set with the task")
    publics, signatures = bytes(publics or b""), bytes(signatures or b"")
    return [
        Share(client, publics[32 * k : 32 * k + 32], signatures[64 * k : 64 * k + 64])
        for k, client in enumerate(clients or ())
    ]


def _is_bytes(found: object, length: int) -> bool:
    return isinstance(found, bytes) and len(found) == length
