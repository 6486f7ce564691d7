"""`fedadmm deploy local`: a federation of real processes on this machine; run, watched, judged."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGHUP, SIGTERM
from typing import Any, NamedTuple

from torch import Tensor

from fedadmm.core import codec, files, signals
from fedadmm.core.config_tree import to_config
from fedadmm.core.errors import ConfigError, EngineError, StateError
from fedadmm.core.problem import Problem
from fedadmm.data import models
from fedadmm.flower.configured import (
    DEPLOYMENT,
    Deployment,
    as_it_runs,
    check,
    check_clients,
    read_deployment,
    sites,
)
from fedadmm.flower.deploy.keys import make_identities
from fedadmm.flower.deploy.network import LocalNetwork
from fedadmm.flower.deploy.processes import PROCESSES, Group, end_group, recorded
from fedadmm.flower.deploy.project import PACKAGE, write_configured
from fedadmm.flower.federation import Patience
from fedadmm.flower.server.checkpoint import read_summary
from fedadmm.flower.server.run_recorder import WAITING, read_events
from fedadmm.flower.site.policy import POLICY, written
from fedadmm.run.experiment import Experiment
from fedadmm.run.record import Record
from fedadmm.run.state import Ending
from fedadmm.study import config as configs
from fedadmm.study.benefit import pooled, trained
from fedadmm.study.config import resolve
from fedadmm.study.run_dir import CHECKPOINT, RunDir, create
from fedadmm.study.run_history import RUNNING, Summary, clients, partition_of, rounds, summarise
from fedadmm.study.single_run import fingerprint

FOLDER = "deployment"
"""Where a run directory keeps everything that only the deployment needs."""
_LEAST = 300.0
"""Seconds that a run has at least."""
_PREDECESSOR = 5.0
"""Seconds to wait for another command on the same folder to end."""
_ALL_OURS = {"evaluations": 10**6, "evaluations_with_noise": True}
"""The policy of sites whose rows are all on this machine: nothing is hidden from its owner."""

Watch = Callable[[Record], None]


def run_locally(
    config: Experiment,
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
    deployment = replace(deployment, named=tls)
    held = RunDir(out).holds_run
    if held and not resume:
        raise ConfigError(
            f"--out is '{out}', which already holds a run; add --resume to go on with it, or "
            "choose another folder"
        )
    if held:
        refuse_another_run(out, config, deployment)
    create(out)
    out = out.resolve()
    with files.locked(out / FOLDER, _PREDECESSOR):
        if (out / FOLDER / PROCESSES).is_file():
            take_down(out)  # a second SuperLink must not share the database of the first
        return _run(config, out, deployment, watch, label)


def _run(
    config: Experiment, out: Path, deployment: Deployment, watch: Watch, label: str | None
) -> Summary:
    folder, tls = RunDir(out), deployment.named
    nodes, problem = _sites(config, out, deployment.clients)
    partition = None if problem is None else partition_of(problem)
    method = None if problem is None else as_it_runs(config, problem)
    summary = partial(summarise, config, label=label, method=method)
    folder.begin(config.tree, summary(folder.columns()), partition)
    app = write_configured(out / FOLDER / "app", config, deployment, out)
    # Sites must do with their own file: no process below finds the others' by chance.
    hidden = {"FEDADMM_DATA": str(out / FOLDER / "no-data")}
    environment = {} if sites(config) is None else hidden
    with (
        signals.as_interrupt(SIGTERM, SIGHUP),  # so that everything is taken down on the way out
        LocalNetwork(out / FOLDER, nodes, tls=tls, environment=environment) as network,
    ):
        network.start()
        run = network.run(app, {"run-dir": str(out)})
        follower = Follower(folder, watch)
        network.wait(run, _LEAST + config.rounds * Patience().round, follower.look)
        follower.look()
        return _close(folder, summary, run)


def stored_deployment(out: Path) -> Deployment | None:
    """The network of the local deployment in a run directory; None where there is none."""
    path = out / FOLDER / "app" / PACKAGE / DEPLOYMENT
    return read_deployment(path) if path.is_file() else None


def refuse_another_run(out: Path, config: Experiment, deployment: Deployment) -> None:
    """Refuse to go on with a run whose configuration or network is another one."""
    stored = stored_deployment(out) or deployment
    old = fingerprint(resolve(configs.read(str(out)), f"{out}: ")) | to_config(stored)
    new = fingerprint(config) | to_config(deployment)
    may_change = {"named"}  # TLS can be switched on and off
    differing = sorted(
        k for k in (old.keys() | new.keys()) - may_change if old.get(k) != new.get(k)
    )
    if differing:
        changes = ", ".join(f"{key} ({old.get(key)!r} -> {new.get(key)!r})" for key in differing)
        raise StateError(f"{out}: holds a run of another configuration, which differs in {changes}")


def _sites(
    config: Experiment, out: Path, clients: int
) -> tuple[list[dict[str, Any]], Problem | None]:
    """Each node's own folder and configuration, and the problem where its rows are here.

    The folder of a site that is apart holds its own file and no other.
    """
    own: list[Path] = []
    problem = None
    apart = sites(config)
    if apart is not None:
        check_clients(clients, len(apart.names))
        models.resolve(config.tree["problem"]["model"])  # refused here, and not at every site
        own = apart.files()
    else:
        problem = config.load_problem()
        check_clients(clients, problem.num_clients)
    nodes: list[dict[str, Any]] = []
    for client in range(clients):
        folder = out / FOLDER / "sites" / f"client-{client}"
        folder.mkdir(parents=True, exist_ok=True)
        policy = folder / POLICY
        if not policy.exists():  # a resumed run keeps what was changed there
            policy.write_text(written(_ALL_OURS))
        node: dict[str, Any] = {"state-dir": str(folder / "state"), "policy": str(policy)}
        if own:
            node["data"] = str(shutil.copy(own[client], folder))
        nodes.append(node)
    if config.aggregator.is_secure:
        make_identities([Path(node["state-dir"]).parent for node in nodes])
    return nodes, problem


class Follower:
    """Hands new rounds to whoever shows them; each is read once, and shown once after a resume."""

    def __init__(self, folder: RunDir, watch: Watch) -> None:
        self._folder = folder
        self._watch = watch
        self._shown = -1

    def look(self) -> None:
        """Show what was appended."""
        for record in self._folder.news():
            if record["round"] > self._shown:
                self._shown = record["round"]
                self._watch(record)


def _close(folder: RunDir, summarised: Callable[..., Summary], run: Group) -> Summary:
    """The same summary as a simulated run's, and what the network did."""
    left = folder.summary()
    if left["code"] == RUNNING:
        errors = [line for line in run.tail(200).splitlines() if "Error" in line]
        raise EngineError(f"the run ended without a result:\n{(errors or [run.tail()])[-1]}")
    ending = Ending(left["code"], left["status"])
    summary = summarised(folder.columns(), ending=ending, params_sha256=left["params_sha256"])
    summary |= {"network": left["network"], "best": left["best"]}
    summary["fitted"] |= left["fitted"]
    folder.close(summary)
    return summary


def look(folder: Path) -> dict[str, Any]:
    """The state of a run and its sites; for one on this machine also its processes."""
    elsewhere = (folder / CHECKPOINT).is_dir() and not (folder / FOLDER).is_dir()
    groups = [] if elsewhere else recorded(folder / FOLDER)
    read = RunDir(folder)
    records, finished = read.records(), read.finished()
    under_way = elsewhere or any(alive for _, alive in groups)
    unfinished = "under way" if under_way else "interrupted; resume it"
    waits = finished is None and (folder / WAITING).is_file()
    last = records[-1].get("network", {}) if records else {}
    return {
        "processes": [{"name": one.name, "running": alive} for one, alive in groups],
        "rounds": len(rounds(records)),
        "last": records[-1] if records else None,
        "status": finished["status"] if finished is not None else unfinished,
        "waiting": codec.read_json(folder / WAITING) if waits else None,
        "influence": last.get("influence"),
        "sites": _at_sites(folder, records),
    }


def _at_sites(folder: Path, records: list[Record]) -> list[dict[str, Any]]:
    """For each client: its node and version, when it last took part, what was refused."""
    known, events = read_summary(folder / CHECKPOINT), read_events(folder)
    heard = {client: record for record in records for client in clients(record)}
    seen = heard.keys() | known.entries.keys() | known.nodes.keys()
    sites = []
    for client in sorted(seen | {event["client"] for event in events}):
        own = [event for event in events if event["client"] == client]
        entry, last = known.entries.get(client), heard.get(client)
        sites.append(
            {
                "client": client,
                "node": known.nodes.get(client),
                "version": entry.version if entry is not None else 0,
                "lost": entry is not None and entry.lost,
                "last_round": last["round"] if last is not None else None,
                "last_heard": last["clock"].get("at") if last is not None else None,
                "refused": dict(Counter(event["reason"] for event in own)),
                "last_refusal": f"{own[-1]['word']}: {own[-1]['detail']}" if own else None,
            }
        )
    return sites


def take_down(folder: Path) -> list[str]:
    """End every process group of a local deployment that still runs; their names."""
    ended = []
    for one, alive in recorded(folder / FOLDER):
        if alive:
            end_group(one.group)
            ended.append(one.name)
    return ended


class Row(NamedTuple):
    """One way of training and its accuracy on each site's own held-out rows."""

    how: str
    accuracies: list[float]

    @property
    def mean(self) -> float:
        """The mean over the sites."""
        return sum(self.accuracies) / len(self.accuracies)


def compare(config: Experiment, params: Tensor) -> tuple[list[str], list[Row]]:
    """The sites' names, and rows for the federation's model, pooled training and each site alone.

    Pooled and lonely models take the same number of epochs with the same solver.  This needs all
    sites' rows in one place, which only a demonstration has.
    """
    problem = config.load_problem()
    names: list[str] = problem.data.client_names()
    rows = [Row("federation", _accuracies(problem, params))]
    rows.append(Row("pooled", _accuracies(problem, trained(config, problem, pooled(problem)))))
    for client, name in enumerate(names):
        alone = trained(config, problem, problem.clients[client])
        rows.append(Row(f"{name} alone", _accuracies(problem, alone)))
    return names, rows


def _accuracies(problem: Problem, params: Tensor) -> list[float]:
    assert problem.client_tests is not None
    return [float(dict(test(params))["test_accuracy"]) for test in problem.client_tests]
