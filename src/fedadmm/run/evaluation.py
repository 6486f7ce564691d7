"""What is measured between rounds, on which vector, and how often."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedadmm.core.errors import PairingError, ParameterError, check_choice, check_count
from fedadmm.core.protocols import ClientStateStore, Evaluator, Metrics, Objective
from fedadmm.core.regularizers import Zero
from fedadmm.run.client import Job, client_record


@dataclass(frozen=True)
class Evaluation:
    """Measure every `every` rounds, and after the last one.

    Args:
        every: rounds between two measurements.
        target: "global" evaluates the model that is handed out (`fedadmm.core.outputs`); "local"
            every client's own model on its own data (methods without local models fall back on the
            one handed out); each metric is the weighted mean over the clients that report it.  It
            is the same for all methods that are compared.
        objective: measure f, F = f + g and the gradient mapping over all clients' data.
        test: use the problem's held-out evaluators.
        train: the share of all clients' training rows whose class is right, as `train_accuracy`;
            every row counts the same, whatever its client's weight.
        extra: one more function of the global vector that returns metrics.
        certificate: measure in every round what a theorem bounds, beside the bound; "auto" takes
            the theorem that covers the run (`fedadmm.theory.certificates`).
        diagnose: rounds between two looks at the clients' states (`fedadmm.run.diagnostics`); 0 for
            none.
        diagnosed_clients: how many clients a look takes in; 0 for everybody, which adds the
            quantities that are sums over all.
        duality: let a look at everybody also record the dual value and the duality gap
            (`fedadmm.run.duality`), which needs quadratic losses.
    """

    every: int = 1
    target: Literal["global", "local"] = "global"
    objective: bool = True
    test: bool = True
    train: bool = False
    extra: Evaluator | None = None
    certificate: Literal["none", "auto", "feddr", "wang", "gong", "async-feddr"] = "none"
    diagnose: int = 0
    diagnosed_clients: int = 5
    duality: bool = False

    def __post_init__(self) -> None:
        check_count(self, "every", self.every)
        check_choice(self, "target", self.target, ("global", "local"))
        check_count(self, "diagnose", self.diagnose, low=0)
        check_count(self, "diagnosed_clients", self.diagnosed_clients, low=0)
        if self.duality and (self.diagnose == 0 or self.diagnosed_clients != 0):
            raise ParameterError(
                f"Evaluation: duality is True, but diagnose is {self.diagnose} and "
                f"diagnosed_clients is {self.diagnosed_clients}; it needs a look at everybody: "
                "diagnose of at least 1 and diagnosed_clients of 0"
            )
        theorems = ("none", "auto", "feddr", "wang", "gong", "async-feddr")
        check_choice(self, "certificate", self.certificate, theorems)

    def due(self, round_number: int, rounds: int) -> bool:
        """Whether round `round_number` is measured; the initial one, 0, never is."""
        return round_number > 0 and (round_number % self.every == 0 or round_number == rounds)

    def check(self, job: Job) -> None:
        """Refuse to count classes where there are none, or statistics that clients keep."""
        first = job.problem.clients[0]
        if self.train and not first.has_classes:
            raise PairingError(
                f"Evaluation: train is True, but the rows of the clients ({type(first).__name__}) "
                "have no classes to get right; leave it False"
            )
        measures = self.objective or self.test or self.train or self.extra is not None
        if measures and job.problem.buffers == "keep-local" and self.target == "global":
            raise PairingError(
                "buffers='keep-local' leaves BatchNorm statistics on the clients, but the global "
                "model is to be evaluated; use Evaluation(target='local')"
            )

    def measure(
        self, job: Job, store: ClientStateStore, params: Tensor, buffers: Tensor | None
    ) -> dict[str, float]:
        """The metrics of one round."""
        if self.target == "local":
            return self._with_extra(self._local(job, store, params, buffers), params)
        _load(job.problem.clients[0], buffers)
        pooled = _Pooled()
        loss = params.new_zeros(())
        if self.objective or self.train:
            for index, objective in enumerate(job.problem.clients):
                loss += job.problem.weight(index) * pooled.value(objective, params, self.train)
        record = _objective(job, params, float(loss)) if self.objective else {}
        if self.test and job.problem.test is not None:
            _join(record, job.problem.test(params), "the problem's test")
        _join(record, pooled.metrics(), "the training data")
        return self._with_extra(record, params)

    def _with_extra(self, record: dict[str, float], params: Tensor) -> dict[str, float]:
        if self.extra is not None:
            _join(record, self.extra(params), "the evaluator")
        return record

    def _local(
        self, job: Job, store: ClientStateStore, params: Tensor, buffers: Tensor | None
    ) -> dict[str, float]:
        """Each metric's weighted mean over the clients that report it.

        A client without held-out rows reports none, and must not count as one that got all wrong.
        """
        totals: dict[str, float] = {}
        weights: dict[str, float] = {}
        pooled = _Pooled()
        tests = job.problem.client_tests if self.test else None
        for index, objective in enumerate(job.problem.clients):
            record = client_record(job, store, index)
            own = job.algorithm.local_params(record.state)
            model = params if own is None else own
            keeps = job.problem.buffers == "keep-local"
            _load(objective, record.buffers if keeps else buffers)
            values: dict[str, float] = {}
            if self.objective or self.train:
                loss = pooled.value(objective, model, self.train)
                values = {"loss": float(loss)} if self.objective else {}
            if tests is not None:
                _join(values, tests[index](model), f"the test of client {index}")
            for name, value in values.items():
                share = job.problem.weight(index)
                totals[name] = totals.get(name, 0.0) + share * value
                weights[name] = weights.get(name, 0.0) + share
        means = {name: total / weights[name] for name, total in totals.items()}
        _join(means, pooled.metrics(), "the training data")
        return means


class _Pooled:
    """The clients' training rows together: how many there are, and how many were got right."""

    def __init__(self) -> None:
        self._correct = 0
        self._rows = 0

    def value(self, objective: Objective, model: Tensor, count: bool) -> Tensor:
        """A client's loss; the same pass counts its rows."""
        if not count:
            return objective.value(model)
        value, correct = objective.value_and_correct(model)
        self._correct += correct
        self._rows += objective.num_samples
        return value

    def metrics(self) -> dict[str, float]:
        """`train_accuracy`, when rows were counted."""
        return {"train_accuracy": self._correct / self._rows} if self._rows else {}


def _join(record: dict[str, float], metrics: Metrics, source: str) -> None:
    """Add metrics; two sources of one name would leave open whose value is recorded."""
    for name in metrics:
        if name in record:
            raise ParameterError(
                f"Evaluation: {source} reports {name!r}, which is measured already; there are "
                f"{', '.join(sorted(record))}"
            )
    record |= metrics


def _objective(job: Job, params: Tensor, loss: float) -> dict[str, float]:
    problem = job.problem
    mapping = problem.gradient_mapping(params, job.algorithm.prox_step)
    record = {
        "loss": loss,
        "objective": loss + float(problem.regularizer.value(params)),
        "gradient_mapping": float(torch.linalg.vector_norm(mapping)),
    }
    if not isinstance(problem.regularizer, Zero):
        record["sparsity"] = float((params == 0).double().mean())
    return record


def _load(objective: Any, buffers: Tensor | None) -> None:
    if buffers is not None:
        objective.flat.load_buffers(buffers)


@dataclass(frozen=True)
class Target:
    """End the run when a metric is at least (or, for losses, at most) a value.

    Rounds are counted to the metric alone; `also` names metrics that must be there in the same
    round before the run ends.
    """

    metric: str
    value: float
    at_least: bool = True
    also: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that the end of the run waits for."""
        return (self.metric, *self.also)

    def reached(self, value: float | None) -> bool:
        """Whether a value of the metric meets the target; None, not measured, does not."""
        if value is None or math.isnan(value):
            return False
        return bool(value >= self.value if self.at_least else value <= self.value)
