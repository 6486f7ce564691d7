"""Modules on flat vectors: what travels, what stays, and what happens to buffers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.run.engines import VirtualTime
from fedadmm.run.engines.choice import SequentialEngine
from support.federations import Chosen
from support.models import perceptron, rows, small_federation
from support.rejections import naming

LOSS = nn.functional.cross_entropy
LR = 0.3
FULL_BATCH = {"solver": fa.GradientDescent(LR), "stop": fa.Steps(2)}


def test_the_vector_is_the_module():
    module = perceptron()
    before = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    flat = FlatModule(module)
    assert torch.equal(flat.vector, before)
    flat.vector.add_(1.0)
    assert torch.equal(nn.utils.parameters_to_vector(module.parameters()), before + 1)
    flat.load(before)
    assert torch.equal(nn.utils.parameters_to_vector(module.parameters()), before)


def test_views_are_named_and_shaped():
    flat = FlatModule(perceptron())
    views = flat.views(torch.arange(flat.num_parameters, dtype=torch.float64))
    assert {name: tuple(view.shape) for name, view in views.items()} == {
        "0.weight": (5, 4),
        "0.bias": (5,),
        "2.weight": (3, 5),
        "2.bias": (3,),
    }
    assert torch.equal(
        torch.cat([v.reshape(-1) for v in views.values()]), torch.arange(43.0).double()
    )


def test_frozen_parameters_never_travel_and_never_move():
    module = perceptron()
    for parameter in module[0].parameters():
        parameter.requires_grad_(False)
    frozen = [parameter.clone() for parameter in module[0].parameters()]
    flat = FlatModule(module)
    assert flat.num_parameters == 5 * 3 + 3
    problem = fa.Problem(
        [fa.ModelObjective(flat, LOSS, *rows(i, 12)) for i in range(3)],
        initial=flat.vector.clone(),
    )
    result = fa.simulate(fa.FedADMM(0.5), problem, 3, **FULL_BATCH)
    assert result.history[0]["traffic"]["bytes_up"] == 3 * 18 * 8
    assert not torch.equal(result.params, problem.start(0))
    for before, after in zip(frozen, module[0].parameters(), strict=True):
        assert torch.equal(before, after)


def test_tied_parameters_are_one():
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    module[2].weight = module[0].weight
    flat = FlatModule(module)
    assert flat.num_parameters == 16 + 4 + 4
    inputs = rows(0, 6)[0]
    module(inputs).square().mean().backward()
    expected = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
    targets = torch.zeros(6, 4, dtype=torch.float64)
    objective = fa.ModelObjective(flat, nn.functional.mse_loss, inputs, targets)
    torch.testing.assert_close(objective.gradient(flat.vector.clone()), expected)


def test_several_precisions_are_rejected():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(fa.errors.ParameterError, match=naming("module")):
        FlatModule(module)


def test_moving_to_another_precision_keeps_the_values_and_the_views():
    flat = FlatModule(perceptron())
    before = flat.vector.clone()
    flat.to(torch.float32)
    assert flat.vector.dtype == torch.float32
    torch.testing.assert_close(flat.vector, before.float())
    flat.vector.zero_()
    assert not nn.utils.parameters_to_vector(flat.module.parameters()).any()


def normalised(momentum: float | None = 0.1, **options: object) -> fa.Problem:
    return small_federation(nn.BatchNorm1d(5, momentum=momentum), clients=3, **options)


def by_hand(
    policy: str, cohorts: list[list[int]], momentum: float | None = 0.1
) -> tuple[torch.Tensor, list[list[torch.Tensor]]]:
    """FedAvg over deep copies of the module, one a client, with torch alone."""
    problem = normalised(momentum, buffers=policy)
    origin = copy.deepcopy(problem.clients[0].flat.module)
    theta = nn.utils.parameters_to_vector(origin.parameters()).detach()
    modules = [copy.deepcopy(origin) for _ in range(3)]
    for module in modules:
        module.train()
    statistics = ["running_mean", "running_var"]
    statistics += ["num_batches_tracked"] if momentum is None else []
    for cohort in cohorts:
        results = []
        for index in cohort:
            module, client = modules[index], problem.clients[index]
            nn.utils.vector_to_parameters(theta.clone(), module.parameters())
            for _ in range(2):
                module.zero_grad()
                LOSS(module(client.inputs), client.targets).backward()
                with torch.no_grad():
                    for parameter in module.parameters():
                        parameter.sub_(parameter.grad, alpha=LR)
            results.append(nn.utils.parameters_to_vector(module.parameters()).detach().clone())
        theta = torch.stack(results).mean(0)
        if policy == "average":
            for statistic in statistics:
                values = [getattr(modules[i][1], statistic).double() for i in cohort]
                mean = torch.stack(values).mean(0)
                for module in modules:
                    getattr(module[1], statistic).copy_(mean)
    return theta, [[getattr(m[1], s).reshape(-1).double() for s in statistics] for m in modules]


class _Reversed(SequentialEngine):
    def run_clients(self, ids, download, round_index):
        return super().run_clients(list(reversed(ids)), download, round_index)


COHORTS = [[0, 1, 2], [0, 2], [1], [0, 1], [0, 2]]


@pytest.mark.parametrize("order", [SequentialEngine, _Reversed])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("policy", ["keep-local", "average"])
def test_buffers_follow_their_policy(policy, momentum, order):
    """Rounds of training, evaluated in between, against three separate modules.

    Without a momentum a batch weighs one over the number of batches so far, which the clients,
    who have one module together, must not count for each other.
    """
    problem = normalised(momentum, buffers=policy)
    stores, states = [], []

    def engine(job, store):
        stores.append(store)
        return order(job, store)

    result = fa.simulate(
        fa.FedAvg(),
        problem,
        len(COHORTS),
        engine=Chosen(engine),
        sampler=fa.TraceSampling(COHORTS),
        evaluate=fa.Evaluation(target="local" if policy == "keep-local" else "global"),
        callbacks=[lambda report: states.append(report.state)],
        **FULL_BATCH,
    )
    theta, statistics = by_hand(policy, COHORTS, momentum)
    torch.testing.assert_close(result.params, theta, rtol=0, atol=1e-12)
    for i, expected in enumerate(statistics):
        kept = stores[0].get(i).buffers if policy == "keep-local" else states[-1].buffers
        torch.testing.assert_close(kept, torch.cat(expected), rtol=0, atol=1e-12)
    if policy == "keep-local":
        assert not torch.equal(stores[0].get(0).buffers, stores[0].get(1).buffers)


@pytest.mark.parametrize("policy", ["keep-local", "average"])
def test_a_second_run_begins_with_the_buffers_that_the_module_came_with(policy):
    problem = normalised(None, buffers=policy)
    evaluation = fa.Evaluation(target="local" if policy == "keep-local" else "global")
    one, two = (
        fa.simulate(fa.FedAvg(), problem, 2, evaluate=evaluation, **FULL_BATCH) for _ in range(2)
    )
    assert [r["metrics"]["loss"] for r in one.history] == [
        r["metrics"]["loss"] for r in two.history
    ]


def test_what_counts_batches_is_loaded_as_a_whole_number_and_kept_exactly():
    """The mean of 300 and 301 batches; half precision alone could not tell 301 from 300."""
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None)).bfloat16()
    flat = FlatModule(module)
    module[1].num_batches_tracked.fill_(301)
    assert flat.buffers().tolist() == [0.0, 0.0, 1.0, 1.0, 301.0]
    flat.load_buffers(torch.tensor([0.5, 0.25, 2.0, 4.0, 300.6]))
    assert int(module[1].num_batches_tracked) == 301
    assert module[1].running_var.tolist() == [2.0, 4.0]
    assert flat.initial_buffers().tolist() == [0.0, 0.0, 1.0, 1.0, 0.0]


SHARES = (0.1, 0.2, 0.3, 0.4)


def remembered() -> tuple[fa.Problem, list[torch.Tensor]]:
    """Clients whose statistics are those of their own rows, whatever they start from."""
    flat = FlatModule(nn.Sequential(nn.BatchNorm1d(4, momentum=1.0), nn.Linear(4, 3)).double())
    data = [(2.0 * i + (1 + i) * inputs, y) for i in range(4) for inputs, y in [rows(i, 9)]]
    clients = [fa.ModelObjective(flat, LOSS, *own) for own in data]
    statistics = [torch.cat([inputs.mean(0), inputs.var(0)]) for inputs, _ in data]
    initial = flat.vector.clone()
    return fa.Problem(clients, weights=SHARES, initial=initial, buffers="average"), statistics


@pytest.mark.parametrize(
    "engine", ["sequential", VirtualTime("sync", dropout=0.3)], ids=["sequential", "lost replies"]
)
def test_averaged_buffers_are_the_weighted_mean_of_the_participants(engine):
    problem, statistics = remembered()
    states = []
    result = fa.simulate(
        fa.FedAvg(),
        problem,
        6,
        engine=engine,
        sampler=fa.UniformSampling(2),
        callbacks=[lambda report: states.append(report.state.buffers)],
        **FULL_BATCH,
    )
    expected = torch.cat([torch.zeros(4), torch.ones(4)]).double()
    for record, found in zip(result.history, states, strict=True):
        replies = record["cohort"]["clients"]
        if replies:
            weight = sum(SHARES[i] for i in replies)
            expected = sum(SHARES[i] * statistics[i] for i in replies) / weight
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("buffer", [1, 2])
def test_without_rounds_every_client_keeps_its_share_of_the_averaged_buffers(buffer):
    """B <- (1 - a_S) B + sum of a_i b_i over the replies of a step: no arrival replaces all."""
    problem, statistics = remembered()
    states = []
    result = fa.simulate(
        fa.FedADMM(1.0),
        problem,
        20,
        engine=VirtualTime(ratio=3.0, redraw=True, buffer=buffer),
        callbacks=[lambda report: states.append(report.state.buffers)],
        **FULL_BATCH,
    )
    expected = torch.cat([torch.zeros(4), torch.ones(4)]).double()
    for record, found in zip(result.history, states, strict=True):
        for i in record["cohort"]["clients"]:
            assert not torch.allclose(found, statistics[i])
        weight = sum(SHARES[i] for i in record["cohort"]["clients"])
        expected = (1 - weight) * expected + sum(
            SHARES[i] * statistics[i] for i in record["cohort"]["clients"]
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_averaged_buffers_are_counted_and_kept_ones_are_not():
    bare = normalised().clients[0].num_parameters
    for policy, extra in (("average", 10), ("keep-local", 0)):
        result = fa.simulate(
            fa.FedAvg(), normalised(buffers=policy), 1, evaluate=False, **FULL_BATCH
        )
        assert result.history[0]["traffic"]["bytes_up"] == 3 * (bare + extra) * 8
        assert result.history[0]["traffic"]["bytes_down"] == 3 * (bare + extra) * 8


@pytest.mark.parametrize("policy", ["keep-local", "average"])
def test_local_evaluation_uses_the_buffers_of_the_policy(policy):
    """The loss of the record is that of the three separate modules."""
    problem = normalised(buffers=policy)
    result = fa.simulate(
        fa.FedAvg(), problem, 2, evaluate=fa.Evaluation(target="local"), **FULL_BATCH
    )
    theta, statistics = by_hand(policy, [[0, 1, 2]] * 2)
    module = copy.deepcopy(problem.clients[0].flat.module).eval()
    losses = []
    for client, (mean, variance) in zip(problem.clients, statistics, strict=True):
        nn.utils.vector_to_parameters(theta.clone(), module.parameters())
        module[1].running_mean.copy_(mean)
        module[1].running_var.copy_(variance)
        with torch.no_grad():
            losses.append(float(LOSS(module(client.inputs), client.targets)))
    assert result.history[-1]["metrics"]["loss"] == pytest.approx(sum(losses) / 3, abs=1e-12)


def test_a_test_metric_sees_the_buffers_that_were_averaged():
    """Measuring f and its gradient first must not move them."""
    seen = []
    problem = normalised(buffers="average")
    flat = problem.clients[0].flat
    watched = fa.Problem(
        problem.clients,
        initial=problem.initial,
        buffers="average",
        test=lambda params: seen.append(flat.buffers().clone()) or {"seen": 1.0},
    )
    states = []
    fa.simulate(
        fa.FedAvg(), watched, 3, callbacks=[lambda r: states.append(r.state.buffers)], **FULL_BATCH
    )
    assert len(seen) == 3
    assert all(torch.equal(a, b) for a, b in zip(seen, states, strict=True))


def dropping(rate: float) -> fa.Problem:
    return small_federation(nn.Dropout(rate))


def test_dropout_depends_on_the_seed_and_not_on_the_global_generator():
    options = {"rounds": 3, "solver": fa.SGD(0.2, batch_size=5), "stop": fa.Epochs(2)}
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = fa.simulate(fa.FedADMM(0.5), dropping(0.5), seed=3, **options)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again = fa.simulate(fa.FedADMM(0.5), dropping(0.5), seed=3, **options)
    assert torch.equal(first.params, again.params)
    assert [r["metrics"]["loss"] for r in first.history] == [
        r["metrics"]["loss"] for r in again.history
    ]
    without = fa.simulate(fa.FedADMM(0.5), dropping(0.0), seed=3, **options)
    assert not torch.equal(first.params, without.params)


def test_dropout_masks_differ_between_clients():
    """Two clients with the same rows would make the same step with the same mask."""
    flat = FlatModule(perceptron(0, nn.Dropout(0.5)))
    initial = flat.vector.clone()
    twins = [fa.ModelObjective(flat, LOSS, *rows(0, 12)) for _ in range(2)]
    method = fa.FedADMM(0.5)
    result = fa.simulate(
        method, fa.Problem(twins, initial=initial), 1, solver=fa.GradientDescent(0.1)
    )
    assert not torch.equal(result.clients[0].w, result.clients[1].w)
