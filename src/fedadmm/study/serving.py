"""Pages for whoever sits at this machine: HTTP on loopback, in threads, while a `with` lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple, Self

LOOPBACK = "127.0.0.1"
_OWN_NAMES = (LOOPBACK, "localhost")
"""How this machine is called by pages of its own; another name means somebody else's page asks."""


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
            """Nobody wants a line for every look."""

    return Handler
