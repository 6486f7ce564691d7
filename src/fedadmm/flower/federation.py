"""What the server and all sites of a federation agree on; the data stay where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from fedadmm.core.aggregation import Aggregation, Sum
from fedadmm.core.errors import (
    ParameterError,
    StateError,
    check_choice,
    check_count,
    check_kind,
)
from fedadmm.core.local_work import LocalWork
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.objectives.model import rows_are_mixed
from fedadmm.core.outputs import AnyOutput, LastIterate, Output
from fedadmm.core.parts import Count, Positive, checked
from fedadmm.core.problem import Buffers, LazyClients, Problem
from fedadmm.core.protocols import (
    Algorithm,
    AnyAlgorithm,
    Evaluator,
    LocalSolver,
    Objective,
    Regularizer,
    Sampler,
    Start,
    StoppingRule,
)
from fedadmm.core.regularizers import Zero
from fedadmm.core.sampling import FullParticipation
from fedadmm.core.uploads import Uploads, UploadStage
from fedadmm.data import models
from fedadmm.flower.protocol.admission import Admission
from fedadmm.run import pairing
from fedadmm.run.client import Job
from fedadmm.run.evaluation import Target
from fedadmm.run.simulation import make_job

_PRECISIONS = ("float32", "float64", "bfloat16", "float16")


@checked
class Patience:
    """How long the server waits, in seconds, and how often.

    Args:
        start: for the first nodes to appear.
        round: for the replies of a round; who has not answered then did not take part.
        resend: before an unanswered task is sent again within its round; before each further copy
            twice as long, so that a slow node is not flooded, and at most eight times.
        poll: between two looks for replies.
        empty: rounds in a row without any update after which the run stops, to be resumed later.
        better: measurements of the server's own in a row without a better model after which the
            run ends; None waits for ever.
    """

    start: Positive = 300.0
    round: Positive = 600.0
    resend: Positive = 150.0
    poll: Positive = 0.5
    empty: Count = 3
    better: Count | None = None


@dataclass(frozen=True, eq=False)
class Federation:
    """A run on real sites: the parts of `simulate`, without the data.

    What is not described here is as in `simulate`.

    Args:
        algorithm: the method with its hyper-parameters.
        clients: how many sites there are; they are numbered from 0.
        rounds: how many rounds at most; in an asynchronous run, how many replies are folded.
        model: what makes the model; or give `initial` for objectives that are no modules.
        initial: the start vector; made from the model and the seed by default.
        weights: a_i up to a common factor; 1/n each by default.
        test: metrics of a vector on data that the server itself holds.
        evaluate_every: ask all sites for their loss after every so many rounds, and after the
            last one; 0 never asks.
        mode: "rounds", or "asynchronous": every reply is folded as it arrives.
        ledger: "disk" keeps each client's contribution, so that a client that lost its state can
            be taken out exactly and start again; "none" quarantines it instead.  With noise in
            the upload nothing is kept: taking a client out would show what it sent.
        names: the registered names of the nodes, in the order of the clients; only they may take
            part.  Without names a node's own `partition-id` says which client it is.
        patience: how long the server waits.
        admission: what it refuses.
        accept_rollback: go on although sites have seen more than this server remembers, because
            its folder was restored from a backup: they are taken out and start again.
        train_config: sent to the sites with every task, for apps with a training loop of their
            own (`DropIn`).
        evaluate_config: sent with every question for their metrics, for the same apps.
        identity: what else must be the same when a run is resumed, such as the app's name.
        upload: as in `simulate`; sites clip and compress, the server adds the noise, which comes
            from the machine's entropy and not from the seed.
    """

    algorithm: AnyAlgorithm
    clients: int
    rounds: int
    model: models.Model | None = None
    initial: Tensor | None = None
    solver: LocalSolver | None = None
    stop: StoppingRule | None = None
    start: Start | None = None
    sampler: Sampler = field(default_factory=FullParticipation)
    seed: int = 0
    regularizer: Regularizer = field(default_factory=Zero)
    weights: Sequence[float] | Tensor | None = None
    buffers: Buffers | None = None
    test: Evaluator | None = None
    evaluate_every: int = 0
    target: Target | None = None
    output: AnyOutput = field(default_factory=LastIterate)
    mode: Literal["rounds", "asynchronous"] = "rounds"
    ledger: Literal["none", "disk"] = "none"
    names: Sequence[str] | None = None
    patience: Patience = field(default_factory=Patience)
    admission: Admission = field(default_factory=Admission)
    accept_rollback: bool = False
    upload: Sequence[UploadStage] = ()
    aggregate: Aggregation = field(default_factory=Sum)
    train_config: Mapping[str, Any] = field(default_factory=dict)
    evaluate_config: Mapping[str, Any] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count(self, "clients", self.clients)
        check_count(self, "rounds", self.rounds)
        check_count(self, "seed", self.seed, low=0)
        check_count(self, "evaluate_every", self.evaluate_every, low=0)
        self._check_kinds()
        check_choice(self, "mode", self.mode, ("rounds", "asynchronous"))
        check_choice(self, "ledger", self.ledger, ("none", "disk"))
        if self.model is None and self.initial is None:
            raise ParameterError("Federation: model and initial are None, but one must be given")
        if self.patience.better is not None and self.test is None:
            raise ParameterError(
                f"Federation: patience.better is {self.patience.better}, but test is None; it "
                "waits for a better model by what the server measures itself, so that no site can "
                "end a run"
            )
        if self.names is not None and len(set(self.names)) != self.clients:
            raise ParameterError(
                f"Federation: names holds {len(set(self.names))} names, but must hold one for "
                f"each of the {self.clients} clients"
            )
        self.algorithm.resolve_penalty(work_is_unknown)
        if self.algorithm.asynchronous and self.mode == "rounds":
            raise ParameterError(
                f"Federation: mode is 'rounds', but {type(self.algorithm).__name__} folds every "
                "reply as it arrives; use mode='asynchronous', or a method with rounds"
            )
        if self.mode == "asynchronous" and not self.algorithm.accepts_partial:
            raise ParameterError(
                f"Federation: mode is 'asynchronous', but {type(self.algorithm).__name__} needs "
                "all clients in every step; use mode='rounds'"
            )
        if self.mode == "asynchronous" and not self.algorithm.tolerates_stale:
            raise ParameterError(
                "Federation: mode is 'asynchronous', but "
                f"{self.algorithm.no_late_replies()}, or mode='rounds'"
            )

    def _check_kinds(self) -> None:
        """Refuse a class, a word or something else where a part is asked for."""
        roles: dict[str, type[object]] = {
            "algorithm": Algorithm,
            "sampler": Sampler,
            "regularizer": Regularizer,
            "output": Output,
            "aggregate": Aggregation,
            "patience": Patience,
            "admission": Admission,
        }
        roles |= {"solver": LocalSolver} if self.solver is not None else {}
        roles |= {"stop": StoppingRule} if self.stop is not None else {}
        for name, role in roles.items():
            check_kind(self, name, getattr(self, name), role)
        for stage in self.upload:
            check_kind(self, "upload", stage, UploadStage)

    @property
    def has_noise(self) -> bool:
        """Whether noise is to hide the sites' rows, or the sites."""
        hides_rows = self.solver is not None and self.solver.noise is not None
        return hides_rows or Uploads.of(self.upload).noise is not None

    def server_job(self) -> Job:
        """The server's half: it knows the model, not the data."""
        flat = FlatModule(models.build(self.model)) if self.model is not None else None
        size = self.initial.numel() if self.initial is not None else 0
        elsewhere = Elsewhere(flat.num_parameters if flat is not None else size, flat)
        return self._job(elsewhere, self._start())

    def client_job(self, objective: Objective, start: Tensor | None, precision: str) -> Job:
        """A site's half; `start` is only known, and only needed, when it is a newcomer."""
        if start is None:
            if precision not in _PRECISIONS:
                raise StateError(
                    f"precision is {precision[:40]!r}, but must be one of {', '.join(_PRECISIONS)}"
                )
            start = torch.zeros(objective.num_parameters, dtype=getattr(torch, precision))
        return self._job(objective, start)

    def _start(self) -> Tensor:
        if self.initial is not None:
            return self.initial
        assert self.model is not None
        return models.initial_vector(self.model, self.seed)

    def _job(self, objective: Objective, start: Tensor) -> Job:
        problem = Problem(
            LazyClients(self.clients, lambda _: objective),
            regularizer=self.regularizer,
            weights=self.weights,
            test=self.test,
            buffers=self.buffers,
        )
        local = LocalWork(self.solver, self.stop, self.start)
        job = make_job(self.algorithm, problem, local, self.seed, start)
        uploads = Uploads.of(self.upload)
        job = job._replace(
            asks_losses=self.sampler.asks_losses,
            uploads=uploads,
            aggregate=self.aggregate,
            deployed=True,
        )
        late = self.mode == "asynchronous"
        pairing.check(job, self.sampler, self.rounds, asynchronous=late)
        return job


def work_is_unknown() -> NoReturn:
    """Refuse a method that has to be fitted to the sites' local work."""
    raise ParameterError(
        "Federation: algorithm has a penalty per work, but the server does not see how many rows "
        "the sites have; give it a number, such as the one that the summary of a simulation with "
        "the same settings tells under 'fitted'"
    )


class Elsewhere(Objective):
    """The objective of a site as the server sees it: its size is known, its data are not."""

    num_samples = 1

    def __init__(self, num_parameters: int, flat: FlatModule | None) -> None:
        self._length = num_parameters
        self.flat = flat

    @property
    def num_parameters(self) -> int:
        """D."""
        return self._length

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Elsewhere:
        """Itself: there is nothing to convert but the model."""
        if self.flat is not None:
            self.flat.to(dtype, device)
        return self

    def row_refusal(self, params: Tensor) -> str | None:
        """What the model itself says; a site looks at the rest."""
        mixed = None if self.flat is None else self.flat.mixes_rows
        return None if mixed is None else rows_are_mixed(mixed)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise StateError("the data are at the sites, so the server cannot evaluate them itself")

    value = gradient = evaluation_gradient = workspace = hessian = offset = _refuse
