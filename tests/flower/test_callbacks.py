"""Callbacks at a deployed server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fedadmm as fa
from fedadmm.flower.server.server_app import serve

from .harness import FakeGrid, federation

pytestmark = pytest.mark.usefixtures("quick")


@dataclass(frozen=True)
class Diary(fa.Callback):
    """Writes down every call."""

    lines: ClassVar[list[Any]] = []

    def begin(self, run: Any) -> Path:
        self.lines.append(run.state.round)
        return run.directory

    def round(self, report: Any, live: Path) -> None:
        self.lines.append(f"round {report.record['round']} in {live.name}")

    def end(self, summary: Any, live: Path) -> None:
        self.lines.append((summary["code"], summary.get("rounds")))


def test_they_look_at_the_rounds_of_a_server_and_of_its_successor(tmp_path: Path) -> None:
    settings = federation(fa.FedADMM(rho=1.0), rounds=2)
    Diary.lines.clear()
    serve(settings, FakeGrid(settings, tmp_path), tmp_path / "server", [Diary()])
    assert Diary.lines == [0, "round 1 in server", "round 2 in server", ("completed", 2)]
    longer = federation(fa.FedADMM(rho=1.0), rounds=3)
    Diary.lines.clear()

    def crash(report: Any) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        serve(longer, FakeGrid(longer, tmp_path), tmp_path / "server", [Diary(), crash])
    assert Diary.lines == [2, "round 3 in server", ("failed", None)]


def test_one_that_measures_on_clients_states_is_refused(tmp_path: Path) -> None:
    settings = federation(fa.FedADMM(rho=1.0), rounds=2)
    with pytest.raises(
        fa.errors.CompatibilityError, match=r"^callbacks has 'diagnostics', which measures on"
    ):
        serve(settings, FakeGrid(settings, tmp_path), tmp_path / "server", [fa.Diagnostics()])
    assert not (tmp_path / "server").exists()
