"""Which clients take part, depending on earlier rounds: on participation, losses or energy.

None of these has probabilities p_i that stay, so that no certificate is issued for them.  A method
still converges under every rule that keeps taking everybody (Gong et al.: the sum of p_i^t over
the rounds is infinite for every client); each class says how it sees to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from fedadmm.core.parts import Count, Positive, Share, check_one_each, part
from fedadmm.core.rng import Key
from fedadmm.core.sampling import (
    Probabilities,
    Sampler,
    Seen,
    SeenClients,
    capped_shares,
    count_of,
    draws_of,
    systematic,
)
from fedadmm.core.schedules import of_client
from fedadmm.core.validation import check

OneRound = Annotated[float, Ge(1)]
"""Energy for at least one round."""


@part("sampler", "least-recently-seen")
class LeastRecentlySeenSampling(Sampler):
    """The `size` clients that were asked the longest ago; ties are broken at random.

    Without losses everybody is heard once in n/size rounds.  A client that does not answer waits
    like the others until it is asked again.
    """

    looks_back = True
    is_random = False

    size: Count | Share

    def sample(
        self, seed: Key, round_index: int, clients: int, known: SeenClients | None = None
    ) -> Sequence[int]:
        assert known is not None
        never = Seen(asked=-2)
        rounds = [known.get(client, never).asked for client in range(clients)]
        ties = draws_of(seed, round_index).permutation(clients)
        count = count_of(self, self.size, clients)
        return sorted(int(client) for client in np.lexsort((ties, np.array(rounds)))[:count])

    def check(self, clients: int, rounds: int) -> None:
        count_of(self, self.size, clients)


@part("sampler", "loss")
class LossSampling(Sampler):
    """`size` clients, more often those whose data the global model fitted worse when last heard.

    p_i = floor + (size - n floor) * loss_i / (sum of losses), capped at one.  The floor, which is
    above 0 and at most size/n, gives everybody a chance in every round.  A client that was never
    heard counts with the largest loss that is known.  Where some losses are negative, all are
    counted from the smallest.

    Every reply then also tells the server the client's loss.
    """

    looks_back = True
    asks_losses = True

    size: Count | Share
    floor: Share

    def sample(
        self, seed: Key, round_index: int, clients: int, known: SeenClients | None = None
    ) -> Sequence[int]:
        assert known is not None
        return systematic(draws_of(seed, round_index), self.inclusion(clients, known))

    def inclusion(self, clients: int, known: SeenClients) -> Probabilities:
        """p_i of the next round."""
        losses = np.full(clients, np.nan)
        for client, seen in known.items():
            losses[client] = seen.loss
        finite = np.isfinite(losses)
        weights = np.ones(clients)
        if finite.any():
            lowest = min(0.0, float(losses[finite].min()))
            weights = np.where(finite, losses, losses[finite].max()) - lowest
        if not weights.any():
            weights = np.ones(clients)
        return self._with_floor(weights)

    def _with_floor(self, weights: Probabilities) -> Probabilities:
        """Shares of what the floor leaves over; each has room for 1 - floor of it."""
        if self.floor == 1.0:
            return np.ones(len(weights))
        count = count_of(self, self.size, len(weights))
        room, left = 1.0 - self.floor, count - len(weights) * self.floor
        spread = np.maximum(weights, weights.max() * 1e-9)  # so that there is always enough room
        return self.floor + room * capped_shares(left / room, spread)

    def check(self, clients: int, rounds: int) -> None:
        share = count_of(self, self.size, clients) / clients
        check(self, "floor", self.floor, Annotated[float, Gt(0), Le(share)])


@part("sampler", "energy")
class EnergySampling(Sampler):
    """`size` clients at random among those with enough energy, fewer when there are not as many.

    A client starts with `capacity`; a round that asks it costs 1, whether its reply arrives or not,
    and every round gives back `recovery`, up to the capacity.  Both are one number, or one per
    client.  Who has less than 1 left is not asked, so that in the long run client i takes part in
    at most a share recovery_i of the rounds, and again and again, because it is chosen uniformly.
    """

    size: Count | Share
    capacity: OneRound | Sequence[OneRound] = 1.0
    recovery: Positive | Sequence[Positive] = 0.1

    def sample(
        self, seed: Key, round_index: int, clients: int, known: SeenClients | None = None
    ) -> Sequence[int]:
        capacities = tuple(float(of_client(self.capacity, i)) for i in range(clients))
        recoveries = tuple(float(of_client(self.recovery, i)) for i in range(clients))
        count = count_of(self, self.size, clients)
        return _History(seed, count, capacities, recoveries).cohort(round_index)

    def check(self, clients: int, rounds: int) -> None:
        count_of(self, self.size, clients)
        check_one_each(self, "capacity", self.capacity, clients)
        check_one_each(self, "recovery", self.recovery, clients)


@lru_cache(maxsize=8)  # so that a round does not draw all earlier ones
class _History:
    """The cohorts of all rounds so far: each is drawn from what the ones before left over."""

    def __init__(
        self, seed: Key, size: int, capacities: Sequence[float], recoveries: Sequence[float]
    ) -> None:
        self._seed = seed
        self._size = size
        self._capacities = np.array(capacities)
        self._recoveries = np.array(recoveries)
        self._energy = self._capacities.copy()
        self._cohorts: list[list[int]] = []

    def cohort(self, round_index: int) -> list[int]:
        """The cohort of a round; those before it are drawn first."""
        while len(self._cohorts) <= round_index:
            able = np.flatnonzero(self._energy >= 1.0 - _ROUNDING)
            draws = draws_of(self._seed, len(self._cohorts))
            chosen = draws.choice(able, min(self._size, len(able)), replace=False)
            self._energy[chosen] -= 1.0
            self._energy = np.minimum(self._energy + self._recoveries, self._capacities)
            self._cohorts.append(sorted(int(client) for client in chosen))
        return self._cohorts[round_index]


_ROUNDING = 1e-9
"""Ten times 0.1 is enough for one round."""
