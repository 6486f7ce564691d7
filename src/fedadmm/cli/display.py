"""What people see: live progress on standard error, tables on standard output."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from fedadmm.study.pool import Event, Watch


def print_json(document: Mapping[str, Any]) -> None:
    """One document on standard output."""
    from fedadmm.study.rundir import plain

    typer.echo(json.dumps(plain(document), indent=2, allow_nan=False))


def size(count: float | None) -> str:
    """Bytes for people."""
    if count is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


class Live:
    """Bars for the runs that are under way, and one over all of them when there are several."""

    def __init__(self, progress: Progress, runs: int) -> None:
        self._progress = progress
        self._overall: TaskID | None = None
        if runs > 1:
            self._overall = progress.add_task("all runs", total=runs, unit="runs", text="")
        self._tasks: dict[int, TaskID] = {}
        self._bytes: dict[int, int] = {}

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if event.kind == "began":
            task = self._progress.add_task(
                event.content["label"], total=event.content["rounds"], unit="rounds", text=""
            )
            self._tasks[event.job], self._bytes[event.job] = task, 0
        elif event.kind == "record":
            record = event.content
            self._bytes[event.job] += record["bytes_up"] + record["bytes_down"]
            self._progress.update(
                self._tasks[event.job],
                completed=record["round"],
                text=_news(record, self._bytes[event.job]),
            )
        else:
            self._progress.remove_task(self._tasks.pop(event.job))
            if self._overall is not None:
                self._progress.advance(self._overall)


def _news(record: Mapping[str, Any], sent: int) -> str:
    shown = []
    for name, key in (("acc", "test_accuracy"), ("loss", "loss"), ("test loss", "test_loss")):
        value = record.get(key)
        if isinstance(value, float) and not (key == "test_loss" and "loss" in record):
            shown.append(f"{name} {value:.4f}")
    shown.append(f"res {record['primal_residual']:.1g}/{record['dual_residual']:.1g}")
    shown.append(size(sent))
    return " ".join(shown)


@contextmanager
def live(runs: int = 1) -> Iterator[Watch]:
    """A watch that draws bars, or looks away when standard error is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda event: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Live(progress, runs)
