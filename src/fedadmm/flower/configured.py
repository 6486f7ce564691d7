"""From a run's configuration to a server app and a client app.

Most problems are made from data that every machine can load, and a node takes its own client's
part.  A problem with `sites`, such as the hospitals, is different: a node has one file, its own,
and the server has none.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from fedadmm.core.capabilities import fit_penalties
from fedadmm.core.config_tree import from_config
from fedadmm.core.contracts import AnyAlgorithm
from fedadmm.core.errors import ConfigError
from fedadmm.core.parts import Count, checked
from fedadmm.core.problem import LazyClients, Problem
from fedadmm.core.regularizers import Zero
from fedadmm.data import models
from fedadmm.data.problems import NamedProblem, Sites
from fedadmm.flower.federation import (
    Elsewhere,
    Federation,
    check_deployable,
)
from fedadmm.flower.server.server_app import server_app
from fedadmm.flower.site.app import Site, client_app, client_number
from fedadmm.run.experiment import Experiment
from fedadmm.run.simulate import local_length
from fedadmm.study import config as configs
from fedadmm.study.config import resolve

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

CONFIG, DEPLOYMENT = "config.toml", "deployment.toml"


@checked
class Deployment:
    """What is decided about the network, beside the run's configuration.

    Args:
        clients: how many nodes there are.
        mode: as in `Federation`.
        ledger: as in `Federation`; "auto" is "disk", and "none" where only masked sums are seen.
        named: whether only registered nodes called client-0, client-1 … may take part.
    """

    clients: Count
    mode: Literal["rounds", "asynchronous"] = "rounds"
    ledger: Literal["auto", "none", "disk"] = "auto"
    named: bool = False

    def federation(self, experiment: Experiment, evaluate_every: int) -> Federation:
        """An experiment on this network."""
        usual: Literal["none", "disk"] = "none" if experiment.aggregator.is_secure else "disk"
        return Federation(
            experiment,
            evaluate_every=evaluate_every,
            mode=self.mode,
            ledger=usual if self.ledger == "auto" else self.ledger,
            names=node_names(self.clients) if self.named else None,
        )


class Apps(NamedTuple):
    """The two halves of a Flower app."""

    server: ServerApp
    client: ClientApp


def apps(folder: Path) -> Apps:
    """The two apps of the bundle in a folder with config.toml and deployment.toml."""
    config = resolve(configs.read(str(folder / CONFIG)))
    deployment = read_deployment(folder / DEPLOYMENT)
    torch.set_num_threads(1)
    check(config)
    # Loaded once, for both apps and for every message of this process.
    problem = config.load_problem() if sites(config) is None else None
    settings = federation(config, deployment, problem)
    load = partial(_site, config, problem)
    return Apps(server_app(settings), client_app(settings, load))


def read_deployment(path: Path) -> Deployment:
    """What deployment.toml says."""
    return from_config(Deployment, configs.table(path), title=str(path))


def federation(
    config: Experiment, deployment: Deployment, problem: Problem | None = None
) -> Federation:
    """The federation that a configuration describes; its problem may be loaded already."""
    check(config)
    apart = sites(config)
    if apart is not None:
        return deployment.federation(
            _without_rows(config, deployment, apart), config.evaluate.every
        )
    problem = problem or config.load_problem()
    check_clients(deployment.clients, problem.num_clients)
    method = as_it_runs(config, problem)
    run = replace(config, problem=problem, algorithm=method, regularizer=None)
    return deployment.federation(run, config.evaluate.every if config.evaluate.objective else 0)


def as_it_runs(config: Experiment, problem: Problem) -> AnyAlgorithm:
    """The algorithm, fitted to the clients' local work."""
    rule = config.local.stop
    assert rule is not None, "a resolved experiment has a stopping rule"
    return fit_penalties(
        config.algorithm, partial(local_length, problem, config.local.solver, rule)
    )


def sites(config: Experiment) -> Sites | None:
    """How the problem's clients are deployed with one file each, if they are."""
    return config.problem.sites if isinstance(config.problem, NamedProblem) else None


def _without_rows(config: Experiment, deployment: Deployment, apart: Sites) -> Experiment:
    """The server knows how wide the sites' rows are, and nothing else about them."""
    check_clients(deployment.clients, len(apart.names))
    options = config.tree["problem"]
    if options["weights"] != "uniform":
        raise ConfigError(
            "problem.weights is 'samples', but must be 'uniform', because the server does not know "
            "how many rows each site has"
        )
    make = models.resolve(options["model"])
    asked = inspect.signature(make).parameters
    sizes = {"inputs": apart.inputs, "classes": apart.classes}
    sizes = {name: size for name, size in sizes.items() if name in asked}
    model = models.factory(make, **sizes)
    start = models.initial_vector(model, config.seed)
    clients = LazyClients(deployment.clients, lambda _: Elsewhere(start.numel(), None))
    problem = Problem(clients, config.regularizer or Zero(), initial=start)
    return replace(config, problem=problem, regularizer=None)


def node_names(clients: int) -> Sequence[str]:
    """The registered names of the nodes."""
    return [f"client-{client}" for client in range(clients)]


def _site(config: Experiment, problem: Problem | None, context: Context) -> Site:
    """A node's own part of the problem; a hospital has one of its own."""
    number = client_number(context)
    if problem is None:
        apart = sites(config)
        assert apart is not None
        problem = alone(config, apart, context.node_config.get("data"), number)
        return Site(problem.clients[0], problem.test)
    tests = problem.client_tests
    return Site(problem.clients[number], None if tests is None else tests[number])


def alone(config: Experiment, apart: Sites, path: Any, number: int) -> Problem:
    """One site's problem from its own file."""
    if not isinstance(path, str):
        raise ConfigError(
            f"node-config: data is {path!r}, but must be the path of this site's file"
        )
    return apart.load(config.problem, Path(path), number)


def check(config: Experiment) -> None:
    """Refuse what a deployment cannot do."""
    check_deployable(config)


def check_clients(nodes: int, clients: int) -> None:
    """There must be one node for each client."""
    if nodes != clients:
        raise ConfigError(
            f"--clients is {nodes}, but the problem has {clients} clients; each needs a node"
        )
