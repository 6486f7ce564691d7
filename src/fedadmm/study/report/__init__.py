"""HTML report of a run or a study as one self-contained page, with its tables and figures."""

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

    The tables of the report are also written as Markdown, LaTeX and CSV to the subfolder `tables`.
    A reproduction has an additional page for each of its settings in the subfolder `reports`.

    Args:
        directory: The directory of a run (`metrics.jsonl` …) or of a study (`results.json`).  The
            run or comparison may be unfinished.
        figures: The directory for all figures as PNG, SVG and PDF; None writes no figures.
        found: The result of the study; None reads it from the directory.

    Raises:
        DataError: A file of the directory is damaged or of another version.
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
        # The readers validate the files; remaining errors come from manually edited files.
        what = f"{type(error).__name__}: {str(error)[:200]}"
        raise DataError(
            f"{directory}: got unreadable content ({what}), expected intact files results.json, "
            "summary.json, partition.json and metrics.jsonl of this version.  --debug shows the "
            "position."
        ) from error


def _write(content: StudyResult, directory: Path, figures: Path | None) -> Path:
    """Write the page, the tables and the figures of a study, and return the path of the page."""
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
    """Write a page per setting of a reproduction, and a page with tables that links to them."""
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
