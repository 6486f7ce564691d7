"""Formatting of numbers and tables for the terminal, Markdown, LaTeX, CSV and the HTML report."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedadmm.core import atomic_files
from fedadmm.study import run_history
from fedadmm.study.run_dir import write_text

if TYPE_CHECKING:
    from fedadmm.run.evaluation import Target
    from fedadmm.study.statistics import Spread

OnProgress = Callable[[str, int, int], None]
"""Callback with the current step, the number of steps done and their total."""

NOTHING = "–"
SPREAD = "± is the standard deviation over the seeds"


def number(value: float, share: bool = False) -> str:
    """Format a number with four significant digits, or as a percentage with one decimal."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "not a number" if math.isnan(value) else "−∞"
    text = f"{100 * value:.1f} %" if share else f"{value:.4g}"
    return text.replace("-", "−")


def ignore_progress(what: str, done: int, steps: int) -> None:
    """Do nothing: the default progress callback."""


def metric(name: str, value: float) -> str:
    """Format a metric's value; accuracies and sparsities become percentages."""
    return number(value, run_history.metric(name).share)


def spread(found: Spread, share: bool = False, rounds: bool = False) -> str:
    """Format a mean ± standard deviation; one value has none, and rounds have one decimal."""
    if found.mean is None or found.std is None:
        return NOTHING
    text = number(found.mean, share)
    if found.count < 2:
        return text
    if rounds:
        return f"{found.mean:.1f} ± {found.std:.1f}"
    deviation = f"{100 * found.std:.1f}" if share else f"{found.std:.2g}"
    return f"{text.removesuffix(' %')} ± {deviation}{' %' if share else ''}"


def describe(target: Target) -> str:
    """Describe a target, such as "test accuracy ≥ 90 %"."""
    sign = "≥" if target.at_least else "≤"
    value = metric(target.metric, target.value).replace(".0 %", " %")
    title = run_history.metric(target.metric).title.lower()
    return f"{title} {sign}\N{NO-BREAK SPACE}{value}"


def size(count: float | None) -> str:
    """Format a number of bytes."""
    if count is None:
        return NOTHING
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float | None) -> str:
    """Format a number of seconds."""
    if seconds is None:
        return NOTHING
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


FOLDER = "tables"


class Table(NamedTuple):
    """A table with a title and a note below it; a cell enclosed in `**` is bold."""

    title: str
    headings: list[str]
    lines: list[list[str]]
    note: str = ""
    data: Sequence[Mapping[str, Any]] | None = None
    """Unformatted values for the CSV file, one mapping per line; None to write `lines` instead."""


def write_tables(folder: Path, tables: Mapping[str, Table]) -> None:
    """Write each table as NAME.md, NAME.tex and NAME.csv to `folder`/tables."""
    atomic_files.make_directory(folder / FOLDER)
    for name, table in tables.items():
        for ending, form in (("md", markdown), ("tex", latex), ("csv", as_csv)):
            write_text(folder / FOLDER / f"{name}.{ending}", form(table))


def number_cell(value: Any) -> str:
    """Format a table cell: a float with four digits, None as a dash, other values unchanged."""
    if value is None:
        return NOTHING
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown(table: Table) -> str:
    """Return a table in Markdown, with its title and note."""
    parts = [f"## {table.title}", "\n".join(pipes(table.headings, table.lines))]
    return "\n\n".join([*parts, *([table.note] if table.note else [])]) + "\n"


def pipes(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    rule = ["---"] * len(headings)
    # Cells must be on one line, with escaped separators.
    rows = [
        " | ".join(_one_line(cell).replace("\\", "\\\\").replace("|", "\\|") for cell in row)
        for row in (headings, rule, *lines)
    ]
    return [f"| {row} |" for row in rows]


def _one_line(cell: str) -> str:
    return " ".join(cell.splitlines())


def latex(table: Table) -> str:
    r"""Return a LaTeX `tabular` for \usepackage{booktabs}, with title and note as comments."""
    comments = [f"% {line}" for line in f"{table.title}\n{table.note}".splitlines() if line]
    columns = "l" + "r" * (len(table.headings) - 1)
    head, *body = (" & ".join(map(_tex, row)) + r" \\" for row in (table.headings, *table.lines))
    return "\n".join(
        [
            *comments,
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


_TEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | dict(
    [
        *(("[", "{[}"), ("*", "{*}")),  # LaTeX reads them as options if they follow \\
        *(("\\", r"\textbackslash{}"), ("~", r"\textasciitilde{}"), ("^", r"\textasciicircum{}")),
        *(("<", r"\textless{}"), (">", r"\textgreater{}"), ("…", r"\ldots{}"), ("–", "--")),
        *(("±", r"$\pm$"), ("−", "$-$"), ("×", r"$\times$"), ("∞", r"$\infty$"), ("ρ", r"$\rho$")),
        *(("≥", r"$\geq$"), ("≤", r"$\leq$"), ("ε", r"$\varepsilon$"), ("✓", r"$\ast$")),
        ("†", r"$^\dagger$"),
        ("\N{NO-BREAK SPACE}", "~"),
    ]
)


def _tex(cell: str) -> str:
    """Escape a cell for LaTeX."""
    cell = _one_line(cell)
    bold = re.fullmatch(r"\*\*(.*)\*\*", cell)
    text = "".join(_TEX.get(sign, sign) for sign in (bold[1] if bold else cell))
    return rf"\textbf{{{text}}}" if bold else text


def as_csv(table: Table) -> str:
    """Return a table as CSV: its unformatted values if there are any, otherwise its text."""
    if table.data is None:
        return csv_text(table.headings, [[c.strip("*") for c in line] for line in table.lines])
    columns = list(dict.fromkeys(key for row in table.data for key in row))
    return csv_text(columns, [[row.get(key) for key in columns] for row in table.data])


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return CSV text that is safe to open in a spreadsheet program."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([map(_cell, row) for row in (columns, *rows)])
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Join a list into one cell, and prefix text that looks like a formula with an apostrophe."""
    if isinstance(value, list):
        value = " ".join(str(item) for item in value)
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if is_formula else value
