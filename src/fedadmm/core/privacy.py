"""Privacy accounting: (epsilon, delta) of the sums that a run with noise releases.

A round releases the sum of clipped updates with Gaussian noise, whose standard deviation is
`multiplier` times the largest influence of a client: the Gaussian mechanism.  With Bernoulli
sampling (Poisson sampling) a round is amplified by the probability of participation; for other
samplers it is not, and every round counts like one with full participation.  Rounds are composed
in Renyi divergence (Mironov, CSF 2017; Mironov, Talwar, Zhang, 2019) by `dp-accounting`.

Two federations are neighbours if one has an additional client with all its data: client-level
privacy.  The model, all later rounds and everything computed from them are functions of the
released sums, so that no other quantity needs to be accounted for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedadmm.core.errors import ConfigError, ParameterError
from fedadmm.core.parts import Count, Fraction, Positive, Share, checked_arguments

ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 384, 512, 1024)
"""Orders of the Renyi divergence over which epsilon is minimised."""


def check_accountant() -> None:
    """Raise a ConfigError if the package that does the accounting is not installed."""
    _dp_accounting()


def _dp_accounting() -> Any:
    try:
        import dp_accounting
        from dp_accounting import rdp as rdp
    except ImportError as error:
        raise ConfigError(
            "noise needs the accountants of dp-accounting, which is not installed; pip install "
            "'fedadmm[privacy]'"
        ) from error
    return dp_accounting


@dataclass(frozen=True)
class Accountant:
    """Computes the consumed epsilon after the rounds of a run.

    Args:
        multiplier: Standard deviation of the noise, in units of the largest influence of a client.
        delta: delta of (epsilon, delta).
        rate: Probability of participation under Bernoulli sampling; 1 without amplification.
        starts_with_everyone: Whether an initial round with all clients precedes the others.
        budget: Largest epsilon; None for no limit.
    """

    multiplier: float
    delta: float
    rate: float = 1.0
    starts_with_everyone: bool = False
    budget: float | None = None

    def epsilon(self, rounds: int) -> float:
        """Return the consumed epsilon after this number of rounds."""
        count = rounds + self.starts_with_everyone
        if count <= 0:
            return 0.0
        orders, usual, initial = self._divergences
        first = initial if self.starts_with_everyone else 0 * initial
        divergence = usual * rounds + first
        epsilon, _ = _dp_accounting().rdp.compute_epsilon(orders, divergence, self.delta)
        return float(epsilon)

    @cached_property
    def _divergences(self) -> tuple[Any, Any, Any]:
        """The orders, and the Renyi divergences of a round and of an initial round."""
        dp = _dp_accounting()
        # Integer orders with amplification: fractional ones do not converge for small noise.
        orders = None if self.rate >= 1 else ORDERS
        events = (self.event, dp.GaussianDpEvent(self.multiplier))
        made = [dp.rdp.RdpAccountant(orders).compose(event) for event in events]
        return made[0].orders, made[0].rdp, made[1].rdp

    @property
    def event(self) -> Any:
        """The event of dp-accounting for one round."""
        dp = _dp_accounting()
        noise = dp.GaussianDpEvent(self.multiplier)
        return noise if self.rate >= 1 else dp.PoissonSampledDpEvent(self.rate, noise)

    @cached_property
    def affordable(self) -> int | None:
        """Number of rounds within the budget; None without a budget."""
        budget = self.budget
        return None if budget is None else most_affordable(lambda n: self.epsilon(n) <= budget)

    def check(self) -> None:
        """Raise a ParameterError if one round exceeds the budget."""
        if self.affordable == 0:
            raise ParameterError(
                f"GaussianNoise.budget: got {self.budget:g}, expected at least "
                f"{self.epsilon(1):.4g}, the epsilon of one round at delta {self.delta:g}. Use a "
                f"multiplier above {self.multiplier:g}."
            )


def most_affordable(affords: Callable[[int], bool]) -> int:
    """Return the largest number that is affordable, by bisection; 0 if 1 is not."""
    high = 1
    while affords(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if affords(middle) else (low, middle)
    return low


def composed_epsilon(counts: Mapping[tuple[float, float], int], delta: float) -> float:
    """Return the epsilon of several mechanisms together.

    Args:
        counts: Maps (multiplier, rate) of a mechanism to its number of uses.
        delta: delta of (epsilon, delta).
    """
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
def multiplier_for(
    epsilon: Positive,
    delta: Fraction,
    rate: Share,
    rounds: Count,
    others: Mapping[tuple[float, float], int] | None = None,
) -> float:
    """Return the smallest noise multiplier, to 0.1 %, for a privacy budget.

    Args:
        epsilon: Largest epsilon after all rounds.
        delta: delta of (epsilon, delta).
        rate: Probability of participation under Bernoulli sampling; 1 for other samplers.
        rounds: Number of rounds.
        others: Other mechanisms in the same budget, as in `composed_epsilon`.

    Raises:
        ParameterError: The other mechanisms take the whole budget.
    """
    fixed = others or {}
    if (least := composed_epsilon(fixed, delta)) >= epsilon:
        raise ParameterError(f"epsilon: got {epsilon:g}, expected more than {least:.4g}.")

    def consumed(multiplier: float) -> float:
        return composed_epsilon({**fixed, (multiplier, rate): rounds}, delta)

    low, high = 0.0, 1.0
    while consumed(high) > epsilon:
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if consumed(middle) > epsilon:
            low = middle
        else:
            high = middle
    return high
