"""Everything that changes over the rounds counts the rounds of the run, empty ones included."""

from __future__ import annotations

import numpy as np
import pytest

import fedadmm as fa
from fedadmm.run.engines import VirtualTime
from support.federations import federation, run, snapshots

ROUNDS, CHANGE, SEED = 30, 10, 4
BEFORE, AFTER = 0.2, 0.05
SWITCH = fa.schedules.Piecewise({0: BEFORE, CHANGE: AFTER})
SAMPLER = fa.BernoulliSampling(0.1)
ENGINES = {
    "sequential": "sequential",
    "vectorised": "vectorised",
    "workers": "workers",
    "virtual-time": VirtualTime(mode="sync"),
}


def check_switch(used: dict[int, list[float]]) -> None:
    """Round -> the values used in it: the first before round 10, the second from there on."""
    rounds = [index for index, values in used.items() if values]
    empty = [index for index in range(CHANGE) if not used[index]]
    assert empty, "without an empty round before the change the clocks could not differ"
    assert rounds[0] < CHANGE < rounds[-1]
    for index in rounds:
        expected = BEFORE if index < CHANGE else AFTER
        np.testing.assert_allclose(used[index], expected, rtol=1e-9, err_msg=f"round {index}")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_learning_rate(engine):
    """One gradient step of FedAvg moves a client by lr ||grad f_i(theta)||."""
    given, infos = federation(2), []
    result = run(
        fa.FedAvg(),
        given,
        ROUNDS,
        sampler=SAMPLER,
        seed=SEED,
        solver=fa.GradientDescent(SWITCH),
        stop=fa.Steps(1),
        engine=ENGINES[engine],
        callbacks=[lambda report: infos.append(report.infos)],
    )
    starts = [given.start, *(theta.numpy() for theta in result.trajectory)]
    check_switch(
        {
            index: [
                info.move / np.linalg.norm(given.gradient(info.client, starts[index]))
                for info in found
            ]
            for index, found in enumerate(infos)
        }
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_an_accuracy_that_tightens(engine):
    """FedProx with ProxAccuracy: the steps that numpy needs for the accuracy of that round."""
    given, infos, rho, lr = federation(2), [], 0.5, 0.1
    rule = fa.stopping.ProxAccuracy(0.5, max_epochs=1000)
    result = run(
        fa.FedProx(rho),
        given,
        ROUNDS,
        sampler=SAMPLER,
        seed=SEED,
        solver=fa.GradientDescent(lr),
        stop=rule,
        engine=ENGINES[engine],
        callbacks=[lambda report: infos.append(report.infos)],
    )
    starts = [given.start, *(theta.numpy() for theta in result.trajectory)]
    assert any(not found for found in infos)
    for index, found in enumerate(infos):
        for info in found:
            theta, steps = starts[index], 0
            point = theta
            allowed = np.sqrt(0.5 / 2) / (index + 2)
            while True:
                slope = given.gradient(info.client, point) + rho * (point - theta)
                if np.linalg.norm(slope) <= allowed * rho:
                    break
                point, steps = point - lr * slope, steps + 1
            assert info.solve.steps == steps


def test_an_initial_round_counts_as_the_first():
    def parameters(lr, rounds):
        options = {"solver": fa.GradientDescent(lr), "stop": fa.Steps(2)}
        return run(fa.FedDR(0.5, init="prox"), federation(3), rounds, **options).params.tolist()

    later = fa.schedules.Piecewise({0: 0.1, 1: 0.2})
    assert parameters(later, 1) == parameters(0.1, 1)
    assert parameters(later, 2) != parameters(0.1, 2)


def test_the_penalty():
    infos = []
    run(
        fa.FedADMM(SWITCH),
        federation(2),
        ROUNDS,
        sampler=SAMPLER,
        seed=SEED,
        callbacks=[lambda report: infos.append(report.infos)],
    )
    check_switch({index: [info.weight for info in found] for index, found in enumerate(infos)})


def test_the_server_step():
    """mean+ - mean = (step / |S|) sum over S of the increments of u_i = w_i + y_i / rho."""
    given, rho = federation(2), 0.7
    algorithm = fa.FedADMM(rho, step=SWITCH)
    before_mean = given.start
    before_u = np.tile(given.start, (given.clients, 1))
    used = {}
    shots = snapshots(algorithm, given, ROUNDS, sampler=SAMPLER, seed=SEED)
    for index, shot in enumerate(shots):
        mean = shot.server.mean.numpy()
        u = np.array([(state.w + state.y / rho).numpy() for state in shot.clients])
        used[index] = []
        if shot.record["cohort"]["participants"]:
            increment = (u - before_u).sum(axis=0) / shot.record["cohort"]["participants"]
            used[index] = [float((mean - before_mean) @ increment / (increment @ increment))]
        before_mean, before_u = mean, u
    check_switch(used)
