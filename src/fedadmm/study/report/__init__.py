"""One self-contained HTML page about a run or a comparison, and its figures as files."""

from __future__ import annotations

from pathlib import Path


def write_report(directory: Path, figures: Path | None = None) -> Path:
    """Write `report.html` into a run or comparison directory and return its path.

    Args:
        directory: a run directory (`metrics.jsonl` …) or a comparison directory
            (`comparison.json`, `runs/`).  It may belong to a run that is still going.
        figures: where to put every figure as PNG and SVG; nowhere by default.
    """
    from fedadmm.study.report.content import read
    from fedadmm.study.report.drawing import draw_figures
    from fedadmm.study.report.page import render
    from fedadmm.study.report.panels import sections
    from fedadmm.study.rundir import RunDir

    content = read(Path(directory))
    parts = sections(content)
    path = RunDir(Path(directory)).write_report(render(content, parts))
    if figures is not None:
        draw_figures(content, parts, Path(figures))
    return path


__all__ = ["write_report"]
