"""Rendering of the HTML page from a template, with the figures' data as one JSON document."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from typing import Any

from fedadmm.study import config, formatting, results as rows, run_history
from fedadmm.study.benefit import SiteBenefit
from fedadmm.study.formatting import Table
from fedadmm.study.report import summaries
from fedadmm.study.report.figures import (
    Heat,
    Lines,
    Panel,
    Section,
    Strip,
    styles_of,
)
from fedadmm.study.study_result import StudyResult


def render(content: StudyResult, sections: list[Section], live: bool = False) -> str:
    """Return the page as HTML; a live page loads plotly and updates from its server."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {
        "size": formatting.size,
        "duration": formatting.duration,
        "number": formatting.number,
        "title": lambda name: run_history.metric(name).title,
    }
    own = files("fedadmm.study.report")
    found = content.results
    shared, different = summaries.configuration(content)
    # The most frequent status of the runs, which the rows do not repeat.
    usual, count = Counter(run.status for run in content.runs).most_common(1)[0]
    template = environment.from_string((own / "template.html").read_text(encoding="utf-8"))
    return template.render(
        content=content,
        title=_title(content),
        sections=sections,
        legend=_legend(content),
        dashes=DASHES,
        shapes=SHAPES,
        figures=summaries.key_figures(content),
        results=found.best_first(),
        difference_note=rows.difference_note(found) if found.compares else None,
        reached=lambda row: rows.reached(found, row),
        failures=rows.failures,
        final=rows.final,
        difference=lambda row: rows.compared(found, row),
        spread_note=formatting.SPREAD,
        final_metrics=summaries.final_metrics(content),
        target=formatting.describe(content.target) if content.target else None,
        verdict=rows.verdict(found),
        ratios=found.by_rounds and any(row.ratio is not None for row in found.rows),
        named=found.named,
        seeds=found.rows[0].seeds if len({row.seeds for row in found.rows}) == 1 else None,
        same_end=usual if count > 1 else None,
        other_ends=count < len(content.runs),
        shared=shared,
        different=different,
        config_text="" if content.comparison else config.write(content.runs[0].config),
        search=summaries.search_table(content),
        federating=Markup(_federating(content)),
        alternative=lambda panel: _alternative(panel, content.names),
        made_by=_versions(content),
        style=Markup((own / "style.css").read_text(encoding="utf-8")),
        script=Markup((own / "script.js").read_text(encoding="utf-8")),
        plotly=Markup("" if live else plotly()),
        live=Markup((own / "live.js").read_text(encoding="utf-8")) if live else None,
        data=Markup(_data(content, sections)),
    )


def _federating(content: StudyResult) -> str:
    """Return the table of local, shared and personalised models of each site, if there is one."""
    found = next((run for run in content.runs if "federating" in run.summary), None)
    if found is None:
        return ""
    table = SiteBenefit.read(found.summary["federating"]).table()
    whose = f"{found.method}, seed {found.seed}. " if content.comparison else ""
    notes = "".join(
        f'<p class="verdict">{escape(f"{one[0].upper()}{one[1:]}.")}</p>'
        for one in f"{whose}{table.note}".splitlines()
    )
    return f"{table_html(table)}{notes}"


def _title(content: StudyResult) -> str:
    if content.settings:
        methods = {str(run.summary.get("method", run.algorithm)) for run in content.runs}
        whose = f" of {methods.pop()}" if len(methods) == 1 else ""
        return f"{len(content.settings)} settings{whose} on {content.problem}"
    if len(content.labels) > 1:
        return f"{len(content.labels)} methods on {content.problem}"
    return f"{content.runs[0].method} on {content.problem}"


DASHES = {"solid": "", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "12 4"}
SHAPES = {
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "square": "M-3.5-3.5h7v7h-7z",
    "triangle-up": "M0-4.4L4.4 3.3H-4.4z",
    "diamond": "M0-4.8L4.8 0L0 4.8L-4.8 0z",
    "triangle-down": "M0 4.4L4.4-3.3H-4.4z",
    "cross": "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "star": "M0-5L1.2-1.6 4.8-1.5 1.9.6 2.9 4 0 2-2.9 4-1.9.6-4.8-1.5-1.2-1.6z",
    "triangle-left": "M-4.4 0L3.3-4.4V4.4z",
    "triangle-right": "M4.4 0L-3.3-4.4V4.4z",
    "pentagon": "M0-4.5L4.3-1.4 2.6 3.6H-2.6L-4.3-1.4z",
}
"""SVG dash arrays and paths around (0, 0), by the names of dashes and markers in `Style`."""


def _legend(content: StudyResult) -> list[dict[str, Any]]:
    """Return the label and style of each method, in the order of the comparison."""
    return [{"label": label, **style._asdict()} for label, style in styles_of(content).items()]


def _data(content: StudyResult, sections: list[Section]) -> str:
    """Return the figures' data as JSON that is safe inside a script element."""
    document = {
        "legend": _legend(content),
        "target": content.target
        and {"metric": content.target.metric, "value": content.target.value},
        "sections": [
            {
                "name": section.name,
                "axes": [{"name": axis.name, "title": axis.title} for axis in section.axes],
                "panels": [_panel(panel) for panel in section.panels],
            }
            for section in sections
        ],
    }
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _panel(panel: Panel) -> dict[str, Any]:
    values = panel._asdict()
    del values["note"]
    if isinstance(panel, Lines):
        values["lines"] = [line._asdict() for line in panel.lines]
    return values


def _alternative(panel: Panel, names: dict[str, str]) -> str:
    """Return the text alternative of a figure."""
    if isinstance(panel, Lines):
        ends = [
            f"{names[line.label]}{' (a diverged seed)' if line.ended else ''} "
            f"{formatting.number(line.y[-1], panel.share)}"
            for line in panel.lines
        ]
        return f"{panel.title}, last values: {', '.join(ends)}."
    if isinstance(panel, Heat):
        unit = panel.unit or "marks"
        size = f"{len(panel.rows)} by {len(panel.values[0])}"
        return f"{panel.title}: {unit} by {panel.row_title} and {panel.column}, {size}."
    if isinstance(panel, Strip):
        return f"{panel.title}: {len(panel.bars)} tasks of {len(panel.clients)} clients."
    low, high = min(panel.values), max(panel.values)
    return f"{panel.title}: from {low:g} to {high:g} {panel.unit} per {panel.column}."


def _versions(content: StudyResult) -> str:
    versions = sorted({str(run.summary.get("fedadmm_version", "")) for run in content.runs} - {""})
    created = sorted({str(run.summary.get("created", "")) for run in content.runs} - {""})
    parts = [f"fedadmm {', '.join(versions)}"] if versions else []
    return " · ".join([*parts, *created[-1:]])


def plotly() -> str:
    """Return plotly.js from the Python package, which contains the full bundle only."""
    from plotly.offline import get_plotlyjs

    source: str = get_plotlyjs()
    return re.sub(r"</(script)", r"<\\/\1", source, flags=re.IGNORECASE)


def plain_page(title: str, parts: Iterable[str]) -> str:
    """Return an HTML page of the given parts in the report's style, without scripts."""
    shared, own = (
        (files(__package__) / f"{name}.css").read_text("utf-8") for name in ("style", "plain")
    )
    dark = shared.split(':root[data-theme="dark"]')[1].split("}")[0] + "}"
    own += f"@media (prefers-color-scheme: dark) {{ :root {dark} }}"
    name = escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<style>{shared}\n{own}</style></head><body><main class="wide"><h1>{name}</h1>'
        f"{''.join(parts)}</main></body></html>\n"
    )


def table_html(table: Table) -> str:
    """Return a table with its heading as HTML."""
    head = "".join(f"<th>{escape(one)}</th>" for one in table.headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(one)}</td>" for one in line) + "</tr>" for line in table.lines
    )
    return (
        f"<h2>{escape(table.title)}</h2><div class='scroll' tabindex='0'><table><thead><tr>{head}"
        f"</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    bold = text.removeprefix("**").removesuffix("**")
    return f"<strong>{escape(bold)}</strong>" if bold != text else escape(text)


def paragraph(text: str) -> str:
    """Return a text as an HTML paragraph, or nothing for an empty text."""
    return f"<p>{escape(text)}</p>" if text else ""
