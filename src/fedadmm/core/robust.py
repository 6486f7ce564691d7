"""Aggregations that a few wrong replies cannot move far, for methods without client state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated

from annotated_types import Ge, Lt
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.aggregation import Aggregation
from fedadmm.core.messages import Upload
from fedadmm.core.parts import part


class ByEntry(Aggregation):
    """Each entry of the upload from the replies' sorted values of it, with their weights."""

    def fold(self, replies: Iterator[tuple[float, Upload]]) -> Upload | None:
        taken = list(replies)
        if not taken:
            return None
        total = sum(share for share, _ in taken)
        shares = [share / total for share, _ in taken]

        def folded(leaf: Tensor) -> Tensor:
            values, order = leaf.sort(dim=0)
            weights = leaf.new_tensor(shares)[order]
            return total * self.mean(values, weights)

        return trees.map_tensors(folded, trees.stack([upload for _, upload in taken]))

    @abstractmethod
    def mean(self, values: Tensor, weights: Tensor) -> Tensor:
        """What takes the place of the mean of rising values (K, ...), whose weights sum to 1."""


@part("aggregate", "trimmed-mean")
class TrimmedMean(ByEntry):
    """The mean of each entry without its smallest and largest values (Yin et al., ICML 2018).

    Args:
        share: the weight that is cut off at either end.  It bounds the influence of attackers who
            have less; a reply at the edge counts with the rest of its weight.
    """

    share: Annotated[float, Ge(0), Lt(0.5)] = 0.2

    def mean(self, values: Tensor, weights: Tensor) -> Tensor:
        above = weights.cumsum(0)
        kept = above.clamp(max=1 - self.share) - (above - weights).clamp(min=self.share)
        return (values * kept.clamp(min=0)).sum(0) / (1 - 2 * self.share)


@part("aggregate", "median")
class Median(ByEntry):
    """The weighted median of each entry; half of the weight lies on either side of it."""

    def mean(self, values: Tensor, weights: Tensor) -> Tensor:
        above = weights.cumsum(0)
        tiny = 1e-6  # weights that add up to a half but for rounding
        low = (above < 0.5 - tiny).sum(0, keepdim=True)
        high = (above <= 0.5 + tiny).sum(0, keepdim=True).clamp(max=len(values) - 1)
        return (values.gather(0, low) + values.gather(0, high)).squeeze(0) / 2
