"""What the server makes of a round's replies before the method's own step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from fedadmm.core import trees
from fedadmm.core.parts import Part, part, role
from fedadmm.core.protocols import Upload

if TYPE_CHECKING:
    from fedadmm.core.setup import Setup


@role("aggregate")
class Aggregation(Part, ABC):
    """Folds the replies of a round into the one upload that the method's server step gets."""

    needs: ClassVar[Literal["sum", "replies"]] = "replies"
    """"sum": weighted sums of replies are enough, so that whoever runs clients may add up theirs.
    "replies": each reply by itself; all of a round are then in memory at once."""

    @abstractmethod
    def fold(self, replies: Iterator[tuple[float, Upload]]) -> Upload | None:
        """sum a_i * upload_i over all replies (a_i, upload_i), or what takes its place.

        It must take every reply, because asking for the next one runs its client; None without
        any.  Methods divide by the sum of the a_i where they want a mean: an aggregation that
        finds a mean, or a median, returns it times that sum.
        """

    def refuses(self, setup: Setup) -> Iterator[str]:
        """Where single replies are needed: whatever is right for sums only."""
        if self.needs == "sum":
            return
        needs, method = f"{type(self).__name__} needs each reply by itself", setup.algorithm
        if list(trees.tensors(method.init_client(setup.initial))):
            yield (
                f"{needs}, but the clients of {type(method).__name__} keep a state that fits the "
                "server's only if the sum of what they send is folded; use Sum, or a method "
                "without client state, such as FedAvg"
            )
        if setup.asynchronous:
            yield (
                f"{needs} and all of a round together, but replies are folded as they arrive; use "
                "Sum, or rounds"
            )
        if setup.uploads.noise is not None:
            yield f"{needs}, but the upload's noise hides clients in the sum only; use Sum"


@part("aggregate", "sum")
class Sum(Aggregation):
    """The weighted sum, streamed: its memory does not grow with the replies."""

    needs = "sum"

    def fold(self, replies: Iterator[tuple[float, Upload]]) -> Upload | None:
        total: Upload | None = None
        for share, upload in replies:
            if total is None:
                total = trees.scaled(upload, share)
            else:
                trees.add_scaled_(total, upload, share)
        return total
