"""Every reply is judged here before it is folded; a bad one costs only itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedadmm.errors import check_positive
from fedadmm.flower.codec import Packed, Plain, digest, misfit
from fedadmm.flower.parcels import Answer
from fedadmm.flower.protocol import Reply, ServerLedger, Task, objection


@dataclass(frozen=True)
class Door:
    """How far a reply may reach.

    Args:
        norm_bound: the largest norm of any vector of an upload, in units of 1 + the norm of the
            model that was sent.
    """

    norm_bound: float = 1e6

    def __post_init__(self) -> None:
        check_positive(self, "norm_bound", self.norm_bound)

    def refusal(
        self,
        ledger: ServerLedger,
        task: Task,
        reply: Reply,
        packed: Packed,
        template: Answer,
        scale: float,
    ) -> str | None:
        """Why an update is refused, beginning with one word that can be counted; or None."""
        protest = objection(ledger, task, reply)
        if protest is not None:
            return f"protocol: {protest}"
        wrong = misfit(template, packed)
        if wrong is not None:
            return wrong
        if digest(packed, sealed_head(reply)) != reply.digest:
            return "digest: it is not that of the content"
        return self._extent(packed, scale)

    def _extent(self, packed: Packed, scale: float) -> str | None:
        for name, tensor in packed.tensors.items():
            if not bool(torch.isfinite(tensor).all()):
                return f"finite: {name} holds a NaN or an infinity"
            size = float(torch.linalg.vector_norm(tensor.double()))
            if size > self.norm_bound * (1 + scale):
                bound = self.norm_bound * (1 + scale)
                return f"norm: {name} has norm {size:.3g}, but at most {bound:.3g} may come"
        if packed.plain.get("info.finite") is not True:
            return "finite: the client says that its result is not finite"
        return None


def sealed_head(reply: Reply) -> dict[str, Plain]:
    """The fields of a head that its digest covers."""
    return {key: str(v) if isinstance(v, str) else v for key, v in reply._asdict().items()} | {
        "digest": ""
    }


def seal(reply: Reply, packed: Packed) -> Reply:
    """The head with the digest of itself and of its content."""
    return reply._replace(digest=digest(packed, sealed_head(reply)))
