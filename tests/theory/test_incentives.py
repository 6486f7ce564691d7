"""The incentive game against brute force, its potential and the closed form of equal clients."""

import itertools

import numpy as np
import pytest

from fedadmm.core.errors import ParameterError
from fedadmm.theory import incentives
from fedadmm.theory.incentives import RationalEpochs
from support import printed
from support.rejections import naming
from support.thinning import thinned

GAMES = {
    "equal": incentives.game([1.0] * 8),
    "spread": incentives.game(np.linspace(0.5, 1.5, 20).tolist()),
    "weighted": incentives.game([0.4, 1.0, 2.5], [1, 2, 0.5], [4, 10, 6], [5, 1, 2]),
    "fifty": incentives.game(np.linspace(0.5, 1.5, 50).tolist()),
    "one effort": incentives.game([1.0, 2.0], 3.0, 3.0),
}
REWARDS = [0.05, 0.9, 1.6, 1.75, 2.2, 4.45, 30.0, 500.0]
CASES = list(itertools.product(GAMES, REWARDS))


@pytest.mark.parametrize(("name", "reward"), CASES)
def test_nobody_gains_by_another_effort(name, reward):
    clients = GAMES[name]
    efforts = incentives.equilibrium(clients, reward).efforts
    for i, (low, high) in enumerate(zip(clients.least, clients.most, strict=True)):
        others = sum(clients.weights[j] * efforts[j] for j in range(len(efforts)) if j != i)
        tried = np.linspace(low, high, 2001)
        mean = others + clients.weights[i] * tried
        payoff = reward * tried * mean - clients.costs[i] * tried**2
        own = printed.payoffs(clients, reward, efforts)[i]
        assert own >= payoff.max() - 1e-9 * (1 + abs(payoff).max())


@pytest.mark.parametrize("case", thinned(3, CASES))
def test_best_responses_raise_the_potential_and_end_in_the_least_equilibrium(case):
    name, reward = case
    clients = GAMES[name]
    sweeps = list(itertools.islice(printed.best_responses(clients, reward), 2000))
    values = [printed.potential(clients, reward, efforts) for efforts in sweeps]
    start = printed.potential(clients, reward, clients.least)
    rises = np.diff([start, *values])
    assert (rises >= -1e-9 * (1 + np.abs(values))).all()
    found = incentives.equilibrium(clients, reward).efforts
    np.testing.assert_allclose(sweeps[-1], found, rtol=1e-9)


def test_the_potential_is_exact_up_to_the_weights():
    clients = GAMES["weighted"]
    rng = np.random.default_rng(3)
    for _ in range(50):
        efforts = rng.uniform(clients.least, clients.most)
        client = int(rng.integers(3))
        other = efforts.copy()
        other[client] = rng.uniform(clients.least[client], clients.most[client])
        gain = printed.payoffs(clients, 1.3, other) - printed.payoffs(clients, 1.3, efforts)
        rise = printed.potential(clients, 1.3, other) - printed.potential(clients, 1.3, efforts)
        assert rise == pytest.approx(clients.weights[client] * gain[client], abs=1e-12)


def test_with_equal_weights_it_is_the_papers_potential_over_n():
    clients, n, reward = GAMES["spread"], 20, 1.7
    efforts = np.random.default_rng(0).uniform(1, 10, n)
    papers = ((reward / (2 * n) - clients.costs) * efforts**2).sum()
    papers += reward / (2 * n) * efforts.sum() ** 2
    assert printed.potential(clients, reward, efforts) == pytest.approx(papers / n, rel=1e-12)


@pytest.mark.parametrize("n", [2, 5, 50])
@pytest.mark.parametrize("cost", [0.3, 1.0, 7.0])
def test_the_critical_reward_of_equal_clients_has_a_closed_form(n, cost):
    clients = incentives.game([cost] * n, 1.0, 10.0)
    critical = incentives.critical_reward(clients)
    assert critical == pytest.approx(2 * cost * n / (n + 1), rel=1e-9)
    assert incentives.equilibrium(clients, critical * 0.999).mean == pytest.approx(1.0)
    assert incentives.equilibrium(clients, critical * 1.001).mean == pytest.approx(10.0)


@pytest.mark.parametrize("name", GAMES)
def test_effort_never_falls_with_the_reward(name):
    means = [
        incentives.equilibrium(GAMES[name], reward).mean for reward in np.geomspace(0.01, 999, 400)
    ]
    assert (np.diff(means) >= -1e-12).all()


def test_a_runs_epochs_are_the_equilibriums():
    rule = RationalEpochs(reward=1.75, costs=np.linspace(0.5, 1.5, 20).tolist())
    efforts = incentives.equilibrium(GAMES["spread"], 1.75).efforts
    assert [rule.budget(100, 0, i) for i in range(20)] == [round(100 * e) for e in efforts]
    assert len(set(rule.efforts)) > 10


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: incentives.game([1.0]), "game costs 1 2"),
        (lambda: incentives.game([1.0, -1.0]), "game costs -1.0"),
        (lambda: incentives.game([1.0, 1.0], 5.0, 2.0), "game most 2 0 5"),
        (lambda: incentives.game([1.0, 1.0], [1.0]), "game least 1 2"),
        (lambda: RationalEpochs(reward=0.0, costs=[1.0, 1.0]), "reward 0.0"),
        (lambda: RationalEpochs(reward=1.0, costs=[1.0, 1.0], least=9.0, most=2.0), "most 2 9"),
        (lambda: incentives.equilibrium(GAMES["equal"], -1.0), "reward -1.0"),
    ],
)
def test_what_makes_no_game_is_refused(make, words):
    with pytest.raises(ParameterError, match=naming(words)):
        make()
