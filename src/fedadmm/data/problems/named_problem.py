"""Interface of named problems, and federated problems made from samples and a model."""

from __future__ import annotations

import inspect
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
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
from fedadmm.data.dataset import Dataset, FederatedData, Prepare, Samples, TrainTest, align
from fedadmm.data.download import SOURCES
from fedadmm.data.partitions import Partition


@dataclass(frozen=True)
class Sites:
    """Description for deployments of a problem whose clients have one file each.

    The server has no file and uses only the number of features and classes.
    """

    names: tuple[str, ...]
    """The names of the clients, in their order."""
    inputs: int
    """The number of features."""
    classes: int
    files: Callable[[], list[Path]]
    """Function that returns all clients' files, for demonstrations on one machine."""
    load: Callable[[Any, Path, int], Problem]
    """Function (options, file, client id) -> problem of that client."""


class NamedProblem(ABC):
    """Base class of registered problems, whose fields are the options in a configuration."""

    name: ClassVar[str]
    summary: ClassVar[str]
    sites: ClassVar[Sites | None] = None
    """The description for deployments with one file per client, if they are possible."""

    costly_objective: ClassVar[bool] = False
    """Whether the training objective, two passes over all data, is not evaluated by default."""

    @abstractmethod
    def load(self, regularizer: Regularizer | None = None, **given: Any) -> Problem:
        """Build the problem, which may read files.

        Args:
            regularizer: The regularizer g; None for g = 0.
            given: Objects that a configuration cannot contain: `buffers`, and for problems made
                from samples a `model` and a `partition`.
        """

    @classmethod
    def dataset(cls) -> str | None:
        """Return the name of the data set to download, or None if there is none."""
        return cls.name if cls.name in SOURCES else None


@dataclass(frozen=True, eq=False)
class HeldOut(EvaluatorInParts):
    """Evaluator of mean loss and accuracy on held-out samples, in evaluation mode.

    The metrics are `{prefix}_loss` and, for classes, `{prefix}_accuracy`; none without samples.
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
        """Return sum of losses, number of correct predictions, and number of samples of a part."""
        samples = evaluation_parts(self.inputs)[index]
        live = self.flat.load(params)
        self.flat.module.eval()
        with torch.no_grad():
            targets = self.targets[samples].to(live.device)
            inputs = prepared(self.inputs[samples].to(live.device), self.prepare, self.flat)
            outputs = self.flat.module(inputs)
            loss = float(self.loss(outputs, targets)) * len(targets)
            return loss, int(count_correct(outputs, targets)), len(targets)

    def joined(self, parts: Iterable[tuple[float, ...]]) -> Metrics:
        loss, correct, samples = 0.0, 0.0, 0.0
        for own in parts:
            loss, correct, samples = loss + own[0], correct + own[1], samples + own[2]
        if not samples:
            return {}
        metrics = {f"{self.prefix}_loss": loss / samples}
        if not self.targets.is_floating_point():
            metrics[f"{self.prefix}_accuracy"] = correct / samples
        return metrics


@dataclass(frozen=True, eq=False)
class Split:
    """Samples, model and loss shared by the clients of a `FederatedData`."""

    data: FederatedData
    flat: FlatModule
    loss: Loss

    def objective(self, client: int) -> ModelObjective:
        """Return a client's objective, on views of its training samples."""
        inputs, targets = self.data.train(client)
        loss = self.loss
        if self.data.samples.weights is not None:
            begin = int(self.data.partition.offsets[client])
            weights = self.data.samples.weights[begin : begin + len(targets)]
            loss = Weighted(loss, classes=self.data.samples.num_classes is not None)
            targets = torch.stack([targets.to(weights), weights / weights.mean()], dim=1)
        return ModelObjective(self.flat, loss, inputs, targets, self.data.samples.prepare)

    def evaluation(self, validate: bool, tests: FederatedData | None, client: int) -> Evaluator:
        """Return the evaluator of a client's validation samples, its test samples, or both."""
        parts = []
        if validate:
            samples = self.data.validation(client)
            parts.append(self.held_out(samples, self.data.samples.prepare, "validation"))
        if tests is not None:
            parts.append(self.held_out(tests.train(client), tests.samples.prepare))
        return HeldOutSets(tuple(parts))

    def pooled_validation(self) -> HeldOut:
        """Return the evaluator of all clients' validation samples."""
        samples = [self.data.validation(client) for client in range(len(self.data))]
        inputs, targets = (torch.cat(parts) for parts in zip(*samples, strict=True))
        return self.held_out((inputs, targets), self.data.samples.prepare, "validation")

    def held_out(self, samples: Samples, prepare: Prepare | None, prefix: str = "test") -> HeldOut:
        """Return the evaluator on the given samples."""
        return HeldOut(self.flat, self.loss, *samples, prepare, prefix)


@dataclass(frozen=True, eq=False)
class HeldOutSets(EvaluatorInParts):
    """Evaluates a vector on several sets of held-out samples, such as validation and test."""

    sets: tuple[HeldOut, ...]

    @property
    def num_parts(self) -> int:
        return sum(one.num_parts for one in self.sets)

    def part(self, params: Tensor, index: int) -> tuple[float, ...]:
        """Evaluate one part of one set; the parts of the sets are numbered one after another."""
        for one in self.sets:
            if index < one.num_parts:
                return one.part(params, index)
            index -= one.num_parts
        raise IndexError(index)

    def joined(self, parts: Iterable[tuple[float, ...]]) -> Metrics:
        remaining = iter(parts)
        found: dict[str, float] = {}
        for one in self.sets:
            found |= one.joined(itertools.islice(remaining, one.num_parts))
        return found


PARTITIONS = ("iid", "shards", "dirichlet", "imbalanced", "lognormal", "natural")


@checked
class SplitOptions:
    """Options of problems made from samples."""

    clients: Count | None = None
    """Number of clients; None for all natural clients (writers, hospitals, speakers)."""
    partition: str = "iid"
    """iid, shards, dirichlet, imbalanced, lognormal, natural, or the path of a saved .npz."""
    shards_per_client: Count = 2
    """shards: number of label shards per client."""
    dirichlet_alpha: Positive = 0.5
    """dirichlet: concentration; small values are heterogeneous."""
    min_size: Count = 1
    """dirichlet, lognormal: smallest number of samples per client."""
    size_sigma: NotNegative = 1.0
    """lognormal: standard deviation of the logarithm of the sizes."""
    imbalanced_shards: Count = 10_000
    """imbalanced: number of shards of the label-sorted samples."""
    partition_seed: Natural | None = None
    """Seed of the partition; None for the run's seed, so that the seeds of a comparison differ in
    their partition as well (0 without a run)."""
    validation: Probability = 0.0
    """Fraction of every client's samples that is held out for validation: for searches, patience
    and the choice of the best model.  `validation_loss` and `validation_accuracy` are measured on
    the validation samples of all clients together."""
    weights: Literal["uniform", "samples"] = "uniform"
    """a_i: 1/n, or n_i/N by the number, or the total weight, of the training samples."""
    model: str = "logistic"
    """Name of a model, as in `fedadmm.data.models.build`."""
    as_released: models.Released | None = None
    """The network of an author's published program: "gong" has a softmax before the cross-entropy
    and no ReLU after convolutions, "wang" the last hidden layer twice."""
    normalise: Literal["batch", "once"] = "batch"
    """Normalise stored samples batch by batch, or once into one tensor (more memory)."""
    max_train: Count | None = None
    """Number of training samples to use, chosen by `partition_seed`; None for all."""
    max_test: Count | None = None
    """Number of test samples to use, chosen by `partition_seed`; None for all."""

    def __post_init__(self) -> None:
        if not self.partition.endswith(".npz"):
            check(self, "partition", self.partition, Literal[PARTITIONS])


class DatasetProblem(SplitOptions, NamedProblem):
    """Named problem made from samples."""

    @abstractmethod
    def datasets(self) -> TrainTest:
        """Load the samples of all clients."""

    def load(self, regularizer: Regularizer | None = None, **given: Any) -> Problem:
        own = self if self.partition_seed is not None else replace(self, partition_seed=0)
        return federate(own.datasets(), own, regularizer=regularizer, name=self.name, **given)


def split(dataset: Dataset, options: SplitOptions) -> Partition:
    """Return the partition that the options specify."""
    name, clients, seed = options.partition, options.clients, options.partition_seed or 0
    if name.endswith(".npz"):
        return Partition.load(name)
    if name == "natural":
        if dataset.groups is None:
            raise ParameterError(
                f"{dataset.name}: partition is 'natural', but the samples have no natural clients"
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
    samples: TrainTest,
    options: SplitOptions,
    *,
    model: models.Model | None = None,
    partition: Partition | None = None,
    regularizer: Regularizer | None = None,
    buffers: Buffers | None = None,
    name: str = "problem",
) -> Problem:
    """Return the problem of training a model on samples that are partitioned among clients.

    Args:
        samples: Training and test samples.
        options: The options.
        model: A module or a function that returns one, in place of the option.
        partition: A partition, in place of the option.
        regularizer: The regularizer g; None for g = 0.
        buffers: The treatment of the model's buffers.
        name: The name of the problem.

    Raises:
        DataError: A client has no samples, or the model does not fit the samples.
    """
    seed = options.partition_seed or 0
    train = _limited(samples.train, options.max_train, seed)
    test = _limited(samples.test, options.max_test, seed) if samples.test else None
    if options.normalise == "once":
        train, test = train.prepared(), test.prepared() if test else None
    partition = split(train, options) if partition is None else partition
    if int(partition.sizes.min()) == 0:
        empty = int(partition.sizes.argmin())
        raise DataError(f"{name}: client {empty} of the partition holds no samples, but needs one")
    data = FederatedData.gather(train, partition, options.validation)
    make = model_factory(model or options.model, train, options.as_released)
    flat = FlatModule(models.build(make))
    shared = Split(data, flat, fit_loss(flat.module, train))
    tests = _client_tests(data, test)
    if tests is not None:
        test = tests.samples
    validate = options.validation > 0
    held_out = [] if test is None else [shared.held_out((test.inputs, test.targets), test.prepare)]
    if validate:
        held_out.append(shared.pooled_validation())
    own = None
    if validate or tests is not None:
        own = Lazy(len(data), partial(shared.evaluation, validate, tests))
    return Problem(
        clients=Lazy(len(data), shared.objective),
        regularizer=regularizer or Zero(),
        weights=None if options.weights == "uniform" else data.train_masses(),
        test=held_out[0] if len(held_out) == 1 else HeldOutSets((*held_out,)) if held_out else None,
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
    """Make a problem from samples in memory.

    Args:
        train: The training samples.
        test: The test samples, if any.
        model: A name, a module, or a function that returns a module.
        partition: A name, the path of a saved partition, or a `Partition`.  By default "natural"
            if the samples have groups, otherwise "iid".
        regularizer: The regularizer g; None for g = 0.
        buffers: The treatment of the model's buffers.
        options: Other fields of `SplitOptions`.
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


def _limited(samples: Dataset, most: int | None, seed: int) -> Dataset:
    if most is None or most >= len(samples):
        return samples
    return samples.take(partitions.iid(len(samples), 1, seed)[0][:most])


def model_factory(
    model: models.Model, samples: Dataset, as_released: models.Released | None
) -> models.Factory:
    """Return the function that builds the model for the numbers of features and classes."""
    known: dict[str, Any] = {"inputs": math.prod(samples.inputs.shape[1:])}
    if samples.num_classes is not None:
        known["classes"] = samples.num_classes
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


def fit_loss(module: nn.Module, samples: Dataset) -> Loss:
    """Return the loss that matches the model's outputs and the targets.

    Raises:
        DataError: The model does not accept the samples, or its outputs have the wrong shape.
    """
    sample = samples.inputs[:1] if samples.prepare is None else samples.prepare(samples.inputs[:1])
    kinds = [one.dtype for one in module.parameters() if one.is_floating_point()]
    if sample.is_floating_point() and kinds:  # samples follow the model's precision in a run, too
        sample = sample.to(kinds[0])
    module.eval()
    try:
        with torch.no_grad():
            outputs = module(sample)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise DataError(
            f"{samples.name}: the model cannot read samples of shape {tuple(sample.shape[1:])} and "
            f"type {sample.dtype} ({error})"
        ) from None
    classes, width = samples.num_classes, outputs.shape[-1] if outputs.ndim == 2 else None
    if classes is None and width == 1:
        return half_squared_error
    if classes == 2 and width == 1:
        return binary_cross_entropy
    if classes is not None and width == classes:
        return cross_entropy
    wanted = "one number" if classes is None else f"{classes} scores"
    raise DataError(
        f"{samples.name}: the model returns shape {tuple(outputs.shape)} for one sample, "
        f"expected {wanted} a sample"
    )


def _client_tests(data: FederatedData, test: Dataset | None) -> FederatedData | None:
    """Return the test samples of each client, or None if clients are not natural clients."""
    natural = data.samples.groups
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
