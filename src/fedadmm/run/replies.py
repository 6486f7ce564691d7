"""What comes back in a round, passed on to the aggregation as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.protocols import ClientInfo, Partial, Upload
from fedadmm.run.client import Job


class Replies:
    """The replies of a round: their total, and what is known of those who sent them."""

    def __init__(
        self,
        job: Job,
        replies: Iterable[tuple[int, Upload, ClientInfo] | Partial],
        arrived: Callable[[Any], Any] | None,
    ) -> None:
        """`arrived` says what a message counts that is folded as it arrives; None with rounds."""
        self._job = job
        self._arrived = arrived
        self.weight = 0.0
        self.bytes_up = 0
        self.infos: list[ClientInfo] = []
        self.finite = True
        self.total = job.aggregate.fold(self._taken(replies))

    def _taken(
        self, replies: Iterable[tuple[int, Upload, ClientInfo] | Partial]
    ) -> Iterator[tuple[float, Upload]]:
        """Each reply, or sum of several, with its share; ends at the first that is not finite."""
        for reply in replies:
            if isinstance(reply, Partial):
                share, weight, upload, infos = 1.0, reply.weight, reply.total, reply.infos
                sent = reply.bytes_up
            else:
                client, upload, info = reply
                share = weight = self._job.problem.weight(client)
                sent, infos = upload.num_bytes if info.finite else 0, (info,)
            self.infos.extend(infos)
            self.finite = all(info.finite for info in infos)
            if not self.finite:
                return
            if self._arrived is not None:
                upload = upload._replace(message=self._arrived(upload.message))
            if self._job.aggregate.needs == "replies":
                upload = trees.clone(upload)  # engines may use its memory again for the next one
            self.weight += weight
            self.bytes_up += sent
            yield share, upload

    def averaged_buffers(self, before: Tensor | None, as_they_arrive: bool) -> Tensor | None:
        """The buffers after the step; those before it when none were sent.

        A round's participants represent all clients, so their mean replaces the old buffers.  A
        reply that arrives on its own represents its own client only: replacing everything by it
        would leave whatever came last.  It therefore takes its share a_S of the mean and the others
        keep theirs, B <- B + a_S (mean of the replies - B).  No client's past buffers are stored,
        so clients count in proportion to a_i times how often they reply.
        """
        if before is None or self.total is None or self.total.buffers is None:
            return before
        if as_they_arrive:
            return before * (1.0 - self.weight) + self.total.buffers
        return self.total.buffers / self.weight
