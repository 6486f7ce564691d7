"""Local web server for the report of a running experiment, which reloads when files change."""

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
"""Allowed values of the Host header; others are rejected as protection against DNS rebinding."""


class Answer(NamedTuple):
    """An HTTP response: status code, content type and body."""

    code: int
    kind: str
    body: bytes


class Loopback:
    """HTTP server on the loopback interface that runs in a thread while its context is active.

    Args:
        port: The port; 0 chooses a free one.
        answer: Function from the path of a GET request to the response.
    """

    def __init__(self, port: int, answer: Callable[[str], Answer]) -> None:
        self._server = ThreadingHTTPServer((LOOPBACK, port), _handler(answer))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        """The URL of the server."""
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
    """The live report of a directory.

    It consists of `/`, the page, `/version`, a string that changes with the page, and `/plotly.js`.
    """

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise DataError(f"directory: got {directory}, expected an existing folder.")
        self._directory = directory

    def serve(self, port: int = 0) -> Loopback:
        """Return a server of the page on the loopback interface; port 0 chooses a free port.

        Raises:
            ConfigError: The port is in use or not allowed.
        """
        try:
            return Loopback(port, self.answer)
        except OSError as error:
            raise ConfigError(
                f"--port: got {port}, expected a free port ({error.strerror})."
            ) from None

    def answer(self, path: str) -> Answer:
        """Return the response to a request for a path."""
        if path == "/":
            return Answer(200, _HTML, self.page().encode())
        if path == "/version":
            return Answer(200, _JSON, json.dumps(self.version()).encode())
        if path == "/plotly.js":
            return Answer(200, _SCRIPT, plotly().encode())
        return Answer(404, "text/plain", b"there are /, /version and /plotly.js\n")

    def version(self) -> str:
        """Return a string that changes whenever a file behind the page changes."""
        found = []
        for name in (CONFIG, METRICS, SUMMARY):
            for path in self._directory.rglob(name):
                with suppress(FileNotFoundError):  # a rejected run deletes its files
                    found.append((str(path), path.stat().st_size, path.stat().st_mtime_ns))
        return f"{len(found)}-{hash(tuple(sorted(found))):x}"

    def page(self) -> str:
        """Return the current report; before the first round, a page that waits for it."""
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
