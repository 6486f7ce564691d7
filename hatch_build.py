"""Build hook: make the README's relative links absolute, so that they work on a package index."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


def absolute(text: str, urls: dict[str, str]) -> str:
    """Return Markdown whose links to pages, pictures and files lead to the project's addresses."""
    site, source = (urls[name].rstrip("/") for name in ("Documentation", "Source"))
    text = re.sub(r"\]\(docs/([\w-]+\.(?:svg|png))\)", rf"]({source}/raw/main/docs/\1)", text)
    text = text.replace("](docs/index.md)", f"]({site}/)")
    text = re.sub(r"\]\(docs/([\w-]+)\.md(#[\w-]+)?\)", rf"]({site}/\1/\2)", text)
    return re.sub(r"\]\((?!https?:)([^)#]+)\)", rf"]({source}/blob/main/\1)", text)


class ReadmeHook(MetadataHookInterface):
    """Sets the field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme from README.md."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        shown = absolute(text, metadata["urls"])
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}
