"""Draws docs/participation.svg: rounds by participation, from studies/participation/all-results.md.

The figure reads the tables of that page, so that both show the same numbers.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from svg import write

SECTIONS = {
    "One in a hundred": 1,
    "One in fifty": 2,
    "One in twenty": 5,
    "A tenth of the clients in a round": 10,
    "One in five": 20,
}
"""The participation, in per cent, of each section's table."""
METHODS = {
    "FedADMM aligned, auto, per work": ("aligned ADMM (recommended)", "#0072b2", "o-"),
    "AdaBest": ("AdaBest", "#00856a", "s-"),
    "SCAFFOLD": ("SCAFFOLD", "#d55e00", "^-"),
    "FedAvgM": ("FedAvgM", "#9467bd", "D-"),
    "FedAvg": ("FedAvg", "#586070", "v-"),
}
"""Per row of the tables its name, colour and line here."""
ENDINGS = {"each method's own output": "", "averaged outputs": ", averaged"}
"""The two plots, and how their rows end."""

Rows = dict[str, list[float]]


def rounds(cell: str) -> float:
    """The median of a cell; one that fewer than half of the seeds reached counts as the limit."""
    return float(cell.split()[0].rstrip("+"))


def read(page: str) -> dict[int, Rows]:
    """By participation and row the rounds on the confirmation problems, whose heads are bold."""
    found = {}
    for section in re.split(r"^###? ", page, flags=re.MULTILINE):
        title, _, text = section.partition("\n")
        if title not in SECTIONS:
            continue
        lines = [line for line in text.splitlines() if line.startswith("|")]
        table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        bold = [place for place, head in enumerate(table[0]) if head.startswith("**")]
        rows: Rows = {}
        method = ""
        for cells in table[2:]:
            averaged = cells[0].endswith(", averaged")
            if not averaged:
                method = cells[0].replace("*", "").removesuffix(", at m")
            rows[f"{method}, averaged" if averaged else method] = [
                rounds(cells[place]) for place in bold
            ]
        found[SECTIONS[title]] = rows
    return found


def curves(tables: dict[int, Rows], ending: str) -> dict[str, dict[int, float]]:
    """Per method and participation its rounds over those of FedAvg with its own output.

    The ratio is the geometric mean over the problems.
    """
    return {
        row: {
            percent: float(np.exp(np.log(np.divide(rows[row + ending], rows["FedAvg"])).mean()))
            for percent, rows in sorted(tables.items())
            if row + ending in rows
        }
        for row in METHODS
    }


def described(page: str) -> str:
    """All numbers of the figure as text, for screen readers and for the test of the figure."""
    tables = read(page)
    return "; ".join(
        f"{row}{ending}: " + ", ".join(f"{percent} % {y:.2f}" for percent, y in points.items())
        for ending in ENDINGS.values()
        for row, points in curves(tables, ending).items()
    )


def figure(page: str) -> Figure:
    """Each method's own output on the left, averaged outputs on the right."""
    tables = dict(sorted(read(page).items()))
    drawn = Figure(figsize=(8.4, 3.6), layout="constrained")
    plots = drawn.subplots(1, 2, sharey=True)
    for plot, (title, ending) in zip(plots, ENDINGS.items(), strict=True):
        for row, points in curves(tables, ending).items():
            name, colour, line = METHODS[row]
            width = 2.6 if name.endswith("(recommended)") else 1.3
            look = {"color": colour, "lw": width, "ms": 5, "label": name}
            plot.plot(points.keys(), points.values(), line, **look)
        plot.set(xscale="log", xticks=list(tables), xlabel="participation rate")
        plot.set_title(title, fontsize=9.5)
        plot.set_xticks([], minor=True)
        plot.set_xticklabels([f"{percent} %" for percent in tables])
    plots[0].set(ylabel="rounds to the target\n(FedAvg, own output = 1)", ylim=(0, None))
    drawn.legend(
        *plots[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=9
    )
    return drawn


def main(page: Path, picture: Path) -> None:
    """Write the picture of a page."""
    text = page.read_text(encoding="utf-8")
    write(lambda: figure(text), picture, described(text))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
