"""A reverse proxy in front of the SuperLink that forwards the calls of nodes, and nothing else.

A SuperLink serves nodes, operators and its own apps on one port, without a password for operators:
everybody who reaches that port can register keys and run code at every site.  So it listens on
loopback only.  The gateway listens on all interfaces, with TLS, for the calls of nodes, each of
which the SuperLink authenticates by the node's key.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fedadmm.core.errors import ConfigError
from fedadmm.flower.deploy.keys import Certificates

_FOR_NODES = re.compile(r"/v1/fleet/[a-z-]+")
_KEPT_HERE = frozenset(("host", "connection", "keep-alive", "upgrade", "authorization"))
"""Headers that concern this connection only, or that no node has to send."""
_PATIENCE = 300.0
"""Seconds to wait for an answer of the SuperLink."""

App = Callable[[Any, Any, Any], Awaitable[None]]


def gateway(superlink: str, authority: Path) -> App:
    """Return an ASGI app that forwards the calls of nodes to the SuperLink."""
    import httpx
    from starlette.background import BackgroundTask
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response, StreamingResponse

    trusted = ssl.create_default_context(cafile=str(authority))
    upstream = httpx.AsyncClient(verify=trusted, timeout=_PATIENCE, trust_env=False)

    async def answer(request: Request) -> Response:
        if request.method != "POST" or not _FOR_NODES.fullmatch(request.url.path):
            return PlainTextResponse("only nodes are served here", 404)
        headers = [(k, v) for k, v in request.headers.items() if k not in _KEPT_HERE]
        call = upstream.build_request(
            "POST", f"https://{superlink}{request.url.path}", headers=headers,
            content=request.stream(),
        )  # fmt: skip
        try:
            found = await upstream.send(call, stream=True)
        except httpx.HTTPError:
            return PlainTextResponse("the SuperLink does not answer", 502)
        kept = {k: v for k, v in found.headers.items() if k not in _KEPT_HERE}
        end = BackgroundTask(found.aclose)
        return StreamingResponse(found.aiter_raw(), found.status_code, kept, background=end)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await (await answer(Request(scope, receive)))(scope, receive, send)

    return app


def run_gateway(listen: str, superlink: str, keys: Path) -> None:
    """Serve until the process is ended."""
    import uvicorn

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--listen: got {listen!r}, expected HOST:PORT, such as 0.0.0.0:9443")
    files = Certificates.in_folder(keys)
    for path in files:
        if not path.is_file():
            raise ConfigError(f"--keys is '{keys}', but there is no {path.name} in it")
    uvicorn.run(
        gateway(superlink, files.authority),
        host=host,
        port=int(port),
        ssl_certfile=str(files.certificate),
        ssl_keyfile=str(files.key),
        lifespan="off",
        log_level="warning",
    )
