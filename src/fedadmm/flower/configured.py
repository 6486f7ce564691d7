"""From a run's configuration to a server app and a client app.

Most problems are made from data that every machine can load, and a node takes its own client's
part.  A problem with `sites`, such as the hospitals, is different: a node has one file, its own,
and the server has none.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from fedadmm.core import atomic_files
from fedadmm.core.capabilities import fit_penalties
from fedadmm.core.config_tree import from_config
from fedadmm.core.contracts import AnyAlgorithm
from fedadmm.core.errors import ConfigError
from fedadmm.core.parts import Count, checked
from fedadmm.core.problem import LazyClients, Problem
from fedadmm.core.regularizers import Zero
from fedadmm.data import models
from fedadmm.data.loaders.tabular import AUTO, table_files
from fedadmm.data.problems import NamedProblem, Sites
from fedadmm.data.problems.named_problem import federate
from fedadmm.data.problems.recorded import TableOptions
from fedadmm.flower.federation import (
    SITES_FILE,
    Federation,
    RemoteObjective,
    check_deployable,
    read_sites,
)
from fedadmm.flower.server.server_app import run_folder, server_app
from fedadmm.flower.site.app import Site, client_app, client_number
from fedadmm.flower.site.table import PREPARATION, TablePreparation, site_statistics
from fedadmm.run.callbacks import Given
from fedadmm.run.experiment import Experiment
from fedadmm.run.simulate import local_length
from fedadmm.study import config as configs
from fedadmm.study.config import resolve
from fedadmm.study.run_dir import RunDir
from fedadmm.study.run_history import summarise

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

CONFIG, DEPLOYMENT = "config.toml", "deployment.toml"


@checked
class Deployment:
    """The network of a federation, in addition to the run's configuration.

    Args:
        clients: the number of nodes.
        mode: as in `Federation`.
        ledger: as in `Federation`; "auto" is "disk", and "none" where only masked sums are seen.
        named: whether only registered nodes called client-0, client-1 … may take part.
    """

    clients: Count
    mode: Literal["rounds", "asynchronous"] = "rounds"
    ledger: Literal["auto", "none", "disk"] = "auto"
    named: bool = False

    def federation(
        self, experiment: Experiment, evaluate_every: int, listed: Path | None = None
    ) -> Federation:
        """Return an experiment on this network; `listed` is the sites.toml of a project."""
        usual: Literal["none", "disk"] = "none" if experiment.aggregator.is_secure else "disk"
        return Federation(
            experiment,
            evaluate_every=evaluate_every,
            mode=self.mode,
            ledger=usual if self.ledger == "auto" else self.ledger,
            **sites_of_a_project(self, listed),
        )


def sites_of_a_project(deployment: Deployment, listed: Path | None) -> dict[str, Any]:
    """Return the names of the nodes and who left, from a project's list or by their numbers."""
    if listed is None or not listed.is_file():
        return {"names": node_names(deployment.clients) if deployment.named else None}
    found = read_sites(listed)
    return {"names": found.names, "take_out": found.left}


class Apps(NamedTuple):
    """The two halves of a Flower app."""

    server: ServerApp
    client: ClientApp


def apps(folder: Path, callbacks: Sequence[Given] = ()) -> Apps:
    """Return the two apps of the bundle in a folder.

    The folder holds config.toml and deployment.toml; a project for several machines also has
    sites.toml, and one with tables of the sites preparation.json.  Callbacks, such as trackers, are
    called at the server.
    """
    config = resolve(configs.read(str(folder / CONFIG)))
    deployment = read_deployment(folder / DEPLOYMENT)
    listed, prepared = folder / SITES_FILE, folder / PREPARATION
    if listed.is_file():
        deployment = replace(deployment, clients=len(read_sites(listed).names))
    torch.set_num_threads(1)
    check(config)
    preparation = TablePreparation.read(prepared) if prepared.is_file() else None
    apart = sites(config, preparation)
    # Loaded once, for both apps and for every message of this process.
    problem = config.load_problem() if apart is None else None
    settings = federation(config, deployment, problem, apart, listed)
    load = partial(_site, config, problem, apart)
    server = server_app(settings, callbacks)
    if preparation is not None:
        server = _recording(server, config, preparation)
    return Apps(server, client_app(settings, load))


def _recording(inner: ServerApp, config: Experiment, preparation: TablePreparation) -> ServerApp:
    """A server app that leaves with its run what `fedadmm predict` and `export` need."""
    from flwr.serverapp import Grid, ServerApp

    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        folder = run_folder(context)
        atomic_files.make_directory(folder)
        if not RunDir(folder).holds_run:
            run = RunDir(folder)
            run.begin(config.tree, summarise(config, run.columns()), preparation.partition())
        inner(grid, context)

    app.main()(main)
    return app


def read_deployment(path: Path) -> Deployment:
    """Read a deployment.toml."""
    return from_config(Deployment, configs.table(path), title=str(path))


def federation(
    config: Experiment,
    deployment: Deployment,
    problem: Problem | None = None,
    apart: Sites | None = None,
    listed: Path | None = None,
) -> Federation:
    """Return the federation that a configuration describes.

    Args:
        config: the configuration.
        deployment: what is decided about the network.
        problem: the configuration's problem, if it is loaded already.
        apart: how its clients are deployed with one file each, if it is known already.
        listed: the sites.toml of a project.
    """
    check(config)
    apart = apart or (sites(config) if problem is None else None)
    if apart is not None:
        run = _without_rows(config, deployment, apart)
        return deployment.federation(run, config.evaluate.every, listed)
    problem = problem or config.load_problem()
    check_clients(deployment.clients, problem.num_clients)
    method = as_it_runs(config, problem)
    run = replace(config, problem=problem, algorithm=method, regularizer=None)
    every = config.evaluate.every if config.evaluate.objective else 0
    return deployment.federation(run, every, listed)


def as_it_runs(config: Experiment, problem: Problem) -> AnyAlgorithm:
    """Return the algorithm with its penalties fitted to the clients' local work."""
    rule = config.local.stop
    assert rule is not None, "a resolved experiment has a stopping rule"
    return fit_penalties(
        config.algorithm, partial(local_length, problem, config.local.solver, rule)
    )


def sites(config: Experiment, preparation: TablePreparation | None = None) -> Sites | None:
    """Return how the problem's clients are deployed with one file each, if they are.

    Tables of the sites need their joint preparation; without it, it is joined from the files that
    the configuration names, which a demonstration on one machine has.
    """
    problem = config.problem
    if isinstance(problem, TableOptions):
        return table_sites(problem, preparation)
    return problem.sites if isinstance(problem, NamedProblem) else None


@dataclass(frozen=True)
class TableSites(Sites):
    """Sites with a table each, of whose samples the number is known."""

    preparation: TablePreparation


def table_sites(
    options: TableOptions, preparation: TablePreparation | None = None
) -> TableSites | None:
    """Return the sites of tables with one file per client; None for a column of clients."""
    if options.preparation != "from-sums" or options.client not in (None, AUTO):
        return None
    found = list[Path]()
    if preparation is None:
        found = table_files(options.path)
        names = [path.name.split(".")[0] for path in found]
        if len(found) < 2:
            return None
        if len(set(names)) < len(names):
            names = [f"site-{number}" for number in range(len(found))]
        reported = {
            name: site_statistics(path, options) for name, path in zip(names, found, strict=True)
        }
        preparation = TablePreparation.join(reported)
    joint = preparation

    def load(chosen: TableOptions, path: Path, client: int) -> Problem:
        own = replace(chosen, clients=None)  # a site has one client: itself
        return federate(joint.load(path, own), own, name=own.name)

    # A regression has no classes; `classes` then only chooses a model with one output.
    classes = len(joint.labels) or 2
    return TableSites(tuple(joint.names), joint.inputs, classes, lambda: found, load, joint)


def _without_rows(config: Experiment, deployment: Deployment, apart: Sites) -> Experiment:
    """Return the experiment of the server, which has the width of the samples and no data."""
    check_clients(deployment.clients, len(apart.names))
    options = config.tree["problem"]
    weights = apart.preparation.samples if isinstance(apart, TableSites) else None
    if options["weights"] != "uniform" and weights is None:
        raise ConfigError(
            "problem.weights: got 'samples', expected 'uniform', because the server does not know "
            "how many rows each site has"
        )
    make = models.resolve(options["model"])
    asked = inspect.signature(make).parameters
    sizes = {"inputs": apart.inputs, "classes": apart.classes}
    sizes = {name: size for name, size in sizes.items() if name in asked}
    model = models.factory(make, **sizes)
    start = models.initial_vector(model, config.seed)
    clients = LazyClients(deployment.clients, lambda _: RemoteObjective(start.numel(), None))
    if options["weights"] == "uniform":
        weights = None
    problem = Problem(clients, config.regularizer or Zero(), weights=weights, initial=start)
    return replace(config, problem=problem, regularizer=None)


def node_names(clients: int) -> Sequence[str]:
    """Return the registered names of the nodes."""
    return [f"client-{client}" for client in range(clients)]


def _site(
    config: Experiment, problem: Problem | None, apart: Sites | None, context: Context
) -> Site:
    """Return a node's own part of the problem; a hospital has one of its own."""
    number = client_number(context)
    if problem is None:
        assert apart is not None
        problem = alone(config, apart, context.node_config.get("data"), number)
        return Site(problem.clients[0], problem.test)
    tests = problem.client_tests
    return Site(problem.clients[number], None if tests is None else tests[number])


def alone(config: Experiment, apart: Sites, path: Any, number: int) -> Problem:
    """Return one site's problem from its own file."""
    if not isinstance(path, str):
        raise ConfigError(f"node-config: data: got {path!r}, expected the path of this site's file")
    return apart.load(config.problem, Path(path), number)


def check(config: Experiment) -> None:
    """Raise a ConfigError for options that a deployment does not support."""
    check_deployable(config)


def check_clients(nodes: int, clients: int) -> None:
    """Raise a ConfigError unless there is one node for each client."""
    if nodes != clients:
        raise ConfigError(
            f"--clients is {nodes}, but the problem has {clients} clients; each needs a node"
        )
