"""SCAFFOLD+: SCAFFOLD without its second upload, its recursion in numpy, and its limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.run.engines import VirtualTime
from support.federations import (
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
    snapshots,
    weighted_mean,
)
from support.models import small_federation

LR, K = 0.1, 4
OPTIONS: dict[str, Any] = {"solver": fa.GradientDescent(LR), "stop": fa.Steps(K)}


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_without_its_additions_it_is_scaffold_with_half_the_upload(sampler, weights):
    given, options = federation(81, weights=weights), OPTIONS | {"sampler": SAMPLERS[sampler]}
    plus = run(fa.ScaffoldPlus(0.0, 0.0), given, **options)
    whole = run(fa.Scaffold(), given, **options)
    assert_same(plus.trajectory, whole.trajectory)
    for one, other in zip(plus.history, whole.history, strict=True):
        sent, twice = one["traffic"]["bytes_up"], other["traffic"]["bytes_up"]
        assert sent == twice / 2 + 8 * one["cohort"]["participants"]  # and one number


def test_without_its_additions_it_is_scaffold_on_mini_batches_of_a_network():
    problem = small_federation()
    options: dict[str, Any] = {"solver": fa.SGD(0.2, batch_size=6), "stop": fa.Steps(7)}
    options |= {"sampler": fa.UniformSampling(2), "keep_trajectory": True, "seed": 3}
    first = fa.simulate(fa.ScaffoldPlus(0.0, 0.0), problem, 8, **options)
    second = fa.simulate(fa.Scaffold(), problem, 8, **options)
    assert_same(first.trajectory, second.trajectory)


def direct(
    given: Federation, cohorts: list[list[int]], gamma: float, beta: Any, rates: Array
) -> tuple[Array, Array]:
    """theta and m of the recursion, where every client's gradients are averaged as they are."""
    n, d = given.b.shape
    theta, m, controls = given.start.copy(), given.start.copy(), np.zeros((n, d))
    thetas, means = [], []
    for cohort in cohorts:
        if cohort:
            c, slopes = given.a @ controls, np.zeros((n, d))
            for i in cohort:
                w, seen = theta.copy(), []
                for _ in range(K):
                    seen.append(given.gradient(i, w))
                    w = w - rates[i] * (seen[-1] - controls[i] + (1 + gamma) * c)
                slopes[i] = np.mean(seen, axis=0) - controls[i] + (1 + gamma) * c
                controls[i] = np.mean(seen, axis=0)
            share = given.a[cohort] / given.a[cohort].sum()
            before, m = m, theta - K * (share @ rates[cohort]) * (share @ slopes[cohort])
            theta = m + beta(len(cohort)) * (m - before)
        thetas.append(theta.copy())
        means.append(m.copy())
    return np.array(thetas), np.array(means)


BETAS = {0.3: lambda replies: 0.3, "auto": lambda replies: min(0.9, max(0.0, 1 - 4 / replies))}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("momentum", BETAS)
@pytest.mark.parametrize("gamma", [0.4, 1.0])
def test_the_recursion_with_a_learning_rate_per_client(gamma, momentum, sampler):
    given, rates = federation(82, weights=WEIGHTS), np.array([0.1, 0.05, 0.12, 0.02, 0.08])
    cohorts = [list(SAMPLERS[sampler].sample(3, t, 5)) for t in range(ROUNDS)]
    options = {"solver": fa.GradientDescent(tuple(rates)), "stop": fa.Steps(K)}
    options |= {"sampler": SAMPLERS[sampler], "seed": 3}
    thetas, means = direct(given, cohorts, gamma, BETAS[momentum], rates)
    method = fa.ScaffoldPlus(gamma, momentum)
    assert_same(run(method, given, **options).trajectory, thetas)
    assert_same(run(method, given, output=fa.ParticipantsMean(), **options).trajectory, means)


def test_the_automatic_momentum_waits_for_five_replies():
    method = fa.ScaffoldPlus()
    given = federation(83)
    server = method.init_server(given.initial)
    one = torch.ones(1, dtype=torch.float64)
    total = fa.algorithms.scaffold_plus.Message(torch.ones_like(given.initial), one)
    for replies, beta in ((1, 0.0), (4, 0.0), (5, 0.2), (10, 0.6), (40, 0.9), (80, 0.9)):
        received = fa.core.protocols.Received(replies, 1.0, 100, 0)
        after = method.server_update(server, total, received, fa.Zero())
        expected = given.initial - (1 + beta)
        assert torch.allclose(after.theta, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_server_holds_the_mean_of_all_control_variates(sampler):
    given = federation(84, weights=WEIGHTS)
    options = OPTIONS | {"sampler": SAMPLERS[sampler]}
    for snapshot in snapshots(fa.ScaffoldPlus(0.7, 0.2), given, **options):
        controls = [client.c_i for client in snapshot.clients]
        assert_same(snapshot.server.c.numpy(), weighted_mean(given.a, controls))


def test_replies_that_come_late_keep_that_mean_and_while_steps_are_short_the_limit():
    given = federation(85, weights=WEIGHTS)
    options = {"solver": fa.GradientDescent(LR), "stop": fa.Steps(2)}
    # Not said to be asynchronous, which is refused: with more clients or work it explodes.
    options["engine"] = Chosen(VirtualTime(ratio=5.0, concurrency=3).start)
    result = run(fa.ScaffoldPlus(0.5), given, 3000, seed=1, **options)
    controls = [result.clients[i].c_i for i in range(given.clients)]
    assert_same(result.server.c.numpy(), weighted_mean(given.a, controls))
    assert float((result.params - torch.from_numpy(given.optimum)).norm()) < 1e-9


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("sampler", ["uniform", "weighted", "cyclic"])
def test_every_gamma_up_to_one_leads_to_the_optimum(gamma, sampler):
    """With different learning rates and so different amounts of work per client, too."""
    given = federation(86, weights=WEIGHTS)
    solver = fa.GradientDescent((0.1, 0.05, 0.12, 0.04, 0.08))
    options = OPTIONS | {"solver": solver, "sampler": SAMPLERS[sampler], "seed": 3}
    aim = torch.from_numpy(given.optimum)
    assert distance(fa.ScaffoldPlus(gamma), given, aim, 1200, near=1e-9, **options) < 1e-9
