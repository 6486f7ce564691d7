"""What people see: live progress on standard error, tables on standard output."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import typer

from fedadmm.cli.group import STDOUT

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from rich.progress import Progress, TaskID
    from rich.text import Text

    from fedadmm.run.experiment import Experiment
    from fedadmm.run.record import Record
    from fedadmm.study.formatting import OnProgress, Table
    from fedadmm.study.runner import OnEvent, RunEvent
    from fedadmm.study.study_result import StudyResult


def print_json(document: Mapping[str, Any]) -> None:
    """One document on standard output, where nothing else has been printed."""
    from fedadmm.study.run_dir import plain

    stream = click.get_current_context().meta.get(STDOUT)
    typer.echo(json.dumps(plain(document), indent=2, allow_nan=False), file=stream)


def draw(folder: Path, wanted: bool, found: StudyResult | None = None) -> str | None:
    """Write the report of a run or of what a study found, if it is wanted; where it is."""
    if not wanted:
        return None
    from rich.console import Console

    from fedadmm.study.report import write_report

    with Console(stderr=True).status("writing the report"):
        return str(write_report(folder, found=found))


def print_data(run: Path) -> None:
    """How a run's rows were prepared, the weight of a site, and columns that look wrong."""
    from fedadmm.study.run_dir import RunDir

    partition = RunDir(run).partition()
    found = partition.get("preparation")
    if found is None:
        return
    print_note(f"data    {found['how']}")
    sizes = partition["sizes"]
    rule = "by its training rows" if partition["weights"] == "rows" else "alike"
    print_note(f"sites   {len(sizes)}, of {min(sizes)} to {max(sizes)} rows; each counts {rule}")
    if alike := found.get("identifiers"):
        print_note(
            f"warning: features whose values hardly repeat, as numbers of rows, names or dates do: "
            f'{", ".join(alike)}; leave them out with --set problem.leave_out="{alike}"'
        )


SHOWN_METRICS = 6
"""Metrics in the last line of a run; summary.json holds all of them."""


def metrics_first(names: Sequence[str]) -> list[str]:
    """Return the usual metrics among these names, those of the whole population first."""
    from fedadmm.run.metrics import metric

    usual = [name for name in names if metric(name).sentence]
    return usual + [name for name in names if "accuracy" in name and name not in usual]


def print_ending(summary: Mapping[str, Any]) -> None:
    """How a run ended, what it measured last, and what it sent."""
    from fedadmm.run.record import as_number
    from fedadmm.study import formatting

    numbers = {key: as_number(found) for key, found in summary["final"].items()}
    usual = [*metrics_first(list(numbers)), *numbers]
    known = [key for key in dict.fromkeys(usual) if numbers[key] is not None]
    shown = [f"{key} {numbers[key]:.4g}" for key in known[:SHOWN_METRICS]]
    if len(known) > SHOWN_METRICS:
        shown.append(f"and {len(known) - SHOWN_METRICS} more in the report and in summary.json")
    sent = formatting.size(summary["bytes_up"] + summary["bytes_down"])
    typer.echo(f"{summary['label']}: {summary['status']}")
    measured = ", ".join(shown) or "nothing measured"
    typer.echo(f"{measured}; {sent} sent in {summary['rounds']} rounds")
    for warning in summary.get("warnings", ()):
        typer.echo(f"warning: {warning}")


def print_settings(reached: Sequence[str]) -> None:
    """Which methods or parts took what the command line sets."""
    for line in reached:
        print_note(f"set     {line}")


def print_places(**places: object) -> None:
    """Where the results lie, and their report."""
    for word, place in places.items():
        if place is not None:
            typer.echo(f"{word:7} {place}")


def finish(
    found: StudyResult,
    page: str | None,
    as_json: bool,
    tables: Sequence[Table],
    notes: Sequence[str] = (),
    **places: object,
) -> None:
    """What a study came to: one document, or its tables, notes, and where everything lies."""
    if as_json:
        print_json(found.document | {"directory": str(found.directory), "report": page})
        return
    for table in tables:
        print_table(table)
    for note in notes:
        print_note(note)
    print_places(**places, report=page)


def print_table(table: Table, others: JustifyMethod = "right") -> None:
    """A table with its notes; `others` is where the columns behind the first have their text."""
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(title=table.title, title_justify="left")
    for index, heading in enumerate(table.headings):
        grid.add_column(heading, justify=others if index else "left")
    for cells in table.lines:
        grid.add_row(*map(_cell, cells))
    Console().print(grid)
    for line in table.note.splitlines():
        print_note(line)


def profile_table(history: Sequence[Record]) -> Table:
    """Where the time of these rounds went."""
    from fedadmm.run.record import profile
    from fedadmm.study.formatting import Table

    found = profile(history)
    total = sum(found.values()) or 1.0
    lines = [
        [phase, f"{seconds:.3f}", f"{1000 * seconds / len(history):.2f}", f"{seconds / total:.0%}"]
        for phase, seconds in found.items()
    ]
    title = f"Where the time of {len(history)} rounds went"
    return Table(title, ["phase", "seconds", "ms a round", "share"], lines)


def _cell(text: str) -> Text:
    """A cell as text; one in `**` is bold."""
    from rich.text import Text

    bold = text.removeprefix("**").removesuffix("**")
    return Text(bold, "bold" if bold != text else "")


def print_note(text: str) -> None:
    """A sentence, broken between words where the terminal ends."""
    from rich.console import Console

    Console().print(text, highlight=False, markup=False)


class Live:
    """Bars for the runs that are under way, and one over all of them when there are several."""

    def __init__(self, progress: Progress, runs: int) -> None:
        self._progress = progress
        self._overall: TaskID | None = None
        if runs > 1:
            self._overall = progress.add_task("all runs", total=runs, unit="runs", text="")
        self._tasks: dict[int, TaskID] = {}
        self._bytes: dict[int, int] = {}
        self._first: dict[int, tuple[int, float] | None] = {}
        """The first round that was seen, and when."""

    def __call__(self, event: RunEvent) -> None:
        """Show one event."""
        from fedadmm.study import run_history
        from fedadmm.study.runner import RoundRecorded, RunStarted

        if isinstance(event, RunStarted):
            task = self._progress.add_task(event.label, total=event.rounds, unit="rounds", text="")
            self._tasks[event.job], self._bytes[event.job] = task, 0
            self._first[event.job] = None
        elif isinstance(event, RoundRecorded):
            self._bytes[event.job] += run_history.sent(event.record)
            number, now = event.record["round"], time.monotonic()
            first, since = self._first[event.job] or (number, now)
            self._first[event.job] = (first, since)
            speed = f"{(number - first) / (now - since):.3g}/s " if now > since else ""
            self._progress.update(
                self._tasks[event.job],
                completed=number,
                text=speed + _news(event.record, self._bytes[event.job]),
            )
        else:
            self._progress.remove_task(self._tasks.pop(event.job))
            if self._overall is not None:
                self._progress.advance(self._overall)


def _news(record: Record, sent: int) -> str:
    from fedadmm.study import formatting, run_history

    values = {key: run_history.value(record, key) for key in ("test_accuracy", "loss", "test_loss")}
    if values["loss"] is not None:
        del values["test_loss"]
    names = {"test_accuracy": "acc", "loss": "loss", "test_loss": "test loss"}
    shown = [f"{names[key]} {value:.4f}" for key, value in values.items() if value is not None]
    epsilon = run_history.additional(record, "epsilon")
    if epsilon is not None:
        shown.append(f"ε {epsilon:.3g}")
    residuals = [run_history.additional(record, f"{kind}_residual") for kind in ("primal", "dual")]
    shown.append("res " + "/".join(f"{value or 0:.1g}" for value in residuals))
    return " ".join([*shown, formatting.size(sent)])


@contextmanager
def live(runs: int = 1) -> Iterator[OnEvent]:
    """A watch that draws bars; it ignores every event when standard error is no terminal."""
    with _bars() as progress:
        yield (lambda event: None) if progress is None else Live(progress, runs)


@contextmanager
def one_bar(chosen: Experiment) -> Iterator[Callable[[Record], None]]:
    """The bar of a single run; every record moves it."""
    from fedadmm.study.runner import RoundRecorded, RunStarted

    with live() as watch:
        watch(RunStarted(0, chosen.label, chosen.rounds))
        yield lambda record: watch(RoundRecorded(0, record))


@contextmanager
def steps(otherwise: Callable[[str], None] = lambda what: None) -> Iterator[OnProgress]:
    """One bar over steps, with the time left; `otherwise` gets them without a terminal."""
    with _bars() as progress:
        if progress is None:
            yield lambda what, done, total: otherwise(what)
            return
        task = progress.add_task("", total=1, unit="steps", text="", visible=False)

        def tell(what: str, done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, text=what, visible=True)

        yield tell


@contextmanager
def _bars() -> Iterator[Progress | None]:
    """Bars with the time left on standard error, or None where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress
