"""What a run with noise spends of its clients' privacy: (epsilon, delta) of what it releases.

One round releases the sum of clipped uploads with Gaussian noise of `multiplier` times the most
that one client can change it by: the Gaussian mechanism.  Where every client flips a coin of its
own (Poisson sampling) a round is amplified by the coin's probability; other samplers earn nothing,
so that every round counts as if everybody took part.  Rounds add up in Renyi divergence (Mironov,
CSF 2017; Mironov, Talwar, Zhang, 2019), by `dp-accounting`.

Two federations are neighbours when one has one client more, with all its data: user-level privacy.
The model, all later rounds and everything that is computed from them are functions of the released
sums, so that these are all there is to account for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedadmm.core.errors import FedADMMError, ParameterError
from fedadmm.core.parts import Count, Fraction, Positive, Share, checked_arguments

ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 384, 512, 1024)
"""The orders of Renyi divergences that the best is taken of."""


def _dp_accounting() -> Any:
    try:
        import dp_accounting
        from dp_accounting import rdp as rdp
    except ImportError as error:
        raise FedADMMError(
            "noise needs the accountants of dp-accounting, which is not installed; install "
            "fedadmm[privacy]"
        ) from error
    return dp_accounting


@dataclass(frozen=True)
class Accountant:
    """Counts epsilon over the rounds of one run."""

    multiplier: float
    delta: float
    rate: float = 1.0
    """The probability of every client's coin; 1 where nothing is amplified."""
    starts_with_everyone: bool = False
    """Whether a round with all clients came first."""
    budget: float | None = None

    def epsilon(self, rounds: int) -> float:
        """What has been spent after this many rounds."""
        count = rounds + self.starts_with_everyone
        if count <= 0:
            return 0.0
        orders, usual, initial = self._divergences
        first = initial if self.starts_with_everyone else 0 * initial
        spent = usual * rounds + first
        epsilon, _ = _dp_accounting().rdp.compute_epsilon(orders, spent, self.delta)
        return float(epsilon)

    @cached_property
    def _divergences(self) -> tuple[Any, Any, Any]:
        """The orders, and the Renyi divergences of a round and of an initial one."""
        dp = _dp_accounting()
        # Whole orders where rounds are amplified: fractional ones of small noise do not converge.
        orders = None if self.rate >= 1 else ORDERS
        events = (self.event, dp.GaussianDpEvent(self.multiplier))
        made = [dp.rdp.RdpAccountant(orders).compose(event) for event in events]
        return made[0].orders, made[0].rdp, made[1].rdp

    @property
    def event(self) -> Any:
        """One usual round, as dp-accounting names it."""
        dp = _dp_accounting()
        noise = dp.GaussianDpEvent(self.multiplier)
        return noise if self.rate >= 1 else dp.PoissonSampledDpEvent(self.rate, noise)

    @cached_property
    def affordable(self) -> int | None:
        """How many rounds the budget lasts; None without one."""
        if self.budget is None:
            return None
        high = 1
        while self.epsilon(high) <= self.budget:
            high *= 2
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.epsilon(middle) <= self.budget else (low, middle)
        return low

    def check(self) -> None:
        """Refuse a budget that does not last for one round."""
        if self.affordable == 0:
            raise ParameterError(
                f"GaussianNoise: budget is {self.budget:g}, but one round spends epsilon "
                f"{self.epsilon(1):.4g} at delta {self.delta:g}; use a multiplier above "
                f"{self.multiplier:g}"
            )


def composed_epsilon(counts: Mapping[tuple[float, float], int], delta: float) -> float:
    """What mechanisms of several kinds spend together: (multiplier, rate) -> how often."""
    made = {kind: count for kind, count in counts.items() if count}
    if not made:
        return 0.0
    accountants = [Accountant(z, delta, rate) for z, rate in made]
    if len(made) == 1:
        return accountants[0].epsilon(*made.values())
    dp = _dp_accounting()
    total = dp.rdp.RdpAccountant(ORDERS)
    for one, count in zip(accountants, made.values(), strict=True):
        total.compose(one.event, count)
    return float(total.get_epsilon(delta))


@checked_arguments
def multiplier_for(epsilon: Positive, delta: Fraction, rate: Share, rounds: Count) -> float:
    """The least noise multiplier (to 0.1 %) with which this many rounds spend at most epsilon."""
    low, high = 0.0, 1.0
    while Accountant(high, delta, rate).epsilon(rounds) > epsilon:
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if Accountant(middle, delta, rate).epsilon(rounds) > epsilon:
            low = middle
        else:
            high = middle
    return high
