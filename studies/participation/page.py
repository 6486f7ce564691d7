"""One HTML page about the study: its tables, and the critical-difference pictures drawn in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedadmm.study.report.page import paragraph, plain_page, table_html
from studies.participation import text
from studies.participation.ranks import STYLE, rank_picture


def page(found: Mapping[str, Any], title: str, notes: str) -> str:
    """The whole page as text."""
    pictures = {
        f"Ranks at {one['percent']} %": rank_picture(one["names"], one["ranks"], one["critical"])
        for one in found["rankings"]
    }
    parts = [
        part
        for table in text.tables(found)
        for part in (table_html(table), pictures.get(table.title, ""), paragraph(table.note))
    ]
    return plain_page(title, [f"<style>{STYLE}</style>", paragraph(notes.strip()), *parts])
