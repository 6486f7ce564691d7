"""One self-contained HTML page about a run or a study, and its figures as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedadmm.core.errors import DataError, FedADMMError

if TYPE_CHECKING:
    from fedadmm.study.study_result import StudyResult


def write_report(
    directory: Path, figures: Path | None = None, found: StudyResult | None = None
) -> Path:
    """Write `report.html` into the directory of a run or a study and return its path.

    Every table of it is written beside it, into `tables/`, as Markdown, LaTeX and CSV.  A
    reproduction has a page for each of its settings, too, below `reports/`.

    Args:
        directory: a run directory (`metrics.jsonl` …) or that of a study (`results.json`).  A run
            or a comparison may still be going.
        figures: where to put every figure as PNG, SVG and PDF; nowhere by default.
        found: what a study came to, when that need not be read from its folder.
    """
    from fedadmm.study.study_result import drawn, read_study

    directory, foreign = Path(directory), found is None
    try:
        found = read_study(directory) if found is None else found
        if found.document["kind"] == "reproduction":
            return _write_settings(found, figures)
        return _write(drawn(found), directory, figures)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if not foreign or isinstance(error, FedADMMError):
            raise
        # Readers check what they read; what still does not fit comes from a file by hand.
        what = f"{type(error).__name__}: {str(error)[:200]}"
        raise DataError(
            f"{directory}: one of its files (results.json, summary.json, partition.json, "
            f"metrics.jsonl) is damaged or of another version ({what}); --debug shows where"
        ) from error


def _write(content: StudyResult, directory: Path, figures: Path | None) -> Path:
    from fedadmm.study import formatting
    from fedadmm.study.report.drawing import draw_figures
    from fedadmm.study.report.page import render
    from fedadmm.study.report.panels import sections
    from fedadmm.study.report.summaries import all_tables
    from fedadmm.study.run_dir import RunDir

    parts = sections(content)
    path = RunDir(directory).write_report(render(content, parts))
    formatting.write_tables(directory, all_tables(content))
    if figures is not None:
        draw_figures(content, parts, Path(figures))
    return path


def _write_settings(found: StudyResult, figures: Path | None) -> Path:
    """A page a setting, and one with the tables that leads to them."""
    from html import escape

    from fedadmm.study.report.page import paragraph, plain_page, table_html
    from fedadmm.study.reproduce import measured_tables
    from fedadmm.study.run_dir import RunDir, create
    from fedadmm.study.study_result import drawn

    links = []
    titles = {row["setting"]: row["setting_title"] for row in found.document["table"]}
    for setting, title in titles.items():
        part = found.of("setting", setting)
        if not part.runs:
            continue
        folder = found.directory / "reports" / setting
        create(folder)
        about = {"problem": f"{found.document['title']}: {title}", "search": None}
        about["target"] = part.document["runs"][0]["target"]
        part = replace(part, document=part.document | about)
        _write(drawn(part), folder, None if figures is None else figures / setting)
        address = escape(f"reports/{setting}/report.html")
        links.append(f'<p><a href="{address}">{escape(title)}</a></p>')
    document = found.document
    shown = [table_html(table) for table in measured_tables(document).values()]
    parts = [paragraph(document["notes"].strip()), *shown, "<h2>Curves</h2>", *links]
    title = f"{document['id']}: {document['title']}"
    return RunDir(found.directory).write_report(plain_page(title, parts))


__all__ = ["write_report"]
