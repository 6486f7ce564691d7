"""The update pipeline: what happens to a client's update before the server update.

    client   x = message + residual;   y = T(x);   send y;   residual <- x - y
    server   total = sum a_i y_i, then the server side of every postprocessor

The residual is what the client has and the server has not.  For a method whose messages are
increments of a tracked mean it is u_i - sent_i: the server's mean is exactly the mean of the
sent_i, and what was removed is part of the next increment.  For a method that sends fresh deltas it
is ordinary error feedback; there a clip is meant to lose what exceeds the bound, so that
residual <- clip(x) - y, which otherwise would grow without bound.

No postprocessor increases the norm of a vector, so that a clipped update stays clipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm.core.contracts import AnyAlgorithm
from fedadmm.core.errors import ParameterError
from fedadmm.core.pipeline.postprocessors import (
    Aggregate,
    AggregateContext,
    ClientContext,
    Clipping,
    Coded,
    Coding,
    Encoded,
    GaussianNoise,
    Postprocessor,
    Selection,
    Update,
    vectors_of,
)
from fedadmm.core.rng import Key, KeyedGenerator, derive

PLACES = ("clip", "select", "code", "noise")
"""Order of the postprocessors."""

PipelineState = dict[str, float]
"""States of the server sides, by the name of the postprocessor."""


class Processed(NamedTuple):
    """A client's message after the pipeline."""

    message: Any
    """As the server uses it."""
    encoded: Any
    """As it is sent: an `Encoded` in the place of every vector."""
    residual: dict[str, Tensor]
    """What the client has and the server has not, by field."""
    statistics: Tensor | None


class UpdatePipeline(NamedTuple):
    """At most one postprocessor for every place."""

    clip: Clipping | None = None
    select: Selection | None = None
    code: Coding | None = None
    noise: GaussianNoise | None = None

    @classmethod
    def of(cls, stages: Sequence[Postprocessor]) -> UpdatePipeline:
        """Return the pipeline of these postprocessors, which must be in their order."""
        places = [stage.place for stage in stages]
        if places != [place for place in PLACES if place in places]:
            names = ", ".join(stage.name for stage in stages)
            raise ParameterError(
                f"pipeline: got {names}, expected at most one postprocessor that clips, one that "
                "selects entries (top-k, random-k), one that encodes them (quantise, bfloat16) and "
                "one that adds noise, in this order."
            )
        made: Any = {stage.place: stage for stage in stages}
        return cls(**made)

    @property
    def stages(self) -> list[Postprocessor]:
        """The postprocessors in their order."""
        return [stage for stage in self if stage is not None]

    @property
    def compresses(self) -> bool:
        """Whether fewer bytes are sent."""
        return self.select is not None or self.code is not None

    @property
    def changes_messages(self) -> bool:
        """Whether a message is transformed on the client."""
        return self.clip is not None or self.compresses

    @property
    def adapts_clip(self) -> bool:
        """Whether the norm that updates are clipped to changes during the run."""
        return self.clip is not None and self.clip.init_state() is not None

    def init_state(self) -> PipelineState:
        """Return the states of the server sides before the first round."""
        states = {stage.name: stage.init_state() for stage in self.stages}
        return {name: state for name, state in states.items() if state is not None}

    def broadcast(self, states: PipelineState) -> Tensor | None:
        """Return what the server sides send to the participants of a round."""
        values = [states[stage.name] for stage in self.stages if stage.name in states]
        return torch.tensor(values, dtype=torch.float64) if values else None

    def clip_norm(self, states: PipelineState) -> float:
        """Return the norm that updates are clipped to in a round; infinite without clipping."""
        return float("inf") if self.clip is None else states.get(self.clip.name, self.clip.norm)

    def residual_fields(self, algorithm: AnyAlgorithm) -> tuple[str, ...]:
        """Return the message fields of which a residual may stay at the client."""
        deltas = algorithm.deltas if self.compresses else ()
        return (*algorithm.increments, *deltas) if self.changes_messages else ()

    def on_client(
        self,
        algorithm: AnyAlgorithm,
        message: Any,
        residual: dict[str, Tensor] | None,
        key: Key,
        broadcast: Tensor | None = None,
    ) -> Processed:
        """Transform a client's message.

        Args:
            algorithm: the method, which declares the vectors of its messages.
            message: the client's message.
            residual: what earlier rounds left at the client, by field.
            key: random key of the client's round.
            broadcast: what `broadcast` returned for this round.
        """
        fresh = vectors_of(algorithm, message)
        whole = {
            name: vector if not residual or name not in residual else vector + residual[name]
            for name, vector in fresh.items()
        }
        values = iter([] if broadcast is None else broadcast.tolist())
        update = Update({name: Encoded(Coded(vector)) for name, vector in whole.items()})
        clipped = whole
        for stage in self.stages:
            state = next(values, None) if stage.init_state() is not None else None
            update = stage.on_client(update, ClientContext(key, state))
            if stage is self.clip:
                clipped = {name: vector.values.codes for name, vector in update.vectors.items()}
        decoded = {name: self.decode(update.vectors[name], v) for name, v in whole.items()}
        increments = set(algorithm.increments)
        left = {
            name: (whole if name in increments else clipped)[name] - decoded[name]
            for name in self.residual_fields(algorithm)
            if name in fresh
        }
        sent = message._replace(**update.vectors)
        return Processed(message._replace(**decoded), sent, left, update.statistics)

    def decode(self, vector: Encoded, like: Tensor) -> Tensor:
        """Return a vector on the server; `like` has its shape and type."""
        values = like if vector.where is None else like.new_empty(self._count(like))
        for stage in reversed(self.stages):
            vector = stage.decode(vector, values if stage is self.code else like)
        return vector.values.codes

    def _count(self, like: Tensor) -> int:
        assert self.select is not None, "only a selection sends indices"
        return self.select.count(like.numel())

    def decode_message(self, encoded: Any, template: Any) -> Any:
        """Return a message on the server from the form in which it was sent."""
        decoded = {
            name: self.decode(value, template._asdict()[name])
            for name, value in encoded._asdict().items()
            if isinstance(value, Encoded)
        }
        return encoded._replace(**decoded)

    def on_aggregate(
        self, aggregate: Aggregate, states: PipelineState, context: AggregateContext
    ) -> tuple[Aggregate, PipelineState]:
        """Apply the server sides to the sum of a round, in the reverse order of the pipeline."""
        following = dict(states)
        for stage in reversed(self.stages):
            aggregate, state = stage.on_aggregate(aggregate, states.get(stage.name), context)
            if state is not None:
                following[stage.name] = state
        return aggregate, following


def round_rng(
    seed: Key, round_index: int, clients: Sequence[int], deployed: bool
) -> KeyedGenerator:
    """Return the random generator of a round's noise.

    In a deployment it draws from the entropy of the machine, so that nothing can be replayed.  In a
    simulation a repeated round with the same participants has the same sum and gets the same noise;
    with other participants it gets noise of its own.
    """
    if deployed:
        return KeyedGenerator(None)
    cohort = hashlib.blake2b(",".join(map(str, clients)).encode(), digest_size=8).digest()
    return KeyedGenerator(derive(seed, "noise", round_index, int.from_bytes(cohort, "little")))
