"""`fedadmm deploy local`: a whole federation on this machine, with real processes and keys."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGHUP, SIGTERM
from typing import Any

from fedadmm.core import signals
from fedadmm.core.errors import ConfigError, EngineError
from fedadmm.core.problem import Problem
from fedadmm.data import models
from fedadmm.flower.configured import Deployment, as_it_runs, check, check_clients, sites
from fedadmm.flower.local.bundle import write_configured
from fedadmm.flower.local.keys import make_identities
from fedadmm.flower.local.network import LocalNetwork
from fedadmm.flower.local.processes import Group
from fedadmm.flower.site.policy import POLICY, written
from fedadmm.run.experiment import Experiment
from fedadmm.run.plan import Ending
from fedadmm.run.record import Record
from fedadmm.study.records import RUNNING, Summary, partition_of, summarise
from fedadmm.study.rundir import RunDir, create

FOLDER = "deployment"
"""Where a run directory keeps everything that only the deployment needs."""
_LEAST = 300.0
"""Seconds that a run has at least."""
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
    if RunDir(out).holds_run and not resume:
        raise ConfigError(
            f"--out is '{out}', which already holds a run; add --resume to go on with it, or "
            "choose another folder"
        )
    create(out)
    out = out.resolve()
    folder = RunDir(out)
    nodes, problem = _sites(config, out, deployment.clients)
    partition = None if problem is None else partition_of(problem)
    method = None if problem is None else as_it_runs(config, problem)
    summary = partial(summarise, config, label=label, method=method)
    folder.begin(config.tree, summary(folder.records()), partition)
    deployment = replace(deployment, named=tls)
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
        network.wait(run, _most_seconds(config, deployment), follower.look)
        follower.look()
        return _close(folder, summary, run)


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
    if config.aggregate.hides:
        make_identities([Path(node["state-dir"]).parent for node in nodes])
    return nodes, problem


def _most_seconds(config: Experiment, deployment: Deployment) -> float:
    return _LEAST + config.rounds * deployment.round_timeout


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
        raise EngineError(f"the run ended without a result:\n{_last_error(run)}")
    ending = Ending(left["code"], left["status"])
    summary = summarised(folder.records(), ending=ending, params_sha256=left["params_sha256"])
    summary |= {"network": left["network"], "best": left["best"]}
    folder.close(summary)
    return summary


def _last_error(run: Group) -> str:
    lines = [line for line in run.tail(200).splitlines() if "Error" in line]
    return lines[-1] if lines else run.tail()
