"""The Flower app of the tests with real processes: copied into a bundle, never imported here.

It is a federation of logistic regressions, and a saboteur: where a file in the folder
FEDADMM_TEST_PLAN says so, the process kills itself at exactly that point.
"""

import json
import math
import os
import signal
import time
from pathlib import Path

import torch
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from torch import nn

import fedadmm as fa
from fedadmm.core.codec import decode, encode
from fedadmm.core.objectives.losses import binary_cross_entropy
from fedadmm.core.pairwise_masks import new_identity, new_share
from fedadmm.flower.federation import Federation, Patience
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.admission import seal
from fedadmm.flower.secure_aggregation import pending_uploads as site_masking
from fedadmm.flower.secure_aggregation.masked_messages import write_set
from fedadmm.flower.secure_aggregation.masked_sums import MaskedSumRequest
from fedadmm.flower.secure_aggregation.pending_uploads import SiteMasking
from fedadmm.flower.server.checkpoint import ServerState
from fedadmm.flower.server.engine import GridEngine
from fedadmm.flower.server.exchange import Exchange
from fedadmm.flower.server.run_recorder import RunRecorder
from fedadmm.flower.server.server_app import serve
from fedadmm.flower.server.tasks import TrainingRequest
from fedadmm.flower.site import app as site
from fedadmm.flower.site.app import client_app
from fedadmm.flower.site.site_state import SiteState

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
    "ditto": fa.FedAvg(),
    "layers": fa.FedAvg(),
}
PERSONAL = {"ditto": fa.Ditto(0.3), "layers": fa.PersonalLayers(["bias"])}


def objective(client):
    generator = torch.Generator().manual_seed(100 + client)
    rows = torch.randn(30, DIMENSION, generator=generator) + 0.4 * client
    truth = torch.randn(DIMENSION, generator=torch.Generator().manual_seed(client))
    return fa.LogisticRegression(rows, (rows @ truth > 0).float(), ridge=0.05)


def network(client):
    """The same labels for one layer with a bias, which has as many parameters."""
    rows, targets = objective(client).features[:, 1:], objective(client).targets
    return fa.ModelObjective(nn.Linear(DIMENSION - 1, 1), binary_cross_entropy, rows, targets)


def federation(name, clients=3, rounds=3, cohort=3, patience=(60.0, 20.0), start=0.0, **changes):
    return Federation(
        ALGORITHMS[name],
        clients=clients,
        rounds=rounds,
        initial=torch.linspace(-1, 1, DIMENSION) + start,
        solver=fa.SGD(lr=0.1, batch_size=10),
        stop=fa.Epochs(2),
        personal=PERSONAL.get(name),
        sampler=fa.UniformSampling(cohort),
        patience=Patience(start=120.0, round=patience[0], resend=patience[1]),
        **changes,
    )


def die(point):
    """Die here if the plan says so: `point` is a file that holds who dies, "me" or "group".

    "nobody" only takes its time.
    """
    path = PLAN / point
    try:
        who = path.read_text()
        path.rename(PLAN / f"{point}.happened")
    except FileNotFoundError:
        return
    if who == "nobody":
        time.sleep(60.0)
        return
    if who == "group":
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def settings_of(config):
    patience = (float(config["round-timeout"]), float(config["resend-after"]))
    names = [f"client-{i}" for i in range(config["clients"])] if config["named"] else None
    masked = {"aggregator": fa.MaskedSum(bound=50.0)} if config["masked"] else {}
    return masked | {
        "clients": config["clients"],
        "rounds": config["rounds"],
        "cohort": config["cohort"],
        "patience": patience,
        "ledger": config["ledger"],
        "names": names,
        "mode": config["mode"],
        "accept_rollback": config["accept-rollback"],
        "start": float(config["start"]),
        "weights": [1.0, *[float(config["weight"])] * (config["clients"] - 1)],
    }


def sabotage_client(masked):
    commit, release = SiteState.commit, SiteMasking.release

    def point(task):  # where uploads are masked, a round that is begun anew has another number
        number = task.sequence >> 32 if masked else task.sequence
        return f"client-{task.client}.round-{number}"

    def sabotaged(site, reply, body, record):
        die(f"{point(reply)}.before-commit")
        commit(site, reply, body, record)
        die(f"{point(reply)}.after-commit")

    def releasing(site_masking, state, task, *given):
        found = release(site_masking, state, task, *given)
        die(f"{point(task)}.after-masking")
        return found

    SiteState.commit, SiteMasking.release = sabotaged, releasing
    answer = site.answer_task

    def lying(*given):
        content = answer(*given)
        reply, body = wire.read_reply(content, len(wire.read_body(content)))
        lie = PLAN / f"client-{reply.client}.round-{reply.sequence}.lie"
        if not lie.exists():
            return content
        packed = decode(body)
        told = lie.read_text()
        if told == "shape":
            name, shape = next(iter(packed.tensors)), [0, *[2**31 - 1] * 3]
            entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
            head = {"__metadata__": {"plain": json.dumps(packed.plain)}, name: entry}
            header = json.dumps(head).encode()
            body = len(header).to_bytes(8, "little") + header
        elif told == "nan":
            worthless = {name: tensor * math.nan for name, tensor in packed.tensors.items()}
            body = encode(packed._replace(tensors=worthless))
        else:
            body = encode(packed._replace(plain=packed.plain | json.loads(told)))
        lie.rename(PLAN / f"{lie.name}.happened")
        return wire.write(seal(reply._replace(digest=""), body), body)

    site.answer_task = lying


def tell_secrets():
    """Write down what a site must keep to itself, and what it sends, for a test that looks."""
    if not (PLAN / "tell-secrets").exists():
        return
    client_round, words, masked = site.client_round, site_masking.upload_words, site_masking.masked

    def note(kind, client, data):
        (PLAN / f"{kind}-{client}-{time.monotonic_ns()}.secret").write_bytes(data)

    def computing(job, client, *given):
        done = client_round(job, client, *given)
        note("message", client, done.upload.message[0].numpy().tobytes())
        return done

    def rounding(job, part, client, done):
        made = words(job, part, client, done)
        note("words", client, made[:DIMENSION].tobytes())
        return made

    def masking(plain, client, private, *given):
        made = masked(plain, client, private, *given)
        note("key", client, private)
        note("sent", client, made[:DIMENSION].tobytes())
        return made

    site.client_round, site_masking.upload_words = computing, rounding
    site_masking.masked = masking


def _with_key(shares, share):
    return {**shares, share.client: share}


LIES = {  # a set that the server names to a client, made of all proper keys
    "a set of two": lambda shares, own, old: {c: shares[c] for c in (own, (own + 1) % 4)},
    "a set without the site": lambda shares, own, old: {
        c: share for c, share in shares.items() if c != own
    },
    "a key of the server's own": lambda shares, own, old: _with_key(
        shares, new_share((own + 1) % 4, "update", new_identity())[0]
    ),
    "a key of an earlier round": lambda shares, own, old: _with_key(shares, old[(own + 1) % 4]),
}
AFTERWARDS = {
    "a member dropped": lambda shares, own, old: {
        c: share for c, share in shares.items() if c != (own + 1) % 4
    }
}


def lie_about_sets():
    """In the second round the server asks for every wrong set it can make, and notes the answers.

    The right set is asked for in between: only what comes after it would be a second one.
    """
    sums, first = GridEngine._sums, {}

    def lying(engine, cast, index):
        ready = dict(engine._answers)
        shares = {client: accepted.share for client, accepted in ready.items()}
        wrong = (PLAN / "server.lies").exists() and index == 1 and len(ready) == 4
        told = {}

        def ask(lies):
            for name, lie in lies.items():
                sets = cast.sets(engine._part, ready)
                for own in sets.members:
                    chosen = sorted(lie(shares, own, first).items())
                    sets._attachments[own] = {wire.SET: write_set([share for _, share in chosen])}
                answers, why = engine._collect(sets.members, sets, index, with_all=True)
                refused = {client: str(refusal) for client, refusal in why.items()}
                told[name] = {"answered": sorted(answers), "refused": refused}

        first.update({} if index else shares)
        ask(LIES if wrong else {})
        made = sums(engine, cast, index)
        ask(AFTERWARDS if wrong else {})
        if wrong:
            (PLAN / "told.json").write_text(json.dumps(told))
        return made

    GridEngine._sums = lying


def sabotage_server():
    adding = MaskedSumRequest.sums

    def holding(sets, answers):
        die("server.before-sum")
        yield from adding(sets, answers)

    MaskedSumRequest.sums = holding
    lie_about_sets()
    send, forget, save = Exchange.send, Exchange.forget, ServerState.save
    last = [0]

    def sending(exchange, kind, group, contents, ttl):
        number = group if group.isdigit() else "hello"
        die(f"server.round-{number}.before-push")
        send(exchange, kind, group, contents, ttl)
        last[0] = int(number) if number != "hello" else last[0]
        die(f"server.round-{number}.after-push")

    def forgetting(exchange):
        """A round's replies are all in when nothing more is waited for."""
        die(f"server.round-{last[0]}.before-fold")
        forget(exchange)

    def saving(disk, saved, brought):
        die(f"server.round-{saved.state.round}.before-checkpoint")
        unkept = save(disk, saved, brought)
        die(f"server.round-{saved.state.round}.after-checkpoint")
        return unkept

    Exchange.send, Exchange.forget, ServerState.save = sending, forgetting, saving


def labelled(content, name):
    """Every task says which algorithm it belongs to: one run serves several here."""

    def with_name(cast, task, index):
        record = content(cast, task, index)
        record["test"] = ConfigRecord({"algorithm": name})
        return record

    return with_name


server = ServerApp()


@server.main()
def main(grid, context):
    sabotage_server()
    content = TrainingRequest.content
    for name in context.run_config["algorithms"].split(","):
        TrainingRequest.content = labelled(content, name)
        folder = Path(context.run_config["run-dir"]) / name
        directory = RunRecorder(folder)
        settings = federation(name, **settings_of(context.run_config))
        directory.finish(serve(settings, grid, folder, [directory]))


client = ClientApp()


@client.train()
def train(message, context):
    sabotage_client(context.run_config["masked"])
    tell_secrets()
    name = "fedavg"
    if "test" in message.content:
        name = message.content["test"]["algorithm"]
    settings = federation(name, **settings_of(context.run_config))
    own = network if name in PERSONAL else objective
    app = client_app(settings, lambda c: own(c.node_config["partition-id"]))
    return app(message, context)
