"""What a deployed round takes: our server and client against Flower's plain FedAvg.

All run over the same SuperLink, with the same model, the same data and the same local steps, in
turns, so that the noise of the machine falls on all.  Flower's FedAvg runs twice in a turn: with
`flower-supernode`, which starts a fresh Python for every message, and with `fedadmm deploy node`,
which forks tasks from a warm process.

    python benchmarks/flower_overhead.py [--clients 2] [--turns 2] [--rounds 4] [--tls]
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import tempfile
from pathlib import Path

from fedadmm.core import signals

APP = """\
import json, time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import fedadmm as fa
from fedadmm.data import models
from fedadmm.flower.site.app import client_app
from fedadmm.flower.federation import Federation
from fedadmm.flower.server.server_app import serve

torch.set_num_threads(1)
MODEL, LR, BATCH, EPOCHS = "mlp-64-128-10", 0.1, 20, 5


def rows(client):
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randn(400, 64, generator=generator)
    return inputs, torch.randint(0, 10, (400,), generator=generator)


def objective(context):
    inputs, targets = rows(context.node_config["partition-id"])
    loss = torch.nn.functional.cross_entropy
    return fa.ModelObjective(models.build(MODEL), loss, inputs, targets)


def federation(clients, rounds):
    return Federation(fa.FedADMM(rho=0.1), clients=clients, rounds=rounds, model=MODEL,
                      solver=fa.SGD(lr=LR, batch_size=BATCH), stop=fa.Epochs(EPOCHS))


server = ServerApp()
client = ClientApp()


@server.main()
def main(grid, context):
    config = context.run_config
    clients, rounds, nodes = config["clients"], config["rounds"], config["nodes"]
    deadline = time.monotonic() + 120
    while len(list(grid.get_node_ids())) < clients:
        if time.monotonic() > deadline:
            raise SystemExit(f"fewer than {clients} nodes came within 120 s")
        time.sleep(0.5)
    log = Path(config["out"])
    # Of either the first round is left out: ours also asks the nodes who they are.
    plain = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=clients)
    plain.start(grid, ArrayRecord(models.build(MODEL).state_dict()), num_rounds=rounds + 1)
    note(log, f"FedAvg, {nodes}", [*plain.marks[1:], time.monotonic()])
    if nodes == "flower-supernode":
        return
    marks = []
    callbacks = [lambda report: marks.append(time.monotonic())]
    serve(federation(clients, rounds + 1), grid, Path(config["folder"]), callbacks)
    note(log, f"fedadmm, {nodes}", marks)


class Timed(FedAvg):
    marks: list

    def __init__(self, **options):
        super().__init__(**options)
        self.marks = []

    def configure_train(self, *arguments):
        self.marks.append(time.monotonic())
        return super().configure_train(*arguments)


def note(log, name, marks):
    with log.open("a") as stream:
        for begin, end in zip(marks, marks[1:]):
            stream.write(json.dumps({"name": name, "seconds": end - begin}) + "\\n")


@client.train()
def train(message, context):
    if "arrays" not in message.content:
        clients, rounds = context.run_config["clients"], context.run_config["rounds"]
        return client_app(federation(clients, rounds + 1), objective)(message, context)
    inputs, targets = rows(context.node_config["partition-id"])
    model = models.build(MODEL)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(inputs)).split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[part]), targets[part]).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": 400})
    records = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(records), reply_to=message)
"""

PYPROJECT = """\
[project]
name = "fedadmm-overhead"
version = "0.1.0"
description = "x"
license = "Apache-2.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "fedadmm"

[tool.flwr.app.components]
serverapp = "overhead.app:server"
clientapp = "overhead.app:client"

[tool.flwr.app.config]
clients = 2
rounds = 4
turns = 2
out = ""
folder = ""
nodes = ""
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tls", action="store_true", help="Encrypted, with keys of the nodes.")
    options = parser.parse_args()
    # Without a handler SIGTERM would leave the SuperLink and the nodes running.
    with signals.as_interrupt(signal.SIGTERM, signal.SIGHUP):
        measure(**vars(options))


def measure(clients: int, turns: int, rounds: int, tls: bool) -> None:
    """Run the turns and print the medians."""
    from fedadmm.flower.deploy.network import LocalNetwork

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "app" / "overhead").mkdir(parents=True)
        (folder / "app" / "overhead" / "__init__.py").write_text("")
        (folder / "app" / "overhead" / "app.py").write_text(APP)
        (folder / "app" / "pyproject.toml").write_text(PYPROJECT)
        nodes = [{"state-dir": str(folder / f"site-{c}")} for c in range(clients)]
        out = folder / "seconds.jsonl"
        with LocalNetwork(folder / "ground", nodes, tls=tls) as ground:
            ground.start_link()
            if tls:  # the SuperLink admits no unknown key, and the app would wait for its nodes
                for client in range(clients):
                    ground.register(client)
            for turn in range(turns):
                for kind in ("flower-supernode", "fedadmm deploy node"):
                    warm = kind != "flower-supernode"
                    started = [ground.start_node(c, warm=warm) for c in range(clients)]
                    place = str(folder / f"ours-{turn}")
                    config = {"clients": clients, "rounds": rounds, "turns": turns}
                    config |= {"out": str(out), "nodes": kind, "folder": place}
                    run = ground.run(folder / "app", config)
                    ground.wait(run, 600.0 + 60.0 * rounds)
                    if run.code() or not out.exists():
                        raise SystemExit(run.tail(40))
                    for node in started:
                        node.stop()
        lines = [json.loads(line) for line in out.read_text().splitlines()]
    names = dict.fromkeys(line["name"] for line in lines)
    found = {name: [x["seconds"] for x in lines if x["name"] == name] for name in names}
    first = statistics.median(next(iter(found.values())))
    for name, seconds in found.items():
        median = statistics.median(seconds)
        print(
            f"{name:29} {len(seconds)} rounds, median {median:.2f} s, from {min(seconds):.2f} to "
            f"{max(seconds):.2f} s, {first / median:.1f} times as fast"
        )


if __name__ == "__main__":
    main()
