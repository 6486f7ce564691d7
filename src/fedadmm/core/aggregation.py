"""What the server makes of a round's replies before the method's own step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le, Lt
from torch import Tensor

from fedadmm.core import pairwise_masks, trees
from fedadmm.core.compatibility import Feature
from fedadmm.core.errors import ParameterError
from fedadmm.core.messages import Upload
from fedadmm.core.parts import PYTHON_ONLY, NotNegative, Part, Positive, part, role

if TYPE_CHECKING:
    from fedadmm.core.pipeline import UpdatePipeline
    from fedadmm.core.setup import Setup


@role("aggregator")
class Aggregator(Part, ABC):
    """Folds the replies of a round into the one upload that the method's server step gets."""

    needs: ClassVar[Literal["sum", "updates"]] = "updates"
    """"sum": weighted sums of replies are enough, so that whoever runs clients may add up theirs.
    "replies": each reply by itself; all of a round are then in memory at once."""
    is_secure: ClassVar[bool] = False
    """Whether nothing but the sum of a whole round's replies may be seen."""

    def fitted(self, pipeline: UpdatePipeline) -> Aggregator:
        """Return the aggregator with what it takes from the update pipeline."""
        return self

    def sent_bytes(self, upload: Upload) -> int:
        """The bytes that a client sends."""
        return upload.num_bytes

    @abstractmethod
    def aggregate(self, updates: Iterator[tuple[float, Upload]]) -> Upload | None:
        """sum a_i * upload_i over all replies (a_i, upload_i), or what takes its place.

        It must take every reply, because asking for the next one runs its client; None without
        any.  Methods divide by the sum of the a_i where they want a mean: an aggregation that
        finds a mean, or a median, returns it times that sum.
        """

    def requires(self, run: Setup) -> Iterable[Feature]:
        """An aggregator of single updates changes what their weighted sum would be."""
        if self.needs == "sum":
            return ()
        return (Feature.STATELESS_CLIENTS, Feature.ROUNDS, Feature.NO_NOISE)


@part("aggregator", "sum")
class Sum(Aggregator):
    """The weighted sum, streamed: its memory does not grow with the replies."""

    needs = "sum"

    def aggregate(self, updates: Iterator[tuple[float, Upload]]) -> Upload | None:
        total: Upload | None = None
        for share, upload in updates:
            if total is None:
                total = trees.scaled(upload, share)
            else:
                trees.add_scaled_(total, upload, share)
        return total


@part("aggregator", "masked-sum")
class MaskedSum(Aggregator):
    """The weighted sum of uploads under pairwise masks: whoever adds them up sees nothing else.

    Args:
        minimum: the fewest clients that are summed; a round with fewer is void.
        bound: the largest entry of an upload, for the fixed point; by default the clip's norm.
        step: what an entry of the weighted upload is rounded to; by default the finest that words
            of 32 bits have room for, 2^-30 of the bound.
        group: where more clients take part, they are summed in groups of this size, up to less
            than twice as many: every client shares a mask with each other one of its group.
    """

    needs = "sum"
    is_secure = True
    minimum: Annotated[int, Ge(3)] = 3
    bound: Positive | None = None
    step: Positive | None = None
    group: Annotated[int, Ge(3), Le(pairwise_masks.MOST // 2)] = 10
    noise: NotNegative = field(default=0.0, metadata=PYTHON_ONLY)
    """The largest standard deviation of a client's share of the noise, from the upload."""

    def __post_init__(self) -> None:
        if self.group < self.minimum:
            raise ParameterError(
                f"MaskedSum: group is {self.group}, but must be at least minimum, {self.minimum}"
            )

    def fitted(self, pipeline: UpdatePipeline) -> Aggregator:
        """With the clip's norm as the bound, where no bound is given and the clip stays."""
        if pipeline.clip is None or pipeline.adapts_clip:
            return self
        norm, noise = float(pipeline.clip.norm), pipeline.noise
        if self.bound is not None and self.bound < norm:
            raise ParameterError(
                f"MaskedSum: bound is {self.bound:g}, but must be at least the clip's norm, "
                f"{norm:g}"
            )
        spread = 0.0 if noise is None else noise.multiplier * norm * self.noise_share
        return replace(self, bound=self.bound or norm, noise=spread)

    @property
    def fixed_point(self) -> pairwise_masks.FixedPoint:
        """How entries become integers."""
        assert self.bound is not None, "refused before round 0"
        return pairwise_masks.fixed_point(self.bound, self.step, 2 * self.group - 1, self.noise)

    def requires(self, run: Setup) -> Iterable[Feature]:
        """Only the sum of a round is revealed, in fixed-point words of equal length."""
        return (Feature.ROUNDS, Feature.NO_COMPRESSION)

    def check_run(self, run: Setup) -> Iterator[str]:
        """Yield why the sum may be empty or its entries unbounded."""
        sampler, clients, clip = run.sampler, run.problem.num_clients, run.pipeline.clip
        chances = sampler.probabilities(clients)
        least = clients if chances is None else float(chances.sum())
        if least < self.minimum:
            yield (
                f"sampler: got {type(sampler).__name__} with {least:g} clients per round, expected "
                f"at least MaskedSum.minimum, {self.minimum}."
            )
        if self.bound is None:
            yield (
                "MaskedSum.bound: got None, expected the largest entry of an update, because "
                "nothing that stays the same bounds it. Put Clip into the pipeline, or give "
                "MaskedSum(bound=…)."
            )
            return
        _ = self.fixed_point  # rejects a step without headroom
        unclipped = [*run.sent_as_it_is]
        unclipped += ["buffers"] if run.problem.buffers == "average" else []
        if clip is not None and self.bound <= clip.norm and unclipped:
            yield (
                f"MaskedSum.bound: got {self.bound:g}, expected more than {clip.norm:g}, the norm "
                f"of the clip, because {type(run.algorithm).__name__} sends "
                f"{', '.join(unclipped)} unclipped."
            )
        adaptive = run.pipeline.adapts_clip
        solver = run.local.solver
        if solver is not None and solver.noise is not None and (clip is None or adaptive):
            yield (
                f"pipeline: got no fixed clip, expected Clip for MaskedSum with "
                f"{type(solver).__name__}: an update beyond the bound would reveal its samples."
            )
        if run.pipeline.noise is not None and adaptive:
            yield (
                "pipeline: got AdaptiveClip, expected Clip for MaskedSum with noise: the clients' "
                "noise shares do not cover the count of an adaptive clip."
            )

    @property
    def noise_share(self) -> float:
        """The standard deviation that each client adds, in units of the noise on the sum.

        One of a sum's clients may be curious and subtract its own: the others make up the whole.
        """
        return float((self.minimum - 1) ** -0.5)

    def sent_bytes(self, upload: Upload) -> int:
        words = sum(leaf.numel() for leaf in trees.tensors(upload))
        return words * self.fixed_point.bits // 8

    def aggregate(self, updates: Iterator[tuple[float, Upload]]) -> Upload | None:
        """Sum up in one process, group by group; None where too few came."""
        words: list[Any] = []
        template, total, point = None, None, None
        for share, upload in updates:
            if point is None:
                point, template = self.fixed_point, trees.clone(upload)
            words.append(point.encode(upload, share))
            if len(words) == 2 * self.group:
                made = pairwise_masks.rehearsed(words[: self.group])
                total = made if total is None else total + made
                words = words[self.group :]
        if point is None or template is None or (total is None and len(words) < self.minimum):
            return None
        made = pairwise_masks.rehearsed(words)
        return point.decode(made if total is None else total + made, template)


class ByEntry(Aggregator):
    """Each entry of the upload from the replies' sorted values of it, with their weights."""

    def aggregate(self, updates: Iterator[tuple[float, Upload]]) -> Upload | None:
        taken = list(updates)
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


@part("aggregator", "trimmed-mean")
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


@part("aggregator", "median")
class Median(ByEntry):
    """The weighted median of each entry; half of the weight lies on either side of it."""

    def mean(self, values: Tensor, weights: Tensor) -> Tensor:
        above = weights.cumsum(0)
        tiny = 1e-6  # weights that add up to a half but for rounding
        low = (above < 0.5 - tiny).sum(0, keepdim=True)
        high = (above <= 0.5 + tiny).sum(0, keepdim=True).clamp(max=len(values) - 1)
        return (values.gather(0, low) + values.gather(0, high)).squeeze(0) / 2
