"""Differential privacy: the accountant, the noise, the budget, and an attack that measures it."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta, norm

import fedadmm as fa
from fedadmm.core.pipeline import round_rng
from fedadmm.core.privacy import Accountant, composed_epsilon, multiplier_for
from fedadmm.core.rng import KeyedGenerator
from support.federations import run
from support.rejections import naming
from test_properties import least_squares_federation

WORK: dict[str, Any] = {"solver": fa.GradientDescent(0.1), "stop": fa.Steps(2)}


def test_epsilon_of_abadi_et_al():
    # Abadi et al., Deep Learning with Differential Privacy, CCS 2016, section 3.2: q = 0.01,
    # sigma = 4, delta = 1e-5 and 10000 steps cost 1.26 by their moments accountant; the better
    # conversion of Renyi divergences to (epsilon, delta) gives 1.035, and PLD 0.947 from below.
    epsilon = Accountant(4.0, 1e-5, 0.01).epsilon(10_000)
    assert 0.947 < epsilon < 1.26
    assert epsilon == pytest.approx(1.035, abs=1e-3)


@pytest.mark.parametrize("rounds", [1, 5, 100])
@pytest.mark.parametrize("multiplier", [1.0, 5.0])
def test_epsilon_without_amplification_lies_above_the_exact_one(multiplier, rounds):
    # T rounds of the Gaussian mechanism are one with multiplier z / sqrt(T), whose delta is
    # Phi(m/2 - e/m) - exp(e) Phi(-m/2 - e/m) with m = sqrt(T) / z (Balle and Wang, ICML 2018).
    delta, shift = 1e-5, math.sqrt(rounds) / multiplier
    epsilon = Accountant(multiplier, delta).epsilon(rounds)

    def exact(e: float) -> float:
        return norm.cdf(shift / 2 - e / shift) - math.exp(e) * norm.cdf(-shift / 2 - e / shift)

    assert exact(epsilon) <= delta
    assert exact(0.85 * epsilon) > delta


def test_an_initial_round_with_full_participation_is_counted():
    plain, initial = Accountant(2.0, 1e-5, 0.1), Accountant(2.0, 1e-5, 0.1, True)
    once = Accountant(2.0, 1e-5).epsilon(1)  # of all orders, and the other one of whole ones
    assert once <= initial.epsilon(0) <= 1.002 * once
    assert initial.epsilon(10) > plain.epsilon(10)
    assert plain.epsilon(0) == 0.0


def test_only_bernoulli_sampling_amplifies():
    spent = {}
    for sampler in (fa.BernoulliSampling(0.4), fa.UniformSampling(2), fa.FullParticipation()):
        upload = [fa.Clip(1.0), fa.GaussianNoise(2.0)]
        result = run(
            fa.FedAvg(), least_squares_federation(), 5, sampler=sampler, pipeline=upload, **WORK
        )
        spent[type(sampler)] = result.history[-1]["privacy"]["epsilon"]
    full = Accountant(2.0, 1e-5).epsilon(5)
    assert spent[fa.UniformSampling] == spent[fa.FullParticipation] == full
    assert spent[fa.BernoulliSampling] == Accountant(2.0, 1e-5, 0.4).epsilon(5) < full


def test_a_budget_ends_the_run_before_it_is_exceeded():
    upload = [fa.Clip(1.0), fa.GaussianNoise(3.0, budget=4.0)]
    result = run(fa.FedAvg(), least_squares_federation(), 50, pipeline=upload, **WORK)
    account = Accountant(3.0, 1e-5)
    assert result.code == "budget"
    assert account.epsilon(len(result.history)) <= 4.0 < account.epsilon(len(result.history) + 1)
    assert re.search(naming("budget 4"), result.status)
    assert result.history[-1]["privacy"]["epsilon"] == account.epsilon(len(result.history))


def test_a_run_whose_budget_is_exhausted_is_rejected(tmp_path):
    given = least_squares_federation()

    def upload(budget: float) -> list[Any]:
        return [fa.Clip(1.0), fa.GaussianNoise(3.0, budget=budget)]

    points = fa.Checkpoints(tmp_path, every=1)
    run(fa.FedAvg(), given, 5, pipeline=upload(100.0), checkpoints=points, **WORK)
    points = fa.Checkpoints(tmp_path, every=1)
    more: dict[str, Any] = {"checkpoints": points, "resume": True, **WORK}
    with pytest.raises(fa.errors.StateError, match=naming("epsilon budget 2.5")):
        run(fa.FedAvg(), given, 50, pipeline=upload(2.5), **more)


def test_the_multiplier_beside_other_mechanisms_is_the_least():
    """Without amplification precisions add up: 1 / z^2 of 10 uses and 1 / 4^2 of 3."""
    alone = multiplier_for(2.0, 1e-5, 1.0, 1)
    found = multiplier_for(2.0, 1e-5, 1.0, 10, {(8.0, 1.0): 3})
    assert 10 / found**2 + 3 / 8.0**2 == pytest.approx(1 / alone**2, rel=0.01)
    assert composed_epsilon({(found, 1.0): 10, (8.0, 1.0): 3}, 1e-5) <= 2.0
    with pytest.raises(fa.errors.ParameterError, match=naming("epsilon 0.1")):
        multiplier_for(0.1, 1e-5, 1.0, 10, {(8.0, 1.0): 3})


def test_the_multiplier_for_an_epsilon_is_the_least():
    found = multiplier_for(3.0, 1e-5, 0.1, 200)
    assert Accountant(found, 1e-5, 0.1).epsilon(200) <= 3.0
    assert Accountant(0.99 * found, 1e-5, 0.1).epsilon(200) > 3.0


def sums(multiplier: float, weights: tuple[float, ...], seeds: int) -> np.ndarray:
    """theta after one round of FedSGD with lr 1 whose clients all send zero."""
    d = 50
    clients = [fa.Quadratic(torch.eye(d).double(), torch.zeros(d).double()) for _ in weights]
    problem = fa.Problem(clients, weights=weights)
    upload = [fa.Clip(3.0), fa.GaussianNoise(multiplier, 0.1)]
    start = torch.zeros(d, dtype=torch.float64)
    found = [
        fa.simulate(
            fa.FedSGD(1.0), problem, 1, initial=start, pipeline=upload, seed=s, evaluate=False
        )
        for s in range(seeds)
    ]
    return np.concatenate([result.params.numpy() for result in found])


def test_the_noise_is_that_of_the_heaviest_client():
    # Weights 1, 1, 2 of 4: the last client can change the sum by 3 * 0.5.
    drawn = sums(0.7, (1.0, 1.0, 2.0), 200)
    assert drawn.std() == pytest.approx(0.7 * 3.0 * 0.5, rel=0.03)
    assert abs(drawn.mean()) < 0.05


def test_rounds_without_participants_add_noise():
    given = least_squares_federation()
    upload = [fa.Clip(1e-12), fa.GaussianNoise(1.0)]
    rare = fa.BernoulliSampling(1e-6)
    result = run(fa.FedAvg(), given, 3, sampler=rare, pipeline=upload, **WORK)
    thetas = [given.initial, *result.trajectory]
    assert [record["cohort"]["participants"] for record in result.history] == [0, 0, 0]
    assert all(not torch.equal(a, b) for a, b in pairwise(thetas))


def test_noise_is_another_with_other_clients_and_fresh_in_a_deployment():
    like = torch.zeros(100, dtype=torch.float64)

    def drawn(*of: Any) -> torch.Tensor:
        return round_rng(*of).normal(like, "delta")

    again = drawn(3, 7, [1, 2], False)
    assert torch.equal(again, drawn(3, 7, [1, 2], False))
    for other in ((3, 7, [1, 3], False), (3, 8, [1, 2], False), (4, 7, [1, 2], False)):
        assert not torch.isclose(again, drawn(*other)).any()
    assert not torch.isclose(drawn(3, 7, [1, 2], True), drawn(3, 7, [1, 2], True)).any()


def test_noise_from_the_machine_is_normal():
    drawn = KeyedGenerator(None).normal(torch.zeros(20_000, dtype=torch.float64), "").numpy()
    assert abs(drawn.mean()) < 0.04
    assert drawn.std() == pytest.approx(1.0, abs=0.03)
    assert (np.abs(drawn) > 1.96).mean() == pytest.approx(0.05, abs=0.01)


def audited(multiplier: float, trials: int = 400) -> float:
    """A lower bound on epsilon, with 95 % confidence, from whether a canary took part.

    The canary sends a gradient of the largest length in one direction; the attack looks along it.
    Both error rates are bounded by Clopper and Pearson (Jagielski et al., NeurIPS 2020).
    """
    d, clip = 20, 1.0
    along = torch.zeros(d, dtype=torch.float64)
    along[0] = 5.0
    seen: dict[bool, list[float]] = {True: [], False: []}
    for canary, scores in seen.items():
        targets = [torch.zeros(d).double(), -along if canary else torch.zeros(d).double()]
        problem = fa.Problem([fa.Quadratic(torch.eye(d).double(), b) for b in targets])
        for trial in range(trials):
            result = fa.simulate(
                fa.FedSGD(1.0),
                problem,
                1,
                initial=torch.zeros(d, dtype=torch.float64),
                pipeline=[fa.Clip(clip), fa.GaussianNoise(multiplier, 0.1)],
                seed=2 * trial + canary,
                evaluate=False,
            )
            scores.append(-float(result.params[0]) * 2)  # in units of what a client sends
    threshold = 0.9
    hits = sum(score > threshold for score in seen[True])
    false = sum(score > threshold for score in seen[False])
    least = beta.ppf(0.05, hits, trials - hits + 1) if hits else 0.0
    most = beta.ppf(0.95, false + 1, trials - false)
    return math.log(max(least - 0.01, 1e-12) / most)


def test_an_attack_measures_less_than_claimed_and_more_when_the_noise_is_off(monkeypatch):
    claimed = Accountant(1.0, 0.01).epsilon(1)
    measured = audited(1.0)
    assert 0.3 < measured < claimed
    unchanged = lambda _, aggregate, state, context: (aggregate, state)  # noqa: E731
    monkeypatch.setattr(fa.GaussianNoise, "on_aggregate", unchanged)
    assert audited(1.0) > claimed


def noisy(algorithm: Any, rounds: int, seed: int, *stages: Any, **work: Any) -> fa.Result:
    """Four clients with f_i = ||x||^2 / 2 in 50 dimensions; the clip never cuts anything."""
    d = 50
    clients = [fa.Quadratic(torch.eye(d).double(), torch.zeros(d).double()) for _ in range(4)]
    return fa.simulate(
        algorithm,
        fa.Problem(clients),
        rounds,
        initial=torch.zeros(d, dtype=torch.float64),
        pipeline=[fa.Clip(1.0), *stages, fa.GaussianNoise(0.02, 0.1)],
        seed=seed,
        **work,
    )


EACH = 0.02 * 1.0 / 4
"""The noise on every entry of a round's sum: multiplier, clip, weight."""


@pytest.mark.parametrize("stages", [(), (fa.TopK(5), fa.Quantise(8))], ids=["whole", "compressed"])
@pytest.mark.parametrize("method", [fa.FedADMM(1.0), fa.FedDR(1.0)], ids=["fedadmm", "feddr"])
def test_a_tracked_mean_adds_up_the_noise_of_all_rounds(method, stages):
    # The server's mean is that of what clients sent plus the sum of all noise: rounds x EACH^2.
    work: dict[str, Any] = {"solver": fa.ExactSolver(), "sampler": fa.UniformSampling(2)}
    squares = {rounds: [] for rounds in (4, 25)}
    for seed in range(12):
        result = noisy(method, 25, seed, *stages, callbacks=[fa.Diagnostics(1)], **work)
        looks = [record["callbacks"] for record in result.history]
        for rounds, found in squares.items():
            found.append(looks[rounds - 1]["mean_drift"] ** 2 / 50)
        assert not any("away from the mean" in text for look in looks for text in warned(look))
    for rounds, found in squares.items():
        assert np.mean(found) == pytest.approx(rounds * EACH**2, rel=0.25)


def warned(look: dict[str, Any]) -> list[str]:
    return look.get("warnings", [])


def test_fresh_moves_forget_the_noise_of_earlier_rounds():
    # A step of 1/2 on f leaves half of theta: its variance stays below EACH^2 / (1 - 1/4).
    found = {4: [], 25: []}
    for seed in range(12):
        work: dict[str, Any] = {"solver": fa.GradientDescent(0.5), "keep_trajectory": True}
        thetas = noisy(fa.FedAvg(), 25, seed, evaluate=False, **work).trajectory
        for rounds, squares in found.items():
            squares.append(float(thetas[rounds - 1].square().mean()))
    for rounds, squares in found.items():
        expected = EACH**2 * (1 - 0.25**rounds) / (1 - 0.25)
        assert np.mean(squares) == pytest.approx(expected, rel=0.25)
