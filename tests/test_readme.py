"""The first page: its links lead somewhere, its programs run and its commands can be typed."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import typer.main

from fedadmm.cli import app

ROOT = Path(__file__).parents[1]
THEORY = ROOT / "docs/theory.md"
TEXT = (ROOT / "README.md").read_text("utf-8")
COMMANDS = re.findall(r"(?:^|`)(fedadmm [a-z][^`#\n]*)", TEXT, re.MULTILINE)


def test_every_link_and_picture_is_there() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", TEXT)
    assert len(targets) > 10
    assert [one for one in targets if not (ROOT / one).exists()] == []
    pictures = [ROOT / one for one in re.findall(r"!\[[^]]+\]\(([^)]+)\)", TEXT)]
    assert len(pictures) == 1
    assert all(one.stat().st_size < 150_000 for one in pictures)


def test_no_relative_link_is_left_on_a_package_index(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    interface = SimpleNamespace(MetadataHookInterface=object)  # the build system is not installed
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    monkeypatch.syspath_prepend(str(ROOT))
    urls = {"Documentation": "https://site/", "Source": "https://code/us/it"}
    text = importlib.import_module("hatch_build").absolute(TEXT, urls)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert [one for one in targets if not one.startswith("https://")] == []
    assert "https://site/implementations/#check-an-implementation-of-your-own" in targets
    assert "https://code/us/it/raw/main/docs/participation-rate.svg" in targets


def test_the_picture_of_the_clients_shows_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made again: FedAvg converges to where the moves cancel, FedADMM to the minimiser."""
    monkeypatch.syspath_prepend(str(ROOT / "docs/_figures"))
    picture = importlib.import_module("around_the_global_model")
    clients = [picture.bowl(*one) for one in picture.BOWLS]
    grid = np.stack(np.meshgrid(np.linspace(-2, 4, 601), np.linspace(-3, 3, 601)), -1)
    losses = sum(
        np.einsum("...i,ij,...j", grid, c.A, grid) / 2 - grid @ c.b.numpy() for c in clients
    )
    lowest = grid[np.unravel_index(losses.argmin(), losses.shape)]
    assert picture.best(clients) == pytest.approx(lowest, abs=0.01)
    shown = picture.CLIENTS
    ends = {
        name: picture.steps(row, clients, shown.initial)[-1].after
        for name, row in shown.rows.items()
    }
    away = {name: np.linalg.norm(end - picture.best(clients)) for name, end in ends.items()}
    assert f"{away['FedAvg']:.2f}" == "0.66"
    assert away["FedADMM"] < 0.005
    text = (ROOT / "docs/clients.svg").read_text("utf-8")
    assert len(text) < 60_000
    assert ">0.66 away<" in text
    assert ">0.00 away<" in text


def test_the_picture_of_starts_shows_what_its_text_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs/_figures"))
    picture = importlib.import_module("around_the_global_model")
    shown = picture.STARTS
    clients = [picture.bowl(*one) for one in shown.bowls]
    text, page = (ROOT / "docs/starts.svg").read_text("utf-8"), THEORY.read_text("utf-8")
    for row in shown.rows.values():
        made = picture.steps(row, clients, shown.initial)
        away = [np.linalg.norm(made[n - 1].after - picture.best(clients)) for n in picture.ROUNDS]
        assert all(f">{one:.2f} away<" in text for one in away)
        assert "{:.2f}, {:.2f}, {:.2f} and {:.2f}".format(*away) in page


def test_the_python_runs_offline(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(code.splitlines()) <= 10
    environment = {k: v for k, v in os.environ.items() if k != "FEDADMM_DATA"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**environment, "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    accuracies = [float(one) for one in re.findall(r"'test_accuracy': ([\d.]+)", done.stdout)]
    assert len(accuracies) == 2
    fedavg, fedadmm = accuracies
    assert (round(fedavg, 2), round(fedadmm, 2)) == (0.90, 0.94)  # as the page says


@pytest.mark.parametrize("line", sorted(set(COMMANDS)))
def test_every_command_can_be_typed(line: str) -> None:
    command = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("fedadmm", words)  # refuses an option or a word that it does not know
