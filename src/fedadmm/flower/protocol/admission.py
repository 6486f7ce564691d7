"""Validation of client updates before they are aggregated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, NamedTuple

import torch
from annotated_types import Ge

from fedadmm.core.codec import Packed, Plain, digest, pack, unpack
from fedadmm.core.parts import Positive, checked
from fedadmm.flower.protocol.ledger import (
    RefusalReason,
    RefusedError,
    Reply,
    ServerLedger,
    Task,
    printable,
    validate_reply,
)
from fedadmm.flower.protocol.payloads import ClientResult, check_like, decode

Sizes = Mapping[str, float]
"""The norm of each vector of an upload and the statistics of the local work, by name."""
WINDOW = 10
"""Number of recent uploads of a client that norms are compared with; a client that was absent for
as many steps is treated as new."""
_NOTHING = 1e-6
"""A vector whose norm is below this fraction of 1 + the norm of the model is always accepted."""

_LARGEST = {
    "info.weight": 1e30,
    "info.noised": 1e12,
    "info.solve.steps": 1e12,
    "info.solve.epochs": 1e12,
    "info.solve.passes": 1e12,
}
"""Largest accepted statistics of the local work, far above any honest value."""
_FURTHEST = {
    "info.weight": 100.0,
    "info.move": 100.0,
    "info.drift": 100.0,
    "info.solve.steps": 1e4,
    "info.solve.epochs": 1e4,
    "info.solve.passes": 1e4,
}
"""A statistic of the local work may be this many times 1 + the median of the other clients."""
_UNKNOWN = frozenset(("info.solve.epochs", "info.solve.passes", "info.solve.accuracy"))
"""Statistics that may be NaN, because not every solver measures them."""


class AdmittedUpdate(NamedTuple):
    """A validated client result, and the norms of its vectors."""

    answer: ClientResult
    sizes: Sizes


class UploadHistory(NamedTuple):
    """The norms of the past uploads of a client."""

    step: int
    """The last step in which it took part."""
    recent: Sequence[Sizes]
    """The norms of its last uploads."""
    largest: Sizes
    """The largest norms over all of its uploads."""

    @classmethod
    def after(cls, before: UploadHistory | None, step: int, sizes: Sizes) -> UploadHistory:
        """Return the history with one more upload."""
        if before is None:
            return cls(step, [sizes], sizes)
        largest = {k: max(v, before.largest.get(k, 0.0)) for k, v in sizes.items()}
        return cls(step, [*before.recent, sizes][-WINDOW:], largest)


@checked
class Admission:
    """Bounds on the norms of client updates.

    Args:
        norm_factor: largest ratio of the norm of a vector to the median, over the other clients, of
            the largest norm among their last ten uploads.  The client's own last uploads count as
            well, up to the same multiple of the others'.  Norms decrease as a run converges, so
            that a new client, or one that was absent for ten steps, is compared with the largest
            norms that the others ever sent.
        norm_bound: largest norm of any vector, in units of 1 + the norm of the model that was sent.
            It is the only bound on a first upload with nothing to compare to.
    """

    norm_factor: Annotated[float, Ge(1)] = 3.0
    norm_bound: Positive = 1e6

    def admit(
        self,
        ledger: ServerLedger,
        task: Task,
        reply: Reply,
        body: bytes,
        template: ClientResult,
        scale: float,
        decode_result: Callable[[ClientResult], ClientResult],
    ) -> AdmittedUpdate:
        """Validate an update and decode it with `decode_result`.

        Raises:
            RefusedError: the update must not be aggregated.
        """
        check_answers(ledger, task, reply, body)
        packed = decode(body)
        check_like(template, packed)
        ceiling = self.norm_bound * (1 + scale)
        _check_info(packed.plain, ceiling)
        result = decode_result(unpack(template, packed))
        sizes = _norms(pack(result), ceiling) | _statistics(packed.plain)
        solve = result.info.solve._replace(status=printable(result.info.solve.status))
        info = result.info._replace(client=task.client, solve=solve)
        return AdmittedUpdate(result._replace(info=info), sizes)

    def outliers(
        self,
        arrived: Mapping[int, Sizes],
        past: Mapping[int, UploadHistory],
        step: int = 0,
        scale: float = 0.0,
    ) -> dict[int, RefusedError]:
        """Return the clients whose vectors are far larger than those of the others.

        Args:
            arrived: the norms of the updates of this step.
            past: the past norms of all clients.
            step: the index of this step.
            scale: the norm of the model.
        """
        found = {}
        for client, sizes in arrived.items():
            for name, size in sizes.items():
                bound = self._bound(client, name, arrived, past, step)
                if name in _FURTHEST and size > bound:
                    detail = f"{name} is {size:.3g}, but the others' are below {bound:.3g}"
                    found[client] = RefusedError(RefusalReason.RANGE, detail)
                elif name not in _FURTHEST and size > max(bound, _NOTHING * (1 + scale)):
                    found[client] = RefusedError(
                        RefusalReason.NORM,
                        f"{name} has norm {size:.3g}, but at most {bound:.3g} may come, "
                        f"{self.norm_factor:g} times what this client or most others have sent; "
                        "Admission(norm_factor=...) sets it",
                    )
        return found

    def _bound(
        self,
        client: int,
        name: str,
        arrived: Mapping[int, Sizes],
        past: Mapping[int, UploadHistory],
        step: int,
    ) -> float:
        own = past.get(client)
        if own is not None and step - own.step > WINDOW:
            own = None  # it was absent, and catches up like a new client

        def longest(other: int) -> float:
            sent, kept = [arrived.get(other, {})], past.get(other)
            if kept is not None:
                sent += [kept.largest] if own is None else kept.recent
            return max(sizes.get(name, 0.0) for sizes in sent)

        others = sorted(longest(c) for c in arrived.keys() | past.keys() if c != client)
        # The upper median: a client that sends almost nothing must not exclude the others.
        usual = others[len(others) // 2] if others else 0.0
        if name in _FURTHEST and others:
            return _FURTHEST[name] * (1 + usual)
        if usual == 0.0:  # nothing to compare with
            return math.inf
        recent = [] if own is None else [sizes.get(name, 0.0) for sizes in own.recent]
        most = self.norm_factor * usual
        return self.norm_factor * max(usual, min(max(recent, default=0.0), most))


def vectors(sizes: Sizes) -> Sizes:
    """Return the norms without the statistics of the local work."""
    return {name: size for name, size in sizes.items() if name not in _FURTHEST}


def _statistics(plain: Mapping[str, Plain]) -> dict[str, float]:
    """Return the statistics of the local work that are compared among clients."""
    reported = {name: abs(float(plain[name])) for name in _FURTHEST if name in plain}
    return {name: number for name, number in reported.items() if not math.isnan(number)}


def _norms(packed: Packed, ceiling: float) -> dict[str, float]:
    sizes = {}
    for name, tensor in packed.tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise RefusedError(RefusalReason.FINITE, f"{name} holds a NaN or an infinity")
        sizes[name] = float(torch.linalg.vector_norm(tensor.double()))
        if sizes[name] > ceiling:
            raise RefusedError(
                RefusalReason.NORM,
                f"{name} has norm {sizes[name]:.3g}, but at most {ceiling:.3g} may come",
            )
    return sizes


def _check_info(plain: Mapping[str, Plain], ceiling: float) -> None:
    """Check the statistics of the local work, which are summed and squared in the record."""
    if plain.get("info.finite") is not True:
        raise RefusedError(RefusalReason.FINITE, "the client reports that its result is not finite")
    for name, value in plain.items():
        if isinstance(value, bool | str) or name == "info.client":
            continue
        if name in _UNKNOWN and math.isnan(value):
            continue
        largest = _LARGEST.get(name, ceiling)
        if not 0.0 <= value <= largest:
            detail = f"{name}: got {str(value)[:40]}, expected 0 … {largest:g}"
            raise RefusedError(RefusalReason.RANGE, detail)


def _sealed_head(reply: Reply) -> dict[str, Plain]:
    """Return the fields of a header that its digest covers."""
    return {key: str(v) if isinstance(v, str) else v for key, v in reply._asdict().items()} | {
        "digest": ""
    }


def seal(reply: Reply, body: bytes) -> Reply:
    """Return the header with the digest of header and body."""
    return reply._replace(digest=digest(body, _sealed_head(reply)))


def check_answers(ledger: ServerLedger, task: Task, reply: Reply, body: bytes) -> None:
    """Raise a RefusedError unless a reply answers this task and its digest is right."""
    validate_reply(ledger, task, reply)
    if not is_sealed(reply, body):
        raise RefusedError(RefusalReason.DIGEST, "it is not that of the content")


def is_sealed(reply: Reply, body: bytes) -> bool:
    """Return whether the digest of a header is that of header and body."""
    return digest(body, _sealed_head(reply)) == reply.digest
