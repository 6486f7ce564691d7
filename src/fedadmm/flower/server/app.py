"""The server's Flower app, and the same thing as a function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedadmm.core import files
from fedadmm.core.errors import ConfigError
from fedadmm.flower.federation import Federation
from fedadmm.flower.server.endpoint import Endpoint, Watched
from fedadmm.flower.server.rundir import RunDirectory
from fedadmm.flower.server.service import Observer, Outcome, Service

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

_PREDECESSOR = 60.0
"""Seconds that a server waits for the one before it to end."""


def server_app(federation: Federation, observers: Sequence[Observer] = ()) -> ServerApp:
    """A Flower ServerApp that runs a federation, and resumes it when it is started again.

    The run configuration must hold `run-dir`, the folder that receives metrics.jsonl,
    summary.json, model.safetensors and the checkpoint; `accept-rollback` may be true, as in
    `Federation`; `status-port` is the port of this machine's loopback on which /health and /metrics
    are answered while the run goes on, and 0, the default, is none.
    """
    from flwr.serverapp import ServerApp

    def main(grid: Grid, context: Context) -> None:
        accepts = context.run_config.get("accept-rollback", federation.accept_rollback)
        if not isinstance(accepts, bool):
            raise ConfigError(
                f"run-config: accept-rollback is {accepts!r}, but must be true or false"
            )
        directory = RunDirectory(run_folder(context))
        run = replace(federation, accept_rollback=accepts)
        watched = Watched(run)
        with endpoint(context, watched):
            seen = serve(run, grid, directory.path, [directory, watched, *observers])
            directory.finish(seen)

    app = ServerApp()
    app.main()(main)
    return app


def endpoint(context: Context, watched: Watched) -> AbstractContextManager[object]:
    """What answers on the port that the run configuration names, or nothing."""
    port = context.run_config.get("status-port", 0)
    if type(port) is not int:
        raise ConfigError(f"run-config: status-port is {port!r}, but must be a port, or 0 for none")
    return Endpoint(port, watched) if port else nullcontext()


def run_folder(context: Context) -> Path:
    """Where the server keeps the run."""
    folder = context.run_config.get("run-dir")
    if not isinstance(folder, str) or not folder:
        raise ConfigError(
            f"run-config: run-dir is {folder!r}, but must be a folder of the server, as in "
            "flwr run . NAME --run-config 'run-dir=\"/var/lib/fedadmm/run\"'"
        )
    return Path(folder)


def serve(
    federation: Federation, grid: Grid, folder: Path, observers: Iterable[Observer] = ()
) -> Outcome:
    """Run a federation over a grid, from its last checkpoint in `folder` if there is one.

    Two servers on one checkpoint would acknowledge what the other never folded: the second waits,
    and is refused.
    """
    files.make_directory(folder)
    with torch.no_grad(), files.locked(folder, _PREDECESSOR):
        files.remove_leftovers(folder)
        return Service(federation, grid, folder, list(observers)).run()
