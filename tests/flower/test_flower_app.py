"""The app of the guide under `flwr run`, in Flower's own simulation; really started."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fedadmm.flower.local import network
from fedadmm.flower.local.processes import Group, environment, free_ports, wait_for_port
from fedadmm.study.rundir import RunDir

APP = Path(__file__).parents[2] / "examples" / "flower_app"
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        os.environ.get("FEDADMM_FAULTS") != "1", reason="a simulation on Ray: make faults"
    ),
]


@pytest.fixture
def flwr_run(tmp_path):
    """`flwr run` on a SuperLink of its own that simulates four nodes."""
    home, (port,) = tmp_path / "flower", free_ports(1)
    home.mkdir()
    (home / "config.toml").write_text(network.connection("own", port, None))
    surroundings = environment(home, {"HOME": str(tmp_path), "OMP_NUM_THREADS": "1"})
    command = [*network.superlink(port, str(tmp_path / "link.db"), None), "--simulation"]
    link = Group("superlink", command, tmp_path / "link.log", surroundings, home)

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
