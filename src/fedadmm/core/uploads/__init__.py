"""What happens to an upload between a client's update and the sum: clip, compress, noise.

    client   x = message + rest;   y = T(x);   send y;   rest <- x - y
    server   total = sum a_i y_i + noise

`rest` is what the client has and the server has not.  For a method whose messages are increments
of something that the server tracks the mean of, it is u_i - sent_i: the server's mean is then
exactly the mean of the sent_i, whatever was cut away, and what was cut away is in the next
difference.  For a method that sends fresh moves it is ordinary error feedback.  There a clip is
meant to lose what lies outside: rest <- clip(x) - y, or else it would grow without bound.

No stage makes a vector longer, so that a clipped upload stays clipped whatever compresses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.errors import ParameterError
from fedadmm.core.protocols import AnyAlgorithm
from fedadmm.core.rng import Dice, Key, derive
from fedadmm.core.uploads.stages import (
    AdaptiveClip,
    Clipping,
    Coded,
    Coding,
    GaussianNoise,
    Selection,
    UploadStage,
    joint_norm,
)

PLACES = ("clip", "select", "code", "noise")
"""The order of the stages."""


class Encoded(NamedTuple):
    """A vector as it travels; the server knows its length and the stages."""

    values: Coded
    where: Tensor | None = None


class Sent(NamedTuple):
    """What became of a message."""

    message: Any
    """As the server takes it."""
    encoded: Any
    """As it travels: an `Encoded` in the place of every vector."""
    error_feedback: dict[str, Tensor]
    """What the client has and the server has not, by field."""
    within: Tensor | None
    """For an adaptive clip: 1 when the norm was within the bound, less a half."""


class Uploads(NamedTuple):
    """At most one stage for every place."""

    clip: Clipping | None = None
    select: Selection | None = None
    code: Coding | None = None
    noise: GaussianNoise | None = None

    @classmethod
    def of(cls, stages: Sequence[UploadStage]) -> Uploads:
        """The pipeline of these stages, which must stand in their order."""
        places = [stage.place for stage in stages]
        if places != [place for place in PLACES if place in places]:
            names = ", ".join(stage.name for stage in stages)
            raise ParameterError(
                f"upload: the stages are {names}, but there may be one to clip, one to select "
                "entries (top-k, random-k), one to code them (quantise, bfloat16) and one for "
                "noise, in this order"
            )
        made: Any = {stage.place: stage for stage in stages}
        return cls(**made)

    @property
    def stages(self) -> list[UploadStage]:
        """Those that there are."""
        return [stage for stage in self if stage is not None]

    @property
    def compresses(self) -> bool:
        """Whether fewer bytes are sent."""
        return self.select is not None or self.code is not None

    @property
    def changes_messages(self) -> bool:
        """Whether something happens to a message before the sum."""
        return self.clip is not None or self.compresses

    @property
    def first_bound(self) -> float | None:
        """The adaptive clip's first bound; None where it does not move."""
        return self.clip.norm if isinstance(self.clip, AdaptiveClip) else None

    def carried(self, algorithm: AnyAlgorithm) -> tuple[str, ...]:
        """The fields of which something may remain with the client."""
        deltas = algorithm.deltas if self.compresses else ()
        return (*algorithm.increments, *deltas) if self.changes_messages else ()

    def send(
        self,
        algorithm: AnyAlgorithm,
        message: Any,
        rest: dict[str, Tensor] | None,
        key: Key,
        bound: float | None = None,
    ) -> Sent:
        """A client's message through all stages but the noise; `bound` is an adaptive clip's."""
        fresh = vectors_of(algorithm, message)
        whole = {n: v if not rest or n not in rest else v + rest[n] for n, v in fresh.items()}
        clipped, within = whole, None
        if self.clip is not None:
            bound = self.clip.norm if bound is None else bound
            clipped = self.clip.clipped(whole, bound)
            if isinstance(self.clip, AdaptiveClip):
                inside = float(joint_norm(whole) <= bound)
                within = next(iter(whole.values())).new_tensor([inside - 0.5])
        encoded = {n: self.encode(v, derive(key, f"upload {n}")) for n, v in clipped.items()}
        decoded = {n: self.decode(encoded[n], v) for n, v in clipped.items()}
        carried = set(self.carried(algorithm))
        increments = set(algorithm.increments)
        left = {
            n: (whole if n in increments else clipped)[n] - decoded[n]
            for n in fresh
            if n in carried
        }
        return Sent(message._replace(**decoded), message._replace(**encoded), left, within)

    def encode(self, vector: Tensor, key: Key) -> Encoded:
        """A vector as it travels."""
        where, values = None, vector
        if self.select is not None:
            dice = derive(key, "select")
            indices = self.select.choose(vector, dice)
            where, values = self.select.describe(indices, vector.numel(), dice), vector[indices]
        coded = (
            Coded(values) if self.code is None else self.code.encode(values, derive(key, "code"))
        )
        return Encoded(coded, where)

    def decode(self, encoded: Encoded, like: Tensor) -> Tensor:
        """The vector as the server takes it; `like` has its shape and type."""
        if self.select is None:
            return self._values(encoded.values, like)
        assert encoded.where is not None
        indices = self.select.indices(encoded.where, like.numel())
        vector = torch.zeros_like(like)
        vector[indices] = self._values(encoded.values, like[indices])
        return vector

    def decode_message(self, encoded: Any, template: Any) -> Any:
        """A message as the server takes it, from what travelled."""
        decoded = {
            name: self.decode(value, template._asdict()[name])
            for name, value in encoded._asdict().items()
            if isinstance(value, Encoded)
        }
        return encoded._replace(**decoded)

    def _values(self, coded: Coded, like: Tensor) -> Tensor:
        return coded.codes if self.code is None else self.code.decode(coded, like)

    def count_noise(self, replies: float) -> float:
        """The standard deviation of the noise on an adaptive clip's count, in clients."""
        if self.noise is None or not isinstance(self.clip, AdaptiveClip):
            return 0.0
        return max(replies / 20, self.noise.multiplier)

    def vector_noise(self, replies: float) -> float:
        """The multiplier of the noise on the vectors.

        With a noised count beside it, such that both together are as private as the stage says:
        z_v^-2 + (2 sigma)^-2 = z^-2.
        """
        assert self.noise is not None
        z, count = self.noise.multiplier, self.count_noise(replies)
        if not count:
            return z
        return float((z**-2 - (2 * count) ** -2) ** -0.5)


def vectors_of(algorithm: AnyAlgorithm, message: Any) -> dict[str, Tensor]:
    """The vectors of a message that stages work on, by field."""
    declared = (*algorithm.increments, *algorithm.deltas)
    fields = message._asdict()
    return {name: fields[name] for name in declared if fields.get(name) is not None}


def round_dice(seed: Key, round_index: int, clients: Sequence[int], deployed: bool) -> Dice:
    """The dice of a round.

    In a deployment nothing is derived, so that nothing can be replayed.  In a simulation a round
    that is done again with the same clients has the same sum and gets the same noise; with other
    clients it has another sum, and noise of its own.
    """
    if deployed:
        return Dice(None)
    cohort = hashlib.blake2b(",".join(map(str, clients)).encode(), digest_size=8).digest()
    return Dice(derive(seed, "noise", round_index, int.from_bytes(cohort, "little")))


def noised(algorithm: AnyAlgorithm, total: Any, deviation: float, dice: Dice) -> Any:
    """The sum with noise of this standard deviation on every entry of its vectors."""
    vectors = vectors_of(algorithm, total)
    return total._replace(
        **{name: v + deviation * dice.normal(v, name) for name, v in vectors.items()}
    )


def encoded_bytes(sent: Sent) -> int:
    """The bytes of a message as it travels."""
    return trees.num_bytes(sent.encoded)
