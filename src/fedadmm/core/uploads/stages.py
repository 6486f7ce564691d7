"""The stages of an upload: parts that a configuration names in `[[upload]]` tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Gt, Lt
from torch import Tensor

from fedadmm.core.compatibility import Feature
from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Count, Fraction, Part, Positive, Share, part, role
from fedadmm.core.rng import Key, generator

if TYPE_CHECKING:
    from fedadmm.core.setup import Setup


@role("upload")
class UploadStage(Part, ABC):
    """One thing that is done to what a client sends."""

    place: ClassVar[str]
    """Its place in the pipeline: clip, select, code or noise, in this order, once each."""

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
        """Refuse what cannot work for a vector of this length, before round 0."""


class Clipping(UploadStage):
    """Bounds the Euclidean norm of everything that a client sends in a round."""

    place: ClassVar[str] = "clip"
    norm: Positive

    def clipped(self, vectors: dict[str, Tensor], bound: float) -> dict[str, Tensor]:
        """The vectors, all scaled by one factor, such that together they are no longer."""
        length = joint_norm(vectors)
        if length <= bound:
            return vectors
        return {name: vector * (bound / length) for name, vector in vectors.items()}


def joint_norm(vectors: dict[str, Tensor]) -> float:
    """The norm of several vectors as one."""
    return float(torch.stack([torch.linalg.vector_norm(v) for v in vectors.values()]).norm())


@part("upload", "clip")
class Clip(Clipping):
    """Clip to a fixed norm.

    Args:
        norm: the largest norm of what a client sends in a round.
    """

    norm: Positive


@part("upload", "adaptive-clip")
class AdaptiveClip(Clipping):
    """Clip to a quantile of the clients' norms, which is found on the way.

    Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive Clipping,
    NeurIPS 2021.  Every client says whether its norm was within the bound; after a round
    C <- C exp(-lr (share within - quantile)).  With noise the count gets noise of its own (a
    twentieth of the expected cohort, and at least the multiplier), and both together are as private
    as the multiplier says.

    Args:
        norm: the bound of the first round.
        quantile: the share of clients that should be within the bound.
        lr: how fast the bound moves.
    """

    norm: Positive = 0.1
    quantile: Fraction = 0.5
    lr: Positive = 0.2


class Selection(UploadStage):
    """Keeps some entries; the others wait at the client.

    Args:
        keep: how many entries of every vector, a count (int) or a fraction (float).
    """

    place: ClassVar[str] = "select"
    keep: Count | Share

    def count(self, parameters: int) -> int:
        """How many entries of a vector are kept."""
        if isinstance(self.keep, float):
            return round(self.keep * parameters)
        return self.keep

    def check(self, parameters: int) -> None:
        if not 1 <= self.count(parameters) <= parameters:
            raise ParameterError(
                f"{type(self).__name__}: keep is {self.keep}, which is {self.count(parameters)} of "
                f"{parameters} entries, but must be at least one and at most all of them"
            )

    @abstractmethod
    def choose(self, vector: Tensor, key: Key) -> Tensor:
        """The indices to keep, sorted."""

    @abstractmethod
    def describe(self, indices: Tensor, length: int, key: Key) -> Tensor:
        """What tells the other side which entries these are."""

    @abstractmethod
    def indices(self, described: Tensor, length: int) -> Tensor:
        """The inverse of `describe`."""


@part("upload", "top-k")
class TopK(Selection):
    """Keep the largest entries.  Which they are costs four bytes each, or a bit for every entry."""

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


@part("upload", "random-k")
class RandomK(Selection):
    """Keep entries that dice choose.  Eight bytes, the key of the dice, say which they are."""

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


class Coded(NamedTuple):
    """Numbers as they travel."""

    codes: Tensor
    scales: Tensor | None = None


class Coding(UploadStage):
    """Writes every number with fewer bits."""

    place: ClassVar[str] = "code"

    @abstractmethod
    def encode(self, values: Tensor, key: Key) -> Coded:
        """The numbers as they travel."""

    @abstractmethod
    def decode(self, coded: Coded, like: Tensor) -> Tensor:
        """The numbers as the server takes them; `like` has their shape and type."""


@part("upload", "quantise")
class Quantise(Coding):
    """Round every entry at random to one of 2^bits levels, which lie evenly in [-M, M].

    M is the largest magnitude of a block.  The rounded block is then scaled to be as near as
    possible to the block itself: so it is never longer, and what remains shrinks from round to
    round, where plain unbiased rounding to few levels would let it explode.

    Args:
        bits: how many bits an entry takes.
        block: how many entries share a scale.
    """

    bits: Literal[2, 4, 8] = 8
    block: Count = 256

    def encode(self, values: Tensor, key: Key) -> Coded:
        top, rows = 2**self.bits - 1, self._blocks(values)
        largest = rows.abs().amax(dim=1, keepdim=True)
        at = (rows / torch.where(largest > 0, largest, 1.0) + 1) * (top / 2)
        dice = torch.rand(rows.shape, generator=generator(key), dtype=torch.float64)
        levels = (at + dice.to(at.device, at.dtype)).floor().clamp(0, top)
        unit = self._unit(levels, len(values))
        scales = ((rows * unit).sum(1) / (unit * unit).sum(1)).clamp(min=0)
        return Coded(packed(levels.to(torch.uint8).reshape(-1)[: len(values)], self.bits), scales)

    def decode(self, coded: Coded, like: Tensor) -> Tensor:
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


@part("upload", "bfloat16")
class BFloat16(Coding):
    """Cut every entry to bfloat16, towards zero: half the bytes of float32."""

    def encode(self, values: Tensor, key: Key) -> Coded:
        upper = values.to(torch.float32).view(torch.int32) & -65536
        return Coded(upper.view(torch.float32).to(torch.bfloat16))

    def decode(self, coded: Coded, like: Tensor) -> Tensor:
        return coded.codes.to(like.dtype)


@part("upload", "gaussian")
class GaussianNoise(UploadStage):
    """Gaussian noise on the sum, which makes it differentially private for every client.

    It is added once, by the server, which is trusted: its standard deviation is the multiplier
    times the most that a client can change the sum by, the clip's norm times the largest weight.

    Args:
        multiplier: the noise's standard deviation, in units of what a client can change.
        delta: the delta of (epsilon, delta), below one over the number of clients.
        budget: the epsilon that the run may spend; it ends before the round that would spend more.
    """

    place: ClassVar[str] = "noise"
    multiplier: Positive
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    budget: Positive | None = None

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
