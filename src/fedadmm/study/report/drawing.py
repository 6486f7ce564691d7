"""Figures of the report as PNG, SVG and PDF files, drawn with matplotlib."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedadmm.core import atomic_files
from fedadmm.study.report.figures import (
    SHAPES,
    Axis,
    Bars,
    Heat,
    Line,
    Lines,
    Panel,
    Section,
    Strip,
    Style,
    styles_of,
)
from fedadmm.study.study_result import StudyResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACCENT = "#0072b2"
DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2.5)),
    "dot": (0, (1.2, 1.8)),
    "dashdot": (0, (5, 2, 1.2, 2)),
    "longdash": (0, (9, 2.5)),
}
MARKERS = dict(zip(SHAPES, "os^DvP*<>p", strict=True))
SETTINGS = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e8ebf0",
    "axes.edgecolor": "#9aa0a8",
    "legend.frameon": False,
    "legend.handlelength": 3,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedadmm",
}


def draw_figures(content: StudyResult, sections: list[Section], directory: Path) -> list[Path]:
    """Write each panel on each of its axes as `<panel>[-<axis>].png`, `.svg` and `.pdf`.

    Args:
        content: The study.
        sections: The sections of its report.
        directory: The directory to write to; created if missing.

    Returns:
        The paths of all files.
    """
    import matplotlib

    chosen = styles_of(content)
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with matplotlib.rc_context(SETTINGS):  # type: ignore[arg-type]
        for section in sections:
            choices: Sequence[Axis | None] = section.axes or [None]
            for axis in choices:
                ending = f"-{axis.name}" if axis and len(section.axes) > 1 else ""
                for name, figure in _figures(section, axis, chosen):
                    # Names of metrics may contain characters that are invalid in file names.
                    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
                    written += _save(figure, directory, safe + ending)
    return written


def _figures(
    section: Section, axis: Axis | None, chosen: dict[str, Style]
) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of a section with their names; small panels share a figure."""
    if section.columns:
        yield section.name, _multiples(section, axis, chosen)
        return
    for panel in section.panels:
        yield panel.name, _figure(panel, axis, chosen)


def _multiples(section: Section, axis: Axis | None, chosen: dict[str, Style]) -> Figure:
    from matplotlib.figure import Figure

    across = section.columns
    down = -(-len(section.panels) // across)
    figure = Figure(figsize=(2.2 * across, 0.3 + 1.6 * down), layout="constrained")
    figure.suptitle(section.title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    plots = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat
    for panel, plot in zip(section.panels, plots, strict=False):
        assert isinstance(panel, Lines)
        assert axis is not None
        _lines(plot, panel, axis, chosen)
        plot.set_title(panel.title, fontsize=8)
        plot.set_xlabel("")
    figure.supxlabel(axis.title if axis else "", fontsize=9)
    return figure


def _save(figure: Figure, directory: Path, name: str) -> list[Path]:
    paths = [directory / f"{name}.{kind}" for kind in ("png", "svg", "pdf")]
    for path in paths:
        form, content = path.suffix[1:], io.BytesIO()
        dated = {"svg": "Date", "pdf": "CreationDate"}.get(form)
        undated = {} if dated is None else {dated: None}  # the same data give the same file
        figure.savefig(content, format=form, dpi=160, metadata=undated)
        atomic_files.write(path, content.getvalue())
    return paths


def _figure(panel: Panel, axis: Axis | None, chosen: dict[str, Style]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    plot = figure.subplots()
    plot.set_title(panel.title, loc="left", fontsize=10, fontweight="bold")
    if isinstance(panel, Lines):
        assert axis is not None
        _lines(plot, panel, axis, chosen)
    elif isinstance(panel, Heat):
        image = plot.imshow(
            np.array(panel.values, float), aspect="auto", cmap="Blues", interpolation="nearest"
        )
        plot.grid(visible=False)
        if len(panel.rows) <= 40:
            plot.set_yticks(range(len(panel.rows)), panel.rows)
        plot.set(xlabel=panel.column, ylabel=panel.row_title)
        if panel.unit:
            figure.colorbar(image, ax=plot, label=panel.unit)
    elif isinstance(panel, Strip):
        _strip(plot, panel, chosen[panel.label])
    else:
        plot.bar(range(len(panel.values)), panel.values, 0.85, color=ACCENT)
        plot.set(xlabel=panel.column, ylabel=panel.unit)
    if isinstance(panel, Bars | Heat) and panel.names:
        every = -(-len(panel.names) // 12)
        plot.set_xticks(range(0, len(panel.names), every), panel.names[::every])
    return figure


def _strip(plot: Axes, panel: Strip, style: Style) -> None:
    rows = {client: row for row, client in enumerate(panel.clients)}
    for client, begin, end, aggregated in panel.bars:
        plot.barh(
            rows[int(client)],
            end - begin,
            0.8,
            begin,
            color=style.light,
            alpha=1.0 if aggregated else 0.3,
            edgecolor="white",
            linewidth=0.6,
        )
    plot.set_yticks(range(len(panel.clients)), [str(client) for client in panel.clients])
    plot.tick_params(axis="y", labelsize=6 if len(panel.clients) > 15 else 8)
    plot.invert_yaxis()
    plot.grid(visible=False)
    plot.set(xlabel="simulated time", ylabel="client")


def _marker(line: Line, chosen: dict[str, Style]) -> dict[str, Any]:
    """Return the marker options of a curve.

    A diverged seed has a cross at its end; otherwise the method's marker appears at a few points,
    if the figure shows several methods.
    """
    if line.ended:
        return {"marker": "x", "markevery": [len(line.y) - 1]}
    if len(chosen) == 1:
        return {}
    style, every = chosen[line.label], -(-len(line.y) // 8)
    shape = style.marker.removesuffix("-open")
    return {
        "marker": MARKERS[shape],
        "markevery": (list(chosen).index(line.label) * every // len(chosen), every),
        "markersize": 5,
        "markerfacecolor": style.light if shape == style.marker else "white",
    }


def _lines(plot: Axes, panel: Lines, axis: Axis, chosen: dict[str, Style]) -> None:
    from matplotlib.ticker import PercentFormatter

    calm = [line for line in panel.lines if not line.ended]
    for line in [*calm, *(line for line in panel.lines if line.ended)]:
        x, style = line.x[axis.name], chosen[line.label]
        if line.behind:
            plot.plot(x, line.y, color="#9aa0a8", linewidth=1.0)
            continue
        if line.low:
            plot.fill_between(x, line.low, line.high, color=style.light, alpha=0.14, linewidth=0)
        if line.ended and calm:
            plot.autoscale(enable=False)
        own = style.dash if panel.span is None else "solid"
        dash = "dot" if line.part.endswith("bound") else own
        name = f"{style.name}: {line.part}" if line.part else style.name
        plot.plot(
            x,
            line.y,
            color=style.light,
            linestyle=DASHES[dash],
            linewidth=0.8 if line.ended else 1.6,
            **(_marker(line, chosen) if panel.span is None else {}),
            label=f"{name} (diverged)" if line.ended else name,
        )
    if panel.log:
        plot.set_yscale("log")
    if panel.share:
        plot.yaxis.set_major_formatter(PercentFormatter(1.0))
    if panel.zero:
        plot.set_ylim(bottom=0)
    plot.set_xlabel(axis.title)
    if panel.span is not None:
        plot.set_ylim(*panel.span)
    elif len(panel.lines) > 1:
        plot.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
