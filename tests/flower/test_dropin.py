"""An existing Flower app keeps its loop: one import for the server, one mod for the client."""

from __future__ import annotations

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedadmm as fa
from fedadmm.core.errors import PairingError
from fedadmm.flower import DropIn, Patience

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
    """A train function as Flower's templates have it."""
    app = ClientApp()
    sites = objectives()

    @app.train(mods=[drop_in.mod])
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
        records = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"n": 1})}
        return Message(RecordDict(records), reply_to=message)

    return app


def plain_sgd(model, lr):
    return torch.optim.SGD(model.parameters(), lr=lr)


def drop_in_of(algorithm, **changes):
    patience = Patience(start=60.0, round=60.0, resend=10.0, poll=1.0, empty=2)
    return DropIn(algorithm, CLIENTS, Net, config={"lr": LR}, patience=patience, **changes)


def start(drop_in, tmp_path, make_optimizer=plain_sgd):
    grid = FakeGrid(drop_in.federation(ROUNDS), tmp_path)
    grid._app = app_of(drop_in, make_optimizer)
    seen = {}

    def evaluate(number, arrays):
        seen[number] = arrays
        return MetricRecord({"norm": float(arrays["layer.weight"].numpy().sum())})

    result = drop_in.start(grid, None, ROUNDS, run_dir=tmp_path / "run", evaluate_fn=evaluate)
    assert list(seen) == list(result.evaluate_metrics_serverapp) == list(range(1, ROUNDS + 1))
    return result.arrays.to_torch_state_dict()["layer.weight"].reshape(-1)


@pytest.mark.parametrize(
    "algorithm",
    [fa.FedAvg(), fa.FedProx(rho=0.5), fa.Scaffold(), fa.FedADMM(rho=1.0), fa.FedDR(eta=1.0)],
    ids=lambda algorithm: algorithm.name,
)
def test_the_loop_of_an_app_is_the_local_solver(algorithm, tmp_path):
    drop_in = drop_in_of(algorithm, sampler=fa.UniformSampling(3))
    got = start(drop_in, tmp_path)
    wanted = fa.simulate(
        algorithm,
        fa.Problem(objectives()),
        ROUNDS,
        sampler=fa.UniformSampling(3),
        solver=fa.GradientDescent(lr=LR),
        stop=fa.Steps(STEPS),
        initial=drop_in.federation(1).server_job().initial,
        evaluate=False,
    )
    assert torch.allclose(got, wanted.params, rtol=0, atol=1e-6)


def test_a_loop_without_optimiser_steps_is_refused(tmp_path, caplog):
    with pytest.raises(fa.EngineError, match="no client brought an update in 2 rounds"):
        start(drop_in_of(fa.FedADMM(rho=1.0)), tmp_path, lambda model, lr: None)
    assert "made no step of a torch optimiser" in caplog.text


def test_an_optimiser_over_something_else_is_refused(tmp_path, caplog):
    def other(model, lr):
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=lr)

    with pytest.raises(fa.EngineError):
        start(drop_in_of(fa.FedADMM(rho=1.0)), tmp_path, other)
    assert "steps other parameters" in caplog.text


def test_methods_that_need_full_gradients_are_refused():
    with pytest.raises(PairingError, match="Scaffold needs full gradients"):
        drop_in_of(fa.Scaffold(option=1))


def test_losses_that_a_train_function_does_not_give_are_refused():
    with pytest.raises(PairingError, match="LossSampling asks for the clients' losses"):
        DropIn(fa.FedADMM(1.0), clients=4, model=Net, sampler=fa.LossSampling(2, 0.1))


def test_messages_of_others_pass_through(tmp_path):
    drop_in = drop_in_of(fa.FedAvg())
    grid = FakeGrid(drop_in.federation(1), tmp_path)
    message = Message(RecordDict(), 1000, "train")
    assert drop_in.mod(message, grid.context(0), lambda m, c: m) is message
