"""The agreement of each site's updates with the others': measured, shown, not enforced."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.core import trees
from fedadmm.core.aggregation import cosines_to_others
from fedadmm.flower.server.run_recorder import RunRecorder
from fedadmm.flower.server.server_app import serve
from fedadmm.flower.site import app
from fedadmm.study.report import write_report
from fedadmm.study.report.panels import sections
from support.commands import read_content

from .harness import DIMENSION, FakeGrid, federation
from .masked import MaskedGrid, settings

pytestmark = pytest.mark.usefixtures("quick")


def similar_sites(clients=4):
    """Logistic regression on samples of one distribution, from a start far from the optimum."""
    truth = torch.linspace(1, 2, DIMENSION)
    made = []
    for client in range(clients):
        rows = torch.randn(60, DIMENSION, generator=torch.Generator().manual_seed(client))
        made.append(fa.LogisticRegression(rows, (rows @ truth > 0).float(), ridge=0.05))
    return made


def recorded(made, grid, folder):
    recorder = RunRecorder(folder)
    recorder.finish(serve(made, grid, folder, [recorder]))
    return read_content(folder)


def agreement(content):
    (run,) = content.runs
    return {client: list(last) for client, last in run.columns.agreement.items()}


def panels(content):
    return {panel.name: panel for section in sections(content) for panel in section.panels}


def test_cosines_are_those_of_the_definition():
    draws = np.random.default_rng(0)
    first, second = draws.normal(size=(4, 3)), draws.normal(size=(4, 2))
    shares = [0.1, 0.2, 0.3, 0.4]
    messages = {
        client: (share, (torch.tensor(first[client]), torch.tensor(second[client])))
        for client, share in enumerate(shares)
    }
    whole = np.hstack([first, second]) * np.array(shares)[:, None]
    for client, found in cosines_to_others(messages).items():
        others = np.delete(whole, client, axis=0).sum(axis=0)
        norms = np.linalg.norm(whole[client]) * np.linalg.norm(others)
        assert found == pytest.approx(whole[client] @ others / norms)
    assert cosines_to_others({client: messages[client] for client in (0, 1)}) == {}


@pytest.mark.parametrize("method", [fa.FedAvg(), fa.FedADMM(rho=1.0)], ids=lambda m: m.name)
def test_the_site_that_flips_its_sign_is_named(method, tmp_path, monkeypatch):
    """Only its updates disagree with those of the others; it takes part all the same."""
    made = federation(method, rounds=4, initial=-torch.ones(DIMENSION))
    grid = FakeGrid(made, tmp_path)
    grid._sites = similar_sites()
    honest = app.client_round

    def flipped(job, client, *given):
        done = honest(job, client, *given)
        message = trees.map_tensors(torch.neg, done.upload.message)
        return done._replace(upload=done.upload._replace(message=message)) if client == 2 else done

    monkeypatch.setattr(app, "client_round", flipped)
    content = recorded(made, grid, tmp_path / "run")
    found = {client: np.mean(cosines) for client, cosines in agreement(content).items()}
    assert [client for client in found if found[client] < 0] == [2]
    assert content.runs[0].columns.took_part == {0: 4, 1: 4, 2: 4, 3: 4}
    panel = panels(content)["agreement"]
    assert panel.values == pytest.approx([found[client] for client in range(4)], rel=1e-3)
    assert write_report(tmp_path / "run").is_file()


def test_the_window_forgets_old_updates(tmp_path):
    made = federation(fa.FedAvg(), rounds=23)
    content = recorded(made, FakeGrid(made, tmp_path), tmp_path / "run")
    assert {len(cosines) for cosines in agreement(content).values()} == {20}


def test_masked_runs_measure_no_single_site(tmp_path):
    made = settings(rounds=2)
    content = recorded(made, MaskedGrid(made, tmp_path), tmp_path / "run")
    assert content.runs[0].columns.count == 2
    assert agreement(content) == {}
    assert "agreement" not in panels(content)
