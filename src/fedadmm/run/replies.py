"""What comes back in a round, folded as it comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.problem import Problem
from fedadmm.core.protocols import ClientInfo, Partial, Upload


class Replies:
    """The weighted sum of a round's replies, streamed: its memory does not grow with them."""

    def __init__(self, problem: Problem, arrived: Callable[[Any], Any] | None) -> None:
        """`arrived` says what a message counts that is folded as it arrives; None with rounds."""
        self._problem = problem
        self._arrived = arrived
        self.total: Upload | None = None
        self.weight = 0.0
        self.bytes_up = 0
        self.infos: list[ClientInfo] = []

    def add(self, reply: tuple[int, Upload, ClientInfo] | Partial) -> bool:
        """Fold a client's reply, or the sum of several; False when one is not finite."""
        if isinstance(reply, Partial):
            share, weight, upload, infos = 1.0, reply.weight, reply.total, reply.infos
            sent = reply.bytes_up
        else:
            client, upload, info = reply
            share = weight = self._problem.weight(client)
            sent, infos = upload.num_bytes if info.finite else 0, (info,)
        self.infos.extend(infos)
        if not all(info.finite for info in infos):
            return False
        if self._arrived is not None:
            upload = upload._replace(message=self._arrived(upload.message))
        self.weight += weight
        self.bytes_up += sent
        if self.total is None:
            self.total = trees.scaled(upload, share)
        else:
            trees.add_scaled_(self.total, upload, share)
        return True

    def averaged_buffers(self, before: Tensor | None, as_they_arrive: bool) -> Tensor | None:
        """The buffers after the step; those before it when none were sent.

        A round's participants stand for all clients, so their mean replaces the old buffers.  A
        reply that arrives on its own stands for its own client only: replacing everything by it
        would leave whatever came last.  It therefore takes its share a_S of the mean and the others
        keep theirs, B <- B + a_S (mean of the replies - B).  No client's past buffers are stored,
        so clients count in proportion to a_i times how often they reply.
        """
        if before is None or self.total is None or self.total.buffers is None:
            return before
        if as_they_arrive:
            return before * (1.0 - self.weight) + self.total.buffers
        return self.total.buffers / self.weight
