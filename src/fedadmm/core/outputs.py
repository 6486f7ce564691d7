"""Output models: which model of a run is evaluated, recorded and returned.

Some theorems are not about the last iterate.  Training always continues with theta: an output
changes what is reported, and not what is trained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from fedadmm.core.parts import FAMILIES, part, role
from fedadmm.core.rng import Key, derive, uniform
from fedadmm.core.validation import check

State = TypeVar("State")


class Iterate(NamedTuple):
    """Models after a round: theta with its averaged buffers, and the participants' mean."""

    params: Tensor
    buffers: Tensor | None = None
    mean: Tensor | None = None
    """The participants' mean model m, if the method provides it in addition to theta."""


@role("output")
class Output(ABC, Generic[State]):
    """Base class of outputs, which compute the output model from the iterates.

    The state of an output is a tensor, a NamedTuple of tensors, or None, and part of the run's
    state.  No function modifies its arguments.
    """

    def init_state(self, offered: Iterate) -> State:
        """Return the state before the first round; None for an output without a state."""
        return cast(State, None)

    def update(self, state: State, offered: Iterate, round_number: int, seed: Key) -> State:
        """Return the state after a round.

        Args:
            state: the state before it.
            offered: the models after the round.
            round_number: number of the round, counted from 1.
            seed: seed of the run.
        """
        return state

    @abstractmethod
    def model(self, state: State, offered: Iterate) -> Iterate:
        """Return the output model after a round, from the state and the models after it."""

    def extra_models(self, state: State, offered: Iterate) -> dict[str, Iterate]:
        """Return additional models to evaluate, by the suffix of their metrics; none by default."""
        return {}


AnyOutput = Output[Any]


@part("output", "last-iterate")
class LastIterate(Output[None]):
    """Return the last iterate, theta: the default output."""

    def model(self, state: None, offered: Iterate) -> Iterate:
        return offered


@part("output", "random-iterate")
class RandomIterate(Output[Iterate]):
    """Return one of the iterates x^0 … x^K, each with the same probability.

    Theorem 3.1 of Tran-Dinh et al. (FedDR) and Corollary 1 of Wang et al. bound this model.  After
    round k the stored iterate is replaced by the new one with probability 1/(k+1) (reservoir
    sampling), so that every iterate so far is stored with probability 1/(k+1).
    """

    def init_state(self, offered: Iterate) -> Iterate:
        return offered._replace(mean=None)

    def update(self, state: Iterate, offered: Iterate, round_number: int, seed: Key) -> Iterate:
        draw = uniform(derive(seed, "output", round_number))
        return offered._replace(mean=None) if draw * (round_number + 1) < 1.0 else state

    def model(self, state: Iterate, offered: Iterate) -> Iterate:
        return state


def _mean(offered: Iterate) -> Iterate:
    """Return m with its buffers, or theta if the method does not provide m."""
    params = offered.params if offered.mean is None else offered.mean
    return Iterate(params, offered.buffers)


@part("output", "participants-mean")
class ParticipantsMean(Output[None]):
    """Return m, the mean of the models that the participants sent.

    A method whose server extrapolates m before the next broadcast (by duals or momentum) provides
    m; for other methods it is theta.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> work = dict(solver=fa.ExactSolver(), output=fa.outputs.ParticipantsMean())
        >>> fa.simulate(fa.FedAvgM(lr=0.5), problem, 1, **work).params  # theta is 1.5
        tensor([3.])
    """

    def model(self, state: None, offered: Iterate) -> Iterate:
        return _mean(offered)


@part("output", "averaged")
class Averaged(Output[Iterate]):
    """Return an average of m over the rounds: x <- x + min(1, 9 / (t + 8)) (m - x).

    Training does not depend on x.  After round t about the last t/9 rounds determine x; the initial
    model has no weight.  With few participants m varies from round to round more than x does.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic(torch.eye(1), torch.tensor([b])) for b in (6.0, 3.0, 0.0)]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> work = dict(solver=fa.ExactSolver(), sampler=fa.CyclicSampling(1))
        >>> averaged = dict(work, output=fa.outputs.Averaged())
        >>> last = fa.simulate(fa.FedAvg(), problem, 30, **work).params.item()
        >>> mean = fa.simulate(fa.FedAvg(), problem, 30, **averaged).params.item()
        >>> abs(mean - 3.0) < abs(last - 3.0)
        True
    """

    def init_state(self, offered: Iterate) -> Iterate:
        return _mean(offered)

    def update(self, state: Iterate, offered: Iterate, round_number: int, seed: Key) -> Iterate:
        now, share = _mean(offered), min(1.0, 9.0 / (round_number + 8.0))
        buffers = now.buffers
        if state.buffers is not None and buffers is not None:
            buffers = torch.lerp(state.buffers, buffers, share)
        return Iterate(torch.lerp(state.params, now.params, share), buffers)

    def model(self, state: Iterate, offered: Iterate) -> Iterate:
        return state


class BothStates(NamedTuple):
    """States of the returned and of the additional output."""

    returned: Any
    additional: Any


@part("output", "two-outputs")
class TwoOutputs(Output[BothStates]):
    """Return one output model and evaluate another one in the same run.

    The metrics of the other end with its name: `test_accuracy_averaged`.

    Args:
        handed: Name of the output that is returned.  Default "last-iterate".
        measured: Name of the output that is evaluated in addition.  Default "averaged".  Neither
            has options.
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

    def init_state(self, offered: Iterate) -> BothStates:
        return BothStates(*(one.init_state(offered) for one in self._outputs))

    def update(
        self, state: BothStates, offered: Iterate, round_number: int, seed: Key
    ) -> BothStates:
        pairs = zip(self._outputs, state, strict=True)
        return BothStates(*(one.update(own, offered, round_number, seed) for one, own in pairs))

    def model(self, state: BothStates, offered: Iterate) -> Iterate:
        return self._outputs[0].model(state.returned, offered)

    def extra_models(self, state: BothStates, offered: Iterate) -> dict[str, Iterate]:
        other = self._outputs[1].model(state.additional, offered)
        return {self.measured.replace("-", "_"): other}
