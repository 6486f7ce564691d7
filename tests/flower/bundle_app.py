"""The Flower app of the tests with real processes: copied into a bundle, never imported here.

It is a federation of logistic regressions, and a saboteur: where a file in the folder
FEDADMM_TEST_PLAN says so, the process kills itself at exactly that point.
"""

import os
import signal
from pathlib import Path

import torch
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

import fedadmm as fa
from fedadmm.flower.checkpoint import ServerVault
from fedadmm.flower.client import client_app
from fedadmm.flower.desk import Desk
from fedadmm.flower.engine import GridEngine
from fedadmm.flower.exchange import Exchange
from fedadmm.flower.federation import Federation, Patience
from fedadmm.flower.rundir import RunDirectory
from fedadmm.flower.server import serve
from fedadmm.flower.vault import Vault

torch.set_num_threads(1)
PLAN = Path(os.environ["FEDADMM_TEST_PLAN"])
DIMENSION = 6
ALGORITHMS = {
    "fedavg": fa.FedAvg(),
    "scaffold": fa.Scaffold(),
    "fedadmm": fa.FedADMM(rho=1.0),
    "fedadmm-insa": fa.FedADMMInSa(beta=1.0),
    "feddr": fa.FedDR(eta=1.0),
    "async-feddr": fa.AsyncFedDR(eta=1.0),
}


def objective(client):
    generator = torch.Generator().manual_seed(100 + client)
    rows = torch.randn(30, DIMENSION, generator=generator) + 0.4 * client
    truth = torch.randn(DIMENSION, generator=torch.Generator().manual_seed(client))
    return fa.LogisticRegression(rows, (rows @ truth > 0).float(), ridge=0.05)


def federation(name, clients=3, rounds=3, cohort=3, patience=(60.0, 20.0), **changes):
    return Federation(
        ALGORITHMS[name],
        clients=clients,
        rounds=rounds,
        initial=torch.linspace(-1, 1, DIMENSION),
        solver=fa.SGD(lr=0.1, batch_size=10),
        stop=fa.Epochs(2),
        sampler=fa.UniformSampling(cohort),
        patience=Patience(start=120.0, round=patience[0], resend=patience[1]),
        **changes,
    )


def die(point):
    """Die here if the plan says so: `point` is a file that holds who dies, "me" or "group"."""
    path = PLAN / point
    try:
        who = path.read_text()
        path.rename(PLAN / f"{point}.happened")
    except FileNotFoundError:
        return
    if who == "group":
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def settings_of(config):
    patience = (float(config["round-timeout"]), float(config["resend-after"]))
    names = [f"client-{i}" for i in range(config["clients"])] if config["named"] else None
    return {
        "clients": config["clients"],
        "rounds": config["rounds"],
        "cohort": config["cohort"],
        "patience": patience,
        "ledger": config["ledger"],
        "names": names,
        "mode": config["mode"],
    }


def sabotage_client():
    commit = Vault.commit

    def sabotaged(vault, reply, kept):
        die(f"client-{reply.client}.round-{reply.sequence}.before-commit")
        commit(vault, reply, kept)
        die(f"client-{reply.client}.round-{reply.sequence}.after-commit")

    Vault.commit = sabotaged


def sabotage_server():
    send, count, save = Exchange.send, GridEngine._count_empty, ServerVault.save
    last = [0]

    def sending(exchange, kind, group, contents, ttl):
        number = group if group.isdigit() else "hello"
        die(f"server.round-{number}.before-push")
        send(exchange, kind, group, contents, ttl)
        last[0] = int(number) if number != "hello" else last[0]
        die(f"server.round-{number}.after-push")

    def counting(engine):
        die(f"server.round-{last[0]}.before-fold")
        count(engine)

    def saving(vault, saved, brought):
        die(f"server.round-{saved.state.round}.before-checkpoint")
        save(vault, saved, brought)
        die(f"server.round-{saved.state.round}.after-checkpoint")

    Exchange.send, GridEngine._count_empty, ServerVault.save = sending, counting, saving


def labelled(content, name):
    """Every task says which algorithm it belongs to: one run serves several here."""

    def with_name(desk, task):
        record = content(desk, task)
        record["test"] = ConfigRecord({"algorithm": name})
        return record

    return with_name


server = ServerApp()


@server.main()
def main(grid, context):
    sabotage_server()
    content = Desk.content
    for name in context.run_config["algorithms"].split(","):
        Desk.content = labelled(content, name)
        folder = Path(context.run_config["run-dir"]) / name
        with RunDirectory(folder) as directory:
            settings = federation(name, **settings_of(context.run_config))
            outcome = serve(settings, grid, folder, [directory])
            directory.finish(outcome)


client = ClientApp()


@client.train()
def train(message, context):
    sabotage_client()
    name = "fedavg"
    if "test" in message.content:
        name = message.content["test"]["algorithm"]
    settings = federation(name, **settings_of(context.run_config))
    app = client_app(settings, lambda c: objective(c.node_config["partition-id"]))
    return app(message, context)
