"""One self-contained HTML page about a run, a comparison or a sweep, and its figures as files."""

from __future__ import annotations

from pathlib import Path


def write_report(directory: Path, figures: Path | None = None) -> Path:
    """Write `report.html` into the directory of a run, comparison or sweep and return its path.

    Every table of it is written beside it, into `tables/`, as Markdown, LaTeX and CSV.

    Args:
        directory: a run directory (`metrics.jsonl` …), a comparison directory
            (`comparison.json`, `runs/`) or that of a finished sweep (`sweep.json`).  A run or a
            comparison may still be going.
        figures: where to put every figure as PNG and SVG; nowhere by default.
    """
    from fedadmm.study import tables
    from fedadmm.study.report.content import read
    from fedadmm.study.report.drawing import draw_figures
    from fedadmm.study.report.page import render
    from fedadmm.study.report.panels import sections
    from fedadmm.study.report.tables import all_tables
    from fedadmm.study.rundir import RunDir

    content = read(Path(directory))
    parts = sections(content)
    path = RunDir(Path(directory)).write_report(render(content, parts))
    tables.write(Path(directory), all_tables(content))
    if figures is not None:
        draw_figures(content, parts, Path(figures))
    return path


__all__ = ["write_report"]
