"""What a named problem is, and how rows become one: split, model, loss, weights, evaluation."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedadmm.core.contracts import Regularizer
from fedadmm.core.errors import DataError, ParameterError
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.objectives.losses import (
    Weighted,
    binary_cross_entropy,
    count_correct,
    cross_entropy,
    half_squared_error,
)
from fedadmm.core.objectives.model import Loss, ModelObjective, evaluation_parts, prepared
from fedadmm.core.parts import Count, Natural, NotNegative, Positive, Probability, checked
from fedadmm.core.problem import Buffers, Evaluator, EvaluatorInParts, Lazy, Metrics, Problem
from fedadmm.core.regularizers import Zero
from fedadmm.core.validation import check
from fedadmm.data import models, partitions
from fedadmm.data.dataset import Dataset, FederatedData, Prepare, Rows, TrainTest, align
from fedadmm.data.download import SOURCES
from fedadmm.data.partitions import Partition


@dataclass(frozen=True)
class Sites:
    """What a deployment needs of a problem whose clients hold one file each.

    The server holds no file: it knows only the width of the rows.
    """

    names: tuple[str, ...]
    """The clients, in their order."""
    inputs: int
    """Numbers in a row."""
    classes: int
    files: Callable[[], list[Path]]
    """Finds every client's file, for a demonstration on a machine that has all of them."""
    load: Callable[[Any, Path, int], Problem]
    """Makes the problem of one client alone, from the options, its file and its number."""


class NamedProblem(ABC):
    """What a part of the family `problem` is: its fields are what a configuration may set."""

    name: ClassVar[str]
    summary: ClassVar[str]
    sites: ClassVar[Sites | None] = None
    """How its clients can be deployed with one file each, if they can."""

    costly_objective: ClassVar[bool] = False
    """Whether the training objective, two passes over all the data, is not measured by default."""

    @abstractmethod
    def load(self, regularizer: Regularizer | None = None, **given: Any) -> Problem:
        """The problem; may read files.

        `given` are objects that only Python can hand over: `buffers`, and to problems made from
        rows a `model` and a `partition`.
        """

    @classmethod
    def dataset(cls) -> str | None:
        """The data set it is made from, which has its name; None when nothing has to be fetched."""
        return cls.name if cls.name in SOURCES else None


@dataclass(frozen=True, eq=False)
class HeldOut(EvaluatorInParts):
    """The mean loss and the accuracy of a vector on some rows, in evaluation mode.

    Metrics are `{prefix}_loss` and, for classes, `{prefix}_accuracy`; no rows, no metrics.
    """

    flat: FlatModule
    loss: Loss
    inputs: Tensor
    targets: Tensor
    prepare: Prepare | None = None
    prefix: str = "test"

    @property
    def num_parts(self) -> int:
        return len(evaluation_parts(self.inputs))

    def part(self, params: Tensor, index: int) -> tuple[float, ...]:
        """The sum of the losses of some rows, how many are got right, and how many there are."""
        rows = evaluation_parts(self.inputs)[index]
        live = self.flat.load(params)
        self.flat.module.eval()
        with torch.no_grad():
            targets = self.targets[rows].to(live.device)
            inputs = prepared(self.inputs[rows].to(live.device), self.prepare, self.flat)
            outputs = self.flat.module(inputs)
            loss = float(self.loss(outputs, targets)) * len(targets)
            return loss, int(count_correct(outputs, targets)), len(targets)

    def joined(self, parts: Iterable[tuple[float, ...]]) -> Metrics:
        loss, correct, rows = 0.0, 0.0, 0.0
        for own in parts:
            loss, correct, rows = loss + own[0], correct + own[1], rows + own[2]
        if not rows:
            return {}
        metrics = {f"{self.prefix}_loss": loss / rows}
        if not self.targets.is_floating_point():
            metrics[f"{self.prefix}_accuracy"] = correct / rows
        return metrics


@dataclass(frozen=True, eq=False)
class Split:
    """What the clients of a `FederatedData` share: its rows, one module around them, one loss."""

    data: FederatedData
    flat: FlatModule
    loss: Loss

    def objective(self, client: int) -> ModelObjective:
        """One client's loss, from views of its training rows."""
        inputs, targets = self.data.train(client)
        loss = self.loss
        if self.data.rows.weights is not None:
            begin = int(self.data.partition.offsets[client])
            weights = self.data.rows.weights[begin : begin + len(targets)]
            loss = Weighted(loss, classes=self.data.rows.num_classes is not None)
            targets = torch.stack([targets.to(weights), weights / weights.mean()], dim=1)
        return ModelObjective(self.flat, loss, inputs, targets, self.data.rows.prepare)

    def evaluation(self, validate: bool, tests: FederatedData | None, client: int) -> Evaluator:
        """What a client measures: on its validation rows, on its own test rows, or on both."""
        parts = []
        if validate:
            rows = self.data.validation(client)
            parts.append(self.held_out(rows, self.data.rows.prepare, "validation"))
        if tests is not None:
            parts.append(self.held_out(tests.train(client), tests.rows.prepare))
        return _Together(tuple(parts))

    def held_out(self, rows: Rows, prepare: Prepare | None, prefix: str = "test") -> HeldOut:
        """The evaluator of a vector on some rows."""
        return HeldOut(self.flat, self.loss, *rows, prepare, prefix)


@dataclass(frozen=True)
class _Together:
    """Several evaluations as one."""

    parts: tuple[HeldOut, ...]

    def __call__(self, params: Tensor) -> Metrics:
        return {name: value for part in self.parts for name, value in part(params).items()}


PARTITIONS = ("iid", "shards", "dirichlet", "imbalanced", "lognormal", "natural")


@checked
class SplitOptions:
    """The options of problems that are made from rows."""

    clients: Count | None = None
    """How many clients; None takes every natural client (writer, hospital, speaker)."""
    partition: str = "iid"
    """iid, shards, dirichlet, imbalanced, lognormal, natural, or the path of a saved .npz."""
    shards_per_client: Count = 2
    """shards: how many label shards a client gets."""
    dirichlet_alpha: Positive = 0.5
    """dirichlet: the concentration; small is heterogeneous."""
    min_size: Count = 1
    """dirichlet, lognormal: no client holds fewer rows."""
    size_sigma: NotNegative = 1.0
    """lognormal: the standard deviation of the logarithm of the sizes."""
    imbalanced_shards: Count = 10_000
    """imbalanced: into how many shards the label-sorted rows are cut."""
    partition_seed: Natural = 0
    """The split is a function of this seed, and of nothing else that is random."""
    validation: Probability = 0.0
    """Which part of every client's rows is kept from training."""
    weights: Literal["uniform", "samples"] = "uniform"
    """a_i: 1/n, or n_i/N by training rows and what they count."""
    model: str = "logistic"
    """A name that `fedadmm.data.models.build` knows."""
    as_released: models.Released | None = None
    """The network of an author's published program: "gong" has a softmax before the cross-entropy
    and no ReLU after convolutions, "wang" the last hidden layer twice."""
    normalise: Literal["batch", "once"] = "batch"
    """Turn stored rows into floats batch by batch, or once into one tensor (more memory)."""
    max_train: Count | None = None
    """Use only this many training rows, chosen by `partition_seed`."""
    max_test: Count | None = None
    """Use only this many test rows, chosen by `partition_seed`."""

    def __post_init__(self) -> None:
        if not self.partition.endswith(".npz"):
            check(self, "partition", self.partition, Literal[PARTITIONS])


class RowsProblem(SplitOptions, NamedProblem):
    """A named problem made from rows."""

    @abstractmethod
    def rows(self) -> TrainTest:
        """The rows of all clients; may read files."""

    def load(self, regularizer: Regularizer | None = None, **given: Any) -> Problem:
        return federate(self.rows(), self, regularizer=regularizer, name=self.name, **given)


def split(dataset: Dataset, options: SplitOptions) -> Partition:
    """The partition that the options describe."""
    name, clients, seed = options.partition, options.clients, options.partition_seed
    if name.endswith(".npz"):
        return Partition.load(name)
    if name == "natural":
        if dataset.groups is None:
            raise ParameterError(
                f"{dataset.name}: partition is 'natural', but the rows have no natural clients"
            )
        return partitions.natural(dataset.groups, clients, seed)
    if clients is None:
        raise ParameterError(
            f"{dataset.name}: clients is None, but partition {name!r} needs a number of clients"
        )
    if name == "iid":
        return partitions.iid(len(dataset), clients, seed)
    if name == "lognormal":
        return partitions.lognormal(
            len(dataset), clients, seed, sigma=options.size_sigma, min_size=options.min_size
        )
    if name == "shards":
        return partitions.shards(
            dataset.labels, clients, seed, per_client=options.shards_per_client
        )
    if name == "dirichlet":
        return partitions.dirichlet(
            dataset.labels, clients, seed, alpha=options.dirichlet_alpha, min_size=options.min_size
        )
    return partitions.imbalanced(dataset.labels, clients, seed, shards=options.imbalanced_shards)


def federate(
    rows: TrainTest,
    options: SplitOptions,
    *,
    model: models.Model | None = None,
    partition: Partition | None = None,
    regularizer: Regularizer | None = None,
    buffers: Buffers | None = None,
    name: str = "problem",
) -> Problem:
    """The problem of training a model on rows that are split among clients.

    `model` (a module or a function that makes one) and `partition` replace what the options name.
    """
    train = _limited(rows.train, options.max_train, options.partition_seed)
    test = _limited(rows.test, options.max_test, options.partition_seed) if rows.test else None
    if options.normalise == "once":
        train, test = train.prepared(), test.prepared() if test else None
    partition = split(train, options) if partition is None else partition
    if int(partition.sizes.min()) == 0:
        empty = int(partition.sizes.argmin())
        raise DataError(f"{name}: client {empty} of the partition holds no rows, but needs one")
    data = FederatedData.gather(train, partition, options.validation)
    make = model_factory(model or options.model, train, options.as_released)
    flat = FlatModule(models.build(make))
    shared = Split(data, flat, fit_loss(flat.module, train))
    tests = _client_tests(data, test)
    if tests is not None:
        test = tests.rows
    validate = options.validation > 0
    own = None
    if validate or tests is not None:
        own = Lazy(len(data), partial(shared.evaluation, validate, tests))
    return Problem(
        clients=Lazy(len(data), shared.objective),
        regularizer=regularizer or Zero(),
        weights=None if options.weights == "uniform" else data.train_masses(),
        test=None if test is None else shared.held_out((test.inputs, test.targets), test.prepare),
        client_tests=own,
        initial=partial(models.initial_vector, make),
        buffers=buffers,
        name=name,
        data=data,
    )


def from_data(
    train: Dataset,
    test: Dataset | None = None,
    *,
    model: models.Model = "logistic",
    partition: str | Partition | None = None,
    regularizer: Regularizer | None = None,
    buffers: Buffers | None = None,
    **options: Any,
) -> Problem:
    """A problem from your own rows; `options` are the fields of `SplitOptions`.

    The partition is natural when the rows have groups, else iid, unless you name one or bring one.
    """
    if isinstance(model, str):
        options["model"] = model
    if isinstance(partition, Partition):
        options["partition"], ready = "iid", partition
    else:
        natural = "iid" if train.groups is None else "natural"
        options["partition"], ready = partition or natural, None
    try:
        chosen = SplitOptions(**options)
    except TypeError as error:
        raise ParameterError(f"from_data: {error}") from None
    return federate(
        TrainTest(train, test),
        chosen,
        model=None if isinstance(model, str) else model,
        partition=ready,
        regularizer=regularizer,
        buffers=buffers,
        name=train.name,
    )


def _limited(rows: Dataset, most: int | None, seed: int) -> Dataset:
    if most is None or most >= len(rows):
        return rows
    return rows.take(partitions.iid(len(rows), 1, seed)[0][:most])


def model_factory(
    model: models.Model, rows: Dataset, as_released: models.Released | None
) -> models.Factory:
    """The model's factory, with the sizes of the data where it takes them."""
    known: dict[str, Any] = {"inputs": math.prod(rows.inputs.shape[1:])}
    if rows.num_classes is not None:
        known["classes"] = rows.num_classes
    if isinstance(model, nn.Module):
        wanted: set[str] = set()
    else:
        wanted = set(inspect.signature(models.resolve(model)).parameters)
    options = {key: value for key, value in known.items() if key in wanted}
    if as_released is not None:
        if "as_released" not in wanted:
            raise ParameterError(f"model: {model!r} has no variant as_released={as_released!r}")
        options["as_released"] = as_released
    return models.factory(model, **options)


def fit_loss(module: nn.Module, rows: Dataset) -> Loss:
    """The loss that fits; a model that cannot read the rows is refused here, not in round 0."""
    row = rows.inputs[:1] if rows.prepare is None else rows.prepare(rows.inputs[:1])
    kinds = [one.dtype for one in module.parameters() if one.is_floating_point()]
    if row.is_floating_point() and kinds:  # rows follow the model's precision in a run, too
        row = row.to(kinds[0])
    module.eval()
    try:
        with torch.no_grad():
            outputs = module(row)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise DataError(
            f"{rows.name}: the model cannot read rows of shape {tuple(row.shape[1:])} and type "
            f"{row.dtype} ({error})"
        ) from None
    classes, width = rows.num_classes, outputs.shape[-1] if outputs.ndim == 2 else None
    if classes is None and width == 1:
        return half_squared_error
    if classes == 2 and width == 1:
        return binary_cross_entropy
    if classes is not None and width == classes:
        return cross_entropy
    wanted = "one number" if classes is None else f"{classes} scores"
    raise DataError(
        f"{rows.name}: the model returns shape {tuple(outputs.shape)} for one row, but must return "
        f"{wanted} a row"
    )


def _client_tests(data: FederatedData, test: Dataset | None) -> FederatedData | None:
    """The test rows of each natural client, when rows of both sides say whose they are."""
    natural = data.rows.groups
    if test is None or test.groups is None or natural is None:
        return None
    chosen = natural[data.partition.offsets[:-1]]
    owners = data.partition.owners
    if not bool((natural == chosen[owners]).all()) or len(set(chosen.tolist())) != len(chosen):
        return None
    theirs = align(test.groups, chosen)
    if len(theirs.indices) == 0:
        return None
    return FederatedData.gather(test, theirs)
