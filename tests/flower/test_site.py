"""A site's work per message: its data loaded once, a reply encoded and hashed once."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from torch.utils.data import DataLoader, TensorDataset

import fedadmm as fa
from fedadmm.core.codec import digest, encode, pack
from fedadmm.core.config_tree import to_config
from fedadmm.core.contracts import Round
from fedadmm.core.errors import StateError
from fedadmm.core.messages import Download
from fedadmm.flower import configured
from fedadmm.flower.protocol import admission, wire
from fedadmm.flower.protocol.ledger import ServerLedger, create_task
from fedadmm.flower.protocol.payloads import create_payload
from fedadmm.flower.server.tasks import TrainingRequest
from fedadmm.flower.site import app as site_app
from fedadmm.run.experiment import Experiment
from fedadmm.study import config as configs
from fedadmm.study.config import resolve
from support.models import perceptron, rows

from .harness import FakeGrid, check_invariant, federation, run_through, simulated

pytestmark = pytest.mark.usefixtures("quick")


def a_task(settings, client=0, sequence=0):
    job = settings.server_job()
    cast = job.algorithm.broadcast(job.algorithm.init_server(job.initial), Round(0, 0))
    broadcast = TrainingRequest(job, Download(cast), settings.admission, 0)
    task = broadcast.task(ServerLedger("run"), client, sequence, sequence)
    return broadcast.content(task, sequence)


def sent(grid, content, client=0):
    return grid._app(Message(content, 1000 + client, "train"), grid.context(client)).content


def test_a_site_may_stream_its_batches(tmp_path):
    """The same as the simulation of the same clients, shuffling included."""
    flat = fa.FlatModule(perceptron().float())
    loss = fa.adapters.PairLoss(torch.nn.functional.cross_entropy)

    def site(client):
        data = TensorDataset(*rows(client, 10 + client))
        return fa.BatchObjective(flat, loss, DataLoader(data, batch_size=4, shuffle=True))

    start, sampler = flat.vector.clone(), fa.UniformSampling(3)
    solver = fa.SGD(lr=0.1, batch_size=1)
    settings = federation(fa.FedADMM(0.5), initial=start, solver=solver, sampler=sampler)
    grid = FakeGrid(settings, tmp_path)
    grid._app = site_app.client_app(settings, lambda c: site(c.node_config["partition-id"]))
    found = run_through(settings, grid, tmp_path).outcome.params
    problem = fa.Problem([site(client) for client in range(settings.clients)], initial=start)
    wanted = fa.simulate(
        settings.experiment.algorithm,
        problem,
        settings.experiment.rounds,
        sampler=sampler,
        local=settings.experiment.local,
        evaluate=False,
    )
    assert torch.allclose(found, wanted.params, rtol=0, atol=1e-6)


@pytest.fixture
def counted(monkeypatch):
    """How often the expensive things happen."""
    counts = Counter()

    def count(module, name, label):
        function = getattr(module, name)

        def counting(*arguments, **named):
            counts[label] += 1
            return function(*arguments, **named)

        monkeypatch.setattr(module, name, counting)

    count(site_app, "encode", "encoded")
    count(site_app, "digest", "task hashed")
    count(admission, "digest", "reply hashed")
    count(Experiment, "load_problem", "loaded")
    return counts


def test_a_reply_is_encoded_and_hashed_once(tmp_path, counted):
    settings = federation(fa.FedADMM(rho=1.0))
    grid, content = FakeGrid(settings, tmp_path), a_task(settings)
    first = sent(grid, content)
    assert counted == {"encoded": 1, "task hashed": 1, "reply hashed": 1}
    counted.clear()
    again = sent(grid, content)
    assert counted == {"task hashed": 1, "reply hashed": 1}  # the stored bytes, checked and sent
    assert wire.read_reply(again, 10**6) == wire.read_reply(first, 10**6)


def test_the_data_are_not_loaded_to_repeat_a_reply(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0))
    grid, loads = FakeGrid(settings, tmp_path), []
    sites = grid._sites
    grid._app = site_app.client_app(settings, lambda context: loads.append(1) or sites[0])
    content = a_task(settings)
    for _ in range(3):
        sent(grid, content)
    assert len(loads) == 1


def test_a_configured_site_loads_its_problem_once_per_process(tmp_path, counted):
    config = resolve({"rounds": 2, "problem": {"name": "digits", "clients": 5}})
    deployment = configured.Deployment(5)
    (tmp_path / configured.CONFIG).write_text(configs.write(config.tree))
    (tmp_path / configured.DEPLOYMENT).write_text(configs.write(to_config(deployment)))
    content = a_task(configured.federation(config, deployment), client=1)
    counted.clear()
    apps = configured.apps(tmp_path)
    node = {"partition-id": 1, "state-dir": str(tmp_path / "state")}
    apps.client(Message(content, 1001, "train"), Context(1, 1001, node, RecordDict(), {}))
    assert counted["loaded"] == 1


def test_the_server_encodes_a_broadcast_once_for_all_clients(tmp_path, monkeypatch):
    from fedadmm.flower.server import tasks

    settings = federation(fa.FedADMM(rho=1.0), rounds=3)
    encoded = []
    monkeypatch.setattr(tasks, "encode", lambda packed: encoded.append(1) or encode(packed))
    run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    assert len(encoded) == 2 * 3  # per round: the payload, and the form of an answer


@pytest.mark.parametrize("precision", ["bfloat16", "float64"])
def test_every_precision_is_deployed(precision, tmp_path):
    initial = torch.linspace(-1, 1, 6, dtype=getattr(torch, precision))
    settings = federation(fa.FedADMM(rho=1.0), rounds=4, initial=initial, ledger="disk")
    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    assert history.outcome.params.dtype == initial.dtype
    assert torch.equal(history.outcome.params, simulated(settings).params)
    check_invariant(settings, tmp_path, tolerance=1e-2 if precision == "bfloat16" else 1e-12)


def test_a_task_that_is_damaged_is_refused(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0))
    grid, content = FakeGrid(settings, tmp_path), a_task(settings)
    task, body = wire.read_task(content)
    with pytest.raises(Exception, match="digest is not that of its content"):
        sent(grid, wire.write(task, body[:-1] + b"x"))
    with pytest.raises(Exception, match="for client 0, but this node is client 1"):
        sent(grid, content, client=1)


@pytest.mark.parametrize("what", ["another model", "too large", "garbage", "no precision"])
def test_a_task_that_does_not_fit_is_refused_with_a_sentence(what, tmp_path):
    settings = federation(fa.FedADMM(rho=1.0))
    job = settings.server_job()
    cast = job.algorithm.broadcast(job.algorithm.init_server(job.initial), Round(0, 0))
    packed = pack(create_payload(job, Download(cast), 0, newcomer=False))
    bodies = {
        "another model": lambda: _like(packed, torch.zeros(7)),
        "too large": lambda: encode(packed) + bytes(2**21),
        "garbage": lambda: b"no bytes of ours",
        "no precision": lambda: encode(packed._replace(plain={"round_index": 0})),
    }
    body = bodies[what]()
    task = create_task(ServerLedger("run"), 0, 0, digest(body))
    with pytest.raises(StateError):
        sent(FakeGrid(settings, tmp_path), wire.write(task, body))


def _like(packed, tensor):
    return encode(packed._replace(tensors=dict.fromkeys(packed.tensors, tensor)))


def test_what_is_sent_is_what_is_stored(tmp_path):
    """One encoding for wire and disk: the bytes of the reply stand in the site's file."""
    settings = federation(fa.FedADMM(rho=1.0))
    grid = FakeGrid(settings, tmp_path)
    _, body = wire.read_reply(sent(grid, a_task(settings)), 10**6)
    stored = tmp_path / "site-0" / "run" / "client-0" / "pending.safetensors"
    assert body in stored.read_bytes()
    assert json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
