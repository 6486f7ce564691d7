"""A table of results for people, the same in the terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.core import files
from fedadmm.study import formatting
from fedadmm.study.rundir import write_text

FOLDER = "tables"


class Table(NamedTuple):
    """A table with its heading and a sentence below it; a cell in `**` is bold."""

    title: str
    headings: list[str]
    lines: list[list[str]]
    note: str = ""
    data: Sequence[Mapping[str, Any]] | None = None
    """The numbers behind the lines, for CSV; the lines themselves where there are none."""


def write(folder: Path, tables: Mapping[str, Table]) -> None:
    """Write every table as NAME.md, NAME.tex and NAME.csv into the folder `tables` of a folder."""
    files.make_directory(folder / FOLDER)
    for name, table in tables.items():
        for ending, form in (("md", markdown), ("tex", latex), ("csv", as_csv)):
            write_text(folder / FOLDER / f"{name}.{ending}", form(table))


def number_cell(value: Any) -> str:
    """A number with four digits, a word as it is, a dash for nothing."""
    if value is None:
        return formatting.NOTHING
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown(table: Table) -> str:
    """The table with its title and its note."""
    parts = [f"## {table.title}", "\n".join(pipes(table.headings, table.lines))]
    return "\n\n".join([*parts, *([table.note] if table.note else [])]) + "\n"


def pipes(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    rule = ["---"] * len(headings)
    # Each cell on one line, and no sign ends it.
    rows = [
        " | ".join(_one_line(cell).replace("\\", "\\\\").replace("|", "\\|") for cell in row)
        for row in (headings, rule, *lines)
    ]
    return [f"| {row} |" for row in rows]


def _one_line(cell: str) -> str:
    return " ".join(cell.splitlines())


def latex(table: Table) -> str:
    r"""A `tabular` for \usepackage{booktabs}; title and note are comments above it."""
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
        *(("[", "{[}"), ("*", "{*}")),  # behind the end of a row they would be its options
        *(("\\", r"\textbackslash{}"), ("~", r"\textasciitilde{}"), ("^", r"\textasciicircum{}")),
        *(("<", r"\textless{}"), (">", r"\textgreater{}"), ("…", r"\ldots{}"), ("–", "--")),
        *(("±", r"$\pm$"), ("−", "$-$"), ("×", r"$\times$"), ("∞", r"$\infty$"), ("ρ", r"$\rho$")),
        *(("≥", r"$\geq$"), ("≤", r"$\leq$"), ("ε", r"$\varepsilon$"), ("✓", r"$\ast$")),
        ("\N{NO-BREAK SPACE}", "~"),
    ]
)


def _tex(cell: str) -> str:
    """Text as LaTeX prints it."""
    cell = _one_line(cell)
    bold = re.fullmatch(r"\*\*(.*)\*\*", cell)
    text = "".join(_TEX.get(sign, sign) for sign in (bold[1] if bold else cell))
    return rf"\textbf{{{text}}}" if bold else text


def as_csv(table: Table) -> str:
    """The numbers behind the lines, one row a line; else the lines as they are read."""
    if table.data is None:
        return csv_text(table.headings, [[c.strip("*") for c in line] for line in table.lines])
    columns = list(dict.fromkeys(key for row in table.data for key in row))
    return csv_text(columns, [[row.get(key) for key in columns] for row in table.data])


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as a spreadsheet reads them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([map(_cell, row) for row in (columns, *rows)])
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Lists in one cell; a text that a spreadsheet would take for a formula gets an apostrophe."""
    if isinstance(value, list):
        value = " ".join(str(item) for item in value)
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if is_formula else value
