"""SCAFFOLD: its control variates against the printed formulas, and their mean on the server."""

from __future__ import annotations

import numpy as np
import pytest

import fedadmm as fa
from support.federations import (
    ROUNDS,
    SAMPLERS,
    WEIGHTS,
    assert_same,
    federation,
    run,
    snapshots,
    weighted_mean,
)
from support.models import small_federation

LR, K = 0.1, 4
OPTIONS = {"solver": fa.GradientDescent(LR), "stop": fa.Steps(K)}


def direct(given, cohorts, option, step):
    """Algorithm 1 of the paper with 1/n in place of a_i, step by step."""
    n, d = given.b.shape
    theta, c, controls = given.start.copy(), np.zeros(d), np.zeros((n, d))
    trajectory = []
    for cohort in cohorts:
        moves, changes = np.zeros(d), np.zeros(d)
        for i in cohort:
            w = theta.copy()
            for _ in range(K):
                w = w - LR * (given.gradient(i, w) - controls[i] + c)
            if option == 1:
                control = given.gradient(i, theta)
            else:
                control = controls[i] - c + (theta - w) / (K * LR)
            moves, changes = moves + (w - theta), changes + (control - controls[i])
            controls[i] = control
        if cohort:
            theta = theta + step * moves / len(cohort)
            c = c + changes / n
        trajectory.append(theta.copy())
    return np.array(trajectory)


@pytest.mark.parametrize(("option", "step"), [(1, 0.5), (2, 1.0)])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_against_the_algorithm_as_printed(option, step, sampler):
    given = federation(71)
    chosen = SAMPLERS[sampler]
    cohorts = [list(chosen.sample(3, t, 5)) for t in range(ROUNDS)]
    result = run(fa.Scaffold(option, step), given, sampler=chosen, seed=3, **OPTIONS)
    assert_same(result.trajectory, direct(given, cohorts, option, step))


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_server_holds_the_mean_of_all_control_variates(option, sampler):
    given = federation(72, weights=WEIGHTS)
    options = OPTIONS | {"sampler": SAMPLERS[sampler]}
    for snapshot in snapshots(fa.Scaffold(option), given, **options):
        controls = [client.c_i for client in snapshot.clients]
        assert_same(snapshot.server.c.numpy(), weighted_mean(given.a, controls))


def test_control_variates_start_at_zero():
    method = fa.Scaffold()
    given = federation(73)
    assert not method.init_client(given.initial).c_i.any()
    assert not method.init_server(given.initial).c.any()
    # so the first round is FedAvg's
    first = run(method, given, rounds=1, **OPTIONS).params
    assert_same([first], [run(fa.FedAvg(), given, rounds=1, **OPTIONS).params])


def test_option_2_is_the_printed_formula_for_mini_batches_on_a_network():
    """c_i - c + (theta - w) / (K lr), with K the number of steps that were really made."""
    problem = small_federation()
    lr, seen = 0.2, []
    given_rounds = 3

    class Spy(fa.Scaffold):
        def client_update(self, cast, client, result):
            state, message = super().client_update(cast, client, result)
            seen.append((cast, client, result.params, state.c_i))
            return state, message

    result = fa.simulate(
        Spy(), problem, given_rounds, solver=fa.SGD(lr, batch_size=6), stop=fa.Epochs(2)
    )
    assert result.code == "completed"
    for index, (cast, client, w, control) in enumerate(seen):
        samples = problem.clients[index % 4].num_samples
        steps = 2 * -(-samples // 6)
        expected = client.c_i - cast.c + (cast.theta - w) / (steps * lr)
        assert_same([control], [expected])
