"""Aggregation of the clients' updates of a round into one upload for the method's server step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
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
    """Base class of the server's aggregation of updates.

    A subclass is a frozen dataclass that defines `aggregate`.

    Example:
        >>> import fedadmm as fa
        >>> [aggregator.needs for aggregator in (fa.Sum(), fa.MaskedSum(), fa.Median())]
        ['sum', 'sum', 'updates']
    """

    needs: ClassVar[Literal["sum", "updates"]] = "updates"
    """"sum": weighted sums of updates suffice, so that an engine may add up those of its clients.
    "updates": single updates are needed; all updates of a round are then in memory at once."""
    is_secure: ClassVar[bool] = False
    """Whether only the sum of all updates of a round is revealed to the server."""

    def fitted(self, pipeline: UpdatePipeline) -> Aggregator:
        """Return the aggregator with the parameters that follow from the update pipeline."""
        return self

    def sent_bytes(self, upload: Upload) -> int:
        """Return the number of bytes that a client sends."""
        return upload.num_bytes

    @abstractmethod
    def aggregate(self, updates: Iterator[tuple[float, Upload]]) -> Upload | None:
        """Return the weighted sum of the updates, or a robust substitute.

        Args:
            updates: pairs (a_i, upload_i).  All must be consumed, because the iterator runs the
                clients.

        Returns:
            sum a_i upload_i, or None without updates.  Methods divide by the sum of the a_i to
            obtain a mean: an aggregator that computes a mean or median returns it times that sum.
        """

    def requires(self, run: Setup) -> Iterable[Feature]:
        """Return what keeps an aggregate that is no weighted sum compatible with the method."""
        if self.needs == "sum":
            return ()
        return (Feature.STATELESS_CLIENTS, Feature.ROUNDS, Feature.NO_NOISE)


@part("aggregator", "sum")
class Sum(Aggregator):
    """Weighted sum of the updates, accumulated one by one in constant memory.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> work = dict(solver=fa.ExactSolver(), aggregator=fa.Sum())  # the default
        >>> fa.simulate(fa.FedAvg(), problem, 1, **work).params
        tensor([3.])
    """

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
    """Secure aggregation by pairwise masking: only the weighted sum of the updates is revealed.

    Args:
        minimum: Smallest number of clients in a sum, at least 3; a round with fewer is void.
        bound: Largest absolute entry of an upload in fixed point; None for the norm of the
            pipeline's `Clip`.
        step: Resolution of the fixed point; None for the finest in 32 bits, 2^-30 of the bound.
        group: Number of clients that share pairwise masks.  A larger cohort is divided into groups
            of this size up to less than twice this size.  Default 10.
        noise: Largest standard deviation of a client's share of the noise; set from the pipeline.

    Raises:
        ParameterError: `group` is smaller than `minimum`, or `bound` smaller than the clip's norm.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> work = dict(solver=fa.ExactSolver(), pipeline=[fa.Clip(10.0)])
        >>> result = fa.simulate(fa.FedADMM(1.0), problem, 30, aggregator=fa.MaskedSum(), **work)
        >>> round(result.params.item(), 2)
        2.0
    """

    needs = "sum"
    is_secure = True
    minimum: Annotated[int, Ge(3)] = 3
    bound: Positive | None = None
    step: Positive | None = None
    group: Annotated[int, Ge(3), Le(pairwise_masks.MOST // 2)] = 10
    noise: NotNegative = field(default=0.0, metadata=PYTHON_ONLY)
    """Largest standard deviation of a client's share of the noise, set by `fitted`."""

    def __post_init__(self) -> None:
        if self.group < self.minimum:
            raise ParameterError(
                f"MaskedSum.group: got {self.group}, expected at least minimum, {self.minimum}."
            )

    def fitted(self, pipeline: UpdatePipeline) -> Aggregator:
        """Return the aggregator whose bound, unless given, is the norm of a fixed clip."""
        if pipeline.clip is None or pipeline.adapts_clip:
            return self
        norm, noise = float(pipeline.clip.norm), pipeline.noise
        if self.bound is not None and self.bound < norm:
            raise ParameterError(
                f"MaskedSum.bound: got {self.bound:g}, expected at least the clip's norm, {norm:g}."
            )
        spread = 0.0 if noise is None else noise.multiplier * norm * self.noise_share
        return replace(self, bound=self.bound or norm, noise=spread)

    @property
    def fixed_point(self) -> pairwise_masks.FixedPoint:
        """The encoding of entries as integers."""
        assert self.bound is not None, "`check_run` rejects it"
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
                "the pipeline has no fixed clip. Add Clip to the pipeline, or give "
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
        """Standard deviation of each client's noise, in units of the noise on the sum.

        An honest-but-curious client can subtract its own share: the other shares suffice.
        """
        return float((self.minimum - 1) ** -0.5)

    def sent_bytes(self, upload: Upload) -> int:
        words = sum(leaf.numel() for leaf in trees.tensors(upload))
        return words * self.fixed_point.bits // 8

    def aggregate(self, updates: Iterator[tuple[float, Upload]]) -> Upload | None:
        """Return the sum of all groups, computed in this process; None below `minimum`."""
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


def cosines_to_others(updates: Mapping[int, tuple[float, Any]]) -> dict[int, float]:
    """Return the cosine of each update to the weighted sum of the others.

    A site that sends its update with the wrong sign has a negative one; so may a site with unusual
    data.  Of fewer than three updates none can be distinguished, and the result is empty.

    Args:
        updates: a_i and the message of each client.
    """
    if len(updates) < 3:
        return {}
    vectors = {
        client: torch.cat([leaf.reshape(-1) for leaf in trees.tensors(message)]) * share
        for client, (share, message) in updates.items()
    }
    total = torch.stack(list(vectors.values())).sum(0)
    return {
        client: float(torch.nn.functional.cosine_similarity(own, total - own, dim=0))
        for client, own in vectors.items()
    }


class ByEntry(Aggregator):
    """Base class of robust aggregators that treat every entry of the updates separately."""

    def aggregate(self, updates: Iterator[tuple[float, Upload]]) -> Upload | None:
        received = list(updates)
        if not received:
            return None
        total = sum(share for share, _ in received)
        shares = [share / total for share, _ in received]

        def aggregated(leaf: Tensor) -> Tensor:
            values, order = leaf.sort(dim=0)
            weights = leaf.new_tensor(shares)[order]
            return total * self.mean(values, weights)

        return trees.map_tensors(aggregated, trees.stack([upload for _, upload in received]))

    @abstractmethod
    def mean(self, values: Tensor, weights: Tensor) -> Tensor:
        """Return the robust mean over the first dimension.

        Args:
            values: sorted values of shape (K, ...), ascending along the first dimension.
            weights: their weights in the same shape, which add up to 1.
        """


@part("aggregator", "trimmed-mean")
class TrimmedMean(ByEntry):
    """Coordinate-wise trimmed mean: the mean without the extreme values (Yin et al., ICML 2018).

    Args:
        share: Share of the total weight that is trimmed at each end, below 0.5.  It bounds the
            influence of attackers with less weight; an update at the boundary counts with the rest
            of its weight.  Default 0.2.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[1.0]], [b]) for b in (2.0, 3.0, 4.0, 1e6)]  # one outlier
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> work = dict(solver=fa.ExactSolver(), aggregator=fa.TrimmedMean(share=0.25))
        >>> fa.simulate(fa.FedAvg(), problem, 1, **work).params
        tensor([3.5000])
    """

    share: Annotated[float, Ge(0), Lt(0.5)] = 0.2

    def mean(self, values: Tensor, weights: Tensor) -> Tensor:
        above = weights.cumsum(0)
        kept = above.clamp(max=1 - self.share) - (above - weights).clamp(min=self.share)
        return (values * kept.clamp(min=0)).sum(0) / (1 - 2 * self.share)


@part("aggregator", "median")
class Median(ByEntry):
    """Coordinate-wise weighted median, robust to less than half of the total weight.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[1.0]], [b]) for b in (2.0, 3.0, 1e6)]  # one outlier
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> work = dict(solver=fa.ExactSolver(), aggregator=fa.Median())
        >>> fa.simulate(fa.FedAvg(), problem, 1, **work).params
        tensor([3.])
    """

    def mean(self, values: Tensor, weights: Tensor) -> Tensor:
        above = weights.cumsum(0)
        tiny = 1e-6  # weights that add up to one half up to rounding
        low = (above < 0.5 - tiny).sum(0, keepdim=True)
        high = (above <= 0.5 + tiny).sum(0, keepdim=True).clamp(max=len(values) - 1)
        return (values.gather(0, low) + values.gather(0, high)).squeeze(0) / 2
