"""The report of a run that goes on, served on loopback and drawn again when something is new."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from fedadmm.core.errors import ConfigError, DataError
from fedadmm.study.config import CONFIG
from fedadmm.study.report.page import plotly, render
from fedadmm.study.report.panels import sections
from fedadmm.study.results import drawn, read_outcome
from fedadmm.study.rundir import METRICS, SUMMARY
from fedadmm.study.serving import Answer, Loopback

_HTML, _JSON, _SCRIPT = (
    f"{kind}; charset=utf-8" for kind in ("text/html", "application/json", "text/javascript")
)


class LivePage:
    """`/` is the page, `/version` tells whether it has changed, `/plotly.js` draws the figures."""

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise DataError(f"{directory}: no such folder")
        self._directory = directory

    def serve(self, port: int = 0) -> Loopback:
        """On loopback only; port 0 is any that is free."""
        try:
            return Loopback(port, self.answer)
        except OSError as error:
            raise ConfigError(
                f"--port is {port}, but nothing can listen there ({error.strerror})"
            ) from None

    def answer(self, path: str) -> Answer:
        """What a path is answered with."""
        if path == "/":
            return Answer(200, _HTML, self.page().encode())
        if path == "/version":
            return Answer(200, _JSON, json.dumps(self.version()).encode())
        if path == "/plotly.js":
            return Answer(200, _SCRIPT, plotly().encode())
        return Answer(404, "text/plain", b"there are /, /version and /plotly.js\n")

    def version(self) -> str:
        """Changes whenever a file does that the page is made from."""
        found = []
        for name in (CONFIG, METRICS, SUMMARY):
            for path in self._directory.rglob(name):
                with suppress(FileNotFoundError):  # a refused run takes its files back
                    found.append((str(path), path.stat().st_size, path.stat().st_mtime_ns))
        return f"{len(found)}-{hash(tuple(sorted(found))):x}"

    def page(self) -> str:
        """The report as it is now; before the first round, a page that waits for it."""
        try:
            content = drawn(read_outcome(self._directory))
            return render(content, sections(content), live=True)
        except DataError as error:
            from markupsafe import escape

            script = (files(__package__) / "live.js").read_text(encoding="utf-8")
            return (
                '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>fedadmm</title>'
                f'<link rel="icon" href="data:,"></head><body><p id="waiting">{escape(error)}</p>'
                "<p>This page waits for the first round.</p>"
                f"<script>{script}</script></body></html>"
            )
