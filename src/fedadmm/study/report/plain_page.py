"""A page without scripts: headings, paragraphs and tables in the report's style."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files

from fedadmm.study.tables import Table

_SPACING = """main { padding-block: 1.2rem 3rem; }
h2 { margin-top: 2rem; }
p { margin-top: .6rem; max-width: 60rem; }
.wide td, .wide th { padding: .15rem .6rem; text-align: left; }"""


def plain_page(title: str, parts: Iterable[str], style: str = "") -> str:
    """A page of its parts, one below the other, in the report's style and without any script."""
    shared = (files(__package__) / "style.css").read_text(encoding="utf-8")
    dark = shared.split(':root[data-theme="dark"]')[1].split("}")[0] + "}"
    own = f"@media (prefers-color-scheme: dark) {{ :root {dark} }}\n{_SPACING}\n{style}"
    name = escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<style>{shared}\n{own}</style></head><body><main class="wide"><h1>{name}</h1>'
        f"{''.join(parts)}</main></body></html>\n"
    )


def table_html(table: Table) -> str:
    """A table under its heading."""
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
    """A text as it is, or nothing where there is none."""
    return f"<p>{escape(text)}</p>" if text else ""
