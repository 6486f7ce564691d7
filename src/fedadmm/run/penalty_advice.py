"""Advice on a penalty that is too small, from the residuals of a run.

Residual balancing (Boyd et al., Distributed Optimization and Statistical Learning via ADMM, 2011,
section 3.4.1) calls a penalty too small while the primal residual is more than 10 times the dual
one.  With few mini-batch steps this holds in most rounds of healthy runs as well.  A run whose
penalty is too small to damp the duals shows a second sign: its primal residual grows again.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from fedadmm.run.record import Record

BALANCE = 10.0
"""Ratio of primal to dual residual up to which both are balanced."""
GROWTH = 1.1
"""Growth of the primal residual, between means over quarters of a run, that is no fluctuation."""
SHORTEST = 16
"""Fewest rounds from which a trend can be read."""


def advice_on_penalty(history: Sequence[Record]) -> str | None:
    """Return a sentence with a larger penalty to try; None if there is no sign of a small one."""
    work = [record["work"] for record in history if record["work"]["primal_residual"] > 0]
    if len(work) < SHORTEST or not all(one["dual_residual"] > 0 for one in work):
        return None
    quarter = len(work) // 4
    primal = [one["primal_residual"] for one in work[-4 * quarter :]]
    means = [fmean(primal[k * quarter : (k + 1) * quarter]) for k in range(4)]
    ratios = [one["primal_residual"] / one["dual_residual"] for one in work[-2 * quarter :]]
    if min(ratios) <= BALANCE or means[-1] <= GROWTH * min(means):
        return None
    penalty = work[-1]["penalty_mean"]
    tried = penalty * fmean(ratios[-quarter:]) / BALANCE
    return (
        f"the penalty {penalty:.3g} is probably too small, because the primal residual grew from "
        f"{min(means):.3g} to {means[-1]:.3g} and is {fmean(ratios[-quarter:]):.0f} times the dual "
        f"one; try {tried:.1g}"
    )
