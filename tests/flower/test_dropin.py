"""An existing Flower app keeps its loop: one import for the server, one mod for the client."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import load_file

import fedadmm as fa
from fedadmm.core import clock
from fedadmm.core.errors import CompatibilityError
from fedadmm.flower import DropIn, Patience
from fedadmm.flower.dropin import OwnLoop
from fedadmm.flower.protocol import wire
from fedadmm.flower.site import gate
from fedadmm.flower.site.gate import Terms
from fedadmm.flower.site.policy import POLICY

from .harness import CLIENTS, DIMENSION, FakeGrid, objectives

pytestmark = pytest.mark.usefixtures("quick")
STEPS, LR, ROUNDS = 3, 0.2, 4


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(DIMENSION, 1, bias=False)

    def forward(self, rows):
        return self.layer(rows).squeeze(-1)


def loss(model, site):
    """The same f_i as the harness' logistic regression, written with a module."""
    outputs = model(site.features)
    plain = torch.nn.functional.binary_cross_entropy_with_logits(outputs, site.targets)
    return plain + site.ridge * model.layer.weight.square().sum() / 2


def app_of(drop_in, make_optimizer):
    """Train and evaluate functions as Flower's templates have them."""
    app = ClientApp(mods=[drop_in.mod])
    sites = objectives()

    @app.evaluate()
    def evaluate(message, context):
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        number = context.node_config["partition-id"]
        found = {"eval_loss": float(loss(model, sites[number])), "num-examples": 1 + number}
        found |= {"told": message.content["config"].get("told", -1.0), "lists": [1.0, 2.0]}
        found |= {"round": message.content["config"]["server-round"], "never": float("nan")}
        return Message(RecordDict({"metrics": MetricRecord(found)}), reply_to=message)

    @app.train()
    def train(message, context):
        model = Net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        site = sites[context.node_config["partition-id"]]
        optimizer = make_optimizer(model, message.content["config"]["lr"])
        for _ in range(STEPS):
            model.zero_grad()
            loss(model, site).backward()
            if optimizer is not None:
                optimizer.step()
        number = context.node_config["partition-id"]
        told = {"train/loss": float(number), "num-examples": 1 + number}
        told["round"] = message.content["config"]["server-round"]
        records = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(told)}
        return Message(RecordDict(records), reply_to=message)

    return app


def plain_sgd(model, lr):
    return torch.optim.SGD(model.parameters(), lr=lr)


def drop_in_of(algorithm, **changes):
    patience = Patience(start=60.0, round=60.0, resend=10.0, poll=1.0, empty=2)
    return DropIn(algorithm, CLIENTS, Net, patience=patience, **changes)


def grid_of(drop_in, tmp_path, make_optimizer=plain_sgd):
    grid = FakeGrid(drop_in.federation, tmp_path)
    grid._app = app_of(drop_in, make_optimizer)
    return grid


def begin(drop_in, grid, tmp_path, rounds=ROUNDS, lr=LR, **options):
    config = ConfigRecord({"lr": lr})
    options = {"run_dir": tmp_path / "run"} | options
    return drop_in.start(grid, num_rounds=rounds, train_config=config, **options)


def start(drop_in, tmp_path, make_optimizer=plain_sgd):
    result = begin(drop_in, grid_of(drop_in, tmp_path, make_optimizer), tmp_path)
    return weight_of(result)


def weight_of(result):
    return result.arrays.to_torch_state_dict()["layer.weight"].reshape(-1)


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "algorithm",
    [
        fa.FedAvg(),
        fa.FedProx(rho=0.5),
        fa.Scaffold(),
        fa.FedADMM(rho=1.0),
        fa.FedADMM(rho=fa.PerWork(0.25)),
        fa.FedDR(eta=1.0),
    ],
    ids=repr,
)
def test_the_loop_of_an_app_is_the_local_solver(algorithm, tmp_path):
    options = {"length": LR * STEPS} if isinstance(algorithm, fa.FedADMM) else {}
    drop_in = drop_in_of(algorithm, sampler=fa.UniformSampling(3), **options)
    got = start(drop_in, tmp_path)
    wanted = fa.simulate(
        algorithm,
        fa.Problem(objectives()),
        ROUNDS,
        sampler=fa.UniformSampling(3),
        solver=fa.GradientDescent(lr=LR),
        stop=fa.Steps(STEPS),
        initial=drop_in.federation.server_job().initial,
        evaluate=False,
    )
    assert torch.allclose(got, wanted.params, rtol=0, atol=1e-6)


def test_the_train_function_runs_once_per_task(tmp_path):
    """Also for a penalty per work: the node is given the length of its work, and measures none."""
    calls = []

    def counted(model, lr):
        calls.append(1)
        return plain_sgd(model, lr)

    start(drop_in_of(fa.FedADMM(rho=fa.PerWork(0.25)), length=LR * STEPS), tmp_path, counted)
    assert len(calls) == CLIENTS * ROUNDS


def test_a_penalty_per_work_needs_the_length_of_the_work():
    with pytest.raises(fa.errors.ParameterError, match=r"^DropIn\.length: got None"):
        drop_in_of(fa.FedADMM())


@pytest.mark.parametrize(("momentum", "warned"), [(0.0, False), (0.9, True)])
def test_a_length_that_does_not_fit_the_training_is_reported(momentum, warned, tmp_path, caplog):
    """Momentum 0.9 makes the work ten times as long: 3 steps of 0.2 are 0.6, or 6."""

    def optimizer(model, lr):
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)

    start(drop_in_of(fa.FedADMM(), length=0.6), tmp_path, optimizer)
    messages = [one.getMessage() for one in caplog.records if "DropIn.length" in one.getMessage()]
    assert bool(messages) == warned
    assert all("got 0.6" in one and "is 6;" in one for one in messages)


def test_a_loop_without_optimiser_steps_is_refused(tmp_path, caplog):
    with pytest.raises(fa.errors.EngineError, match="no client returned an update in 2 rounds"):
        start(drop_in_of(fa.FedADMM(rho=1.0)), tmp_path, lambda model, lr: None)
    assert "made no step of a torch optimiser" in caplog.text


def test_an_optimiser_over_something_else_is_refused(tmp_path, caplog):
    def other(model, lr):
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=lr)

    with pytest.raises(fa.errors.EngineError):
        start(drop_in_of(fa.FedADMM(rho=1.0)), tmp_path, other)
    assert "steps other parameters" in caplog.text


def test_methods_that_need_full_gradients_are_refused():
    with pytest.raises(CompatibilityError, match="Scaffold needs full gradients"):
        drop_in_of(fa.Scaffold(option=1))


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_a_plain_flower_message_does_not_pass_by_the_sites_policy(kind, tmp_path):
    """Unsigned and not approved, it would bring the trained model and exact losses."""
    drop_in = drop_in_of(fa.FedAvg())
    grid = grid_of(drop_in, tmp_path)
    grid.policy = {"approval": True, "server-key": "0" * 64, "evaluations": 0, "epsilon": 0.1}
    arrays, called = ArrayRecord(Net().state_dict()), []
    records = {"arrays": arrays, "config": ConfigRecord({"lr": LR, "server-round": 1})}
    message = Message(RecordDict(records), 1000, kind)
    with pytest.raises(fa.errors.StateError, match=r"got a message without a task.*others=True"):
        drop_in.mod(message, grid.context(0), lambda *given: called.append(given))
    assert called == []
    if kind != "query":
        with pytest.raises(fa.errors.StateError, match="got a message without a task"):
            grid._app(Message(RecordDict(records), 1000, kind), grid.context(0))


def test_messages_of_others_pass_where_the_app_allows_them(tmp_path):
    drop_in = drop_in_of(fa.FedAvg(), others=True)
    grid = FakeGrid(drop_in.federation, tmp_path)
    message = Message(RecordDict(), 1000, "train")
    assert drop_in.mod(message, grid.context(0), lambda m, c: m) is message


def test_the_apps_metrics_are_kept(tmp_path):
    """Weighted by num-examples, 1 … 4 at the four clients, as Flower does it."""
    drop_in = drop_in_of(fa.FedADMM(rho=1.0))
    seen = []

    def evaluate(number, arrays):
        seen.append(number)
        return MetricRecord({"sum": float(arrays["layer.weight"].numpy().sum())})

    asked = ConfigRecord({"told": 5.0})
    grid = grid_of(drop_in, tmp_path)
    result = begin(drop_in, grid, tmp_path, evaluate_fn=evaluate, evaluate_config=asked)
    rounds = list(range(1, ROUNDS + 1))
    assert seen == list(result.evaluate_metrics_serverapp) == [0, *rounds]
    assert list(result.train_metrics_clientapp) == list(result.evaluate_metrics_clientapp) == rounds
    assert dict(result.train_metrics_clientapp[2]) == {"round": 2, "train_loss": pytest.approx(2.0)}
    model = Net()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    losses = [float(loss(model, site).detach()) for site in objectives()]
    wanted = sum((1 + i) * value for i, value in enumerate(losses)) / 10
    last = dict(result.evaluate_metrics_clientapp[ROUNDS])
    assert last == {"eval_loss": pytest.approx(wanted, abs=1e-6), "told": 5.0, "round": ROUNDS}
    written = records(tmp_path / "run")[-1]
    total = float(weight_of(result).sum())
    assert written["metrics"] == {"train_loss": 2.0, "sum": pytest.approx(total)} | last
    assert written["network"]["training"]["metrics"]["train_loss"] == 2.0


def test_nobody_is_asked_to_evaluate_where_that_is_not_wanted(tmp_path):
    drop_in = drop_in_of(fa.FedADMM(rho=1.0), evaluate_every=0)
    grid = grid_of(drop_in, tmp_path)
    result = begin(drop_in, grid, tmp_path)
    assert result.evaluate_metrics_clientapp == result.evaluate_metrics_serverapp == {}
    assert grid.counts["evaluate"] == 0


def test_a_round_is_said_and_so_is_the_folder(tmp_path, caplog):
    caplog.set_level(logging.INFO, "flwr.fedadmm")
    drop_in = drop_in_of(fa.FedADMM(rho=1.0))
    begin(drop_in, grid_of(drop_in, tmp_path), tmp_path, rounds=2)
    said = [record.getMessage() for record in caplog.records if record.name == "flwr.fedadmm"]
    assert said[0] == f"The run is kept in {tmp_path / 'run'}"
    assert said[1].startswith("round 1 of 2: 4 clients, round 1, train_loss 2, eval_loss 0.")
    assert said[3] == "The run has ended: completed all 2 rounds"


def test_a_run_without_a_folder_of_its_own_lands_in_the_users_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    drop_in = drop_in_of(fa.FedADMM(rho=1.0), evaluate_every=0)
    begin(drop_in, grid_of(drop_in, tmp_path), tmp_path, rounds=1, run_dir=None)
    begin(drop_in, grid_of(drop_in, tmp_path), tmp_path, rounds=1, run_dir="mine")
    runs = tmp_path / "home" / "fedadmm-runs"
    assert {path.name for path in runs.iterdir()} == {"somebody-quickstart-7", "mine"}
    assert not (tmp_path / "mine").exists()


def test_a_run_is_resumed_by_its_own_app_and_by_no_other(tmp_path):
    drop_in = drop_in_of(fa.FedADMM(rho=1.0), evaluate_every=0)
    begin(drop_in, grid_of(drop_in, tmp_path), tmp_path, rounds=2)
    other = grid_of(drop_in, tmp_path)
    other.run = other.run._replace(fab_id="somebody/else")
    with pytest.raises(
        fa.errors.StateError, match=r"holds another run, .*app \(.*quickstart.*else"
    ):
        begin(drop_in, other, tmp_path)
    with pytest.raises(
        fa.errors.StateError, match=r"holds another run, which differs in train_config"
    ):
        begin(drop_in, grid_of(drop_in, tmp_path), tmp_path, lr=0.1)
    same = grid_of(drop_in, tmp_path)
    same.run = same.run._replace(run_id=8)
    seen = []
    resumed = begin(drop_in, same, tmp_path, evaluate_fn=lambda number, _: seen.append(number))
    assert seen == [3, 4]
    whole = begin(drop_in, grid_of(drop_in, tmp_path), tmp_path, run_dir=tmp_path / "whole")
    assert torch.equal(weight_of(resumed), weight_of(whole))


def test_a_timeout_is_how_long_a_round_waits(tmp_path):
    drop_in = drop_in_of(fa.FedADMM(rho=1.0), evaluate_every=0)
    grid = grid_of(drop_in, tmp_path)

    def lose(moment, message, client):  # the tasks of one client; who it is, it says
        return "drop" if client == 1 and wire.HEAD in message.content else None

    grid.fault = lose
    began = clock.now()  # made-up time
    begin(drop_in, grid, tmp_path, rounds=1, timeout=5.0)
    assert 5.0 <= clock.now() - began < 20.0
    assert records(tmp_path / "run")[0]["cohort"]["clients"] == [0, 2, 3]


class Bare(FakeGrid):
    """Nodes as in Flower's simulation: they have a partition-id alone."""

    def context(self, client):
        context = super().context(client)
        del context.node_config["state-dir"]
        return context


@pytest.fixture
def simulation(monkeypatch):
    """Let bare nodes be taken for those of a simulation."""
    name = "flwr.superlink.grid.inmemory_grid"

    def simulate():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(InMemoryGrid=Bare))
        monkeypatch.setitem(sys.modules, "flwr.simulation.ray_transport.ray_actor", sys)

    return simulate


@pytest.mark.parametrize("algorithm", [fa.FedADMM(rho=1.0), fa.FedPD(eta=1.0)])
@pytest.mark.parametrize("nodes", [2, CLIENTS])
def test_a_simulation_has_a_node_for_every_client(simulation, tmp_path, nodes, algorithm):
    simulation()
    drop_in = drop_in_of(algorithm, evaluate_every=0)
    grid = Bare(drop_in.federation, tmp_path)
    grid._app, grid._clients = app_of(drop_in, plain_sgd), nodes
    if nodes == CLIENTS:
        begin(drop_in, grid, tmp_path, rounds=1)
        return
    with pytest.raises(
        fa.errors.EngineError, match=r'^2 nodes .* 4 clients; .*"num-supernodes=4", or'
    ):
        begin(drop_in, grid, tmp_path, rounds=1)


def test_simulated_nodes_need_no_folder_and_deployed_ones_do(simulation, tmp_path, caplog):
    """The place of a simulated node is the run directory."""
    drop_in = drop_in_of(fa.FedADMM(rho=1.0), evaluate_every=0)
    grid = Bare(drop_in.federation, tmp_path)
    grid._app = app_of(drop_in, plain_sgd)
    with pytest.raises(fa.errors.EngineError, match="no client returned an update"):
        begin(drop_in, grid, tmp_path, run_dir=tmp_path / "deployed")
    assert "state-dir: got None, expected a folder of this site" in caplog.text
    simulation()
    found = weight_of(begin(drop_in, grid, tmp_path))
    assert torch.equal(found, start(drop_in, tmp_path / "other"))
    (run,) = set((tmp_path / "run" / "sites").iterdir()) - set(
        (tmp_path / "run" / "sites").glob("ledger_*")
    )
    assert {path.name for path in run.iterdir()} == {f"client-{i}" for i in range(CLIENTS)}


@pytest.mark.parametrize("name", ["solver", "stop", "local"])
def test_the_apps_own_loop_is_the_only_solver(name):
    with pytest.raises(
        fa.errors.ParameterError, match=f"^DropIn: {name} is given, but must not be"
    ):
        drop_in_of(fa.FedADMM(rho=1.0), **{name: fa.Epochs(1)})


def test_the_terms_that_a_site_approves_stay_the_same_from_message_to_message():
    """The train function is another object in every process."""
    plain = drop_in_of(fa.FedADMM(rho=1.0)).federation
    run = plain.experiment
    own = replace(run, local=replace(run.local, solver=OwnLoop(lambda state, number: state)))
    assert Terms.of(replace(plain, experiment=own)) == Terms.of(plain)


def test_the_model_of_an_app_is_there_by_its_names_after_every_round(tmp_path):
    drop_in, found = drop_in_of(fa.FedAvg()), []

    def take(number, arrays):
        path = tmp_path / "run" / "state_dict.safetensors"
        if path.exists():
            model = Net()
            model.load_state_dict(load_file(path))
            found.append((number, model.layer.weight.detach().reshape(-1)))
        return

    result = begin(drop_in, grid_of(drop_in, tmp_path), tmp_path, evaluate_fn=take)
    assert [number for number, _ in found] == list(range(2, ROUNDS + 1))
    shorter = drop_in_of(fa.FedAvg())
    half = begin(shorter, grid_of(shorter, tmp_path / "b"), tmp_path / "b", rounds=ROUNDS - 1)
    assert torch.equal(found[-1][1], weight_of(half))
    model = Net()
    model.load_state_dict(load_file(tmp_path / "run" / "state_dict.safetensors"))
    assert torch.equal(model.layer.weight.detach().reshape(-1), weight_of(result))


def test_an_approved_run_gets_all_its_rounds(tmp_path):
    """Site 1 misses the first round, until somebody approves; with more rounds it waits again."""
    drop_in = drop_in_of(fa.FedAvg())
    grid = grid_of(drop_in, tmp_path)
    folder = tmp_path / "site-1"
    folder.mkdir()
    (folder / POLICY).write_text("approval = true\nevaluations = 100\n")

    def approve(number, _):
        if number == 1:
            (run,) = gate.waiting(folder)
            assert gate.approve(folder, run)["rounds"] == ROUNDS
        return {}

    begin(drop_in, grid, tmp_path, evaluate_fn=approve)
    taken = [record["cohort"]["clients"] for record in records(tmp_path / "run")]
    assert taken == [[0, 2, 3]] + [[0, 1, 2, 3]] * (ROUNDS - 1)
    assert [one["kind"] for one in gate.left(folder)] == ["update", "metrics"] * (ROUNDS - 1)
    begin(drop_in, grid, tmp_path, rounds=ROUNDS + 1)
    assert records(tmp_path / "run")[-1]["cohort"]["clients"] == [0, 2, 3]
    assert [terms["rounds"] for terms in gate.waiting(folder).values()] == [ROUNDS + 1]
