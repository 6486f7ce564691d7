"""Which clients take part in a round, independent of earlier rounds.

Every scheme here is a function of (seed, round). Where p_i = P(i in S) stays the same,
`probabilities` gives it.  A scheme in which some client can never take part is refused.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Count, NotNegative, Part, Share, check_one_each, part, role
from fedadmm.core.rng import Key, derive, numpy_generator
from fedadmm.core.schedules import Schedule, at
from fedadmm.core.validation import UnitInterval, check

if TYPE_CHECKING:
    from fedadmm.core.setup import Setup

Probabilities = NDArray[np.float64]


@role("sampler")
class Sampler(Part, ABC):
    """Who takes part in a round: a function of the seed and the round."""

    is_random: ClassVar[bool] = True
    """Whether rounds are drawn, as the theorems want it, and not planned."""
    full_participation: ClassVar[bool] = False
    """Whether every client takes part in every round, as some methods need it."""

    def check_run(self, run: Setup) -> Iterator[str]:
        signature = inspect.signature(self.sample)
        try:
            signature.bind(0, 0, 1)
        except TypeError:
            raise ParameterError(
                f"{type(self).__name__}: sample takes {signature}, but must take "
                "(seed, round_index, clients)"
            ) from None
        self.check(run.problem.num_clients, run.rounds)
        yield from super().check_run(run)

    @abstractmethod
    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        """The ids of round `round_index`, sorted, without repetition."""

    def probabilities(self, clients: int) -> Probabilities | None:
        """p_i = P(client i takes part), if it is the same in every round; else None."""
        return None

    def check(self, clients: int, rounds: int) -> None:
        """Refuse what cannot work for this many clients and rounds, before round 0.

        By default a scheme that never takes some client, as far as its probabilities tell.
        """
        probabilities = self.probabilities(clients)
        if probabilities is not None and (probabilities <= 0).any():
            raise ParameterError(
                f"{type(self).__name__}: client {int(np.argmax(probabilities <= 0))} takes part "
                "with probability 0, but a proper scheme gives every client a chance"
            )


def draws_of(seed: Key, round_index: int) -> np.random.Generator:
    """The random generator of one round."""
    return numpy_generator(derive(seed, "sampler", round_index))


def _sorted(ids: NDArray[Any]) -> list[int]:
    return sorted(int(i) for i in ids)


def count_of(owner: object, size: int | float, clients: int) -> int:
    """A number of clients from a count (int) or a fraction (float), at most all of them."""
    if isinstance(size, float):
        return max(1, round(size * clients))
    if size > clients:
        raise ParameterError(
            f"{type(owner).__name__}: size is {size}, but must be at most the number of clients, "
            f"{clients}"
        )
    return size


@part("sampler", "full")
class FullParticipation(Sampler):
    """All clients in every round."""

    full_participation = True

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        return range(clients)

    def probabilities(self, clients: int) -> Probabilities:
        return np.ones(clients)


@part("sampler", "uniform")
class UniformSampling(Sampler):
    """`size` clients without replacement: a count (int) or a fraction (float)."""

    size: Count | Share

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        count = count_of(self, self.size, clients)
        return _sorted(draws_of(seed, round_index).choice(clients, count, replace=False))

    def probabilities(self, clients: int) -> Probabilities:
        return np.full(clients, count_of(self, self.size, clients) / clients)


@part("sampler", "bernoulli")
class BernoulliSampling(Sampler):
    """Every client flips its own coin: one probability for all, or one per client.

    Each may be a schedule over rounds.  Convergence under any such p_i^t needs
    sum over t of p_i^t = infinity for every client (Gong et al.): probabilities may fall like 1/t,
    but not like a geometric sequence without a floor, under which a client is heard finitely often.
    A round may be empty; the global model then stays as it is.
    """

    probability: Share | Schedule | Sequence[Share | Schedule]

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        coins = draws_of(seed, round_index).random(clients)
        return _sorted(np.flatnonzero(coins < self.coins(round_index, clients)))

    def coins(self, round_index: int, clients: int) -> Probabilities:
        """p_i^t."""
        check_one_each(self, "probability", self.probability, clients)
        entries = self.probability
        if not isinstance(entries, Sequence):
            return np.full(clients, float(at(entries, round_index)))
        return np.array([at(entry, round_index) for entry in entries], dtype=np.float64)

    def probabilities(self, clients: int) -> Probabilities | None:
        return None if self._schedules() else self.coins(0, clients)

    def check(self, clients: int, rounds: int) -> None:
        self.coins(0, clients)
        for schedule in self._schedules():
            for index in range(rounds):
                check(self, f"probability in round {index}", at(schedule, index), UnitInterval)

    def _schedules(self) -> list[Schedule]:
        entries = self.probability if isinstance(self.probability, Sequence) else [self.probability]
        return [entry for entry in entries if callable(entry)]


@part("sampler", "weighted")
class WeightedSampling(Sampler):
    """`size` clients without replacement, p_i proportional to the weights and exact.

    Systematic sampling in random order: p_i = size * w_i / sum w, capped at one (what a capped
    client leaves over is shared by the others).
    """

    weights: Sequence[NotNegative]
    size: Count

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        return systematic(draws_of(seed, round_index), self.probabilities(clients))

    def probabilities(self, clients: int) -> Probabilities:
        check_one_each(self, "weights", self.weights, clients)
        return capped_shares(count_of(self, self.size, clients), np.asarray(self.weights, float))


def capped_shares(total: float, weights: Probabilities) -> Probabilities:
    """`total` shared out in proportion to the weights, at most one each.

    What a capped one leaves over is shared by the others.
    """
    shares = np.zeros(len(weights))
    free = weights > 0
    while free.any():
        left = total - np.count_nonzero(shares == 1.0)
        shares[free] = left * weights[free] / weights[free].sum()
        over = free & (shares >= 1)
        if not over.any():
            break
        shares[over] = 1.0
        free &= ~over
    return shares


def systematic(draws: np.random.Generator, probabilities: Probabilities) -> list[int]:
    """A set with exactly these p_i, whose sum is its size: systematic sampling in random order."""
    size = round(float(probabilities.sum()))
    order = draws.permutation(len(probabilities))
    edges = np.cumsum(probabilities[order])
    ticks = draws.random() + np.arange(size)
    picks = np.searchsorted(edges, ticks, side="right").clip(max=len(order) - 1)
    return _sorted(np.unique(order[picks]))


@part("sampler", "non-overlapping")
class NonOverlappingSampling(Sampler):
    """The clients are cut into `blocks` groups once; every round takes one group at random."""

    blocks: Count

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        order = numpy_generator(derive(seed, "sampler-blocks")).permutation(clients)
        block = int(draws_of(seed, round_index).integers(self.blocks))
        return _sorted(np.array_split(order, self.blocks)[block])

    def probabilities(self, clients: int) -> Probabilities:
        return np.full(clients, 1.0 / self.blocks)

    def check(self, clients: int, rounds: int) -> None:
        if self.blocks > clients:
            raise ParameterError(
                f"NonOverlappingSampling: blocks is {self.blocks}, but must be at most the number "
                f"of clients, {clients}"
            )


@part("sampler", "doubly-uniform")
class DoublyUniformSampling(Sampler):
    """A uniform size from 1..n, then a uniform set of that size."""

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        draws = draws_of(seed, round_index)
        size = int(draws.integers(1, clients + 1))
        return _sorted(draws.choice(clients, size, replace=False))

    def probabilities(self, clients: int) -> Probabilities:
        return np.full(clients, (clients + 1) / (2 * clients))


@part("sampler", "cyclic")
class CyclicSampling(Sampler):
    """`size` clients in turn: round t takes the next ones, wrapping around."""

    is_random = False

    size: Count | Share

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        count = count_of(self, self.size, clients)
        return sorted((round_index * count + offset) % clients for offset in range(count))

    def probabilities(self, clients: int) -> Probabilities:
        return np.full(clients, count_of(self, self.size, clients) / clients)


@part("sampler", "trace")
class TraceSampling(Sampler):
    """Participation read from a trace: a list of client ids for every round.

    `repeat` starts the trace again at its end; otherwise it must be as long as the run.
    """

    is_random = False

    rounds: Sequence[Sequence[int]]
    repeat: bool = False

    def __post_init__(self) -> None:
        if not self.rounds:
            raise ParameterError("TraceSampling: rounds is empty, but needs at least one round")
        for index, ids in enumerate(self.rounds):
            if len(set(ids)) != len(ids):
                raise ParameterError(f"TraceSampling: rounds[{index}] names a client twice")

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        return sorted(self.rounds[round_index % len(self.rounds)])

    def probabilities(self, clients: int) -> Probabilities:
        flat = np.array([i for ids in self.rounds for i in ids], dtype=np.int64)
        if flat.size and (flat.min() < 0 or flat.max() >= clients):
            stranger = flat[(flat < 0) | (flat >= clients)][0]
            raise ParameterError(
                f"TraceSampling: rounds names client {stranger}, but ids must be 0 to {clients - 1}"
            )
        return np.bincount(flat, minlength=clients) / len(self.rounds)

    def check(self, clients: int, rounds: int) -> None:
        super().check(clients, rounds)
        if not self.repeat and rounds > len(self.rounds):
            raise ParameterError(
                f"TraceSampling: rounds has {len(self.rounds)} entries, but the run has {rounds} "
                "rounds (repeat=True starts the trace again)"
            )
