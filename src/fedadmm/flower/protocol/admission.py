"""Every reply is judged here before it is folded; a bad one costs only itself."""

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
"""The norm of each vector of an upload, by its name, and the numbers about the work."""
WINDOW = 10
"""This many of a client's last uploads are what it sends now; after as many steps it was away."""
_NOTHING = 1e-6
"""A vector that is shorter than this share of 1 + the model harms nothing."""

_LARGEST = {
    "info.weight": 1e30,
    "info.noised": 1e12,
    "info.solve.steps": 1e12,
    "info.solve.epochs": 1e12,
    "info.solve.passes": 1e12,
}
"""What a site may say about its work; no honest one comes near."""
_FURTHEST = {
    "info.weight": 100.0,
    "info.move": 100.0,
    "info.drift": 100.0,
    "info.solve.steps": 1e4,
    "info.solve.epochs": 1e4,
    "info.solve.passes": 1e4,
}
"""A number about the work may be this many times 1 + what most others say: rows may differ more
than losses do."""
_UNKNOWN = frozenset(("info.solve.epochs", "info.solve.passes", "info.solve.accuracy"))
"""What may be NaN, because not every solver knows it."""


class AdmittedUpdate(NamedTuple):
    """An answer that may be folded, and how large its vectors are."""

    answer: ClientResult
    sizes: Sizes


class UploadHistory(NamedTuple):
    """What a client has brought so far."""

    step: int
    """The last step that it took part in."""
    recent: Sequence[Sizes]
    """Its last uploads."""
    largest: Sizes

    @classmethod
    def after(cls, before: UploadHistory | None, step: int, sizes: Sizes) -> UploadHistory:
        """With one more upload."""
        if before is None:
            return cls(step, [sizes], sizes)
        largest = {k: max(v, before.largest.get(k, 0.0)) for k, v in sizes.items()}
        return cls(step, [*before.recent, sizes][-WINDOW:], largest)


@checked
class Admission:
    """How far a reply may reach.

    Args:
        norm_factor: a vector may be this many times as long as the longest one of most other
            clients' last ten uploads, or of this client's own, which counts up to the same multiple
            of the others'.  Vectors get shorter as a run converges: one of a newcomer, or of a
            client that was away for ten steps, is compared with the longest that most others ever
            sent.
        norm_bound: the largest norm of any vector, in units of 1 + the norm of the model that was
            sent; all that bounds a first upload that there is nothing to compare with.
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
        arrived: Callable[[ClientResult], ClientResult],
    ) -> AdmittedUpdate:
        """The answer of an update as `arrived` decodes it, or a RefusedError."""
        check_answers(ledger, task, reply, body)
        packed = decode(body)
        check_like(template, packed)
        ceiling = self.norm_bound * (1 + scale)
        _check_info(packed.plain, ceiling)
        answer = arrived(unpack(template, packed))
        sizes = _sizes(pack(answer), ceiling) | _numbers(packed.plain)
        solve = answer.info.solve._replace(status=printable(answer.info.solve.status))
        info = answer.info._replace(client=task.client, solve=solve)
        return AdmittedUpdate(answer._replace(info=info), sizes)

    def outliers(
        self,
        arrived: Mapping[int, Sizes],
        past: Mapping[int, UploadHistory],
        step: int = 0,
        scale: float = 0.0,
    ) -> dict[int, RefusedError]:
        """Who sent far more than the others and it itself do; `scale` is the model's norm."""
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
            own = None  # it was away, and catches up like a newcomer

        def longest(other: int) -> float:
            sent, kept = [arrived.get(other, {})], past.get(other)
            if kept is not None:
                sent += [kept.largest] if own is None else kept.recent
            return max(sizes.get(name, 0.0) for sizes in sent)

        others = sorted(longest(c) for c in arrived.keys() | past.keys() if c != client)
        # The upper one of two: somebody who sends next to nothing must not shut out the others.
        usual = others[len(others) // 2] if others else 0.0
        if name in _FURTHEST and others:
            return _FURTHEST[name] * (1 + usual)
        if usual == 0.0:  # nothing to compare with
            return math.inf
        recent = [] if own is None else [sizes.get(name, 0.0) for sizes in own.recent]
        most = self.norm_factor * usual
        return self.norm_factor * max(usual, min(max(recent, default=0.0), most))


def vectors(sizes: Sizes) -> Sizes:
    """The norms alone."""
    return {name: size for name, size in sizes.items() if name not in _FURTHEST}


def _numbers(plain: Mapping[str, Plain]) -> dict[str, float]:
    """What a site says about its work, where it is compared with what others say."""
    said = {name: abs(float(plain[name])) for name in _FURTHEST if name in plain}
    return {name: number for name, number in said.items() if not math.isnan(number)}


def _sizes(packed: Packed, ceiling: float) -> dict[str, float]:
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
    """What a site says about its work ends up in sums and squares of the record."""
    if plain.get("info.finite") is not True:
        raise RefusedError(RefusalReason.FINITE, "the client says that its result is not finite")
    for name, value in plain.items():
        if isinstance(value, bool | str) or name == "info.client":
            continue
        if name in _UNKNOWN and math.isnan(value):
            continue
        largest = _LARGEST.get(name, ceiling)
        if not 0.0 <= value <= largest:
            detail = f"{name} is {str(value)[:40]}, but must be in 0 … {largest:g}"
            raise RefusedError(RefusalReason.RANGE, detail)


def _sealed_head(reply: Reply) -> dict[str, Plain]:
    """The fields of a head that its digest covers."""
    return {key: str(v) if isinstance(v, str) else v for key, v in reply._asdict().items()} | {
        "digest": ""
    }


def seal(reply: Reply, body: bytes) -> Reply:
    """The head with the digest of itself and of its body."""
    return reply._replace(digest=digest(body, _sealed_head(reply)))


def check_answers(ledger: ServerLedger, task: Task, reply: Reply, body: bytes) -> None:
    """Refuse a reply that does not answer this task, or whose digest is not that of its content."""
    validate_reply(ledger, task, reply)
    if not is_sealed(reply, body):
        raise RefusedError(RefusalReason.DIGEST, "it is not that of the content")


def is_sealed(reply: Reply, body: bytes) -> bool:
    """Whether the digest of a head is that of itself and of its body."""
    return digest(body, _sealed_head(reply)) == reply.digest
