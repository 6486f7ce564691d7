"""The HTML page: a template with everything escaped, and the figures' data as one JSON document."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

from fedadmm.study import records, words
from fedadmm.study import results as rows
from fedadmm.study.report import tables
from fedadmm.study.report.content import Content
from fedadmm.study.report.figures import Heat, Lines, Panel, Section, Strip
from fedadmm.study.report.palette import styles_of


def render(content: Content, sections: list[Section]) -> str:
    """The whole page as text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {
        "size": words.size,
        "duration": words.duration,
        "number": words.number,
        "title": lambda name: records.metric(name).title,
    }
    own = files("fedadmm.study.report")
    found = content.results
    template = environment.from_string((own / "template.html").read_text(encoding="utf-8"))
    return template.render(
        content=content,
        title=_title(content),
        sections=sections,
        legend=_legend(content),
        figures=tables.key_figures(content),
        results=found.fastest_first(),
        best_baseline=found.baseline,
        baselines=[row.method for row in found.rows if row.baseline],
        reached=lambda row: rows.reached(found, row),
        failures=rows.failures,
        final=lambda row, name: words.spread(rows.spread_of(row, name), records.metric(name).share),
        difference=lambda row: rows.compared(found, row),
        spread_note=words.SPREAD,
        final_metrics=tables.final_metrics(content),
        target=words.describe(content.target) if content.target else None,
        same_end=_same_end(content),
        configuration=tables.configuration(content),
        search=tables.search_table(content.search, content.names),
        alternative=lambda panel: _alternative(panel, content.names),
        made_by=_versions(content),
        style=Markup((own / "style.css").read_text(encoding="utf-8")),
        script=Markup((own / "script.js").read_text(encoding="utf-8")),
        plotly=Markup(_plotly()),
        data=Markup(_data(content, sections)),
    )


def _title(content: Content) -> str:
    if content.comparison:
        return f"{len(content.labels)} methods on {content.problem}"
    return f"{content.runs[0].method} on {content.problem}"


def _same_end(content: Content) -> str | None:
    """The sentence that every run of several ended with, so that no row need repeat it."""
    sentences = {run.status for run in content.runs}
    return sentences.pop() if len(sentences) == 1 and len(content.runs) > 1 else None


def _legend(content: Content) -> list[dict[str, Any]]:
    """Label, style and SVG dash array of every method, in the order of the comparison."""
    arrays = {"solid": "", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "12 4"}
    chosen = styles_of(content)
    return [
        {"label": label, **style._asdict(), "array": arrays[style.dash]}
        for label, style in chosen.items()
    ]


def _data(content: Content, sections: list[Section]) -> str:
    """JSON that is safe inside a script element."""
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
    """What a reader who cannot see the figure is told."""
    if isinstance(panel, Lines):
        ends = [
            f"{names[line.label]}{' (a diverged seed)' if line.ended else ''} "
            f"{words.number(line.y[-1], panel.share)}"
            for line in panel.lines
        ]
        return f"{panel.title}, last values: {', '.join(ends)}."
    if isinstance(panel, Heat):
        clients = len(panel.values[0])
        return f"{panel.title}: {panel.unit} by {panel.row_title} and client, {clients} clients."
    if isinstance(panel, Strip):
        return f"{panel.title}: {len(panel.bars)} pieces of work of {len(panel.clients)} clients."
    low, high = min(panel.values), max(panel.values)
    return f"{panel.title}: from {low:g} to {high:g} {panel.unit} a {panel.column}."


def _versions(content: Content) -> str:
    versions = sorted({str(run.summary.get("fedadmm_version", "")) for run in content.runs} - {""})
    created = sorted({str(run.summary.get("created", "")) for run in content.runs} - {""})
    parts = [f"fedadmm {', '.join(versions)}"] if versions else []
    return " · ".join([*parts, *created[-1:]])


def _plotly() -> str:
    """plotly.js from the Python package; the only bundle it ships is the full one."""
    from plotly.offline import get_plotlyjs

    source: str = get_plotlyjs()
    return re.sub(r"</(script)", r"<\\/\1", source, flags=re.IGNORECASE)
