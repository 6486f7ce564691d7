"""What is measured between rounds, on which vector, and how often."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedadmm.core.errors import PairingError, ParameterError
from fedadmm.core.messages import ClientStateStore
from fedadmm.core.objectives import Objective
from fedadmm.core.parts import NOT_IN_TABLES, Count, checked
from fedadmm.core.problem import Evaluator, Metrics
from fedadmm.core.regularizers import Zero
from fedadmm.run.client import Job, client_record
from fedadmm.run.metrics import Target as Target
from fedadmm.run.metrics import statistics_over_clients

LISTED = 500
"""At most this many clients' values are listed in a record; of more only the statistics."""


class Measured(NamedTuple):
    """What an evaluation found."""

    metrics: dict[str, float]
    clients: dict[str, list[float | None]]
    """Each client's own value by metric, when that was asked for; None for one without rows."""


@checked
class Evaluation:
    """Measure every `every` rounds, and after the last one.

    Args:
        every: rounds between two measurements.
        target: "global" evaluates the model that is handed out (`fedadmm.core.outputs`); "local"
            every client's own model on its own data (methods without local models fall back on the
            one handed out); each metric is the weighted mean over the clients that report it.  It
            is the same for all methods that are compared.
        objective: measure f, F = f + g and the gradient mapping over all clients' data; None
            measures them unless the problem says that this is costly.
        test: use the problem's held-out evaluators.
        train: the share of all clients' training rows whose class is right, as `train_accuracy`;
            every row counts the same, whatever its client's weight.
        clients: measure every client, too: `X_mean`, in which all clients count the same,
            `X_worst`, `X_p10` (`X_p90` where less is better), the
            value that nine in ten clients have or better, and `X_spread`, the standard deviation
            over the clients, for every metric X that is measured on a client's own rows.
        extra: one more function of the global vector that returns metrics.
    """

    every: Count = 1
    target: Literal["global", "local"] = "global"
    objective: bool | None = None
    test: bool = True
    train: bool = False
    clients: bool = False
    extra: Evaluator | None = field(default=None, metadata=NOT_IN_TABLES)

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
        tested = self.test and job.problem.client_tests is not None
        if self.clients and not (self.objective or self.train or tested):
            raise PairingError(
                "Evaluation: clients is True, but nothing is measured client by client: "
                f"the problem {job.problem.name!r} holds no rows out by client; set objective or "
                "train, too"
            )
        measures = self.objective or self.test or self.train or self.extra is not None
        if measures and job.problem.buffers == "keep-local" and self.target == "global":
            raise PairingError(
                "buffers='keep-local' leaves BatchNorm statistics on the clients, but the global "
                "model is to be evaluated; use Evaluation(target='local')"
            )

    def measure(
        self, job: Job, store: ClientStateStore, params: Tensor, buffers: Tensor | None
    ) -> Measured:
        """The metrics of one round."""
        pooled, means = _Pooled(), _Means()
        rows: list[dict[str, float]] = []
        loss = params.new_zeros(())
        if self.target == "global":
            _load(job.problem.clients[0], buffers)
        if self.target == "local" or self.clients or self.objective or self.train:
            for index, (own, values) in enumerate(self._each(job, store, params, buffers, pooled)):
                loss += job.problem.weight(index) * own
                if self.target == "local":
                    means.add(job.problem.weight(index), values)
                if self.clients:
                    rows.append(values)
        if self.target == "local":
            record = means.metrics()
        else:
            record = _objective(job, params, float(loss)) if self.objective else {}
            if self.test and job.problem.test is not None:
                _join(record, job.problem.test(params), "the problem's test")
        _join(record, pooled.metrics(), "the training data")
        if self.extra is not None:
            _join(record, self.extra(params), "the evaluator")
        return self._with_clients(record, rows, pooled) if self.clients else Measured(record, {})

    def _each(
        self,
        job: Job,
        store: ClientStateStore,
        params: Tensor,
        buffers: Tensor | None,
        pooled: _Pooled,
    ) -> Iterator[tuple[Tensor, dict[str, float]]]:
        """Every client's loss, and the metrics that are measured on its rows alone."""
        local = self.target == "local"
        tests = job.problem.client_tests if self.test and (local or self.clients) else None
        for index, objective in enumerate(job.problem.clients):
            model = params
            if local:
                record = client_record(job, store, index)
                own = job.algorithm.local_params(record.state)
                model = params if own is None else own
                keeps = job.problem.buffers == "keep-local"
                _load(objective, record.buffers if keeps else buffers)
            loss, values = params.new_zeros(()), {}
            if self.objective or self.train:
                loss = pooled.value(objective, model, self.train)
                values = {"loss": float(loss)} if self.objective else {}
            if tests is not None:
                _join(values, tests[index](model), f"the test of client {index}")
            yield loss, values

    @staticmethod
    def _with_clients(
        record: dict[str, float], rows: Sequence[Mapping[str, float]], pooled: _Pooled
    ) -> Measured:
        names = list(dict.fromkeys(name for row in rows for name in row))
        lists: dict[str, list[float | None]] = {n: [row.get(n) for row in rows] for n in names}
        lists |= {"train_accuracy": [*pooled.shares]} if pooled.shares else {}
        for name, values in lists.items():
            known = [value for value in values if value is not None]
            _join(record, statistics_over_clients(name, known), "the statistics over clients")
        listed = lists if len(rows) <= LISTED else {}
        return Measured(record, {f"{name}_by_client": values for name, values in listed.items()})


class _Means:
    """Each metric's weighted mean over the clients that report it.

    A client without held-out rows reports none, and must not count as one that got all wrong.
    """

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}
        self._weights: dict[str, float] = {}

    def add(self, weight: float, values: Mapping[str, float]) -> None:
        """Add one client's metrics."""
        for name, value in values.items():
            self._totals[name] = self._totals.get(name, 0.0) + weight * value
            self._weights[name] = self._weights.get(name, 0.0) + weight

    def metrics(self) -> dict[str, float]:
        return {name: total / self._weights[name] for name, total in self._totals.items()}


class _Pooled:
    """The clients' training rows together: how many there are, and how many were got right."""

    def __init__(self) -> None:
        self._correct = 0
        self._rows = 0
        self.shares: list[float] = []
        """Which part of its rows each client got right."""

    def value(self, objective: Objective, model: Tensor, count: bool) -> Tensor:
        """A client's loss; the same pass counts its rows."""
        if not count:
            return objective.value(model)
        value, correct = objective.value_and_correct(model)
        self._correct += correct
        self._rows += objective.num_samples
        self.shares.append(correct / objective.num_samples)
        return value

    def metrics(self) -> dict[str, float]:
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
