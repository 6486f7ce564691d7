"""One HTML page about a study: its tables, and the critical-difference pictures drawn in them."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from fedadmm.study import findings_text

_LINE, _WIDTH, _LEFT = 22, 420, 240
"""Pixels: the height of a row, the span of the ranks, the room for names."""


def findings_page(result: Mapping[str, Any]) -> str:
    """The whole page as text."""
    found = result["findings"]
    pictures = {
        f"Ranks at {one['percent']} %": rank_picture(one["names"], one["ranks"], one["critical"])
        for one in found["rankings"]
    }
    parts = [
        part
        for table in findings_text.tables(found)
        for part in (_table(table), pictures.get(table.title, ""), _paragraph(table.note))
    ]
    style = (files(__package__) / "style.css").read_text(encoding="utf-8")
    title = escape(result["title"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style}\n.wide td, .wide th {{ padding: .15rem .6rem; text-align: left; }}"
        f'</style></head><body><main class="wide"><h1>{title}</h1>'
        f"{_paragraph(result['notes'].strip())}{''.join(parts)}</main></body></html>\n"
    )


def _table(table: findings_text.Table) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in table.headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(one)}</td>" for one in line) + "</tr>" for line in table.lines
    )
    return (
        f"<h2>{escape(table.title)}</h2><div style='overflow-x: auto'><table><thead><tr>{head}"
        f"</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    bold = text.removeprefix("**").removesuffix("**")
    return f"<strong>{escape(bold)}</strong>" if bold != text else escape(text)


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>" if text else ""


def rank_picture(names: list[str], ranks: list[float], critical: float | None) -> str:
    """An SVG: a dot at every mean rank, and a line over the ranks that it is not told apart from.

    Two rows whose dots both lie under one line may be equally good.
    """
    high = max(*ranks, 2.0)

    def x(rank: float) -> float:
        return _LEFT + (min(rank, high) - 1.0) / (high - 1.0) * _WIDTH

    marks = [
        f'<text x="{x(tick):.1f}" y="14" text-anchor="middle">{tick}</text>'
        for tick in range(1, int(high) + 1)
    ]
    for place, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        y = 34 + place * _LINE
        marks.append(f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        if critical is not None:
            end = x(rank + critical)
            marks.append(f'<line x1="{x(rank):.1f}" x2="{end:.1f}" y1="{y}" y2="{y}"/>')
        marks.append(f'<circle cx="{x(rank):.1f}" cy="{y}" r="5"/>')
    height = 40 + len(names) * _LINE
    return (
        f'<svg role="img" aria-label="Mean ranks" width="{_LEFT + _WIDTH + 20}" height="{height}" '
        f'viewBox="0 0 {_LEFT + _WIDTH + 20} {height}" font-size="13" fill="currentColor" '
        f'stroke="none"><g stroke-width="2">{"".join(marks)}</g></svg>'
    ).replace("<line ", '<line stroke="currentColor" ')
