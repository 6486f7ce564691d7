"""Aligned ADMM: what it equals, what it keeps, and where it rests.

The references step all n duals in numpy, absent clients included, which no code here does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.core import trees
from fedadmm.core.catch_up import CatchUp
from fedadmm.core.contracts import Cohort, Round
from fedadmm.run.engines import VirtualTime
from fedadmm.run.state import RoundReport
from support import reference
from support.federations import (
    PARTIAL_SAMPLERS,
    ROUNDS,
    SAMPLERS,
    WEIGHTS,
    Array,
    Chosen,
    Federation,
    assert_same,
    distance,
    federation,
    run,
    stacked,
    weighted_mean,
)
from support.given_delays import GivenDelays
from support.rejections import naming
from support.resumable import assert_continued, interrupted, run as resumable_run
from support.thinning import thinned

PROX = {
    "none": (None, lambda v, t: v),
    "l1": (fa.L1(0.3), lambda v, t: reference.soft_threshold(v, 0.3 * t)),
}


def cohorts(sampler: Any, seed: int, clients: int, rounds: int = ROUNDS) -> list[list[int]]:
    return [list(sampler.sample(seed, t, clients)) for t in range(rounds)]


def aligned(
    given: Federation,
    taking_part: Sequence[Sequence[int]],
    sigma: Any,
    penalty: Any,
    prox: Any = lambda v, t: v,
    members: str = "all",
) -> tuple[Array, Array]:
    """theta and m, when every client's dual is really moved in every round."""
    n, d = given.b.shape
    y, theta, seen = np.zeros((n, d)), given.start.copy(), set[int]()
    m = theta
    trajectory, means = [], []
    for t, cohort in enumerate(taking_part):
        rho = penalty(t)
        moves = sigma(t) if callable(sigma) else sigma
        if cohort:
            share = given.a[cohort]
            moved = [
                np.linalg.solve(given.A[i] + rho * np.eye(d), given.b[i] - y[i] + rho * theta)
                for i in cohort
            ]
            m = share @ np.array(moved) / share.sum()
            for j in range(n):
                if j in cohort:
                    y[j] = y[j] + rho * (moved[cohort.index(j)] - theta)
                else:
                    y[j] = y[j] + moves * rho * (m - theta)
            seen |= set(cohort)
            ids = sorted(seen) if members == "seen" else list(range(n))
            h = given.a[ids] @ y[ids] / given.a[ids].sum()
            theta = prox(m + h / rho, 1 / rho)
        trajectory.append(theta.copy())
        means.append(m.copy())
    return np.array(trajectory), np.array(means)


def assert_close(found: Any, expected: Array) -> None:
    """Relative to the largest number on the way, where it is above 1."""
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(stacked(found) / scale, expected / scale, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("sigma", "sampler", "members", "kind"),
    thinned(5, [0.0, 0.3, 1.0], PARTIAL_SAMPLERS, ["all", "seen"], PROX),
)
def test_every_absent_dual_is_moved(sigma, sampler, members, kind):
    given = federation(91, weights=WEIGHTS, regularizer=PROX[kind][0])
    rho = fa.schedules.Piecewise({0: 1.2, 9: 2.0})
    method = fa.AlignedADMM(rho, members=members, sigma=sigma)
    drawn = cohorts(SAMPLERS[sampler], 4, given.clients)
    thetas, means = aligned(given, drawn, sigma, rho, PROX[kind][1], members)
    options = {"sampler": SAMPLERS[sampler], "seed": 4}
    assert_close(run(method, given, **options).trajectory, thetas)
    handed_out = run(method, given, output=fa.outputs.ParticipantsMean(), **options)
    assert_close(handed_out.trajectory, means)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("sampler", PARTIAL_SAMPLERS)
def test_the_automatic_sigma_waits_until_clients_have_been_seen(sampler, weights):
    """A tenth per reply, times the share that independent draws would have seen by then."""
    given = federation(90, weights=weights)
    drawn = cohorts(SAMPLERS[sampler], 4, given.clients)
    shares = [given.a[cohort].sum() if cohort else 0.0 for cohort in drawn]

    def sigma(t: int) -> float:
        unseen = np.prod([1 - share for share in shares[:t]])
        return len(drawn[t]) / 10 * (1 - unseen)

    thetas, _ = aligned(given, drawn, sigma, lambda t: 1.3)
    method = fa.AlignedADMM(1.3)
    assert_close(run(method, given, sampler=SAMPLERS[sampler], seed=4).trajectory, thetas)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("sampler", PARTIAL_SAMPLERS)
def test_with_sigma_one_the_server_extrapolates_the_last_two_means(sampler, weights):
    """theta+ = 2 m - m-, whoever took part and however local problems were solved."""
    given = federation(95, weights=weights)
    method = fa.AlignedADMM(1.3, sigma=1.0)
    options = {"sampler": SAMPLERS[sampler], "seed": 4}
    options |= {"solver": fa.GradientDescent(lr=0.05), "stop": fa.Steps(3)}
    thetas = stacked(run(method, given, **options).trajectory)
    handed_out = run(method, given, output=fa.outputs.ParticipantsMean(), **options)
    means = np.array([given.start, *stacked(handed_out.trajectory)])
    some = [bool(cohort) for cohort in cohorts(SAMPLERS[sampler], 4, given.clients)]
    later, earlier = means[1:][some], np.array([given.start, *means[1:][some][:-1]])
    np.testing.assert_allclose(thetas[some], 2 * later - earlier, rtol=0, atol=1e-10)


@pytest.mark.parametrize("sampler", PARTIAL_SAMPLERS)
def test_a_fedpd_is_sigma_one(sampler):
    given, rho = federation(92, weights=WEIGHTS), 1.25
    drawn = cohorts(SAMPLERS[sampler], 4, given.clients)
    thetas, means = aligned(given, drawn, 1.0, lambda t: rho)
    options = {"sampler": SAMPLERS[sampler], "seed": 4}
    for method in (fa.AFedPD(rho), fa.AlignedADMM(rho, sigma=1.0)):
        assert_close(run(method, given, **options).trajectory, thetas)
        handed_out = run(method, given, output=fa.outputs.ParticipantsMean(), **options)
        assert_close(handed_out.trajectory, means)


def aligned_feddr(
    given: Federation, taking_part: Sequence[Sequence[int]], sigma: float, eta: float, prox: Any
) -> Array:
    """FedDR with alpha = 1, in its own variables, whose absent clients are moved.

    x_j becomes the participants' mean, and x_j - v_j takes sigma times its mean step; with
    sigma = 1 that is v_j + xbar - x_j, as if v_j had taken part.
    """
    n, d = given.b.shape
    xbar = given.start.copy()
    x, v = np.tile(xbar, (n, 1)), np.tile(xbar, (n, 1))
    trajectory = []
    for cohort in taking_part:
        if cohort:
            moved = v + xbar - x
            new = {
                i: np.linalg.solve(np.eye(d) + eta * given.A[i], moved[i] + eta * given.b[i])
                for i in cohort
            }
            share = given.a[cohort]
            m = share @ np.array([new[i] for i in cohort]) / share.sum()
            for j in range(n):
                if j in cohort:
                    x[j], v[j] = new[j], moved[j]
                else:
                    x[j], v[j] = m, m - (x[j] - v[j]) - sigma * (m - xbar)
            xbar = prox(given.a @ (2 * x - v), eta)
        trajectory.append(xbar.copy())
    return np.array(trajectory)


@pytest.mark.parametrize("kind", PROX)
@pytest.mark.parametrize("sigma", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("sampler", PARTIAL_SAMPLERS)
def test_feddr_with_alpha_one_aligned_is_the_same_method(sampler, sigma, kind):
    given, eta = federation(92, weights=WEIGHTS, regularizer=PROX[kind][0]), 0.8
    drawn = cohorts(SAMPLERS[sampler], 4, given.clients)
    expected = aligned_feddr(given, drawn, sigma, eta, PROX[kind][1])
    method = fa.AlignedADMM(1 / eta, sigma=sigma)
    assert_close(run(method, given, sampler=SAMPLERS[sampler], seed=4).trajectory, expected)


@pytest.mark.parametrize("members", ["all", "seen"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_sigma_zero_is_feddyn(sampler, members):
    """With a few gradient steps too, which depend on where they start."""
    given, eta = federation(93, weights=WEIGHTS), 0.8
    method = fa.AlignedADMM(1 / eta, members=members, sigma=0.0)
    for work in ({}, {"solver": fa.GradientDescent(0.1), "stop": fa.Steps(3)}):
        options = {"sampler": SAMPLERS[sampler], "seed": 2} | work
        first = run(method, given, **options)
        assert_same(first.trajectory, run(fa.FedDyn(eta, members), given, **options).trajectory)


@pytest.mark.parametrize("kind", PROX)
@pytest.mark.parametrize("sigma", [0.0, 0.3, 1.0, "auto"])
def test_with_full_participation_it_is_fedadmm_and_feddr(sigma, kind):
    given = federation(94, weights=WEIGHTS, regularizer=PROX[kind][0])
    for options in (
        {"rho": fa.schedules.Piecewise({0: 1.2, 9: 2.0})},
        {"rho": 1.3, "members": "seen"},
    ):
        moved = run(fa.AlignedADMM(**options, sigma=sigma), given).trajectory
        assert_same(run(fa.FedADMM(**options), given).trajectory, moved)
    assert_same(
        run(fa.FedDR(eta=0.8), given).trajectory,
        run(fa.AlignedADMM(1 / 0.8, sigma), given).trajectory,
    )


def watched(method: Any, given: Federation, **options: Any) -> list[tuple[Any, CatchUp, list[Any]]]:
    """Server, what was missed, and every client's state as the server has it, after each round."""
    stores: list[Any] = []
    taken: list[Any] = []
    engine = options.pop("engine", fa.engines.ENGINES["sequential"]())

    def spied(job: Any, store: Any) -> Any:
        stores.append(store)
        return engine.start(job, store)

    def observe(report: RoundReport) -> None:
        missed, states = report.state.components["catch_up"], []
        for client in range(given.clients):
            record = stores[0].get(client)
            own = method.init_client(given.initial) if record is None else record.state
            states.append(method.catch_up(own, missed.missed(client)))
        taken.append((report.state.server, missed, states))

    run(method, given, engine=Chosen(spied), callbacks=[observe], **options)
    return taken


ENGINES = {
    "rounds": ({}, SAMPLERS),
    "no delays": ({"engine": GivenDelays(0)}, {"two": fa.UniformSampling(2)}),
    "a clock that drops what is late": (
        {"engine": VirtualTime(ratio=5.0, buffer=2, max_staleness=0, policy="drop", dropout=0.2)},
        {"all": fa.FullParticipation()},
    ),
    "a synchronous clock": (
        {"engine": VirtualTime(mode="sync", ratio=5.0, deadline=3.0)},
        {"three": fa.UniformSampling(3)},
    ),
}


@pytest.mark.parametrize("name", ENGINES)
def test_h_is_the_mean_of_all_duals_for_any_participants(name):
    given = federation(96, weights=WEIGHTS)
    options, samplers = ENGINES[name]
    for sampler in samplers.values():
        method = fa.AlignedADMM(1.3, sigma=0.2)
        for server, missed, states in watched(
            method, given, sampler=sampler, seed=1, rounds=40, **options
        ):
            expected = weighted_mean(given.a, [state.y for state in states])
            scale = max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(server.h / scale, expected / scale, atol=1e-10)
            assert len(missed.sums) <= given.clients


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_members_seen_averages_the_duals_of_past_participants(sampler):
    given = federation(97, weights=WEIGHTS)
    method = fa.AlignedADMM(1.3, members="seen", sigma=0.4)
    seen: set[int] = set()
    for t, (server, _, states) in enumerate(watched(method, given, sampler=SAMPLERS[sampler])):
        seen |= set(SAMPLERS[sampler].sample(0, t, given.clients))
        ids = sorted(seen)
        expected = given.a[ids] @ stacked([states[i].y for i in ids]) if ids else np.zeros(4)
        assert_same(server.h.numpy(), expected)
        assert abs(float(server.members) - given.a[ids].sum()) < 1e-12


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("sampler", ["uniform", "weighted", "cyclic"])
def test_every_sigma_leads_to_the_optimum(sigma, sampler):
    """Two of five a round."""
    given = federation(100, weights=WEIGHTS)
    method = fa.AlignedADMM(2.0, sigma=sigma)
    aim, near = torch.from_numpy(given.optimum), 1e-9
    assert distance(method, given, aim, 500, near, sampler=SAMPLERS[sampler], seed=3) < near


def test_with_one_participant_a_round_sigma_one_finds_no_rest():
    """The whole step of one client moves everybody; a tenth of it does not hurt."""
    given = federation(3)
    options = {"aim": torch.from_numpy(given.optimum), "rounds": 800, "near": 1e-9, "seed": 3}
    options["sampler"] = fa.UniformSampling(1)
    assert distance(fa.AlignedADMM(1.25, sigma=1.0), given, **options) > 0.1
    assert distance(fa.AlignedADMM(1.25, sigma=0.1), given, **options) < 1e-9


@pytest.mark.parametrize("engine", ["workers", "vectorised", "auto"])
def test_every_engine_hands_a_client_what_it_missed(engine):
    given = federation(98, weights=WEIGHTS)
    options = {
        "sampler": fa.UniformSampling(2),
        "solver": fa.GradientDescent(0.1),
        "stop": fa.Steps(3),
    }
    method = fa.AlignedADMM(1.3, sigma=0.4, members="seen")
    first = run(method, given, 12, **options)
    second = run(method, given, 12, engine=engine, **options)
    assert_same(first.trajectory, second.trajectory)


RESUMED = {
    "auto": fa.AlignedADMM(0.5, members="seen"),
    "fixed": fa.AlignedADMM(0.5, sigma=0.5),
    "a-fedpd": fa.AFedPD(1.0),
}


@pytest.mark.parametrize("after", [1, 4, 7])
@pytest.mark.parametrize("name", RESUMED)
def test_a_run_is_taken_up_with_what_its_clients_missed(name, after, tmp_path: Path):
    options: dict[str, Any] = {"algorithm": RESUMED[name]}
    resume = interrupted(tmp_path, after, **options)
    assert_continued(resume(), resumable_run(8, **options), after)


def test_a_clock_is_taken_up_with_what_its_clients_missed(tmp_path: Path):
    options: dict[str, Any] = {
        "algorithm": fa.AlignedADMM(0.5, sigma=0.1),
        "engine": VirtualTime(mode="sync", ratio=4.0, deadline=3.0),
        "sampler": None,
    }
    resume = interrupted(tmp_path, 5, **options)
    assert_continued(resume(), resumable_run(8, **options), 5)


def test_a_participant_is_sent_theta_and_one_more_vector():
    given = federation(99)
    for record in run(fa.AlignedADMM(1.2), given, 6, sampler=fa.UniformSampling(2)).history:
        assert record["traffic"]["bytes_down"] == 2 * 8 * (2 * 4 + 1)  # and rho
        assert record["traffic"]["bytes_up"] == 2 * 8 * 4


def test_kept_vectors_are_those_of_distinct_last_rounds():
    """Four clients in three rounds: two of them were last seen together."""
    state = CatchUp(torch.zeros(2))
    for step, ids in enumerate([[0, 1], [2], [0], []]):
        state = state.after_step(step, torch.full((2,), step + 1.0), ids)
    assert {k: float(v[0]) for k, v in state.sums.items()} == {0: 1.0, 1: 2.0, 2: 3.0}
    assert [float(state.missed(i)[0]) for i in range(4)] == [1.0, 3.0, 2.0, 4.0]
    state = state.after_step(4, torch.full((2,), 9.0), [1, 2])
    assert sorted(state.sums) == [2, 4]


def test_a_method_with_virtual_steps_rejects_stale_updates():
    @dataclass(frozen=True)
    class Careless(fa.AlignedADMM):
        @property
        def requirements(self):
            return super().requirements._replace(stale_updates=True)

    with pytest.raises(fa.errors.ParameterError, match=naming("Careless stale_updates True False")):
        run(Careless(1.0), federation(5))


REJECTED = [
    (lambda: fa.AlignedADMM(1.0, sigma=1.1), "AlignedADMM sigma 1.1"),
    (lambda: fa.AFedPD(1.0, sigma=0.5), "AFedPD sigma 0.5"),
]


@pytest.mark.parametrize(("made", "names"), REJECTED)
def test_an_invalid_sigma_is_rejected(made, names):
    with pytest.raises(fa.errors.ParameterError, match=naming(names)):
        made()


@pytest.mark.parametrize(("rho", "steps"), [(0.3, 7), (2.0, 40)])
def test_aligned_duals_are_momentum_that_forgets_by_the_penalty_times_the_work(rho, steps):
    """Where gradients are constant, h <- q h - (1 - q) grad f with q = (1 - lr rho)^steps.

    Over the cohorts in the mean: each of the n clients alone is one cohort, from the same state.
    """
    lr, n, d = 0.05, 4, 3
    chance = np.random.default_rng(0)
    slopes, duals = chance.normal(size=(n, d)), chance.normal(size=(n, d))
    theta, q = chance.normal(size=d), (1 - lr * rho) ** steps
    method = fa.AlignedADMM(rho=rho, sigma=1.0)
    cast = method.broadcast(method.init_server(torch.tensor(theta)), Round(0, 0))
    server = method.init_server(torch.tensor(theta))._replace(h=torch.tensor(duals.mean(0)))
    after = []
    for slope, dual in zip(slopes, duals, strict=True):
        line = fa.Quadratic(torch.zeros(d, d, dtype=torch.float64), torch.tensor(-slope))
        client = method.init_client(torch.tensor(theta))._replace(y=torch.tensor(dual))
        local = method.local_problem(cast, client)
        result, _ = fa.GradientDescent(lr).solve(line, local, fa.Steps(steps), 0)
        message = method.client_update(cast, client, result)[1]
        total = trees.scaled(message, 1 / n)
        after.append(
            method.server_update(server, total, Cohort(1, 1 / n, n, 0), fa.regularizers.Zero())
        )
    h = np.mean([one.h.numpy() for one in after], axis=0)
    wanted = q * duals.mean(0) - (1 - q) * slopes.mean(0)
    np.testing.assert_allclose(h, wanted, rtol=0, atol=1e-12)
    moved = np.mean([one.theta.numpy() for one in after], axis=0) - theta
    np.testing.assert_allclose(moved, (2 * wanted - duals.mean(0)) / rho, rtol=0, atol=1e-12)
