"""The server's Flower app, and the same thing as a function."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedadmm.core import files
from fedadmm.core.errors import ConfigError, PairingError
from fedadmm.core.parts import name_of
from fedadmm.flower.federation import Federation
from fedadmm.flower.protocol import wire
from fedadmm.flower.server.endpoint import Endpoint, Watched
from fedadmm.flower.server.rundir import RunDirectory
from fedadmm.flower.server.service import Outcome, Service
from fedadmm.flower.site.app import STATE_DIR
from fedadmm.run.callbacks import Callbacks, Given, as_callbacks
from fedadmm.run.plan import Ending, RoundReport

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

SITES = "sites"
"""Where the run directory of a simulation keeps the sites' state."""
log = logging.getLogger("flwr.fedadmm")
"""What Flower shows with its own lines, also in `flwr log`."""
_PREDECESSOR = 60.0
"""Seconds that a server waits for the one before it to end."""


def server_app(federation: Federation, callbacks: Sequence[Given] = ()) -> ServerApp:
    """A Flower ServerApp that runs a federation, and resumes it when it is started again.

    The run configuration must hold `run-dir`, the folder that receives metrics.jsonl,
    summary.json, model.safetensors and the checkpoint.  `accept-rollback` and `accept-nodes` may be
    true, `leave-out` name clients and `operator-key` a file, as in `Federation`.  `status-port` is
    the port of this machine's loopback on which /health and /metrics are answered while the run
    goes on, and 0, the default, is none.
    """
    from flwr.serverapp import ServerApp

    def main(grid: Grid, context: Context) -> None:
        directory = RunDirectory(run_folder(context))
        run = configured(federation, context.run_config)
        watched = Watched(run)
        with endpoint(context, watched):
            said = partial(log_round, run.experiment.rounds)
            seen = serve(run, grid, directory.path, [directory, watched, said, *callbacks])
            directory.finish(seen)

    app = ServerApp()
    app.main()(main)
    return app


def configured(federation: Federation, config: Mapping[str, Any]) -> Federation:
    """The federation with what the operator says in the run configuration."""
    words: dict[str, Any] = {}
    for name in ("accept-rollback", "accept-nodes"):
        word = config.get(name, getattr(federation, name.replace("-", "_")))
        if not isinstance(word, bool):
            raise ConfigError(f"run-config: {name} is {word!r}, but must be true or false")
        words[name.replace("-", "_")] = word
    left = str(config.get("leave-out", "")).replace(",", " ").split()
    if not all(one.isdecimal() and int(one) < federation.clients for one in left):
        raise ConfigError(
            f"run-config: leave-out is {config['leave-out']!r}, but must be client numbers below "
            f'{federation.clients}, as in leave-out="2,5"'
        )
    words["operator_key"] = str(config.get("operator-key") or "") or federation.operator_key
    words["leave_out"] = [*federation.leave_out, *map(int, left)]
    return replace(federation, **words)


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
    federation: Federation, grid: Grid, folder: Path, callbacks: Iterable[Given] = ()
) -> Outcome:
    """Run a federation over a grid, from its last checkpoint in `folder` if there is one.

    Two servers on one checkpoint would acknowledge what the other never folded: the second waits,
    and is refused.  Callbacks look at the rounds; none of them can measure here, because the
    clients' states are at the sites.
    """
    chosen = as_callbacks(callbacks)
    for one in chosen:
        if one.measures:
            raise PairingError(
                f"callbacks has {name_of(type(one))!r}, which measures on the clients' states, but "
                "a deployment keeps them at the sites; leave it out"
            )
    files.make_directory(folder)
    beside: dict[str, Mapping[str, Any]] = {}
    if federation.train_config:
        beside[wire.CONFIG] = federation.train_config
    if is_simulated(grid):
        beside[wire.PLACE] = {STATE_DIR: str(folder.resolve() / SITES)}
    with Callbacks(chosen, _summary) as attached, torch.no_grad():
        with files.locked(folder, _PREDECESSOR):
            files.remove_leftovers(folder)
            outcome = Service(federation, grid, folder, attached, beside).run()
        attached.ended(outcome.ending, outcome)
    return outcome


def _summary(ending: Ending, outcome: Outcome | None) -> dict[str, Any]:
    """What callbacks learn at the end of a deployed run."""
    told: dict[str, Any] = {"code": ending.code, "status": ending.sentence}
    if outcome is not None:
        told |= {"rounds": outcome.state.round, "network": outcome.counts}
    return told


def is_simulated(grid: Grid) -> bool:
    """Whether the nodes are made up by `flwr run` on this machine, and have no folders."""
    # The module is loaded where somebody simulates, and expensive to load elsewhere.
    module = sys.modules.get("flwr.superlink.grid.inmemory_grid")
    return module is not None and isinstance(grid, module.InMemoryGrid)


def log_round(rounds: int, report: RoundReport) -> None:
    """Say how a round went, where Flower says such things."""
    record = report.record
    metrics = "".join(f", {name} {value:.4g}" for name, value in record["metrics"].items())
    seconds, clients = record["clock"]["seconds"], record["cohort"]["participants"]
    text = f"round {record['round']} of {rounds}: {clients} clients{metrics} ({seconds:.1f} s)"
    log.info(text)
