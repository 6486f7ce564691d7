"""Samplers that look back: what they are told, whom they take, and that a resumed run agrees."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import numpy as np
import pytest

import fedadmm as fa
from fedadmm.core.sampling import Sampler, Seen
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.run.engines import VirtualTime
from support.engines import PROBLEMS
from support.federations import federation, run

N = 7


@dataclass(frozen=True)
class Spy(Sampler):
    """Takes clients from a plan, and keeps what it was told."""

    looks_back = True
    asks_losses = True

    plan: tuple[tuple[int, ...], ...]
    told: list = field(default_factory=list)

    def sample(self, seed, round_index, clients, known=None):
        self.told.append(dict(known))
        return self.plan[round_index]


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "workers"])
def test_the_server_knows_who_was_asked_heard_and_what_they_reported(engine):
    given = federation(1)
    spy = Spy(((0, 2), (2, 3), (), (0,)))
    infos = []
    result = run(
        fa.FedADMM(0.7),
        given,
        4,
        sampler=spy,
        engine=engine,
        solver=fa.GradientDescent(0.1),
        callbacks=[lambda report: infos.append({i.client: i for i in report.infos})],
    )
    starts = [given.start, *(theta.numpy() for theta in result.trajectory)]
    assert spy.told[0] == {}
    for index in range(3):
        known = spy.told[index + 1]
        assert set(known) == {c for cohort in spy.plan[: index + 1] for c in cohort}
        for client, seen in known.items():
            last = max(t for t in range(index + 1) if client in spy.plan[t])
            theta = starts[last]
            loss = theta @ given.A[client] @ theta / 2 - given.b[client] @ theta
            assert (seen.asked, seen.heard) == (last, last)
            assert seen.loss == pytest.approx(loss, abs=1e-12)
            assert seen.drift == infos[last][client].drift


def test_models_report_their_loss_at_theta_and_train_on_as_before():
    def history(sampler):
        return fa.simulate(
            fa.FedADMM(0.5),
            PROBLEMS["perceptron"](),
            3,
            sampler=sampler,
            solver=fa.SGD(0.1, batch_size=5),
            keep_trajectory=True,
        )

    spy = Spy(((0, 1, 2, 3, 4, 5),) * 3)
    asked, plain = history(spy), history(fa.FullParticipation())
    assert [t.tolist() for t in asked.trajectory] == [t.tolist() for t in plain.trajectory]
    # what was reported in the second round is about the model after the first
    mean = np.mean([seen.loss for seen in spy.told[2].values()])
    assert mean == pytest.approx(plain.history[0]["metrics"]["loss"], abs=1e-12)


def test_a_client_that_does_not_answer_was_asked_and_not_heard():
    spy = Spy(((0, 1, 2, 3, 4),) * 6)
    clock = VirtualTime(mode="sync", dropout=0.5)
    records = run(fa.FedADMM(0.7), federation(1), 6, sampler=spy, engine=clock).history
    replied = [set(record["cohort"]["clients"]) for record in records]
    assert any(len(clients) < 5 for clients in replied)
    for index in range(5):
        for client, seen in spy.told[index + 1].items():
            rounds = [t for t in range(index + 1) if client in replied[t]]
            assert (seen.asked, seen.heard) == (index, max(rounds, default=None))


def test_an_initial_round_asks_everybody():
    spy = Spy(((0,), (1,)))
    run(fa.FedDR(0.5, init="prox"), federation(1), 2, sampler=spy)
    assert {(seen.asked, seen.heard) for seen in spy.told[0].values()} == {(-1, -1)}
    assert sorted(spy.told[0]) == [0, 1, 2, 3, 4]


LOOKING_BACK = {
    "least recently seen": fa.LeastRecentlySeenSampling(2),
    "loss": fa.LossSampling(2, floor=0.1),
}
FORGETFUL = {
    "energy": fa.EnergySampling(2, capacity=2.0, recovery=0.3),
    "falling coins": fa.BernoulliSampling(fa.Geometric(0.9, 0.8, 0.2)),
}


@pytest.mark.parametrize("name", LOOKING_BACK | FORGETFUL)
def test_a_resumed_run_is_the_same_to_the_last_bit(name, tmp_path):
    given, sampler = federation(4), (LOOKING_BACK | FORGETFUL)[name]
    options = {"sampler": sampler, "solver": fa.GradientDescent(0.1), "seed": 3}
    whole = run(fa.FedADMMInSa(0.5), given, 12, **options)
    run(fa.FedADMMInSa(0.5), given, 5, checkpoints=Checkpoints(tmp_path), **options)
    rest = run(
        fa.FedADMMInSa(0.5), given, 12, checkpoints=Checkpoints(tmp_path), resume=True, **options
    )
    assert [r["cohort"]["clients"] for r in rest.history] == [
        r["cohort"]["clients"] for r in whole.history[5:]
    ]
    assert rest.params.tolist() == whole.params.tolist()


def test_a_checkpoint_without_a_memory_is_refused(tmp_path):
    given = federation(4)
    run(fa.FedADMM(0.5), given, 3, checkpoints=Checkpoints(tmp_path))
    with pytest.raises(fa.StateError, match="LossSampling looks back; start again from round 0"):
        run(
            fa.FedADMM(0.5),
            given,
            6,
            sampler=LOOKING_BACK["loss"],
            checkpoints=Checkpoints(tmp_path),
            resume=True,
        )


@pytest.mark.parametrize("engine", ["vectorised", "workers"])
@pytest.mark.parametrize("name", LOOKING_BACK)
def test_engines_choose_alike(name, engine):
    options = {"sampler": LOOKING_BACK[name], "solver": fa.GradientDescent(0.1)}
    expected = run(fa.FedADMM(0.5), federation(4), 10, **options)
    found = run(fa.FedADMM(0.5), federation(4), 10, engine=engine, **options)
    assert [r["cohort"]["clients"] for r in found.history] == [
        r["cohort"]["clients"] for r in expected.history
    ]


def test_least_recently_seen_takes_everybody_in_turn():
    history = run(
        fa.FedADMM(0.5), federation(4, clients=6), 9, sampler=fa.LeastRecentlySeenSampling(2)
    ).history
    cohorts = [record["cohort"]["clients"] for record in history]
    for begin in (0, 3, 6):
        assert sorted(c for cohort in cohorts[begin : begin + 3] for c in cohort) == [*range(6)]
    assert cohorts[:3] == cohorts[3:6] == cohorts[6:]  # and whoever was first is first again


def test_least_recently_seen_prefers_the_oldest_and_the_unknown():
    sampler = fa.LeastRecentlySeenSampling(3)
    known = {client: Seen(asked) for client, asked in enumerate([5, 2, 9, 4, 7])}
    assert sampler.sample(0, 10, 6, known) == [1, 3, 5]
    firsts = {tuple(sampler.sample(0, t, 6, {})) for t in range(40)}
    assert len(firsts) > 5  # ties are drawn


LOSSES = [0.5, 1.0, 4.0, 0.1, 2.0, 0.4]


def loss_known(losses):
    return {client: Seen(0, 0, 0.0, loss) for client, loss in enumerate(losses)}


def test_loss_sampling_takes_in_proportion_above_a_floor():
    sampler, size, floor = fa.LossSampling(2, floor=0.05), 2, 0.05
    p = sampler.inclusion(6, loss_known(LOSSES))
    expected = floor + (size - 6 * floor) * np.array(LOSSES) / sum(LOSSES)
    assert expected.max() < 1
    np.testing.assert_allclose(p, expected, rtol=1e-12)
    counts, rounds = np.zeros(6), 4000
    for t in range(rounds):
        ids = sampler.sample(1, t, 6, loss_known(LOSSES))
        assert len(ids) == size
        counts[ids] += 1
    assert (np.abs(counts / rounds - p) <= 5 * np.sqrt(p * (1 - p) / rounds)).all()


@pytest.mark.parametrize(
    ("losses", "weights"),
    [
        ([1.0, math.nan, 3.0, 2.0], [1, 3, 3, 2]),  # a client that was not heard: the largest
        ([-2.0, 0.0, 1.0, -1.0], [0, 2, 3, 1]),  # counted from the smallest
        ([0.0, 0.0, 0.0, 0.0], [1, 1, 1, 1]),
        ([math.inf, 1.0, 1.0, 2.0], [2, 1, 1, 2]),
    ],
)
def test_losses_that_are_missing_negative_or_zero(losses, weights):
    sampler = fa.LossSampling(1, floor=0.1)
    expected = 0.1 + (1 - 0.4) * np.array(weights) / sum(weights)
    np.testing.assert_allclose(sampler.inclusion(4, loss_known(losses)), expected, atol=1e-8)


def test_a_loss_far_above_the_others_is_capped_and_the_rest_shared():
    p = fa.LossSampling(2, floor=0.1).inclusion(4, loss_known([100.0, 1.0, 1.0, 2.0]))
    # one is certain; what is left above the floors, 2 - 1 - 3/10, goes 1 : 1 : 2
    np.testing.assert_allclose(p, [1.0, 0.275, 0.275, 0.45], rtol=1e-12)
    everybody = fa.LossSampling(4, floor=1.0)
    assert everybody.sample(0, 0, 4, loss_known([1.0, 2.0, 3.0, 4.0])) == [0, 1, 2, 3]


def test_energy_is_spent_and_comes_back():
    capacity, recovery = [1.0, 3.0, 1.0, 2.0, 1.0, 1.5], [0.1, 0.5, 1.0, 0.25, 0.3, 0.2]
    sampler = fa.EnergySampling(2, capacity, recovery)
    energy, counts, sizes, rounds = np.array(capacity), np.zeros(6), set(), 600
    for t in range(rounds):
        ids = sampler.sample(5, t, 6)
        able = int((energy >= 1 - 1e-9).sum())
        assert (energy[ids] >= 1 - 1e-9).all()
        assert len(ids) == min(2, able)
        energy[ids] -= 1
        energy = np.minimum(energy + recovery, capacity)
        counts[ids] += 1
        sizes.add(len(ids))
    assert (counts <= np.array(capacity) + rounds * np.array(recovery) + 1).all()
    assert (counts > 0).all()
    assert counts[2] > 3 * counts[0]
    assert fa.EnergySampling(2, capacity, recovery).sample(5, 17, 6) == sampler.sample(5, 17, 6)
    assert sampler.sample(6, 17, 6) != sampler.sample(5, 17, 6)


def test_a_round_may_find_nobody_with_energy():
    sampler = fa.EnergySampling(4, recovery=0.25)
    assert [len(sampler.sample(0, t, 4)) for t in range(9)] == [4, 0, 0, 0, 4, 0, 0, 0, 4]


def test_coins_follow_their_schedules():
    third = fa.BernoulliSampling([0.5, fa.Piecewise({0: 1.0, 4: 0.01}), fa.Geometric(1.0, 0.5)])
    np.testing.assert_allclose(third.coins(2, 3), [0.5, 1.0, 0.25])
    np.testing.assert_allclose(third.coins(5, 3), [0.5, 0.01, 1 / 32])
    counts = np.zeros(3)
    for seed in range(2000):
        counts[third.sample(seed, 5, 3)] += 1
    p = np.array([0.5, 0.01, 1 / 32])
    assert (np.abs(counts / 2000 - p) <= 5 * np.sqrt(p * (1 - p) / 2000)).all()
    assert third.probabilities(3) is None
    third.check(3, 100)


def test_a_plain_coin_draws_what_it_always_drew():
    """Schedules that do not change are the numbers that they stand for."""
    fixed, scheduled = fa.BernoulliSampling(0.3), fa.BernoulliSampling(fa.Piecewise({0: 0.3}))
    for t in range(20):
        assert fixed.sample(2, t, N) == scheduled.sample(2, t, N)


class Careless(Sampler):
    """Somebody's own sampler, with the one member that must be there."""

    def __init__(self, ids):
        self.ids = ids

    def sample(self, seed, round_index, clients, known=None):
        return self.ids


def test_an_own_sampler_needs_one_function():
    result = run(fa.FedADMM(0.5), federation(1), 3, sampler=Careless([1, 4]))
    assert [record["cohort"]["clients"] for record in result.history] == [[1, 4]] * 3


def test_an_own_sampler_may_answer_with_an_array():
    result = run(fa.FedADMM(0.5), federation(1), 1, sampler=Careless(np.array([1, 4])))
    assert json.dumps(result.history[0]["cohort"]["clients"]) == "[1, 4]"


@pytest.mark.parametrize("ids", [[1, 1], [3, 0], [0, 5], [-1], [-1, 3], None, 2, [0.5], ["1"]])
def test_what_an_own_sampler_gets_wrong_is_said(ids):
    with pytest.raises(fa.ParameterError) as caught:
        run(fa.FedADMM(0.5), federation(1), 2, sampler=Careless(ids))
    assert str(caught.value) == (
        f"Careless: sample is {ids} in round 0, but must be ids from 0 to 4, sorted, without "
        "repetition"
    )
