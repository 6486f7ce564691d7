"""Navigation of the site, and its pages that are generated from the code."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

import api
import commands
import maths
import methods
import settings

CELL = re.compile(r"<td.*?</td>", re.DOTALL)
CODE = re.compile(r"<code>([^<]*)</code>")
STUDIES = Path(__file__).parents[2] / "studies"
NAVIGATION: dict[str, Any] = {
    "Home": "index.md",
    "Tutorials": ["quickstart.md", "tutorial.md", "paper-table.md", "first-federation.md"],
    "How-to: experiments": [
        "choosing.md",
        "data.md",
        "own-model.md",
        "runs.md",
        "estimator.md",
        "personal-models.md",
        "asynchrony.md",
        "state.md",
        "faq.md",
    ],
    "How-to: deployment": ["deployment.md", "operations.md", "site-policy.md", "flower-app.md"],
    "How-to: protection": [
        "privacy.md",
        "compression.md",
        "secure-aggregation.md",
        "robust.md",
        "gradient-inversion.md",
    ],
    "How-to: extending": ["add-an-algorithm.md", "add-a-solver.md"],
    "Explanation": ["concepts.md", "theory.md", "exactly-once.md", "architecture.md"],
    "Evidence": [
        "implementations.md",
        "paper-findings.md",
        "reproduction.md",
        "participation.md",
        "deployment-tests.md",
        "benchmarks.md",
    ],
    "Reference": [
        {"Python": list(api.pages())},
        "reference/config.md",
        "reference/commands.md",
        {"Methods": list(methods.pages())},
        "glossary.md",
        "coming-from.md",
    ],
}
TABLES = {"papers": "The papers' tables and figures", "participation": "Low participation"}
"""Study -> title of the page with all of its numbers, which is linked but not in the navigation."""


def generated() -> dict[str, str]:
    """Address -> Markdown of every page that is made from the code."""
    return {
        **methods.pages(),
        **api.pages(),
        "reference/commands.md": commands.page(),
        "reference/config.md": settings.page(),
    }


def tables(study: str, title: str) -> str:
    """Return the stored tables of a study as one HTML page without the site's navigation."""
    text = (STUDIES / study / "all-results.md").read_text("utf-8").replace("../../docs/", "../")
    body = markdown.markdown(text, extensions=["tables", "toc", "fenced_code"])
    body = body.replace('.md"', '/"').replace(".md#", "/#")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width">'
        "<style>body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;padding:0 1rem;"
        "max-width:72rem}table{border-collapse:collapse;display:block;overflow-x:auto;"
        "font-size:13px}td,th{border:1px solid #ccc;padding:.25em .5em;text-align:left}</style>"
        f'<p><a href="../">fedadmm</a></p>{body}</html>'
    )


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation."""
    config.nav = [{title: pages} for title, pages in NAVIGATION.items()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for address, text in generated().items():
        files.append(File.generated(config, address, content=text))
    for study, title in TABLES.items():
        files.append(File.generated(config, f"tables/{study}.html", content=tables(study, title)))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML, and let long code in tables break after its punctuation."""
    return CELL.sub(lambda cell: CODE.sub(_breakable, cell[0]), maths.on_site(html))


def _breakable(code: re.Match[str]) -> str:
    """Return `<code>` with places where a line may break, if it is long."""
    text = code[1] if len(code[1]) < 22 else re.sub(r"([/_.,(\[])(?=\w)", r"\1<wbr>", code[1])
    return f"<code>{text}</code>"
