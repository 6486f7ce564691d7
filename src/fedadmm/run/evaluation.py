"""Evaluation between rounds: metrics, models and intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedadmm.core.capabilities import prox_step
from fedadmm.core.errors import CompatibilityError, ParameterError
from fedadmm.core.messages import ClientRecord, ClientStateStore, Engine
from fedadmm.core.parts import PYTHON_ONLY, Count, checked
from fedadmm.core.problem import Evaluator, EvaluatorInParts, Metrics
from fedadmm.core.regularizers import Zero
from fedadmm.run.client import Job, first_record
from fedadmm.run.metrics import Target as Target, metric, statistics_over_clients

LISTED = 500
"""At most this many clients' values are listed in a record; of more only the statistics."""


class Measured(NamedTuple):
    """What an evaluation found."""

    metrics: dict[str, float]
    clients: dict[str, list[float | None]]
    """Each client's own value by metric, when that was asked for; None for one without rows."""


@checked
class Evaluation:
    """Which metrics are measured, on which model, and how often.

    Args:
        every: Rounds between two evaluations; the last round is always evaluated.  Default 1.
        target: "global" evaluates the output model (`fedadmm.outputs`).  "local" evaluates every
            client's local model on its own data, or the output model if the method has none; each
            metric is the weighted mean over the clients that report it.  "both" evaluates as
            "global", and in addition the local models: for the loss and each metric X on a client's
            held-out samples, `X_own` and `X_gain`, its improvement over the output model, as
            weighted means over the clients that have participated.
        objective: Whether to measure f, F = f + g and the gradient mapping over all clients' data;
            None measures them unless the problem declares this as costly.
        test: Whether to use the problem's held-out evaluators.
        train: Whether to measure `train_accuracy` over all clients' training samples, each with
            the same weight.
        clients: Whether to measure statistics over the clients, for every metric X on a client's
            own samples: the unweighted mean `X_mean`, `X_worst`, the tenth percentile `X_p10`
            (`X_p90` if less is better) and the standard deviation `X_spread`.
        extra: Another function from the global vector to metrics, or None.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> work = dict(solver=fa.ExactSolver(), evaluate=fa.Evaluation(every=2))
        >>> history = fa.simulate(fa.FedADMM(rho=1.0), problem, 4, **work).history
        >>> [sorted(record["metrics"]) for record in history[:2]]
        [[], ['gradient_mapping', 'loss', 'objective']]
    """

    every: Count = 1
    target: Literal["global", "local", "both"] = "global"
    objective: bool | None = None
    test: bool = True
    train: bool = False
    clients: bool = False
    extra: Evaluator | None = field(default=None, metadata=PYTHON_ONLY)

    def due(self, round_number: int, rounds: int) -> bool:
        """Whether round `round_number` is measured; the initial one, 0, never is."""
        return round_number > 0 and (round_number % self.every == 0 or round_number == rounds)

    def check(self, job: Job) -> None:
        """Refuse to count classes where there are none, or statistics that clients keep."""
        first = job.problem.clients[0]
        if self.train and not first.has_classes:
            raise CompatibilityError(
                f"Evaluation: train is True, but the rows of the clients ({type(first).__name__}) "
                "have no classes to get right; leave it False"
            )
        tested = self.test and job.problem.client_tests is not None
        both = self.target == "both"
        train = self.train and not both
        if (self.clients or both) and not (self.objective or train or tested):
            asked = "target is 'both'" if both else "clients is True"
            raise CompatibilityError(
                f"Evaluation: {asked}, but nothing is measured client by client: the problem "
                f"{job.problem.name!r} holds no rows out by client; set objective"
                f"{'' if both else ' or train'}, too"
            )
        measures = self.objective or self.test or self.train or self.extra is not None
        if measures and job.problem.buffers == "keep-local" and self.target != "local":
            raise CompatibilityError(
                "buffers='keep-local' leaves BatchNorm statistics on the clients, but the global "
                "model is to be evaluated; use Evaluation(target='local')"
            )

    def measure(
        self,
        job: Job,
        store: ClientStateStore,
        params: Tensor,
        buffers: Tensor | None,
        engine: Engine | None = None,
    ) -> Measured:
        """The metrics of one round; an engine with processes of its own shares the work."""
        problem, local = job.problem, self.target == "local"
        by_client = self.target != "global" or self.clients or self.objective or self.train
        clients = range(problem.num_clients if by_client else 0)
        test = problem.test if self.test and not local else None
        if not by_client and test is None and self.extra is None:
            return Measured({}, {})
        parts = test.num_parts if isinstance(test, EvaluatorInParts) else 0
        piece, shared = _Piece(replace(self, extra=None)), (params, buffers)
        numbers = [*clients, *(-1 - part for part in range(parts))]

        def given(number: int) -> ClientRecord | None:
            return store.get(number) if self.target != "global" and number >= 0 else None

        found = None if engine is None else engine.each(piece, shared, numbers, given)
        if found is None:
            found = (piece(job, shared, number, given(number)) for number in numbers)
        rows: list[dict[str, float]] = []
        weighed: list[tuple[float, dict[str, float]]] = []
        right: list[tuple[int, int]] = []
        loss, slope = params.new_zeros(()), torch.zeros_like(params)
        for index, (at, gradient, correct, size, values, own) in zip(clients, found, strict=False):
            weight = problem.weight(index)
            loss += weight * at
            if gradient is not None:
                slope.add_(gradient, alpha=weight)
            right.append((correct, size))
            weighed.append((weight, values if local else own))
            rows.append(values | own)
        measured = [*found]  # the parts of the test
        if local:
            record = _means(weighed)
        else:
            record = _objective(job, params, float(loss), slope) if self.objective else {}
            if test is not None:
                if isinstance(test, EvaluatorInParts):
                    scores: Metrics = test.joined(measured)
                else:
                    scores = test(params)
                _join(record, scores, "the problem's test")
            if self.target == "both":
                _join(record, _means(weighed), "the clients' local models")
        if self.train:
            correct, size = map(sum, zip(*right, strict=True))
            _join(record, {"train_accuracy": correct / size}, "the training data")
        if self.extra is not None:
            _join(record, self.extra(params), "the evaluator")
        if not self.clients:
            return Measured(record, {})
        names = list(dict.fromkeys(name for row in rows for name in row))
        lists: dict[str, list[float | None]] = {n: [row.get(n) for row in rows] for n in names}
        if self.train:
            lists["train_accuracy"] = [correct / size for correct, size in right]
        for name, found_values in lists.items():
            known = [value for value in found_values if value is not None]
            _join(record, statistics_over_clients(name, known), "the statistics over clients")
        listed = lists if len(rows) <= LISTED else {}
        return Measured(record, {f"{name}_by_client": own for name, own in listed.items()})


class _Piece(NamedTuple):
    """One client's part of an evaluation, or, with a negative number, a part of the test."""

    asked: Evaluation

    def __call__(self, job: Job, shared: Any, number: int, given: Any) -> Any:
        """Loss, gradient, rows got right, rows, the client's own metrics, what is compared."""
        asked, problem, (params, buffers) = self.asked, job.problem, shared
        if number < 0:
            assert isinstance(problem.test, EvaluatorInParts)
            _load(problem.clients[0], buffers)
            return problem.test.part(params, -1 - number)
        objective, model, local = problem.clients[number], params, asked.target == "local"
        own = None
        if asked.target != "global":
            record: ClientRecord = first_record(job) if given is None else given
            own = job.own_models.find(record, params)
            if local:
                model = params if own is None else own
                buffers = record.buffers if problem.buffers == "keep-local" else buffers
        _load(objective, buffers)
        loss, gradient, correct = params.new_zeros(()), None, 0
        if asked.train:
            loss, correct = objective.value_and_correct(model)
        elif asked.objective:
            loss = objective.value(model)
        if asked.objective and not local:
            gradient = objective.evaluation_gradient(params)

        def alone(one: Tensor, value: Tensor) -> dict[str, float]:
            found = {"loss": float(value)} if asked.objective else {}
            if asked.test and problem.client_tests is not None:
                _join(found, problem.client_tests[number](one), f"the test of client {number}")
            return found

        listed = local or asked.clients
        compares = asked.target == "both" and given is not None and own is not None
        values = alone(model, loss) if listed or compares else {}
        additional: dict[str, float] = {}
        if compares:
            assert own is not None
            for name, value in alone(own, objective.value(own) if asked.objective else own).items():
                gain = value - values[name]
                additional |= {
                    f"{name}_own": value,
                    f"{name}_gain": gain if metric(name).up else -gain,
                }
        return loss, gradient, correct, objective.num_samples, values if listed else {}, additional

    def named(self, number: int) -> str:
        """The piece in a sentence about its failure."""
        whose = "on held-out samples" if number < 0 else f"of client {number}"
        return f"the evaluation {whose} failed"


def _means(weighed: Sequence[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Each metric's weighted mean over the clients that report it.

    A client without held-out samples reports none, and must not count as one that got all wrong.
    """
    totals: dict[str, float] = {}
    weights: dict[str, float] = {}
    for weight, values in weighed:
        for name, value in values.items():
            totals[name] = totals.get(name, 0.0) + weight * value
            weights[name] = weights.get(name, 0.0) + weight
    return {name: total / weights[name] for name, total in totals.items()}


def _join(record: dict[str, float], metrics: Metrics, source: str) -> None:
    """Add metrics; two sources of one name would leave open whose value is recorded."""
    for name in metrics:
        if name in record:
            raise ParameterError(
                f"Evaluation: {source} reports {name!r}, which is measured already; there are "
                f"{', '.join(sorted(record))}"
            )
    record |= metrics


def _objective(job: Job, params: Tensor, loss: float, gradient: Tensor) -> dict[str, float]:
    problem, step = job.problem, prox_step(job.algorithm)
    mapping = problem.gradient_mapping(params, step, gradient)
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
