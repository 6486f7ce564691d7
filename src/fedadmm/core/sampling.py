"""Client sampling: the participants of a round, independent of earlier rounds.

Every scheme is a function of seed and round.  If the inclusion probabilities p_i = P(i in S) are
constant, `probabilities` returns them.  A scheme in which a client has p_i = 0 is rejected.
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
    """Base class of client sampling schemes.

    A subclass is a frozen dataclass that defines `sample`, a function of seed and round only.

    Example:
        >>> from dataclasses import dataclass
        >>> import fedadmm as fa
        >>> @dataclass(frozen=True)
        ... class EvenRoundsOnly(fa.Sampler):
        ...     def sample(self, seed, round_index, clients):
        ...         return [] if round_index % 2 else range(clients)
        >>> [list(EvenRoundsOnly().sample(0, t, 3)) for t in range(2)]
        [[0, 1, 2], []]
    """

    is_random: ClassVar[bool] = True
    """Whether participants are drawn at random, as the theorems assume."""
    full_participation: ClassVar[bool] = False
    """Whether every client participates in every round, as some methods require."""

    def check_run(self, run: Setup) -> Iterator[str]:
        signature = inspect.signature(self.sample)
        try:
            signature.bind(0, 0, 1)
        except TypeError:
            raise ParameterError(
                f"{type(self).__name__}.sample: got the signature {signature}, expected "
                "(seed, round_index, clients)."
            ) from None
        self.check(run.problem.num_clients, run.rounds)
        yield from super().check_run(run)

    @abstractmethod
    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        """Return the ids of the participants of a round, sorted, without repetition.

        Args:
            seed: seed of the run.
            round_index: index of the round, from 0.
            clients: number of all clients; ids are 0 to clients - 1.
        """

    def probabilities(self, clients: int) -> Probabilities | None:
        """Return all p_i = P(client i participates), or None if they change over the rounds."""
        return None

    def check(self, clients: int, rounds: int) -> None:
        """Raise a ParameterError if the scheme is invalid for a number of clients and rounds.

        By default this rejects schemes with an inclusion probability of zero.
        """
        probabilities = self.probabilities(clients)
        if probabilities is not None and (probabilities <= 0).any():
            raise ParameterError(
                f"{type(self).__name__}: got the probability 0 for client "
                f"{int(np.argmax(probabilities <= 0))}, expected a positive one for every client."
            )


def round_generator(seed: Key, round_index: int) -> np.random.Generator:
    """Return the random generator of one round."""
    return numpy_generator(derive(seed, "sampler", round_index))


def _sorted(ids: NDArray[Any]) -> list[int]:
    return sorted(int(i) for i in ids)


def count_of(owner: object, size: int | float, clients: int) -> int:
    """Return the number of clients that a count (int) or a fraction (float) specifies."""
    if isinstance(size, float):
        return max(1, round(size * clients))
    if size > clients:
        raise ParameterError(
            f"{type(owner).__name__}.size: got {size}, expected at most the number of clients, "
            f"{clients}."
        )
    return size


@part("sampler", "full")
class FullParticipation(Sampler):
    """All clients participate in every round.

    Example:
        >>> import fedadmm as fa
        >>> list(fa.FullParticipation().sample(seed=0, round_index=0, clients=3))
        [0, 1, 2]
    """

    full_participation = True

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        return range(clients)

    def probabilities(self, clients: int) -> Probabilities:
        return np.ones(clients)


@part("sampler", "uniform")
class UniformSampling(Sampler):
    """A fixed number of clients, drawn uniformly without replacement.

    Args:
        size: Number of participants (int), or their fraction of all clients (float).

    Example:
        >>> import fedadmm as fa
        >>> [fa.UniformSampling(2).sample(seed=0, round_index=t, clients=5) for t in range(3)]
        [[1, 2], [2, 4], [0, 4]]
    """

    size: Count | Share

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        count = count_of(self, self.size, clients)
        return _sorted(round_generator(seed, round_index).choice(clients, count, replace=False))

    def probabilities(self, clients: int) -> Probabilities:
        return np.full(clients, count_of(self, self.size, clients) / clients)


@part("sampler", "bernoulli")
class BernoulliSampling(Sampler):
    """Every client participates independently with its probability.

    Convergence requires sum over t of p_i^t = infinity for every client (Gong et al.):
    probabilities may decrease like 1/t, but not like a geometric sequence without a lower bound.
    A round can have no participants; the global model is then unchanged.

    Args:
        probability: Probability of participation, or one per client; each is a number or a schedule
            over rounds.

    Example:
        >>> import fedadmm as fa
        >>> [fa.BernoulliSampling(0.5).sample(seed=0, round_index=t, clients=5) for t in range(3)]
        [[0, 2, 3, 4], [], [0, 1]]
    """

    probability: Share | Schedule | Sequence[Share | Schedule]

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        uniform = round_generator(seed, round_index).random(clients)
        return _sorted(np.flatnonzero(uniform < self.probabilities_in(round_index, clients)))

    def probabilities_in(self, round_index: int, clients: int) -> Probabilities:
        """Return p_i^t of all clients in a round."""
        check_one_each(self, "probability", self.probability, clients)
        entries = self.probability
        if not isinstance(entries, Sequence):
            return np.full(clients, float(at(entries, round_index)))
        return np.array([at(entry, round_index) for entry in entries], dtype=np.float64)

    def probabilities(self, clients: int) -> Probabilities | None:
        return None if self._schedules() else self.probabilities_in(0, clients)

    def check(self, clients: int, rounds: int) -> None:
        self.probabilities_in(0, clients)
        for schedule in self._schedules():
            for index in range(rounds):
                check(self, f"probability in round {index}", at(schedule, index), UnitInterval)

    def _schedules(self) -> list[Schedule]:
        entries = self.probability if isinstance(self.probability, Sequence) else [self.probability]
        return [entry for entry in entries if callable(entry)]


@part("sampler", "weighted")
class WeightedSampling(Sampler):
    """A fixed number of clients without replacement, with probabilities proportional to weights.

    Systematic sampling in random order: p_i = size * w_i / sum w exactly, bounded by one; the
    excess over one is distributed among the other clients.

    Args:
        weights: One non-negative weight per client.
        size: Number of participants.

    Example:
        >>> import fedadmm as fa
        >>> sampler = fa.WeightedSampling(weights=[1.0, 1.0, 2.0], size=2)
        >>> sampler.probabilities(3).tolist()
        [0.5, 0.5, 1.0]
    """

    weights: Sequence[NotNegative]
    size: Count

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        return systematic(round_generator(seed, round_index), self.probabilities(clients))

    def probabilities(self, clients: int) -> Probabilities:
        check_one_each(self, "weights", self.weights, clients)
        return capped_shares(count_of(self, self.size, clients), np.asarray(self.weights, float))


def capped_shares(total: float, weights: Probabilities) -> Probabilities:
    """Distribute `total` in proportion to the weights, with shares of at most one.

    The excess of bounded shares is distributed among the others.
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


def systematic(rng: np.random.Generator, probabilities: Probabilities) -> list[int]:
    """Return a sample with exactly these inclusion probabilities, by systematic sampling."""
    size = round(float(probabilities.sum()))
    order = rng.permutation(len(probabilities))
    edges = np.cumsum(probabilities[order])
    ticks = rng.random() + np.arange(size)
    picks = np.searchsorted(edges, ticks, side="right").clip(max=len(order) - 1)
    return _sorted(np.unique(order[picks]))


@part("sampler", "non-overlapping")
class NonOverlappingSampling(Sampler):
    """One random block of a fixed partition of the clients.

    Args:
        blocks: Number of blocks, which are drawn once per seed.

    Example:
        >>> import fedadmm as fa
        >>> sampler = fa.NonOverlappingSampling(blocks=2)
        >>> [sampler.sample(seed=0, round_index=t, clients=6) for t in range(3)]
        [[0, 2, 5], [1, 3, 4], [0, 2, 5]]
    """

    blocks: Count

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        order = numpy_generator(derive(seed, "sampler-blocks")).permutation(clients)
        block = int(round_generator(seed, round_index).integers(self.blocks))
        return _sorted(np.array_split(order, self.blocks)[block])

    def probabilities(self, clients: int) -> Probabilities:
        return np.full(clients, 1.0 / self.blocks)

    def check(self, clients: int, rounds: int) -> None:
        if self.blocks > clients:
            raise ParameterError(
                f"NonOverlappingSampling.blocks: got {self.blocks}, expected at most the number "
                f"of clients, {clients}."
            )


@part("sampler", "doubly-uniform")
class DoublyUniformSampling(Sampler):
    """A uniformly random number of clients from 1 to n, drawn uniformly without replacement.

    Example:
        >>> import fedadmm as fa
        >>> [fa.DoublyUniformSampling().sample(seed=0, round_index=t, clients=5) for t in range(3)]
        [[0, 1, 4], [0, 1, 2], [0]]
    """

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        rng = round_generator(seed, round_index)
        size = int(rng.integers(1, clients + 1))
        return _sorted(rng.choice(clients, size, replace=False))

    def probabilities(self, clients: int) -> Probabilities:
        return np.full(clients, (clients + 1) / (2 * clients))


@part("sampler", "cyclic")
class CyclicSampling(Sampler):
    """A fixed number of clients in cyclic order.

    Args:
        size: Number of participants (int), or their fraction of all clients (float).

    Example:
        >>> import fedadmm as fa
        >>> [fa.CyclicSampling(2).sample(seed=0, round_index=t, clients=5) for t in range(3)]
        [[0, 1], [2, 3], [0, 4]]
    """

    is_random = False

    size: Count | Share

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        count = count_of(self, self.size, clients)
        return sorted((round_index * count + offset) % clients for offset in range(count))

    def probabilities(self, clients: int) -> Probabilities:
        return np.full(clients, count_of(self, self.size, clients) / clients)


@part("sampler", "trace")
class TraceSampling(Sampler):
    """Participants from a given trace.

    Args:
        rounds: Client ids of every round.
        repeat: Whether to repeat the trace from its end on; otherwise it must cover the run.

    Raises:
        ParameterError: The trace is empty, or a round contains a client twice.

    Example:
        >>> import fedadmm as fa
        >>> sampler = fa.TraceSampling([[0, 1], [2]], repeat=True)
        >>> [sampler.sample(seed=0, round_index=t, clients=3) for t in range(3)]
        [[0, 1], [2], [0, 1]]
    """

    is_random = False

    rounds: Sequence[Sequence[int]]
    repeat: bool = False

    def __post_init__(self) -> None:
        if not self.rounds:
            raise ParameterError("TraceSampling.rounds: got no round, expected at least one.")
        for index, ids in enumerate(self.rounds):
            if len(set(ids)) != len(ids):
                raise ParameterError(
                    f"TraceSampling.rounds[{index}]: got {list(ids)}, expected distinct ids."
                )

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        return sorted(self.rounds[round_index % len(self.rounds)])

    def probabilities(self, clients: int) -> Probabilities:
        flat = np.array([i for ids in self.rounds for i in ids], dtype=np.int64)
        if flat.size and (flat.min() < 0 or flat.max() >= clients):
            unknown = flat[(flat < 0) | (flat >= clients)][0]
            raise ParameterError(
                f"TraceSampling.rounds: got client {unknown}, expected ids from 0 to {clients - 1}."
            )
        return np.bincount(flat, minlength=clients) / len(self.rounds)

    def check(self, clients: int, rounds: int) -> None:
        super().check(clients, rounds)
        if not self.repeat and rounds > len(self.rounds):
            raise ParameterError(
                f"TraceSampling.rounds: got {len(self.rounds)} rounds, expected {rounds} as in the "
                "run. Use repeat=True to repeat the trace."
            )
