"""The description of a federation that the server and all sites share, without any data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import torch
from annotated_types import Gt, Le
from torch import Tensor

from fedadmm.core.capabilities import fit_penalties
from fedadmm.core.contracts import AnyAlgorithm, Regularizer
from fedadmm.core.errors import ConfigError, ParameterError, StateError
from fedadmm.core.objectives import Objective
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.objectives.model import samples_are_mixed
from fedadmm.core.parts import Count, Natural, Positive, checked, name_of
from fedadmm.core.pipeline import UpdatePipeline
from fedadmm.core.privacy import check_accountant
from fedadmm.core.problem import Buffers, Evaluator, LazyClients, Problem
from fedadmm.core.regularizers import Zero
from fedadmm.core.schedules import PerWork
from fedadmm.core.validation import check
from fedadmm.data import models
from fedadmm.flower.protocol.admission import Admission
from fedadmm.run.client import Job
from fedadmm.run.experiment import Experiment, ResolvedExperiment, experiment_from_keywords
from fedadmm.run.simulate import check_pairing, client_length, first_vector, make_job

_PRECISIONS = ("float32", "float64", "bfloat16", "float16")


@checked
class Patience:
    """How long the server waits, in seconds, and how often.

    Args:
        start: for the first nodes to appear.
        round: for the replies of a round; who has not answered then did not take part.
        gone: for a node that was asked and that Flower no longer sees; if it does not come back by
            then, the round goes on without it.
        enough: the share of a round's clients whose updates end the round; the updates of those who
            are slower do not count.  1 waits for all, up to `round` seconds.
        resend: before an unanswered task is sent again within its round; before each further copy
            twice as long, so that a slow node is not flooded, and at most eight times.
        poll: between two looks for replies.
        empty: rounds in a row without any update after which the run stops, to be resumed later.
    """

    start: Positive = 300.0
    round: Positive = 600.0
    gone: Positive = 60.0
    enough: Annotated[float, Gt(0), Le(1)] = 1.0
    resend: Positive = 150.0
    poll: Positive = 0.2
    empty: Count = 3


@checked
class Federation:
    """An experiment on real sites, and the options of the network.

    `Federation(method, clients, rounds, model=…, solver=…, stop=…)` describes the experiment by
    keywords: those of `fedadmm.simulate`, and `model` or `initial`, `weights`, `buffers` and
    `test` of its problem, whose data the server does not have.

    Args:
        experiment: what is run; its problem has one client per site, and the server uses no
            samples of it.  In an asynchronous run `rounds` counts the aggregated updates.  Sites
            clip and compress uploads, the server adds the noise, which comes from the machine's
            entropy and not from the seed.

    Keyword Args:
        evaluate_every (int): ask all sites for their loss after this many rounds each, and after
            the last one; 0 never asks.
        mode (str): "rounds", or "asynchronous": every update is aggregated as it arrives.
        ledger (str): "disk" keeps each client's contribution, so that a client that lost its
            state can be taken out exactly and start again; "none" quarantines it instead.  With
            noise in the upload nothing is kept: taking a client out would show what it sent.
        sites (path): a project's sites.toml, which lists the names of the nodes and who left; in
            the place of `clients`, `names` and `take_out`.
        names (sequence of str): the registered names of the nodes, in the order of the clients;
            only they may take part.  Without names a node's own `partition-id` says which client
            it is.
        patience (Patience): how long the server waits.
        admission (Admission): what it refuses.
        accept_rollback (bool): go on although sites have seen more than this server remembers,
            because its folder was restored from a backup: they are taken out and start again.
        accept_nodes (bool): give a client's seat to another node than the one that had it first in
            this run, such as one with a new key; False refuses it.
        leave_out (sequence of int): clients that are not asked, such as those that a divergence
            names; their earlier contributions stay.
        take_out (sequence of int): clients that leave the federation for good.  With ledger "disk"
            their contribution is taken out exactly, and the others' weights add up to one again.
        accept_sites (bool): go on with more clients than the run began with; the new ones have the
            highest numbers.
        operator_key (str): a file of the server with the Ed25519 key that signs what it sends, for
            sites whose policy names its public half.
        train_config (mapping): sent to the sites with every task, for apps with a training loop of
            their own (`DropIn`).
        evaluate_config (mapping): sent with every question for their metrics, for the same apps.
        identity (mapping): what else must be the same when a run is resumed, such as the app's
            name.
    """

    experiment: ResolvedExperiment
    evaluate_every: Natural = 0
    mode: Literal["rounds", "asynchronous"] = "rounds"
    ledger: Literal["none", "disk"] = "none"
    names: Sequence[str] | None = None
    patience: Patience = Patience()
    admission: Admission = Admission()
    accept_rollback: bool = False
    accept_nodes: bool = False
    leave_out: Sequence[Natural] = ()
    take_out: Sequence[Natural] = ()
    accept_sites: bool = False
    operator_key: str | None = None
    train_config: Mapping[str, Any] = field(default_factory=dict)
    evaluate_config: Mapping[str, Any] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        experiment: Experiment | AnyAlgorithm | None = None,
        clients: int | None = None,
        rounds: int | None = None,
        **given: Any,
    ) -> None:
        network = [one for one in fields(self) if one.name != "experiment"]
        chosen = {one.name: given.pop(one.name) for one in network if one.name in given}
        if "sites" in given:
            listed = read_sites(Path(given.pop("sites")))
            clients = len(listed.names)
            chosen |= {"names": listed.names, "take_out": listed.left}
        if not isinstance(experiment, Experiment):
            method = given.pop("algorithm", experiment)
            experiment = _described(method, clients, rounds, **given)
        elif clients is not None or rounds is not None or given:
            raise ParameterError(
                "Federation: an experiment has all its fields already; change them by "
                "dataclasses.replace(experiment, …)"
            )
        if not isinstance(experiment.problem, Problem) or experiment.regularizer is not None:
            experiment = replace(experiment, problem=experiment.load_problem(), regularizer=None)
        object.__setattr__(self, "experiment", experiment.resolve())
        for one in network:
            usual = one.default if one.default is not MISSING else {}
            object.__setattr__(self, one.name, chosen.get(one.name, usual))
        self.__post_init__()

    def __post_init__(self) -> None:
        check_deployable(self.experiment)
        method, patience = self.experiment.algorithm, self.experiment.patience
        if patience is not None and self.problem.test is None:
            raise ParameterError(
                f"Federation: patience is {patience} in the experiment, but test is None; it "
                "waits for a better model by what the server measures itself, so that no site can "
                "end a run"
            )
        if self.names is not None and len(set(self.names)) != self.clients:
            raise ParameterError(
                f"Federation: names holds {len(set(self.names))} names, expected one for "
                f"each of the {self.clients} clients"
            )
        if self.experiment.aggregator.is_secure and self.ledger == "disk":
            raise ParameterError(
                "Federation: ledger: got 'disk', expected 'none' with MaskedSum, which shows no "
                "single client's uploads, so that none can be taken out"
            )
        if self.take_out and self.experiment.aggregator.is_secure:
            raise ParameterError(
                "Federation: take_out must be empty with MaskedSum, which shows no single client's "
                "uploads, so that none can be taken out"
            )
        if not set(range(self.clients)) - set(self.take_out):
            raise ParameterError("Federation: take_out names all clients, but one must stay")
        if self.has_noise:
            check_accountant()  # here rather than in the first round of every site
        local = self.experiment.local
        if self.per_work and local.solver is not None:  # rejected here rather than at the sites
            client_length(1, local.solver, local.stop, 0)
        if method.requirements.asynchronous and self.mode == "rounds":
            raise ParameterError(
                f"Federation: mode is 'rounds', but {type(method).__name__} folds every "
                "reply as it arrives; use mode='asynchronous', or a method with rounds"
            )
        if self.mode == "asynchronous" and method.requirements.full_participation:
            raise ParameterError(
                f"Federation: mode is 'asynchronous', but {type(method).__name__} needs "
                "all clients in every step; use mode='rounds'"
            )
        if self.mode == "asynchronous" and not method.requirements.stale_updates:
            raise ParameterError(
                f"Federation.mode: got 'asynchronous', expected 'rounds' for "
                f"{type(method).__name__}, in which a stale update would move the whole model."
            )

    @property
    def problem(self) -> Problem:
        """The experiment's problem; only the number of clients and the model are used."""
        loaded = self.experiment.problem
        assert isinstance(loaded, Problem)
        return loaded

    @property
    def clients(self) -> int:
        """The number of sites; they are numbered from 0."""
        return self.problem.num_clients

    @property
    def members(self) -> list[int]:
        """The sites that have not left."""
        return [client for client in range(self.clients) if client not in self.take_out]

    @property
    def has_noise(self) -> bool:
        """Whether the run has example-level or client-level differential privacy."""
        solver = self.experiment.local.solver
        hides_rows = solver is not None and solver.noise is not None
        return hides_rows or UpdatePipeline.of(self.experiment.pipeline).noise is not None

    @property
    def per_work(self) -> bool:
        """Whether the method has a penalty that is fitted to the sites' local work."""
        return any(isinstance(one, PerWork) for one in vars(self.experiment.algorithm).values())

    def length(self, objective: Objective, client: int) -> float:
        """Return the length of a site's local work: learning rate * steps of a round."""
        local = self.experiment.local
        return client_length(objective.num_samples, local.solver, local.stop, client)

    def fitted(self, length: float) -> Federation:
        """Return the federation with its penalties fitted to the mean length of the local work."""
        method = fit_penalties(self.experiment.algorithm, lambda: length)
        return replace(self, experiment=replace(self.experiment, algorithm=method))

    def server_job(self) -> Job:
        """Return the job of the server, which has the model and no data."""
        problem = self.problem
        client = problem.clients[0]
        if not isinstance(client, RemoteObjective):
            # Buffers are the model's: only they need more than its size.
            module = client.flat.module if problem.buffers is not None and client.flat else None
            client = RemoteObjective.of(module, client.num_parameters)
        return self._job(client, first_vector(self.experiment, problem))

    def client_job(self, objective: Objective, start: Tensor | None, precision: str) -> Job:
        """Return the job of a site; `start` is given in the first round of a site only."""
        if start is None:
            if precision not in _PRECISIONS:
                raise StateError(
                    f"precision: got {precision[:40]!r}, expected one of {', '.join(_PRECISIONS)}"
                )
            start = torch.zeros(objective.num_parameters, dtype=getattr(torch, precision))
        return self._job(objective, start)

    def _job(self, objective: Objective, start: Tensor) -> Job:
        run, problem = self.experiment, self.problem
        # A task that only measures needs no penalty; one that trains has `fitted` it.
        run = replace(run, algorithm=fit_penalties(run.algorithm, lambda: 1.0))
        clients = LazyClients(problem.num_clients, lambda _: objective)
        job = make_job(run, problem.with_clients(clients), start)._replace(deployed=True)
        if self.take_out:
            job = job._replace(problem=job.problem.without(self.take_out))
        check_pairing(job, run.sampler, run.rounds, asynchronous=self.mode == "asynchronous")
        return job


def _described(
    algorithm: AnyAlgorithm,
    clients: int | None,
    rounds: int | None,
    *,
    model: models.Model | None = None,
    initial: Tensor | None = None,
    weights: Sequence[float] | Tensor | None = None,
    buffers: Buffers | None = None,
    test: Evaluator | None = None,
    regularizer: Regularizer | None = None,
    **given: Any,
) -> Experiment:
    """Return the experiment that keyword arguments describe, without the sites' data."""
    check("Federation", "clients", clients, Count)
    check("Federation", "regularizer", regularizer, Regularizer | None)
    if model is None and initial is None:
        raise ParameterError("Federation: model and initial are None, but one must be given")
    size = 0 if initial is None else initial.numel()
    problem = Problem(
        LazyClients(clients or 0, lambda _: RemoteObjective.of(model, size)),
        regularizer=regularizer or Zero(),
        weights=weights,
        test=test,
        initial=initial if model is None or initial is not None else partial(_vector, model),
        buffers=buffers,
    )
    return experiment_from_keywords(algorithm, problem, rounds, **given)  # type: ignore[arg-type]


def _vector(model: models.Model, seed: int) -> Tensor:
    return models.initial_vector(model, seed)


SITES_FILE = "sites.toml"


class ListedSites(NamedTuple):
    """The sites that a project lists."""

    names: list[str]
    """The registered names of the nodes, in the order of the clients."""
    left: list[int]
    """The clients that left the federation for good."""


def read_sites(path: Path) -> ListedSites:
    """Read a project's sites.toml: a list of `[[site]]` with `name`, and `left = true` for some.

    Raises:
        ConfigError: the file is no such list.
    """
    from fedadmm.study import config

    found = config.table(path)
    listed = found.get("site")
    if found.keys() != {"site"} or not isinstance(listed, list):
        raise ConfigError(f"{path.name}: expected a list of [[site]], and nothing else.")
    names, left = list[str](), list[int]()
    for client, site in enumerate(listed):
        proper = isinstance(site, dict) and site.keys() <= {"name", "left"}
        name, is_left = (site.get("name"), site.get("left", False)) if proper else (None, False)
        if not isinstance(name, str) or not name or not isinstance(is_left, bool):
            raise ConfigError(
                f'{path.name}: site {client} is {site!r}, expected name = "…", and left = true if '
                "it left."
            )
        names.append(name)
        left += [client] * is_left
    return ListedSites(names, left)


def check_deployable(experiment: Experiment) -> None:
    """Raise a ConfigError for options that a deployment does not support."""
    if experiment.tolerance is not None:
        raise ConfigError(
            f"tolerance: got {experiment.tolerance}, expected 'none' in a deployment, because the "
            "gradient mapping needs all clients' gradients"
        )
    measuring = [name_of(type(one)) for one in experiment.callbacks if one.measures]
    if measuring:
        raise ConfigError(
            f"callbacks: got {', '.join(measuring)}, expected none that measures on the clients' "
            "states, which a deployment keeps at the sites."
        )
    if experiment.evaluate.target != "global":
        target = experiment.evaluate.target
        raise ConfigError(f"evaluate.target: got {target!r}, expected 'global' in a deployment")
    if experiment.evaluate.clients:
        raise ConfigError("evaluate.clients: got true, expected false in a deployment")
    if experiment.evaluate.train:
        raise ConfigError("evaluate.train: got true, expected false in a deployment")


class RemoteObjective(Objective):
    """The objective of a site at the server: its size is known, its data are not."""

    num_samples = 1

    def __init__(self, num_parameters: int, flat: FlatModule | None) -> None:
        self._length = num_parameters
        self.flat = flat

    @classmethod
    def of(cls, model: models.Model | None, size: int) -> RemoteObjective:
        """That of a model, or of vectors of a size where there is none."""
        if model is None:
            return cls(size, None)
        flat = FlatModule(models.build(model))
        return cls(flat.num_parameters, flat)

    @property
    def num_parameters(self) -> int:
        return self._length

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> RemoteObjective:
        if self.flat is not None:
            self.flat.to(dtype, device)
        return self

    def sample_gradients_unavailable(self, params: Tensor) -> str | None:
        mixed = None if self.flat is None else self.flat.mixes_samples
        return None if mixed is None else samples_are_mixed(mixed)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise StateError("the data are at the sites, so the server cannot evaluate them itself")

    value = gradient = evaluation_gradient = workspace = hessian = offset = _refuse
