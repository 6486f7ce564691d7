"""Generate pages from the code when the site is built, so that they stay true to it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

import api
import commands
import maths
import methods
import settings

SHELF = {
    "Start": [
        "index.md",
        "quickstart.md",
        "tutorial.md",
        "concepts.md",
        "choosing.md",
        "coming-from.md",
        "faq.md",
        "glossary.md",
    ],
    "Guides": [
        "estimator.md",
        "own-model.md",
        "bring-your-own.md",
        "personal-models.md",
        "data.md",
        "runs.md",
        "reports.md",
        "state.md",
        "privacy.md",
        "secure-sums.md",
        "robust.md",
        "gradient-inversion.md",
        "asynchrony.md",
        "incentives.md",
        "flower-app.md",
        "deployment.md",
        "add-an-algorithm.md",
        "add-a-solver.md",
        "add-a-sampler.md",
    ],
    "Methods": [],
    "Evidence": [
        "theory.md",
        "participation.md",
        "participation-tables.md",
        "reproduction.md",
        "reproduction-tables.md",
        "checked-against.md",
        "deployment-tests.md",
        "benchmarks.md",
    ],
    "Reference": ["reference/commands.md", "reference/config.md", "reference/api.md"],
    "Inside": ["architecture.md"],
}
"""The order of the pages; a page of docs/ that is not listed here joins the guides."""


def generated() -> dict[str, str]:
    """Address -> Markdown of every page that is made from the code."""
    return {
        **methods.pages(),
        "reference/api.md": api.page(),
        "reference/commands.md": commands.page(),
        "reference/config.md": settings.page(),
    }


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put each page into its section of the navigation."""
    made = generated()
    written = {path.name for path in Path(config.docs_dir).glob("*.md")}
    shelves: dict[str, list[Any]] = {name: list(pages) for name, pages in SHELF.items()}
    shelves["Methods"] = [page for page in made if page.startswith("methods/")]
    known = {page for pages in SHELF.values() for page in pages}
    shelves["Guides"] += sorted(written - known)
    config.nav = [
        {name: [page for page in pages if page in made or page in written]}
        for name, pages in shelves.items()
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for address, text in generated().items():
        files.append(File.generated(config, address, content=text))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML."""
    return maths.on_site(html)
