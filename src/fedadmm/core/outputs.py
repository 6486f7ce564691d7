"""The output model of a run: the one that is evaluated, recorded and returned.

Some theorems are not about the last iterate.  Training goes on with theta, whatever the output is,
so an output changes what is reported and never what is trained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from fedadmm.core.parts import FAMILIES, part, role
from fedadmm.core.rng import Key, derive, uniform
from fedadmm.core.validation import check

Note = TypeVar("Note")


class Iterate(NamedTuple):
    """What a method offers after a round: theta, and the averaged buffers that belong to it."""

    params: Tensor
    buffers: Tensor | None = None
    mean: Tensor | None = None
    """The participants' mean model m, when a method offers it beside theta."""


@role("output")
class Output(ABC, Generic[Note]):
    """Makes the output model from the iterates, one round at a time.

    A note is a tensor, or a NamedTuple of them, or None; it is part of the run's state, so that a
    resumed run goes on with it.  No function changes what it is given.
    """

    def init_state(self, offered: Iterate) -> Note:
        """The note before the first round; None for an output that remembers nothing."""
        return cast(Note, None)

    def update(self, note: Note, offered: Iterate, round_number: int, seed: Key) -> Note:
        """The note after round `round_number`, counted from 1; `seed` is the run's."""
        return note

    @abstractmethod
    def model(self, note: Note, offered: Iterate) -> Iterate:
        """The output model after the round of this note, which offered this iterate."""

    def extra_models(self, note: Note, offered: Iterate) -> dict[str, Iterate]:
        """Models that are measured too, by the ending of their metrics' names; usually none."""
        return {}


AnyOutput = Output[Any]


@part("output", "last-iterate")
class LastIterate(Output[None]):
    """Output theta as it is broadcast next."""

    def model(self, note: None, offered: Iterate) -> Iterate:
        return offered


@part("output", "random-iterate")
class RandomIterate(Output[Iterate]):
    """Output one of the iterates x^0 … x^K, each with the same probability.

    That is the model which Theorem 3.1 of Tran-Dinh et al. (FedDR) and Corollary 1 of Wang et al.
    bound.  After round k the new iterate takes the place of the one that is kept with probability
    1/(k+1), which keeps every iterate so far with probability 1/(k+1) and needs the memory of one.
    """

    def init_state(self, offered: Iterate) -> Iterate:
        return offered._replace(mean=None)

    def update(self, note: Iterate, offered: Iterate, round_number: int, seed: Key) -> Iterate:
        draw = uniform(derive(seed, "output", round_number))
        return offered._replace(mean=None) if draw * (round_number + 1) < 1.0 else note

    def model(self, note: Iterate, offered: Iterate) -> Iterate:
        return note


def _mean(offered: Iterate) -> Iterate:
    """m with its buffers; theta of a method that has nothing else to offer."""
    params = offered.params if offered.mean is None else offered.mean
    return Iterate(params, offered.buffers)


@part("output", "participants-mean")
class ParticipantsMean(Output[None]):
    """Output m, the mean of the models that the participants sent back.

    A method whose server carries m on before it broadcasts (by duals, by momentum) says what m was;
    of any other method it is theta.
    """

    def model(self, note: None, offered: Iterate) -> Iterate:
        return _mean(offered)


@part("output", "averaged")
class Averaged(Output[Iterate]):
    """Output an average of m that never feeds back: x <- x + min(1, 9 / (t + 8)) (m - x).

    After round t the last rounds count most, about t/9 of them; the first round's m replaces the
    start.  With few participants m swings from round to round, and the average does not.
    """

    def init_state(self, offered: Iterate) -> Iterate:
        return _mean(offered)

    def update(self, note: Iterate, offered: Iterate, round_number: int, seed: Key) -> Iterate:
        now, share = _mean(offered), min(1.0, 9.0 / (round_number + 8.0))
        buffers = now.buffers
        if note.buffers is not None and buffers is not None:
            buffers = torch.lerp(note.buffers, buffers, share)
        return Iterate(torch.lerp(note.params, now.params, share), buffers)

    def model(self, note: Iterate, offered: Iterate) -> Iterate:
        return note


class Notes(NamedTuple):
    """What two outputs remember."""

    handed: Any
    beside: Any


@part("output", "two-outputs")
class TwoOutputs(Output[Notes]):
    """Output one model and measure another beside it, with one training for both.

    The other's metrics have its name at their end: `test_accuracy_averaged`.

    Args:
        handed: the name of the output that is handed out.
        measured: the name of the one beside it; neither has options.
    """

    handed: str = "last-iterate"
    measured: str = "averaged"

    def __post_init__(self) -> None:
        known = tuple(name for name in FAMILIES["output"] if name != "two-outputs")
        check(self, "handed", self.handed, Literal[known])
        others = tuple(name for name in known if name != self.handed)
        check(self, "measured", self.measured, Literal[others])

    @property
    def _outputs(self) -> tuple[AnyOutput, AnyOutput]:
        handed, measured = FAMILIES["output"][self.handed], FAMILIES["output"][self.measured]
        return handed(), measured()

    def init_state(self, offered: Iterate) -> Notes:
        return Notes(*(one.init_state(offered) for one in self._outputs))

    def update(self, note: Notes, offered: Iterate, round_number: int, seed: Key) -> Notes:
        pairs = zip(self._outputs, note, strict=True)
        return Notes(*(one.update(own, offered, round_number, seed) for one, own in pairs))

    def model(self, note: Notes, offered: Iterate) -> Iterate:
        return self._outputs[0].model(note.handed, offered)

    def extra_models(self, note: Notes, offered: Iterate) -> dict[str, Iterate]:
        other = self._outputs[1].model(note.beside, offered)
        return {self.measured.replace("-", "_"): other}
