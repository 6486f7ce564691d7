"""The report of a running experiment, served on loopback and redrawn when it changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from fedadmm.core.errors import ConfigError, DataError
from fedadmm.study.config import CONFIG
from fedadmm.study.report.page import plotly, render
from fedadmm.study.report.panels import sections
from fedadmm.study.run_dir import METRICS, SUMMARY
from fedadmm.study.study_result import drawn, read_study

LOOPBACK = "127.0.0.1"
_OWN_NAMES = (LOOPBACK, "localhost")
"""The hosts that requests may name; another one means that a foreign page asks."""


class Answer(NamedTuple):
    """What is sent back."""

    code: int
    kind: str
    body: bytes


class Loopback:
    """Answers GET requests by their path; port 0 is any that is free."""

    def __init__(self, port: int, answer: Callable[[str], Answer]) -> None:
        self._server = ThreadingHTTPServer((LOOPBACK, port), _handler(answer))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        return f"http://{LOOPBACK}:{self._server.server_port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(answer: Callable[[str], Answer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            host = self.headers.get("Host", LOOPBACK).partition(":")[0]
            if host in _OWN_NAMES:
                found = answer(self.path.partition("?")[0])
            else:
                found = Answer(403, "text/plain", b"only this machine may ask\n")
            self.send_response(found.code)
            self.send_header("Content-Type", found.kind)
            self.send_header("Content-Length", str(len(found.body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(found.body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Print no line for every request."""

    return Handler


_HTML, _JSON, _SCRIPT = (
    f"{kind}; charset=utf-8" for kind in ("text/html", "application/json", "text/javascript")
)


class LivePage:
    """`/` is the page, `/version` changes with it, `/plotly.js` draws the figures."""

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
            content = drawn(read_study(self._directory))
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
