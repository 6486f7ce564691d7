"""Flower's simulation with one Ray actor a core."""

from __future__ import annotations

import itertools
import json
import os
import time
from typing import Any

import torch
from common import model, prepared, reached, report, specification, train
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

spec = specification()
text = json.dumps(vars(spec))
client_app = ClientApp()
server_app = ServerApp()
times = [time.perf_counter()]


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    """One client's round."""
    inputs, targets, module = prepared(text)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    optimizer = torch.optim.SGD(module.parameters(), lr=spec.lr)
    train(module, optimizer, inputs[client], targets[client], spec)
    content = RecordDict(
        {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": spec.samples}),
        }
    )
    return Message(content=content, reply_to=message)


def told() -> None:
    """Report the rounds."""
    seconds = [after - before for before, after in itertools.pairwise(times)]
    report(seconds[spec.warm_up :])


class Clocked(FedAvg):
    """Notes when a round ends."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """One more round has ended."""
        result = super().aggregate_train(server_round, replies)
        times.append(time.perf_counter())
        module = model(spec)
        if spec.target:
            module.load_state_dict(result[0].to_torch_state_dict())
        if reached(module, spec):  # it has no way to end before its last round
            told()
            os._exit(0)
        return result


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the workload."""
    strategy = Clocked(
        fraction_train=spec.cohort / spec.clients,
        fraction_evaluate=0.0,
        min_train_nodes=spec.cohort,
        min_evaluate_nodes=0,
        min_available_nodes=spec.clients,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model(spec).state_dict()),
        num_rounds=spec.warm_up + spec.rounds,
    )


if __name__ == "__main__":
    run_simulation(
        server_app,
        client_app,
        num_supernodes=spec.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    told()
