"""What is shown while runs go on, and nothing at all when nobody looks."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from fedadmm.cli import display
from fedadmm.cli.display import Live, live, print_note, print_table, steps
from fedadmm.study.formatting import Table, size
from fedadmm.study.runner import RoundRecorded, RunEnded, RunStarted
from support.records import made

RECORD = made(
    2,
    bytes_up=600,
    bytes_down=900,
    test_accuracy=0.5,
    loss=1.25,
    test_loss=9.0,
    primal_residual=0.1,
    dual_residual=0.02,
)


def test_a_running_run_shows_speed_accuracy_loss_residuals_and_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter([100.0, 100.5])
    monkeypatch.setattr(display.time, "monotonic", lambda: next(now))
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    progress = Progress(TextColumn("{task.description} {task.fields[text]}"), console=console)
    watch = Live(progress, runs=2)
    watch(RunStarted(7, "mine", 4))
    watch(RoundRecorded(7, RECORD | {"round": 1}))
    watch(RoundRecorded(7, RECORD | {"round": 3}))
    overall, task = progress.tasks
    assert task.description == "mine"
    assert (task.completed, task.total) == (3, 4)
    assert task.fields["text"] == "4/s acc 0.5000 loss 1.2500 res 0.1/0.02 3 kB"
    watch(RunEnded(7))
    assert progress.tasks == [overall]
    assert overall.completed == 1


def test_nothing_is_drawn_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with live(2) as watch:
        watch(RunStarted(0, "mine", 4))
        watch(RoundRecorded(0, RECORD))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_table_shows_cells_as_they_stand_and_bold_ones_without_stars(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(Table("Trials", ["trial", "lr"], [["**3**", "[0.1]"]]))
    last = capsys.readouterr().out.splitlines()[-2]
    assert [cell.strip() for cell in last.strip("│").split("│")] == ["3", "[0.1]"]


def test_a_note_is_broken_between_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_note("every method chose from [0.1, 0.3]")
    lines = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in lines] == ["every method chose", "from [0.1, 0.3]"]


def test_steps_are_a_bar_on_a_terminal_and_sentences_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    with steps(told.append) as tell:
        tell("first", 0, 2)
    assert told == ["first"]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with steps(told.append) as tell:
        tell("second", 1, 2)
    assert told == ["first"]
    assert re.search(r"1/2 steps.*second", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "–"), (0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2e9, "2 GB"), (5e13, "50 TB")],
)
def test_sizes_are_for_people(count: float | None, text: str) -> None:
    assert size(count) == text
