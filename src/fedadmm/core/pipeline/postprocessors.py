"""Postprocessors of client updates: clipping, compression and the Gaussian mechanism."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Gt, Lt
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.compatibility import Feature
from fedadmm.core.contracts import AnyAlgorithm, Cohort
from fedadmm.core.errors import ParameterError
from fedadmm.core.messages import Upload
from fedadmm.core.parts import Count, Fraction, Part, Positive, Share, part, role
from fedadmm.core.rng import Key, KeyedGenerator, derive, generator

if TYPE_CHECKING:
    from fedadmm.core.setup import Setup


class Coded(NamedTuple):
    """Numbers in the form in which they are sent."""

    codes: Tensor
    scales: Tensor | None = None


class Encoded(NamedTuple):
    """A vector in the form in which it is sent; the server knows its length and the pipeline."""

    values: Coded
    where: Tensor | None = None
    """Which entries the values belong to; None for all of them."""


class Update(NamedTuple):
    """A client's update on its way through the pipeline."""

    vectors: dict[str, Encoded]
    """The increments and deltas of the message, by field."""
    statistics: Tensor | None = None
    """What a postprocessor reports to its server side, summed like the message."""


class ClientContext(NamedTuple):
    """What a postprocessor knows on a client."""

    key: Key
    """Random key of the client's round."""
    broadcast: float | None = None
    """What its server side has broadcast in this round."""


class Aggregate(NamedTuple):
    """The weighted sum of a round's updates, and the cohort that it stands for."""

    total: Upload | None
    """None if no update arrived."""
    cohort: Cohort


class ExpectedCohort(NamedTuple):
    """Expected participation of a round, which does not reveal who participated."""

    size: float
    weight: float
    """Expected sum of the participants' weights."""


class AggregateContext(NamedTuple):
    """What a postprocessor knows on the server."""

    algorithm: AnyAlgorithm
    cohort: ExpectedCohort | None
    """The expected cohort; None if the server adds no noise."""
    largest_weight: float
    """The largest weight of a client, which bounds its influence on the sum."""
    clip_norm: float
    """The norm that updates were clipped to in this round; infinite without clipping."""
    counted: bool
    """Whether clients report a statistic, which needs noise of its own."""
    noise_scale: float
    """Multiplies the noise; above 1 where every client of a masked sum adds a share of it."""
    rng: KeyedGenerator
    empty_message: Callable[[], Any]
    """Returns a message of zeros, for a round without participants."""


@role("pipeline")
class Postprocessor(Part, ABC):
    """One step of the update pipeline, with a client side and a server side.

    `on_client` transforms an update before it is sent.  `on_aggregate` transforms the weighted sum
    of a round before the server update, in the reverse order of the pipeline.  The state of the
    server side is part of every checkpoint.

    Example:
        >>> import fedadmm as fa
        >>> pipeline = [fa.Clip(norm=1.0), fa.TopK(0.1), fa.Quantise(bits=8)]
        >>> [stage.place for stage in pipeline if isinstance(stage, fa.Postprocessor)]
        ['clip', 'select', 'code']
    """

    place: ClassVar[str]
    """Position in the pipeline: "clip", "select", "code" or "noise", in this order, once each."""

    def check_run(self, run: Setup) -> Iterator[str]:
        self.check(run.problem.num_parameters)
        method = run.algorithm
        for name, leaf in run.sent_as_it_is.items():
            if leaf.numel() > 1 or not (method.increments or method.deltas):
                yield (
                    f"algorithm: got {type(method).__name__}, which sends {name} as a whole, "
                    f"expected increments or deltas for {type(self).__name__}, which would bias "
                    "anything else. Use FedAvg, FedDyn, FedDR, AlignedADMM, or FedADMM with a "
                    "constant rho and members='all'."
                )

    def check(self, parameters: int) -> None:
        """Reject options that cannot work for vectors of this length."""

    def init_state(self) -> float | None:
        """Return the state of the server side before the first round; None if it has none."""
        return None

    def on_client(self, update: Update, context: ClientContext) -> Update:
        """Transform an update before it is sent."""
        return update

    def decode(self, vector: Encoded, like: Tensor) -> Encoded:
        """Invert the encoding of `on_client` on the server; `like` has the vector's shape."""
        return vector

    def on_aggregate(
        self, aggregate: Aggregate, state: float | None, context: AggregateContext
    ) -> tuple[Aggregate, float | None]:
        """Transform the weighted sum of a round, and return the next state of the server side."""
        return aggregate, state


class Clipping(Postprocessor):
    """Bounds the Euclidean norm of everything that a client sends in a round."""

    place: ClassVar[str] = "clip"
    norm: Positive

    def on_client(self, update: Update, context: ClientContext) -> Update:
        bound = self.norm if context.broadcast is None else context.broadcast
        plain = {name: vector.values.codes for name, vector in update.vectors.items()}
        length = joint_norm(plain)
        update = update._replace(statistics=self.statistics(length, bound, plain))
        if length <= bound:
            return update
        clipped = {n: Encoded(Coded(v * (bound / length))) for n, v in plain.items()}
        return update._replace(vectors=clipped)

    def statistics(self, length: float, bound: float, like: dict[str, Tensor]) -> Tensor | None:
        """Return what the client reports about the norm of its update, if anything."""
        return None


def vectors_of(algorithm: AnyAlgorithm, message: Any) -> dict[str, Tensor]:
    """Return the increments and deltas of a message, by field."""
    declared = (*algorithm.increments, *algorithm.deltas)
    fields = message._asdict()
    return {name: fields[name] for name in declared if fields.get(name) is not None}


def joint_norm(vectors: dict[str, Tensor]) -> float:
    """Return the Euclidean norm of several vectors as one."""
    return float(torch.stack([torch.linalg.vector_norm(v) for v in vectors.values()]).norm())


@part("pipeline", "clip")
class Clip(Clipping):
    """Clip updates to a fixed norm.

    Args:
        norm: largest norm of what a client sends in a round.

    Example:
        >>> import fedadmm as fa
        >>> fa.Clip(norm=1.0)
        Clip(norm=1.0)
    """

    norm: Positive


@part("pipeline", "adaptive-clip")
class AdaptiveClip(Clipping):
    """Clip updates to a quantile of the clients' norms that is estimated during the run.

    Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive Clipping,
    NeurIPS 2021.  Every client reports whether its norm was within the bound C; after a round
    C <- C exp(-lr (share within - quantile)).  With `GaussianNoise` the count gets noise of its
    own (a twentieth of the expected cohort, and at least the multiplier), such that vectors and
    count together are as private as the multiplier specifies.

    Args:
        norm: bound of the first round.
        quantile: share of clients that should be within the bound.
        lr: step size of the bound, on a logarithmic scale.

    Example:
        >>> import fedadmm as fa
        >>> fa.AdaptiveClip(norm=0.5).quantile
        0.5
    """

    norm: Positive = 0.1
    quantile: Fraction = 0.5
    lr: Positive = 0.2

    def init_state(self) -> float:
        return float(self.norm)

    def statistics(self, length: float, bound: float, like: dict[str, Tensor]) -> Tensor:
        """Return 1/2 if the norm was within the bound, and -1/2 if not."""
        return next(iter(like.values())).new_tensor([float(length <= bound) - 0.5])

    def on_aggregate(
        self, aggregate: Aggregate, state: float | None, context: AggregateContext
    ) -> tuple[Aggregate, float | None]:
        total, cohort = aggregate
        if state is None or total is None or total.statistics is None:
            return aggregate, state
        share = float(total.statistics) / cohort.weight + 0.5
        within = min(1.0, max(0.0, share))
        return aggregate, state * math.exp(-self.lr * (within - self.quantile))


class Selection(Postprocessor):
    """Sends some entries of every vector; the others stay at the client as a residual.

    Args:
        keep: number of entries of every vector, a count (int) or a fraction (float).
    """

    place: ClassVar[str] = "select"
    keep: Count | Share

    def count(self, parameters: int) -> int:
        """Return how many entries of a vector are sent."""
        if isinstance(self.keep, float):
            return round(self.keep * parameters)
        return self.keep

    def check(self, parameters: int) -> None:
        if not 1 <= self.count(parameters) <= parameters:
            raise ParameterError(
                f"{type(self).__name__}.keep: got {self.keep}, which is {self.count(parameters)} "
                f"of {parameters} entries, expected at least one and at most all of them."
            )

    def on_client(self, update: Update, context: ClientContext) -> Update:
        chosen = {}
        for name, vector in update.vectors.items():
            values, key = vector.values.codes, derive(_vector_key(context.key, name), "select")
            indices = self.choose(values, key)
            where = self.describe(indices, values.numel(), key)
            chosen[name] = Encoded(Coded(values[indices]), where)
        return update._replace(vectors=chosen)

    def decode(self, vector: Encoded, like: Tensor) -> Encoded:
        assert vector.where is not None
        whole = torch.zeros_like(like)
        whole[self.indices(vector.where, like.numel())] = vector.values.codes
        return Encoded(Coded(whole))

    @abstractmethod
    def choose(self, vector: Tensor, key: Key) -> Tensor:
        """Return the sorted indices of the entries that are sent."""

    @abstractmethod
    def describe(self, indices: Tensor, length: int, key: Key) -> Tensor:
        """Return the encoding of the indices that is sent with the values."""

    @abstractmethod
    def indices(self, described: Tensor, length: int) -> Tensor:
        """Return the indices from their encoding."""


def _vector_key(key: Key, name: str) -> Key:
    """Return the random key of one vector of a message."""
    return derive(key, f"upload {name}")


@part("pipeline", "top-k")
class TopK(Selection):
    """Send the entries of largest magnitude, with four bytes per index or one bit per entry.

    Args:
        keep: number of entries of every vector, a count (int) or a fraction (float).

    Example:
        >>> import fedadmm as fa
        >>> fa.TopK(keep=0.1).count(1000)
        100
    """

    keep: Count | Share

    def choose(self, vector: Tensor, key: Key) -> Tensor:
        return torch.topk(vector.abs(), self.count(vector.numel())).indices.sort().values

    def describe(self, indices: Tensor, length: int, key: Key) -> Tensor:
        if 32 * len(indices) <= length:
            return indices.to(torch.int32)
        bits = torch.zeros(length, dtype=torch.uint8, device=indices.device)
        bits[indices] = 1
        return packed(bits, 1)

    def indices(self, described: Tensor, length: int) -> Tensor:
        if described.dtype == torch.int32:
            found = described.long()
        else:
            found = torch.nonzero(unpacked(described, 1, length)).squeeze(1)
        rising = bool((found.diff() > 0).all())
        inside = len(found) == self.count(length) and 0 <= found[0] <= found[-1] < length
        if not rising or not inside:
            raise ParameterError(
                f"TopK: {len(found)} indices came, but there must be {self.count(length)}, rising, "
                f"from 0 to {length - 1}"
            )
        return found


@part("pipeline", "random-k")
class RandomK(Selection):
    """Send a random subset of the entries; of the subset only its eight-byte seed is sent.

    Args:
        keep: number of entries of every vector, a count (int) or a fraction (float).

    Example:
        >>> import fedadmm as fa
        >>> fa.RandomK(keep=5).count(1000)
        5
    """

    keep: Count | Share

    def choose(self, vector: Tensor, key: Key) -> Tensor:
        return self._drawn(key, vector.numel()).to(vector.device)

    def describe(self, indices: Tensor, length: int, key: Key) -> Tensor:
        return torch.tensor([key], dtype=torch.int64, device=indices.device)

    def indices(self, described: Tensor, length: int) -> Tensor:
        return self._drawn(int(described), length).to(described.device)

    def _drawn(self, key: Key, length: int) -> Tensor:
        order = torch.randperm(length, generator=generator(key))
        return order[: self.count(length)].sort().values


class Coding(Postprocessor):
    """Encodes every number with fewer bits."""

    place: ClassVar[str] = "code"

    def on_client(self, update: Update, context: ClientContext) -> Update:
        coded = {}
        for name, vector in update.vectors.items():
            key = derive(_vector_key(context.key, name), "code")
            coded[name] = vector._replace(values=self.encode_values(vector.values.codes, key))
        return update._replace(vectors=coded)

    def decode(self, vector: Encoded, like: Tensor) -> Encoded:
        return vector._replace(values=Coded(self.decode_values(vector.values, like)))

    @abstractmethod
    def encode_values(self, values: Tensor, key: Key) -> Coded:
        """Return the numbers in the form in which they are sent."""

    @abstractmethod
    def decode_values(self, coded: Coded, like: Tensor) -> Tensor:
        """Return the numbers on the server; `like` has their shape and type."""


@part("pipeline", "quantise")
class Quantise(Coding):
    """Stochastic rounding of every entry to 2^bits equidistant levels in [-M, M].

    M is the largest magnitude in a block.  The rounded block is scaled to the least-squares fit of
    the block, so that its norm never increases and the residual contracts from round to round;
    unbiased rounding to few levels would let the residual diverge.

    Args:
        bits: bits per entry.
        block: entries that share a scale.

    Example:
        >>> import fedadmm as fa
        >>> fa.Quantise(bits=4)
        Quantise(bits=4, block=256)
    """

    bits: Literal[2, 4, 8] = 8
    block: Count = 256

    def encode_values(self, values: Tensor, key: Key) -> Coded:
        top, rows = 2**self.bits - 1, self._blocks(values)
        largest = rows.abs().amax(dim=1, keepdim=True)
        at = (rows / torch.where(largest > 0, largest, 1.0) + 1) * (top / 2)
        uniform = torch.rand(rows.shape, generator=generator(key), dtype=torch.float64)
        levels = (at + uniform.to(at.device, at.dtype)).floor().clamp(0, top)
        unit = self._unit(levels, len(values))
        scales = ((rows * unit).sum(1) / (unit * unit).sum(1)).clamp(min=0)
        return Coded(packed(levels.to(torch.uint8).reshape(-1)[: len(values)], self.bits), scales)

    def decode_values(self, coded: Coded, like: Tensor) -> Tensor:
        assert coded.scales is not None
        levels = self._blocks(unpacked(coded.codes, self.bits, like.numel()).to(like.dtype))
        return (self._unit(levels, like.numel()) * coded.scales[:, None]).reshape(-1)[
            : like.numel()
        ]

    def _blocks(self, values: Tensor) -> Tensor:
        missing = -len(values) % self.block
        return torch.nn.functional.pad(values, (0, missing)).reshape(-1, self.block)

    def _unit(self, levels: Tensor, length: int) -> Tensor:
        """The levels as numbers in [-1, 1]; zero beyond the end of the vector."""
        unit = levels * (2 / (2**self.bits - 1)) - 1
        unit.reshape(-1)[length:] = 0
        return unit


@part("pipeline", "bfloat16")
class BFloat16(Coding):
    """Truncate every entry to bfloat16, towards zero: half the bytes of float32.

    Example:
        >>> import fedadmm as fa
        >>> fa.BFloat16()
        BFloat16()
    """

    def encode_values(self, values: Tensor, key: Key) -> Coded:
        upper = values.to(torch.float32).view(torch.int32) & -65536
        return Coded(upper.view(torch.float32).to(torch.bfloat16))

    def decode_values(self, coded: Coded, like: Tensor) -> Tensor:
        return coded.codes.to(like.dtype)


@part("pipeline", "gaussian")
class GaussianNoise(Postprocessor):
    """Gaussian mechanism on the aggregate: client-level differential privacy.

    A trusted server adds the noise once per round.  Its standard deviation is the multiplier times
    the largest influence of a client on the sum, which is the clip norm times the largest weight.

    Args:
        multiplier: standard deviation of the noise relative to the influence of one client.
        delta: delta of (epsilon, delta), below one over the number of clients.
        budget: largest epsilon of the run, which ends before the round that would exceed it.

    Example:
        >>> import fedadmm as fa
        >>> pipeline = [fa.Clip(norm=1.0), fa.GaussianNoise(multiplier=1.0, budget=8.0)]
    """

    place: ClassVar[str] = "noise"
    multiplier: Positive
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    budget: Positive | None = None

    def on_aggregate(
        self, aggregate: Aggregate, state: float | None, context: AggregateContext
    ) -> tuple[Aggregate, float | None]:
        """Add noise to the sum, and replace the cohort by the expected one.

        The number of participants would reveal who participated.  A round without participants
        gets noise like any other.
        """
        if (cohort := context.cohort) is None:
            return aggregate, state
        total = aggregate.total
        if total is None:
            message = trees.scaled(context.empty_message(), 0.0)
            like = trees.tensors(message)[0]
            total = Upload(message, None, like.new_zeros(1) if context.counted else None)
        count = max(cohort.size / 20, self.multiplier) if context.counted else 0.0
        influence = context.largest_weight * context.clip_norm
        deviation = self.vector_multiplier(count) * influence * context.noise_scale
        vectors = vectors_of(context.algorithm, total.message)
        noised = {n: v + deviation * context.rng.normal(v, n) for n, v in vectors.items()}
        total = total._replace(message=total.message._replace(**noised))
        if total.statistics is not None:
            spread = count * context.largest_weight * context.rng.normal(total.statistics, "count")
            total = total._replace(statistics=total.statistics + spread)
        actual = aggregate.cohort._replace(size=max(1, round(cohort.size)), weight=cohort.weight)
        return Aggregate(total, actual), state

    def vector_multiplier(self, count_noise: float) -> float:
        """Return the multiplier of the vectors' noise when a count has noise of its own.

        Vectors and count together are as private as `multiplier`: z_v^-2 + (2 sigma)^-2 = z^-2.
        """
        if not count_noise:
            return self.multiplier
        return float((self.multiplier**-2 - (2 * count_noise) ** -2) ** -0.5)

    def requires(self, run: Setup) -> Iterable[Feature]:
        """Nothing that depends on a client may leave it outside the noised aggregate."""
        return (
            Feature.CLIPPING,
            Feature.VECTOR_MESSAGES,
            Feature.ROUNDS,
            Feature.NO_AVERAGED_BUFFERS,
            Feature.PARTICIPATION_PROBABILITIES,
        )

    def check_run(self, run: Setup) -> Iterator[str]:
        yield from super().check_run(run)
        if self.delta >= 1 / run.problem.num_clients:
            raise ParameterError(
                f"GaussianNoise.delta: got {self.delta:g}, expected less than one over the number "
                f"of clients, {1 / run.problem.num_clients:.4g}."
            )


def packed(levels: Tensor, bits: int) -> Tensor:
    """Small numbers as bytes, 8 / bits to each."""
    each = 8 // bits
    rows = torch.nn.functional.pad(levels, (0, -len(levels) % each)).reshape(-1, each)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=levels.device)
    made: Tensor = (rows << shifts).sum(1, dtype=torch.uint8)
    return made


def unpacked(codes: Tensor, bits: int, length: int) -> Tensor:
    """The inverse of `packed`."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    levels: Tensor = (codes[:, None] >> shifts) & (2**bits - 1)
    return levels.reshape(-1)[:length]
