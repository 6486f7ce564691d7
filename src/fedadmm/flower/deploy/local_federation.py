"""`fedadmm deploy local`: a federation of real processes on this machine."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGHUP, SIGTERM
from typing import Any

from torch import Tensor

from fedadmm.core import atomic_files, codec, signals
from fedadmm.core.config_tree import to_config
from fedadmm.core.errors import ConfigError, EngineError, StateError
from fedadmm.core.problem import Problem
from fedadmm.data import models
from fedadmm.data.problems import Sites
from fedadmm.flower.configured import (
    DEPLOYMENT,
    Deployment,
    TableSites,
    as_it_runs,
    check,
    check_clients,
    federation,
    read_deployment,
    sites,
)
from fedadmm.flower.deploy.keys import make_identities
from fedadmm.flower.deploy.network import LocalNetwork
from fedadmm.flower.deploy.processes import PROCESSES, ProcessTree, end_group, recorded
from fedadmm.flower.deploy.project import PACKAGE, app_hash, write_configured
from fedadmm.flower.federation import Patience
from fedadmm.flower.server.checkpoint import read_summary
from fedadmm.flower.server.run_recorder import WAITING, read_events
from fedadmm.flower.site import gate
from fedadmm.flower.site.policy import POLICY, written
from fedadmm.flower.site.site_state import SiteState
from fedadmm.run.client import record_layout
from fedadmm.run.experiment import Experiment
from fedadmm.run.record import Record
from fedadmm.run.state import Ending
from fedadmm.study import config as configs
from fedadmm.study.benefit import LOCAL, PERSONAL, SHARED, SiteBenefit, score_models, trained
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
"""The policy of sites whose data are all on this machine and belong to one user."""

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
    policy: Mapping[str, Any] | None = None,
) -> Summary:
    """Start SuperLink and SuperNodes, run the configuration, take everything down again.

    Args:
        config: what is run.
        out: the run directory.
        deployment: what is decided about the network.
        tls: encrypt all connections, and let in only nodes with a registered key.
        resume: go on with the run that is in `out`.
        watch: called with every new record.
        label: the name of the run in tables.
        policy: keys of `site.toml` for every site, in addition to the pinned app.  A run that
            waits for approval is approved here, because all sites are this user's.
    """
    check(config)
    deployment = replace(deployment, named=tls)
    held = RunDir(out).holds_run
    if held and not resume:
        raise ConfigError(
            f"--out is '{out}', which already holds a run; add --resume to go on with it, or "
            "choose another folder"
        )
    if held:
        reject_another_run(out, config, deployment)
    create(out)
    out = out.resolve()
    with atomic_files.locked(out / FOLDER, _PREDECESSOR):
        if (out / FOLDER / PROCESSES).is_file():
            take_down(out)  # a second SuperLink must not share the database of the first
        return _run(config, out, deployment, watch, label, policy or {})


def _run(
    config: Experiment,
    out: Path,
    deployment: Deployment,
    watch: Watch,
    label: str | None,
    policy: Mapping[str, Any],
) -> Summary:
    folder, tls = RunDir(out), deployment.named
    apart = sites(config)
    app = write_configured(out / FOLDER / "app", config, deployment, out)
    nodes, problem = _sites(config, out, deployment.clients, apart)
    for node in nodes:
        _write_policy(Path(node["policy"]), policy, app_hash(app))
    partition = None if problem is None else partition_of(problem)
    if isinstance(apart, TableSites):
        partition = apart.preparation.partition()
    method = None if problem is None else as_it_runs(config, problem)
    summary = partial(summarise, config, label=label, method=method)
    folder.begin(config.tree, summary(folder.columns()), partition)
    # Sites must do with their own file: no process below finds the others' by chance.
    hidden = {"FEDADMM_DATA": str(out / FOLDER / "no-data")}
    environment = {} if apart is None else hidden
    with (
        signals.as_interrupt(SIGTERM, SIGHUP),  # so that everything is taken down on the way out
        LocalNetwork(out / FOLDER, nodes, tls=tls, environment=environment) as network,
    ):
        network.start()
        run = network.run(app, {"run-dir": str(out)})
        follower = Follower(folder, watch)

        def look() -> None:
            follower.look()
            approve_waiting(nodes)

        network.wait(run, _LEAST + config.rounds * Patience().round, look)
        follower.look()
        return _close(folder, summary, run)


def _write_policy(path: Path, policy: Mapping[str, Any], pinned: str) -> None:
    """Write a site's policy with the pinned app; a resumed run keeps what was changed there."""
    if not path.exists():
        path.write_text(written(_ALL_OURS | {"apps": [pinned]} | dict(policy)))
        return
    # The app may have changed with its network, such as TLS that is switched on.
    text = re.sub(r"^apps = \[.*\]$", f'apps = ["{pinned}"]', path.read_text(), flags=re.MULTILINE)
    path.write_text(text)


def approve_waiting(nodes: Sequence[Mapping[str, Any]]) -> None:
    """Approve the runs that wait at sites of this machine, with the terms they have."""
    for node in nodes:
        base = Path(node["state-dir"])
        if base.is_dir() and any(base.glob("ledger_*")):
            for run in gate.waiting(base):
                gate.approve(base, run)


def stored_deployment(out: Path) -> Deployment | None:
    """Return the network of the local deployment in a run directory, if there is one."""
    path = out / FOLDER / "app" / PACKAGE / DEPLOYMENT
    return read_deployment(path) if path.is_file() else None


def reject_another_run(out: Path, config: Experiment, deployment: Deployment) -> None:
    """Raise a StateError if a run has another configuration or network."""
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
    config: Experiment, out: Path, clients: int, apart: Sites | None
) -> tuple[list[dict[str, Any]], Problem | None]:
    """Return each node's configuration, and the problem unless every site has a file of its own.

    The folder of a site with a file of its own contains no other site's file.
    """
    own: list[Path] = []
    problem = None
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
        policy = str(folder / POLICY)
        node: dict[str, Any] = {"state-dir": str(folder / "state"), "policy": policy}
        if own:
            node["data"] = str(shutil.copy(own[client], folder))
        nodes.append(node)
    if config.aggregator.is_secure:
        make_identities([Path(node["state-dir"]).parent for node in nodes])
    return nodes, problem


class Follower:
    """Reports new records of a run directory; each is read once, also after a resume."""

    def __init__(self, folder: RunDir, watch: Watch) -> None:
        self._folder = folder
        self._watch = watch
        self._shown = -1

    def look(self) -> None:
        """Report the records that were appended since the last call."""
        for record in self._folder.news():
            if record["round"] > self._shown:
                self._shown = record["round"]
                self._watch(record)


def _close(folder: RunDir, summarised: Callable[..., Summary], run: ProcessTree) -> Summary:
    """Return the summary of a simulated run, with the counts of network events."""
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
    """Return the state of a run and its sites, and its processes if they are on this machine."""
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
    """Return for each client its node, version, last round and rejected replies."""
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
                "last_refusal": f"{own[-1]['reason']}: {own[-1]['detail']}" if own else None,
            }
        )
    return sites


def take_down(folder: Path) -> list[str]:
    """End every process group of a local deployment that still runs; return their names."""
    ended = []
    for one, alive in recorded(folder / FOLDER):
        if alive:
            end_group(one.group)
            ended.append(one.name)
    return ended


def compare(config: Experiment, out: Path) -> SiteBenefit:
    """Compare local training with the federation, on each site's own held-out samples.

    Models that are trained locally take the same rounds of the same local work.  The files of all
    sites must be on this machine, as in a demonstration.

    Args:
        config: the configuration of the run.
        out: its run directory; the personalised models are read from the sites' states in it.
    """
    apart = sites(config)
    assert apart is not None, "the sites have a file each"
    problems = [apart.load(config.problem, path, i) for i, path in enumerate(apart.files())]
    tests = [one.test if one.client_tests is None else one.client_tests[0] for one in problems]
    params = RunDir(out).model(last=True).params  # a chosen model would have an advantage
    local = [trained(config, one, one.clients[0]) for one in problems]
    models: dict[str, Sequence[Tensor]] = {LOCAL: local, SHARED: [params] * len(tests)}
    if config.local.personal is not None:
        models[PERSONAL] = own_models(config, out, params)
    return score_models(apart.names, tests, models, config.seed)


def own_models(config: Experiment, out: Path, params: Tensor) -> list[Tensor]:
    """Return the personalised model of each site, from the state that the server acknowledged."""
    deployment = stored_deployment(out)
    assert deployment is not None, "a local deployment has stored its network"
    job = federation(config, deployment).server_job()
    known, found = read_summary(out / CHECKPOINT).entries, []
    for client in range(deployment.clients):
        base = out / FOLDER / "sites" / f"client-{client}" / "state"
        (folder,) = base.glob(f"*/client-{client}")
        state = SiteState(folder)
        with state.locked():
            pending = state.ledger().pending
            if pending is not None and pending.digest == known[client].digest:
                state.promote()  # as the site does when the next task acknowledges it
            record = state.acked(record_layout(job))
        found.append(job.own_models.get(client, record, params))
    return found
