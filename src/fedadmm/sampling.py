"""Who takes part in a round.

Every scheme is a function of (seed, round) and exposes p_i = P(i in S).  A scheme in which some
client can never take part is not proper, and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedadmm.errors import ParameterError, check_count, check_range
from fedadmm.rng import Key, derive, numpy_generator

Probabilities = NDArray[np.float64]


def _draws(seed: Key, round_index: int) -> np.random.Generator:
    return numpy_generator(derive(seed, "sampler", round_index))


def _sorted(ids: NDArray[Any]) -> list[int]:
    return sorted(int(i) for i in ids)


def _refuse_zero(owner: object, probabilities: Probabilities) -> None:
    if (probabilities <= 0).any():
        client = int(np.argmax(probabilities <= 0))
        raise ParameterError(
            f"{type(owner).__name__}: client {client} takes part with probability 0, but a proper "
            "scheme gives every client a chance"
        )


def _count(owner: object, size: int | float, clients: int) -> int:
    """A number of clients from a count (int) or a fraction (float)."""
    if isinstance(size, float):
        return max(1, round(size * clients))
    if size > clients:
        raise ParameterError(
            f"{type(owner).__name__}: size is {size}, but must be at most the number of clients, "
            f"{clients}"
        )
    return size


def _check_size(owner: object, size: int | float) -> None:
    if isinstance(size, float):
        check_range(owner, "size (a fraction)", size, 0.0, 1.0, open_low=True)
    else:
        check_count(owner, "size", size)


@dataclass(frozen=True)
class FullParticipation:
    """Everybody, every round."""

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        """All ids."""
        return range(clients)

    def probabilities(self, clients: int) -> Probabilities:
        """One each."""
        return np.ones(clients)

    def check(self, clients: int, rounds: int) -> None:
        """Always possible."""


@dataclass(frozen=True)
class UniformSampling:
    """`size` clients without replacement: a count (int) or a fraction (float)."""

    size: int | float

    def __post_init__(self) -> None:
        _check_size(self, self.size)

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        """A uniform subset."""
        count = _count(self, self.size, clients)
        return _sorted(_draws(seed, round_index).choice(clients, count, replace=False))

    def probabilities(self, clients: int) -> Probabilities:
        """size / n each."""
        return np.full(clients, _count(self, self.size, clients) / clients)

    def check(self, clients: int, rounds: int) -> None:
        """The count must not exceed the population."""
        _count(self, self.size, clients)


@dataclass(frozen=True)
class BernoulliSampling:
    """Every client flips its own coin: one probability for all, or one each.

    A round may be empty; the global model then stays as it is.
    """

    probability: float | Sequence[float]

    def __post_init__(self) -> None:
        values = self.probability if isinstance(self.probability, Sequence) else [self.probability]
        for value in values:
            check_range(self, "probability", value, 0.0, 1.0, open_low=True)

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        """Those whose coin says yes."""
        coins = _draws(seed, round_index).random(clients)
        return _sorted(np.flatnonzero(coins < self.probabilities(clients)))

    def probabilities(self, clients: int) -> Probabilities:
        """The coins' probabilities."""
        values = np.asarray(self.probability, dtype=np.float64)
        if values.ndim and values.shape != (clients,):
            raise ParameterError(
                f"BernoulliSampling: probability has {values.size} entries, but must have one for "
                f"each of the {clients} clients"
            )
        return np.broadcast_to(values, (clients,)).copy()

    def check(self, clients: int, rounds: int) -> None:
        """One probability a client, none of them zero."""
        _refuse_zero(self, self.probabilities(clients))


@dataclass(frozen=True)
class WeightedSampling:
    """`size` clients without replacement, p_i proportional to the weights and exact.

    Systematic sampling in random order: p_i = size * w_i / sum w, capped at one (what a capped
    client leaves over is shared by the others).
    """

    weights: Sequence[float]
    size: int

    def __post_init__(self) -> None:
        check_count(self, "size", self.size)
        for weight in self.weights:
            check_range(self, "weights", weight, 0.0)

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        """One client for each unit step along the cumulated p_i."""
        draws = _draws(seed, round_index)
        order = draws.permutation(clients)
        edges = np.cumsum(self.probabilities(clients)[order])
        ticks = draws.random() + np.arange(self.size)
        picks = np.searchsorted(edges, ticks, side="right").clip(max=clients - 1)
        return _sorted(np.unique(order[picks]))

    def probabilities(self, clients: int) -> Probabilities:
        """size * w_i / sum w, capped at one."""
        if len(self.weights) != clients:
            raise ParameterError(
                f"WeightedSampling: weights has {len(self.weights)} entries, but must have one for "
                f"each of the {clients} clients"
            )
        size = _count(self, self.size, clients)
        weights = np.asarray(self.weights, dtype=np.float64)
        _refuse_zero(self, weights)
        result = np.zeros(clients)
        free = np.ones(clients, dtype=bool)
        while True:
            left = size - np.count_nonzero(~free)
            result[free] = left * weights[free] / weights[free].sum()
            over = free & (result >= 1)
            if not over.any():
                return result
            result[over] = 1.0
            free &= ~over
            if not free.any():
                return result

    def check(self, clients: int, rounds: int) -> None:
        """One weight a client, none of them zero."""
        self.probabilities(clients)


@dataclass(frozen=True)
class NonOverlappingSampling:
    """The clients are cut into `blocks` groups once; every round takes one group at random."""

    blocks: int

    def __post_init__(self) -> None:
        check_count(self, "blocks", self.blocks)

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        """One block of the seed's partition."""
        order = numpy_generator(derive(seed, "sampler-blocks")).permutation(clients)
        block = int(_draws(seed, round_index).integers(self.blocks))
        return _sorted(np.array_split(order, self.blocks)[block])

    def probabilities(self, clients: int) -> Probabilities:
        """1 / blocks each."""
        return np.full(clients, 1.0 / self.blocks)

    def check(self, clients: int, rounds: int) -> None:
        """No block may be empty."""
        if self.blocks > clients:
            raise ParameterError(
                f"NonOverlappingSampling: blocks is {self.blocks}, but must be at most the number "
                f"of clients, {clients}"
            )


@dataclass(frozen=True)
class DoublyUniformSampling:
    """A uniform size from 1..n, then a uniform set of that size."""

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        """A uniform set of uniform size."""
        draws = _draws(seed, round_index)
        size = int(draws.integers(1, clients + 1))
        return _sorted(draws.choice(clients, size, replace=False))

    def probabilities(self, clients: int) -> Probabilities:
        """(n + 1) / (2n) each, the mean size over n."""
        return np.full(clients, (clients + 1) / (2 * clients))

    def check(self, clients: int, rounds: int) -> None:
        """Always possible."""


@dataclass(frozen=True)
class CyclicSampling:
    """`size` clients in turn: round t takes the next ones, wrapping around."""

    size: int | float

    def __post_init__(self) -> None:
        _check_size(self, self.size)

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        """The next ids of the cycle."""
        count = _count(self, self.size, clients)
        return sorted((round_index * count + offset) % clients for offset in range(count))

    def probabilities(self, clients: int) -> Probabilities:
        """size / n each: the frequency over a full cycle."""
        return np.full(clients, _count(self, self.size, clients) / clients)

    def check(self, clients: int, rounds: int) -> None:
        """The count must not exceed the population."""
        _count(self, self.size, clients)


@dataclass(frozen=True)
class TraceSampling:
    """Participation read from a trace: a list of client ids for every round.

    `repeat` starts the trace again at its end; otherwise it must be as long as the run.
    """

    rounds: Sequence[Sequence[int]]
    repeat: bool = False

    def __post_init__(self) -> None:
        if not self.rounds:
            raise ParameterError("TraceSampling: rounds is empty, but needs at least one round")
        for index, ids in enumerate(self.rounds):
            if len(set(ids)) != len(ids):
                raise ParameterError(f"TraceSampling: rounds[{index}] names a client twice")

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        """The trace's line for this round."""
        return sorted(self.rounds[round_index % len(self.rounds)])

    def probabilities(self, clients: int) -> Probabilities:
        """Each client's frequency in the trace."""
        flat = np.array([i for ids in self.rounds for i in ids], dtype=np.int64)
        if flat.size and (flat.min() < 0 or flat.max() >= clients):
            stranger = flat[(flat < 0) | (flat >= clients)][0]
            raise ParameterError(
                f"TraceSampling: rounds names client {stranger}, but ids must be 0 to {clients - 1}"
            )
        return np.bincount(flat, minlength=clients) / len(self.rounds)

    def check(self, clients: int, rounds: int) -> None:
        """Known ids, everybody at least once, and long enough for the run."""
        _refuse_zero(self, self.probabilities(clients))
        if not self.repeat and rounds > len(self.rounds):
            raise ParameterError(
                f"TraceSampling: rounds has {len(self.rounds)} entries, but the run has {rounds} "
                "rounds (repeat=True starts the trace again)"
            )
