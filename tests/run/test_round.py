"""The loop: what a record holds, how a run ends, and which model is evaluated."""

from __future__ import annotations

import itertools
import math
import re
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core.local_work import LocalWork
from fedadmm.run import loop
from fedadmm.run.callbacks import Attached
from fedadmm.run.engines import VirtualTime
from fedadmm.run.engines.choice import SequentialEngine
from fedadmm.run.record import Record
from fedadmm.run.round_callbacks import RunPlan
from fedadmm.run.stores import MemoryStore
from support.federations import WEIGHTS, Chosen, federation, run, snapshots
from support.jobs import job_of
from support.models import small_federation
from support.records import untimed
from support.rejections import naming

EXACT = {"solver": fa.ExactSolver()}


class Faulty(fa.Objective):
    """f(x) = ||x||^2 / 2 whose gradient is NaN from the given call on."""

    num_parameters, num_samples = 3, 1

    def __init__(self, good_calls: float = math.inf) -> None:
        self.good_calls = good_calls

    def value(self, params):
        return params.square().sum() / 2

    def gradient(self, params, rows=None):
        self.good_calls -= 1
        return params.clone() if self.good_calls >= 0 else params * math.nan

    def to(self, dtype, device="cpu"):
        return self


def faulty_run(algorithm: Any, good_calls: float, **options: Any) -> fa.Result:
    clients = [Faulty(), Faulty(), Faulty(good_calls), Faulty()]
    settings = {
        "solver": fa.GradientDescent(0.1),
        "stop": fa.Steps(1),
        "initial": torch.ones(3),
        "evaluate": False,
        "keep_trajectory": True,
    }
    return fa.simulate(algorithm, fa.Problem(clients), 10, **(settings | options))


@pytest.mark.parametrize("algorithm", [fa.FedADMM(1.0), fa.FedSGD(0.1), fa.Scaffold(1)])
def test_a_client_that_returns_nan_ends_the_run_with_a_sentence(algorithm):
    result = faulty_run(algorithm, 6 if isinstance(algorithm, fa.Scaffold) else 3)
    assert result.code == "diverged"
    assert result.status == (
        "diverged in round 4: client 2 returned a vector with NaN or infinite entries"
    )
    assert len(result.history) == 4
    # what comes out is the last state that was good
    assert torch.equal(result.params, result.trajectory[2])
    assert result.params.isfinite().all()
    assert all(leaf.isfinite().all() for i in result.clients for leaf in result.clients[i])


def test_divergence_in_an_initial_round_is_named_as_well():
    result = faulty_run(fa.FedDR(1.0, init="prox"), 0)
    assert result.code == "diverged"
    assert result.status == (
        "diverged in the initial round: client 2 returned a vector with NaN or infinite entries"
    )
    assert torch.equal(result.params, torch.ones(3))


def test_an_initial_round_has_a_record_of_its_own_that_no_count_and_no_target_takes_in():
    given, method = federation(1), fa.FedDR(0.5, init="prox")
    asked = []

    class Spy(fa.UniformSampling):
        def sample(self, seed, round_index, *rest):
            asked.append(round_index)
            return super().sample(seed, round_index, *rest)

    target = fa.Target("participants", 5.0)  # met by the initial round alone
    result = run(method, given, 3, sampler=Spy(2), evaluate=True, target=target)
    assert (result.code, result.status) == ("completed", "completed all 3 rounds")
    assert [record["round"] for record in result.history] == [0, 1, 2, 3]
    assert [record["cohort"]["participants"] for record in result.history] == [5, 2, 2, 2]
    assert ["loss" in record["metrics"] for record in result.history] == [False, True, True, True]
    assert asked == [0, 1, 2]
    assert len(result.trajectory) == 4


def test_an_exploding_loss_ends_the_run():
    given = federation(1)
    result = run(fa.FedSGD(5.0), given, 100, solver=None, evaluate=True)
    assert result.code == "diverged"
    losses = [record["metrics"]["loss"] for record in result.history]
    limit = 1e6 * (1 + abs(losses[0]))
    assert losses[-1] > limit
    assert all(loss <= limit for loss in losses[:-1])
    drifts: list[Any] = []
    run(fa.FedSGD(5.0), given, len(losses), solver=None, callbacks=[drifts.append])
    worst = max(drifts[-1].infos, key=lambda info: info.drift).client
    names = f"round {len(losses)} loss {losses[-1]:g} norm {float(result.params.norm()):g}"
    assert re.search(naming(f"{names} client {worst}"), result.status)


def test_a_run_of_all_rounds_is_completed():
    result = run(fa.FedADMM(1.0), federation(2), 7)
    assert (result.code, result.status) == ("completed", "completed all 7 rounds")
    assert [record["round"] for record in result.history] == list(range(1, 8))
    assert len(result.trajectory) == 7
    assert torch.equal(result.params, result.trajectory[-1])


def test_the_trajectory_is_kept_on_request_only():
    assert run(fa.FedADMM(1.0), federation(2), 2, keep_trajectory=False).trajectory == []


def test_a_target_ends_the_run_in_the_first_round_that_meets_it():
    given = federation(3)
    full = run(fa.FedADMM(1.0), given, 40, evaluate=True)
    losses = [record["metrics"]["loss"] for record in full.history]
    value = losses[10]
    expected = next(i for i, loss in enumerate(losses) if loss <= value) + 1
    target = fa.Target("loss", value, at_least=False)
    result = run(fa.FedADMM(1.0), given, 40, evaluate=True, target=target)
    assert result.code == "target"
    assert len(result.history) == expected
    names = f"loss {losses[expected - 1]:.4g} target round {expected}"
    assert re.search(naming(names), result.status)


def test_a_target_may_be_a_metric_of_ones_own():
    def metrics(params: torch.Tensor) -> dict[str, float]:
        return {"size": float(params.norm())}

    given = federation(3)._replace(start=np.zeros(4))
    target = fa.Target("size", 0.1)
    result = run(fa.FedADMM(1.0), given, 40, evaluate=metrics, target=target)
    assert result.code == "target"
    sizes = [record["metrics"]["size"] for record in result.history]
    assert sizes[-1] >= 0.1
    assert all(size < 0.1 for size in sizes[:-1])
    assert "loss" in result.history[0]["metrics"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"target": fa.Target("accuracy", 0.9)}, "target 'accuracy' loss"),
        ({"tolerance": 0.1, "evaluate": False}, "tolerance 'gradient_mapping'"),
    ],
)
def test_a_target_that_is_not_measured_is_rejected(options: Any, names: str) -> None:
    settings = {"evaluate": True} | options
    with pytest.raises(fa.errors.ParameterError, match=naming(names)):
        run(fa.FedADMM(1.0), federation(2), 3, **settings)


def test_a_tolerance_ends_the_run_when_the_gradient_mapping_is_small():
    given = federation(4, regularizer=fa.L1(0.2))
    result = run(fa.FedDR(0.8), given, 500, evaluate=True, tolerance=1e-5)
    mappings = [record["metrics"]["gradient_mapping"] for record in result.history]
    assert result.code == "tolerance"
    assert mappings[-1] <= 1e-5
    assert all(value > 1e-5 for value in mappings[:-1])
    names = f"gradient mapping {mappings[-1]:.3g} tolerance round {len(mappings)}"
    assert re.search(naming(names), result.status)


def test_a_record_describes_the_round():
    given = federation(5, weights=WEIGHTS, regularizer=fa.L1(0.3))
    rho, infos = 1.5, []
    result = run(
        fa.FedADMM(rho),
        given,
        6,
        sampler=fa.UniformSampling(2),
        solver=fa.GradientDescent(0.1),
        stop=fa.Epochs(3),
        evaluate=True,
        callbacks=[lambda report: infos.append(report.infos)],
    )
    A, b = np.tensordot(given.a, given.A, 1), given.a @ given.b
    before = given.start
    for index, record in enumerate(result.history):
        theta = result.trajectory[index].numpy()
        f = theta @ A @ theta / 2 - b @ theta
        assert record["metrics"]["loss"] == pytest.approx(f, abs=1e-12)
        assert record["metrics"]["objective"] == pytest.approx(
            f + 0.3 * np.abs(theta).sum(), abs=1e-12
        )
        step = 1 / rho
        moved = theta - step * (A @ theta - b)
        moved = np.sign(moved) * np.maximum(np.abs(moved) - step * 0.3, 0)
        mapping = np.linalg.norm((theta - moved) / step)
        assert record["metrics"]["gradient_mapping"] == pytest.approx(mapping, abs=1e-10)
        assert record["metrics"]["sparsity"] == pytest.approx((theta == 0).mean())
        ids = record["cohort"]["clients"]
        drifts = np.array([info.drift for info in infos[index]])
        primal = math.sqrt(given.a[ids] @ drifts**2 / given.a[ids].sum())
        assert record["work"]["primal_residual"] == pytest.approx(primal, abs=1e-12)
        dual = rho * np.linalg.norm(theta - before)
        assert record["work"]["dual_residual"] == pytest.approx(dual, abs=1e-12)
        assert record["cohort"]["participants"] == len(ids) == 2
        assert (record["work"]["epochs"], record["work"]["steps"]) == (3.0, 6)
        assert (
            record["work"]["penalty_mean"]
            == record["work"]["penalty_min"]
            == record["work"]["penalty_max"]
            == rho
        )
        assert record["work"]["penalty_quartiles"] == [rho, rho, rho]
        assert record["clock"]["seconds"] > 0
        assert record["clock"]["evaluation_seconds"] > 0
        before = theta


def test_drift_and_move_of_a_client():
    """A local solve that starts at the client's own model moves from it."""
    given, infos = federation(6), []
    rounds = snapshots(fa.FedADMM(1.0), given, 3, start="own")
    watch = [lambda report: infos.append(report.infos)]
    run(fa.FedADMM(1.0), given, 3, callbacks=watch, start="own")
    for info in infos[2]:
        w = rounds[2].clients[info.client].w
        old = rounds[1].clients[info.client].w
        assert info.move == pytest.approx(float((w - old).norm()), abs=1e-12)
        assert info.drift == pytest.approx(float((w - rounds[1].theta).norm()), abs=1e-12)
        assert info.weight == 1.0
        assert info.finite


def test_the_penalty_statistics_are_those_of_the_participants():
    given, infos = federation(7), []
    method = fa.FedADMMInSa(0.05, mu=1.5)
    result = run(method, given, 12, callbacks=[lambda report: infos.append(report.infos)])
    betas = np.array([info.weight for info in infos[-1]])
    record = result.history[-1]
    assert len(set(betas)) > 1
    assert record["work"]["penalty_mean"] == pytest.approx(betas.mean())
    assert (record["work"]["penalty_min"], record["work"]["penalty_max"]) == (
        betas.min(),
        betas.max(),
    )
    np.testing.assert_allclose(
        record["work"]["penalty_quartiles"], np.quantile(betas, [0.25, 0.5, 0.75])
    )


def test_evaluation_happens_when_it_is_due_and_after_the_last_round():
    result = run(fa.FedADMM(1.0), federation(8), 7, evaluate=fa.Evaluation(every=3))
    assert [r["round"] for r in result.history if "loss" in r["metrics"]] == [3, 6, 7]
    assert all(
        "loss" not in record["metrics"] for record in run(fa.FedADMM(1.0), federation(8), 2).history
    )


def test_local_evaluation_uses_every_local_model_on_its_clients_data():
    given = federation(9, weights=WEIGHTS)
    evaluation = fa.Evaluation(target="local")
    result = run(
        fa.FedADMM(1.0), given, 4, sampler=fa.UniformSampling(2), evaluate=evaluation, seed=1
    )
    expected = 0.0
    for i in range(given.clients):
        # a client that never took part still holds the initial vector
        w = result.clients[i].w.numpy() if i in result.clients else given.start
        expected += given.a[i] * (w @ given.A[i] @ w / 2 - given.b[i] @ w)
    assert result.history[-1]["metrics"]["loss"] == pytest.approx(expected, abs=1e-12)
    glob = run(fa.FedADMM(1.0), given, 4, sampler=fa.UniformSampling(2), evaluate=True, seed=1)
    assert glob.history[-1]["metrics"]["loss"] != pytest.approx(expected, abs=1e-3)


def test_local_evaluation_of_a_method_without_local_models_is_that_of_the_global_vector():
    given = federation(10)
    options = {"solver": fa.GradientDescent(0.1), "stop": fa.Steps(2)}
    one = run(fa.FedAvg(), given, 4, evaluate=fa.Evaluation(target="local"), **options)
    two = run(fa.FedAvg(), given, 4, evaluate=True, **options)
    assert one.history[-1]["metrics"]["loss"] == pytest.approx(
        two.history[-1]["metrics"]["loss"], abs=1e-12
    )


def test_held_out_evaluators_are_used():
    given = federation(11)

    def client_test(index: int) -> Any:
        return lambda x: {"score": float(index)}

    problem = fa.Problem(
        given.problem.clients,
        weights=WEIGHTS,
        test=lambda x: {"accuracy": float(x[0])},
        client_tests=[client_test(i) for i in range(5)],
    )
    options = {"initial": given.initial, "keep_trajectory": True, **EXACT}
    result = fa.simulate(fa.FedADMM(1.0), problem, 2, **options)
    assert result.history[1]["metrics"]["accuracy"] == float(result.trajectory[1][0])
    local = fa.simulate(
        fa.FedADMM(1.0), problem, 1, evaluate=fa.Evaluation(target="local"), **options
    )
    assert local.history[0]["metrics"]["score"] == pytest.approx(
        np.arange(5) @ np.array(WEIGHTS) / sum(WEIGHTS)
    )
    silent = fa.simulate(fa.FedADMM(1.0), problem, 1, evaluate=fa.Evaluation(test=False), **options)
    assert "accuracy" not in silent.history[0]["metrics"]


def test_a_local_metric_is_the_mean_over_the_clients_that_report_it():
    given = federation(11, clients=4)
    shares = np.array([1.0, 2.0, 3.0, 4.0])

    def client_test(index: int) -> Any:
        if index == 0:
            return lambda x: {}
        return lambda x: {"accuracy": 0.95, "rank": float(index)} if index > 1 else {"rank": 1.0}

    problem = fa.Problem(
        given.problem.clients, weights=shares, client_tests=[client_test(i) for i in range(4)]
    )
    evaluation = fa.Evaluation(target="local", objective=False)
    options = {"initial": given.initial, "evaluate": evaluation, **EXACT}
    record = fa.simulate(fa.FedADMM(1.0), problem, 1, **options).history[0]
    assert record["metrics"]["accuracy"] == pytest.approx(0.95, abs=1e-15)
    assert record["metrics"]["rank"] == pytest.approx((2 * 1 + 3 * 2 + 4 * 3) / 9, abs=1e-15)


NAMES = ["round", "seconds", "participants", "evaluation_seconds", "in_flight", "kkt_residual"]


@pytest.mark.parametrize("name", NAMES)
def test_a_metric_may_have_the_name_of_an_entry_of_the_record(name):
    engine = VirtualTime("sync") if name == "in_flight" else None
    options: Any = {"engine": engine, "target": fa.Target(name, 78.5), "keep_trajectory": True}
    options["callbacks"] = [fa.Diagnostics(1)]

    def runs(evaluation: fa.Evaluation, **more: Any) -> fa.Result:
        return run(fa.FedADMM(1.0), federation(2), 4, evaluate=evaluation, **options | more)

    counted = iter(itertools.count(77))
    named = runs(fa.Evaluation(extra=lambda x: {name: float(next(counted))}))
    assert [record["metrics"][name] for record in named.history] == [77.0, 78.0, 79.0]
    assert named.status == f"{name} 79 reached the target in round 3"
    plain = runs(fa.Evaluation(), target=None)
    assert all(map(torch.equal, named.trajectory, plain.trajectory))
    for one, other in zip(untimed(named.history), untimed(plain.history), strict=False):
        assert one["metrics"].pop(name) >= 77.0
        assert one == other


@dataclass(frozen=True)
class One(fa.Callback):
    """Reports one entry, the same in every round."""

    entry: str

    def measure(self, report: Any, live: Any, note: Any) -> tuple[None, dict[str, Any]]:
        return None, {self.entry: 1.0}


class Two(One):
    """Another."""


def test_two_callbacks_must_not_report_one_name():
    given = federation(2)

    def look(*tools: One) -> Record:
        method, solver, store = fa.FedADMM(1.0), fa.ExactSolver(), MemoryStore()
        local = LocalWork(solver, fa.Epochs(1))
        job = job_of(method, given.problem, local, 0, given.initial)
        plan = RunPlan(1, fa.Evaluation(), callbacks=[Attached(tool) for tool in tools])
        parts = (fa.FullParticipation(), SequentialEngine(job, store), store)
        return next(loop.run(job, *parts, plan, loop.initial_state(job, plan))).record

    found = look(One("x"), Two("y"))
    assert found["callbacks"] == {"x": 1.0, "y": 1.0}
    assert {"One_seconds", "Two_seconds"} <= found["clock"].keys()
    with pytest.raises(fa.errors.ParameterError, match=naming("callback Two 'x'")):
        look(One("x"), Two("x"))


@pytest.mark.parametrize("where", ["global", "local"])
def test_a_metric_cannot_take_the_name_of_another_metric(where):
    given = federation(2)
    problem = fa.Problem(
        given.problem.clients,
        test=lambda x: {"score": 1.0},
        client_tests=[lambda x: {"score": 1.0}] * 5,
    )
    options = {"initial": given.initial, **EXACT}
    for name in ("loss", "score"):
        evaluation = fa.Evaluation(extra=lambda x, name=name: {name: 1.0}, target=where)
        with pytest.raises(fa.errors.ParameterError, match=naming(f"Evaluation '{name}'")):
            fa.simulate(fa.FedADMM(1.0), problem, 2, evaluate=evaluation, **options)


EMPTY = {
    "first": [[], [], [0, 1], [2]],
    "last": [[0, 1], [2], [], []],
    "all": [[], [], [], []],
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_round_never_ends_a_run(name):
    """All rounds are run, and a target or a tolerance that the model misses stays missed."""
    missed = {"target": fa.Target("loss", -1e9, at_least=False), "tolerance": 1e-12}
    sampler = fa.TraceSampling([*EMPTY[name], range(5)])
    result = run(fa.FedADMM(1.0), federation(2), 4, sampler=sampler, evaluate=True, **missed)
    assert [record["round"] for record in result.history] == [1, 2, 3, 4]
    assert (result.code, result.status) == ("completed", "completed all 4 rounds")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_step_without_updates_does_not_end_a_run(mode):
    engine = VirtualTime(mode, compute="constant", deadline=0.5)
    result = run(fa.FedADMM(1.0), federation(2), 4, engine=engine, evaluate=True)
    assert [record["cohort"]["participants"] for record in result.history] == [0] * 4
    assert (result.code, result.status) == ("completed", "completed all 4 rounds")


def classified(weights: Any = None, regression: bool = False) -> fa.Problem:
    """Logistic regressions with 3, 9 and 27 rows."""
    draws = torch.Generator().manual_seed(5)
    kind = fa.LeastSquares if regression else fa.LogisticRegression
    clients = []
    for count in (3, 9, 27):
        rows = torch.randn(count, 4, generator=draws, dtype=torch.float64)
        labels = (rows[:, 0] + torch.randn(count, generator=draws) > 0).double()
        clients.append(kind(rows, labels))
    initial = torch.ones(4, dtype=torch.float64)
    return fa.Problem(clients, weights=weights, initial=initial)


@pytest.mark.parametrize("where", ["global", "local"])
@pytest.mark.parametrize("objective", [True, False])
def test_training_accuracy_counts_every_sample_once(where, objective):
    """Of all 39 rows, whatever the clients' weights, with the model that is evaluated."""
    problem = classified(weights=(5.0, 1.0, 1.0))
    options: Any = {
        "solver": fa.GradientDescent(0.5),
        "stop": fa.Steps(3),
        "sampler": fa.UniformSampling(2),
        "keep_trajectory": True,
    }
    evaluation = fa.Evaluation(target=where, objective=objective, train=True)
    result = fa.simulate(fa.FedADMM(0.1), problem, 3, evaluate=evaluation, **options)
    theta, right = result.trajectory[-1].numpy(), 0
    for index, client in enumerate(problem.clients):
        own = result.clients[index].w.numpy() if index in result.clients else np.ones(4)
        scores = client.features.numpy() @ (theta if where == "global" else own)
        right += int(((scores > 0) == (client.targets.numpy() == 1)).sum())
    assert result.history[-1]["metrics"]["train_accuracy"] == right / 39
    plain = fa.Evaluation(target=where, objective=objective)
    without = fa.simulate(fa.FedADMM(0.1), problem, 3, evaluate=plain, **options)
    for one, two in zip(result.history, without.history, strict=True):
        assert one["metrics"].keys() - two["metrics"].keys() == {"train_accuracy"}
        assert one["metrics"].get("loss") == two["metrics"].get("loss")


def test_training_accuracy_of_a_model_is_that_of_its_largest_score():
    problem = small_federation(nn.Dropout(0.4))
    result = fa.simulate(
        fa.FedAvg(), problem, 2, solver=fa.SGD(0.5), evaluate=fa.Evaluation(train=True)
    )
    module = problem.clients[0].flat.module.eval()
    nn.utils.vector_to_parameters(result.params, module.parameters())
    with torch.no_grad():
        found = [(module(c.inputs).argmax(1) == c.targets) for c in problem.clients]
    expected = float(torch.cat(found).double().mean())
    assert result.history[-1]["metrics"]["train_accuracy"] == pytest.approx(expected, abs=1e-15)


def test_training_accuracy_is_rejected_where_there_are_no_classes():
    evaluation = fa.Evaluation(train=True)
    with pytest.raises(
        fa.errors.CompatibilityError, match=naming("Evaluation train True LeastSquares")
    ):
        fa.simulate(
            fa.FedAvg(), classified(regression=True), 1, solver=fa.SGD(0.1), evaluate=evaluation
        )
    mixed = fa.Problem([*classified().clients[:1], *classified(regression=True).clients[1:]])
    options = {"initial": torch.ones(4, dtype=torch.float64), "evaluate": evaluation}
    with pytest.raises(fa.errors.DataError, match=naming("LeastSquares")):
        fa.simulate(fa.FedAvg(), mixed, 1, solver=fa.SGD(0.1), **options)


class _Counting(SequentialEngine):
    """Counts how many uploads of a round are alive at once."""

    most = 0

    def run_clients(self, ids, download, round_index):
        alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
        for client, upload, info in super().run_clients(ids, download, round_index):
            alive.add(upload.message.increment)
            _Counting.most = max(_Counting.most, len(alive))
            yield client, upload, info
            del upload


def test_uploads_are_summed_as_they_come_and_not_collected():
    _Counting.most = 0
    run(fa.FedADMM(1.0), federation(12, clients=20), 2, engine=Chosen(_Counting))
    assert 1 <= _Counting.most <= 2


def test_an_observer_sees_every_round_and_the_ending_last():
    endings = []
    run(fa.FedADMM(1.0), federation(13), 4, callbacks=[lambda r: endings.append(r.ending)])
    assert endings[:3] == [None] * 3
    assert endings[3].code == "completed"


def test_the_problem_may_bring_its_own_start():
    given = federation(14)
    fixed = fa.Problem(given.problem.clients, initial=given.initial)
    drawn = fa.Problem(given.problem.clients, initial=lambda seed: given.initial + seed)
    options = {"evaluate": False, **EXACT}
    assert torch.equal(
        fa.simulate(fa.FedADMM(1.0), fixed, 3, **options).params,
        fa.simulate(fa.FedADMM(1.0), drawn, 3, seed=0, **options).params,
    )
    other = fa.simulate(fa.FedADMM(1.0), drawn, 3, seed=1, **options).params
    assert not torch.equal(other, fa.simulate(fa.FedADMM(1.0), fixed, 3, **options).params)


def test_weights_count_up_to_a_common_factor():
    given = federation(15, weights=WEIGHTS)
    doubled = given._replace(
        problem=fa.Problem(given.problem.clients, weights=[2 * w for w in WEIGHTS])
    )
    one, two = run(fa.FedADMM(1.0), given, 5), run(fa.FedADMM(1.0), doubled, 5)
    torch.testing.assert_close(one.params, two.params, rtol=0, atol=1e-14)


class Recording(Faulty):
    """Remembers the rows of every gradient."""

    num_samples = 12

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, ...]] = []

    def gradient(self, params, rows=None):
        self.rows.append(tuple(rows.tolist()))
        return super().gradient(params)


def test_batches_differ_between_clients_and_rounds():
    """A client that draws the same batches in every round never averages their noise out."""
    clients = [Recording(), Recording()]
    fa.simulate(
        fa.FedAvg(),
        fa.Problem(clients),
        3,
        solver=fa.SGD(0.1, batch_size=6),
        initial=torch.ones(3),
        evaluate=False,
    )
    epochs = [c.rows[2 * t] + c.rows[2 * t + 1] for c in clients for t in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(12))] * 6
    assert len(set(epochs)) == 6


def test_a_schedule_of_learning_rates_also_serves_an_initial_round():
    given = federation(16)
    solver = fa.GradientDescent(fa.schedules.Piecewise({0: 0.1, 2: 0.05}))
    result = run(fa.FedDR(1.0, init="prox"), given, 3, solver=solver, stop=fa.Steps(2))
    assert result.code == "completed"
