"""Incentives for local work: the potential game of Liu, Wang and Zuazua (arXiv 2411.11793).

Client i chooses its effort s_i in [q_i, Q_i], its local epochs per round.  The server pays lambda R
per unit of effort, where R = sum_j r_j s_j is the weighted mean effort, and effort costs c_i s_i²:

    payoff     P_i(s) = lambda s_i R - c_i s_i²
    potential  Phi(s) = (lambda/2) R² + sum_i (lambda r_i²/2 - c_i r_i) s_i²

r_i dP_i/ds_i = dPhi/ds_i, so that a client that improves its payoff increases Phi; with r_i = 1/n
Phi is the exact potential of the paper divided by n.  In an equilibrium each effort depends on R
only,

    s_i = clip(lambda R / (2 c_i - lambda r_i), q_i, Q_i),   or Q_i where c_i <= lambda r_i,

so that equilibria are the fixed points of one increasing, piecewise linear function of R.  Efforts
are strategic complements: a least equilibrium exists, best responses from the least efforts
converge to it, and it increases with lambda.  The critical reward is the lambda at which it jumps,
2 c n / (n + 1) for identical clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Positive, part
from fedadmm.core.rng import Key
from fedadmm.core.stopping import StoppingRule
from fedadmm.core.validation import check

Vector = NDArray[np.float64]


class Game(NamedTuple):
    """Parameters of the clients: costs, bounds of the effort, and weights with sum 1."""

    costs: Vector
    least: Vector
    most: Vector
    weights: Vector


class Equilibrium(NamedTuple):
    """Efforts from which no client can increase its payoff alone, and their weighted mean."""

    efforts: Vector
    mean: float
    """R, the weighted mean effort; the server pays lambda R per unit of effort."""


def game(
    costs: Sequence[float],
    least: float | Sequence[float] = 1.0,
    most: float | Sequence[float] = 10.0,
    weights: Sequence[float] | None = None,
) -> Game:
    """Return the game of len(costs) clients.

    Args:
        costs: c_i, one per client.
        least: q_i, for all clients or one per client.
        most: Q_i, for all clients or one per client.
        weights: r_i, one per client, scaled to the sum 1; equal by default.

    Raises:
        ParameterError: Wrong number of entries, a value that is not positive, or most < least.
    """
    count = len(costs)
    if count < 2:
        raise ParameterError(f"game: costs: got {count} entries, expected at least 2.")
    given = {"costs": costs, "least": least, "most": most, "weights": weights or 1.0}
    full = {name: _vector(name, values, count) for name, values in given.items()}
    if (full["most"] < full["least"]).any():
        worst = int(np.argmax(full["least"] - full["most"]))
        raise ParameterError(
            f"game: most: got {full['most'][worst]:g} for client {worst}, expected at least its "
            f"least effort {full['least'][worst]:g}."
        )
    full["weights"] = full["weights"] / full["weights"].sum()
    return Game(**full)


def _vector(name: str, values: float | Sequence[float], count: int) -> Vector:
    if not isinstance(values, Sequence):
        check("game", name, values, Positive)
        return np.full(count, float(values))
    if len(values) != count:
        raise ParameterError(
            f"game: {name}: got {len(values)} entries, expected one per client, {count}."
        )
    for value in values:
        check("game", name, value, Positive)
    return np.asarray(values, dtype=np.float64)


def equilibrium(clients: Game, reward: float) -> Equilibrium:
    """Return the least equilibrium, the limit of best responses from the least efforts."""
    check("equilibrium", "reward", reward, Positive)
    mean = _least_fixed_point(clients, reward)
    efforts = _responses(clients, reward, np.array([mean]))[0]
    return Equilibrium(efforts, float(clients.weights @ efforts))


def _responses(clients: Game, reward: float, means: Vector) -> Vector:
    """Return the clients' best efforts for each mean effort, one row per mean."""
    slope = 2 * clients.costs - reward * clients.weights
    eager = clients.costs <= reward * clients.weights
    wanted = reward * means[:, None] / np.where(eager, 1.0, slope)
    clipped = np.clip(wanted, clients.least, clients.most)
    result: Vector = np.where(eager, clients.most, clipped)
    return result


def _least_fixed_point(clients: Game, reward: float) -> float:
    """Return the least R with phi(R) = R by a search over the linear pieces of phi."""
    slope = 2 * clients.costs - reward * clients.weights
    kinks = np.concatenate([clients.least, clients.most]) * np.tile(slope, 2) / reward
    low = float(clients.weights @ clients.least)
    high = float(clients.weights @ clients.most)
    inside = kinks[(kinks > low) & (kinks < high)]
    knots = np.unique(np.concatenate([[low], inside, [high]]))
    values = np.minimum(_responses(clients, reward, knots) @ clients.weights, high)  # rounding
    met = int(np.argmax(values <= knots))  # phi(high) <= high, so there is one
    if met == 0:
        return low
    (a, b), (fa, fb) = knots[met - 1 : met + 1], values[met - 1 : met + 1]
    rise = (fb - fa) / (b - a)  # below 1, because phi - R changes its sign in this piece
    return float(a + (fa - a) / (1 - rise))


def critical_reward(clients: Game, digits: float = 1e-12) -> float:
    """Return the reward at which the mean effort exceeds the midpoint of least and most effort.

    The mean effort of the least equilibrium increases with the reward, so that bisection also
    finds a reward at which it jumps.

    Args:
        clients: The game.
        digits: The relative accuracy.
    """
    middle = float(clients.weights @ (clients.least + clients.most)) / 2
    low, high = 0.0, float((clients.costs / clients.weights).max())
    while high - low > digits * high:
        reward = (low + high) / 2
        if equilibrium(clients, reward).mean < middle:
            low = reward
        else:
            high = reward
    return high


@part("stop", "rational-epochs")
class RationalEpochs(StoppingRule):
    """Stop after each client's epochs in the least equilibrium of the incentive game.

    Args:
        reward: lambda, the server's payment per unit of effort at a mean effort of 1.
        costs: c_i, one number per client.
        least: the smallest number of epochs per round.
        most: the largest number of epochs per round.
        weights: r_i of the mean effort, one number per client; equal by default.
    """

    per_client = ("costs", "weights")

    reward: Positive
    costs: Sequence[Positive]
    least: Positive = 1.0
    most: Positive = 10.0
    weights: Sequence[Positive] | None = None

    def __post_init__(self) -> None:
        self.efforts  # noqa: B018 - validates the parameters of the game

    @cached_property
    def efforts(self) -> list[float]:
        """Epochs per round of each client in the equilibrium."""
        clients = game(self.costs, self.least, self.most, self.weights)
        return [float(effort) for effort in equilibrium(clients, self.reward).efforts]

    def budget(self, steps_per_epoch: int, key: Key, client: int) -> int:
        return max(1, round(self.efforts[client] * steps_per_epoch))

    def sentence(self, reached: bool) -> str:
        return "the epochs that pay best for the client done"
