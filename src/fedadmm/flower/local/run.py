"""`fedadmm deploy local`: a whole federation on this machine, with real processes and keys."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGHUP, SIGTERM
from typing import Any

from fedadmm.errors import ConfigError, EngineError
from fedadmm.experiments import directory as files
from fedadmm.experiments import loading
from fedadmm.experiments.config import RunConfig, load_problem
from fedadmm.experiments.summary import Summary, partition_of, summarise
from fedadmm.flower.configured import Deployment, check, check_clients, sites
from fedadmm.flower.local.bundle import write_configured
from fedadmm.flower.local.network import LocalNetwork
from fedadmm.flower.local.processes import Group
from fedadmm.round import Ending, Record

FOLDER = "deployment"
"""Where a run directory keeps everything that only the deployment needs."""
_LEAST = 300.0
"""Seconds that a run has at least."""

Watch = Callable[[Record], None]


def run_locally(
    config: RunConfig,
    out: Path,
    deployment: Deployment,
    *,
    tls: bool,
    resume: bool,
    watch: Watch,
    label: str | None = None,
) -> Summary:
    """Start SuperLink and SuperNodes, run the configuration, take everything down again."""
    check(config)
    if files.holds_run(out) and not resume:
        raise ConfigError(
            f"--out is '{out}', which already holds a run; add --resume to go on with it, or "
            "choose another folder"
        )
    files.create(out)
    out = out.resolve()
    nodes = _sites(config, out, deployment.clients)
    files.write_text(out / files.CONFIG, loading.write(config.tree()))
    deployment = deployment._replace(named=tls)
    app = write_configured(out / FOLDER / "app", config, deployment, out)
    (out / files.SUMMARY).unlink(missing_ok=True)
    # Sites must do with their own file: no process below finds the others' by chance.
    hidden = {"FEDADMM_DATA": str(out / FOLDER / "no-data")}
    environment = {} if sites(config) is None else hidden
    with (
        _orderly_end(),
        LocalNetwork(out / FOLDER, nodes, tls=tls, environment=environment) as network,
    ):
        network.start()
        run = network.run(app, {"run-dir": str(out)})
        follower = Follower(out, watch)
        network.wait(run, _most_seconds(config, deployment), follower.look)
        follower.look()
        return _summary(config, out, label, run)


@contextmanager
def _orderly_end() -> Iterator[None]:
    """A request to end is an interruption, so that everything is taken down on the way out."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (SIGTERM, SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sites(config: RunConfig, out: Path, clients: int) -> list[dict[str, Any]]:
    """Each node's own folder and configuration; a site's holds its own file and no other."""
    own: list[Path] = []
    apart = sites(config)
    if apart is not None:
        check_clients(clients, len(apart.names))
        own = apart.files()
    else:
        problem = load_problem(config)
        check_clients(clients, problem.num_clients)
        partition = partition_of(problem)
        if partition is not None:
            files.write_json(out / files.PARTITION, partition)
    nodes: list[dict[str, Any]] = []
    for client in range(clients):
        folder = out / FOLDER / "sites" / f"client-{client}"
        folder.mkdir(parents=True, exist_ok=True)
        node = {"state-dir": str(folder / "state")}
        if own:
            node["data"] = str(shutil.copy(own[client], folder))
        nodes.append(node)
    return nodes


def _most_seconds(config: RunConfig, deployment: Deployment) -> float:
    return _LEAST + config.rounds * deployment.round_timeout


class Follower:
    """Hands new lines of metrics.jsonl to whoever shows them; each line is read once."""

    def __init__(self, out: Path, watch: Watch) -> None:
        self._path = out / files.METRICS
        self._watch = watch
        self._file = 0
        self._read = 0
        self._shown = 0

    def look(self) -> None:
        """Read what was appended; a resumed run starts the file again."""
        try:
            with self._path.open("rb") as stream:
                found = os.fstat(stream.fileno())
                if found.st_ino != self._file or found.st_size < self._read:
                    self._file, self._read = found.st_ino, 0
                stream.seek(self._read)
                lines = stream.read()
        except FileNotFoundError:
            return
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            record = json.loads(line)
            if record["round"] > self._shown:
                self._shown = record["round"]
                self._watch(record)


def _summary(config: RunConfig, out: Path, label: str | None, run: Group) -> Summary:
    """The same summary as a simulated run's, and what the network did."""
    path = out / files.SUMMARY
    if not path.is_file():
        raise EngineError(f"the run ended without a result:\n{_last_error(run)}")
    left = files.read_json(path)
    ending = Ending(left["code"], left["status"])
    records = files.read_metrics(out)
    summary = summarise(config, records, ending, left["params_sha256"], label)
    summary["network"] = left["network"]
    files.write_json(path, summary)
    return summary


def _last_error(run: Group) -> str:
    lines = [line for line in run.tail(200).splitlines() if "Error" in line]
    return lines[-1] if lines else run.tail()
