"""What a server can get out of a site by what it asks: noise on, evaluation, one run after another."""

from __future__ import annotations

import pytest
import torch
from flwr.app import Message

import fedadmm as fa
from fedadmm.core.protocols import Download, Round
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.ledger import ServerLedger
from fedadmm.flower.server.tasks import Broadcast

from .harness import DIMENSION, FakeGrid, federation

pytestmark = pytest.mark.usefixtures("quick")


def noised(**options):
    """Two epochs of three steps each: 30 rows, 10 a step."""
    usual = {"clip": 0.5, "multiplier": 1.0, "batch_size": 10, "delta": 0.01}
    return fa.DPSGD(0.1, **(usual | options))


def ask(grid, settings, run="run", client=0):
    """The answer of a site to the first task of a run."""
    job = settings.server_job()
    cast = job.algorithm.broadcast(job.algorithm.init_server(job.initial), Round(0, 0))
    broadcast = Broadcast(job, Download(cast), settings.admission, 0)
    task = broadcast.task(ServerLedger(run), client, 0, 0)
    message = Message(broadcast.content(task, 0), 1000 + client, "train")
    reply = grid._app(message, grid.context(client)).content
    return wire.read_reply(reply, 10**6)[0]


@pytest.mark.parametrize("largest", [0.5, 4.0])
def test_no_row_decides_whether_a_noised_answer_is_an_update(largest, tmp_path):
    """A finite entry of 3.4e38 / c overflows exactly where a row has more than c there."""
    probe = torch.zeros(DIMENSION)
    probe[2] = torch.finfo(torch.float32).max / 2.0
    settings = federation(fa.FedAvg(), initial=probe, solver=noised(batch_size=100))
    grid = FakeGrid(settings, tmp_path)
    rows = torch.rand(30, DIMENSION, generator=torch.Generator().manual_seed(1))
    rows[7, 2] = largest
    grid._sites[0] = fa.LeastSquares(rows, torch.zeros(30))
    overflows = not bool((rows @ probe).isfinite().all())
    assert overflows == (largest > 2.0)
    assert [ask(grid, settings, run=f"run-{turn}").kind for turn in range(5)] == ["update"] * 5
