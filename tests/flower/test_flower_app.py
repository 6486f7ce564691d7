"""The app of the guide: typed as the page says, and against FedAvg on the same data."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

import fedadmm as fa
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.flower.deploy import network
from fedadmm.flower.deploy.processes import ProcessTree, environment, free_ports, wait_for_port
from fedadmm.study.run_dir import RunDir

APP = Path(__file__).parents[2] / "examples" / "flower_app"
on_ray = pytest.mark.skipif(
    os.environ.get("FEDADMM_FAULTS") != "1", reason="a simulation on Ray: make faults"
)
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def flwr_run(tmp_path):
    """`flwr run` on a SuperLink of its own that simulates four nodes."""
    home, (port,) = tmp_path / "flower", free_ports(1)
    home.mkdir()
    (home / "config.toml").write_text(network.connection("own", port, None))
    surroundings = environment(home, {"HOME": str(tmp_path), "OMP_NUM_THREADS": "1"})
    command = [*network.superlink(port, str(tmp_path / "link.db"), None), "--simulation"]
    link = ProcessTree("superlink", command, tmp_path / "link.log", surroundings, home)

    def run(config):
        command = ["flwr", "run", str(APP), "own", "--stream", "--run-config", config]
        command += ["--federation-config", "num-supernodes=4"]
        done = subprocess.run(
            command, cwd=home, env=surroundings, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        wait_for_port(port, link, 60.0)
        yield run
    finally:
        link.stop()


@on_ray
def test_the_app_of_the_guide_is_simulated(flwr_run, tmp_path):
    """The app is not seeded, but learns from every start: of 60 the worst gained 28 points."""
    said = flwr_run("num-server-rounds=6")
    (folder,) = (tmp_path / "fedadmm-runs").iterdir()
    assert f"The run is kept in {folder}" in said
    assert folder.name.startswith("somebody-digits-app-")
    assert "round 6 of 6: 4 clients, train_loss" in said
    records = RunDir(folder).records()
    assert [record["cohort"]["participants"] for record in records] == [4] * 6
    accuracy = [record["metrics"]["eval_acc"] for record in records]
    assert accuracy[-1] > accuracy[0]
    assert RunDir(folder).summary()["code"] == "completed"
    assert not list(tmp_path.joinpath("flower").glob("*run*"))


@on_ray
def test_the_page_works_as_it_is_typed(tmp_path):
    """The commands of the section, but for the installation, in a home that nothing was in."""
    page = (APP.parents[1] / "docs" / "flower-app.md").read_text()
    (block,) = re.findall(r"```sh\n(pip install [^`]*examples/flower_app[^`]*)```", page)
    typed = "".join(line for line in block.splitlines(True) if not line.startswith("pip "))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    surroundings = {"PATH": path, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            ["bash", "-ec", typed], cwd=APP.parents[1], env=surroundings, capture_output=True,
            text=True, timeout=300,
        )  # fmt: skip
    finally:
        _end_whoever_lives_in(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "completed all 10 rounds" in done.stdout
    (folder,) = (tmp_path / "fedadmm-runs").iterdir()
    assert RunDir(folder).summary()["fitted"] == {"rho": pytest.approx(0.25 / (0.1 * 24), rel=0.1)}


def _end_whoever_lives_in(home):
    """`flwr run` leaves a SuperLink behind."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOME") == str(home):
                process.kill()


def test_the_method_of_the_app_is_ahead_of_fedavg(monkeypatch):
    """The app's rows, model and local work in one process, from three initial models."""
    monkeypatch.syspath_prepend(str(APP))
    task = importlib.import_module("digits_app.task")
    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    loss, sites, held_out = torch.nn.functional.cross_entropy, [], []
    for node in range(task.NODES):
        train, test = task.load_data(node)
        sites.append(fa.ModelObjective(task.Net(), loss, *_rows(train.dataset)))
        held_out.append(_rows(test.dataset))
    images, labels = (torch.cat(parts) for parts in zip(*held_out, strict=True))
    solver = fa.SGD(lr=config["learning-rate"], batch_size=32)
    found = {}
    for seed in range(3):
        torch.manual_seed(seed)
        start = FlatModule(task.Net()).vector.clone()
        problem = fa.Problem(sites, initial=start)
        for method in (fa.FedAvg(), task.method):
            made = fa.simulate(
                method, problem, config["num-server-rounds"], solver=solver, seed=seed,
                stop=fa.Epochs(config["local-epochs"]), evaluate=False,
            )  # fmt: skip
            model = FlatModule(task.Net())
            model.load(made.params)
            with torch.no_grad():
                right = (model.module(images).argmax(1) == labels).double().mean()
            found.setdefault(method.name, []).append(float(right))
    gains = [ours - plain for ours, plain in zip(found["fedadmm"], found["fedavg"], strict=True)]
    assert min(gains) > 0
    assert sum(gains) / 3 > 0.04


def _rows(dataset):
    images, labels = zip(*(dataset[row] for row in range(len(dataset))), strict=True)
    return torch.stack(images), torch.stack(labels)
