"""Objectives from any iterable of batches, of which one at a time is in memory.

The samples of such a client are its batches: `SGD(lr, batch_size=1)` makes one step per batch, and
`batch_size=4` one per four of them (gradient accumulation).  Their order is that of the iterable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from fedadmm.core.errors import DataError
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.objectives.losses import REFUSALS, reason
from fedadmm.core.objectives.model import ModuleObjective
from fedadmm.core.rng import Key
from fedadmm.core.validation import Count, check

Batches = Iterable[Any] | Callable[[], Iterable[Any]]
"""A DataLoader, a list, or a function that begins a stream anew."""
BatchLoss = Callable[[nn.Module, Any], Tensor]
"""The mean loss of a module on one batch; `fedadmm.adapters` has those of known libraries."""
BatchValues = Callable[[nn.Module, Any], Mapping[str, Tensor | float]]
"""The metrics of a module on one batch, each a mean over its samples."""


class _Passes:
    """The batches of a client, as often as they are asked for."""

    def __init__(self, owner: object, batches: Batches, length: int | None) -> None:
        self._owner = type(owner).__name__
        self._batches = batches
        if length is not None:
            check(owner, "length", length, Count)
        if isinstance(batches, Iterator):
            self._reject(
                "must begin anew for every pass; give a list, or a function that makes one"
            )
        self._given = length

    def _reject(self, wanted: str) -> None:
        raise DataError(f"{self._owner}: batches is a {type(self._batches).__name__}, but {wanted}")

    @cached_property
    def length(self) -> int:
        """How many batches a pass has; counted once where it is not given."""
        if self._given is not None:
            return self._given
        try:
            count = len(self._batches)  # type: ignore[arg-type]
        except TypeError:
            with _aside():
                count = sum(1 for _ in self._begin())
        if count == 0:
            self._reject("must hold at least one batch, and holds none")
        return count

    def __iter__(self) -> Iterator[Any]:
        count = 0
        for batch in islice(self._begin(), self.length):
            yield batch
            count += 1
        if count < self.length:
            raise DataError(
                f"{self._owner}: batches ended after {count}, but must go on to {self.length}, as "
                "they were counted or announced"
            )

    def _begin(self) -> Iterator[Any]:
        return iter(self._batches() if callable(self._batches) else self._batches)


@contextmanager
def _aside() -> Iterator[None]:
    """A loader that shuffles draws from torch's generator: measuring must not move it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@dataclass(frozen=True, eq=False)
class BatchObjective(ModuleObjective):
    """Objective of a PyTorch module with a loss on batches, such as those of a DataLoader.

    f_i is the mean over all samples of all batches.  Random numbers that a loader draws from
    torch's generator, for example for shuffling, are a function of seed, round and client.

    Args:
        module: Shared by all clients of a problem; only parameters with `requires_grad` are trained
            and sent.
        loss: `loss(module, batch)` returns the mean over the samples of a batch.
        batches: Any iterable that can be repeated, such as a `DataLoader`, or a function that
            returns an iterator; a batch is a tensor, or a dict, tuple or list of them.
        length: Number of batches in an epoch; None counts them.

    Raises:
        DataError: `batches` is an iterator, which cannot be repeated, or has no batch.

    Example:
        >>> import torch, fedadmm as fa
        >>> batches = [(torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [4.0]]))]
        >>> def loss(module, batch):
        ...     return torch.nn.functional.mse_loss(module(batch[0]), batch[1])
        >>> f = fa.BatchObjective(torch.nn.Linear(1, 1, bias=False), loss, batches)
        >>> f.value(torch.zeros(1)), f.gradient(torch.zeros(1))
        (tensor(10.), tensor([-10.]))
    """

    module: FlatModule | nn.Module
    loss: BatchLoss
    batches: Batches
    length: int | None = None
    flat: FlatModule = field(init=False)
    _passes: _Passes = field(init=False, repr=False)

    is_random = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "flat", FlatModule.of(self.module))
        object.__setattr__(self, "_passes", _Passes(self, self.batches, self.length))

    def check(self) -> None:
        with _aside(), torch.no_grad():
            self._switch(training=False)
            self._loss_on(next(iter(self._passes)))

    @property
    def num_samples(self) -> int:
        return self._passes.length

    def mini_batches(self, key: Key, epoch: int, batch_size: int) -> Iterator[list[Any]]:
        coming = iter(self._passes)
        while taken := list(islice(coming, batch_size)):
            yield taken

    def value(self, params: Tensor) -> Tensor:
        loss = self._loss_on
        means = _means(self.flat, params, self._passes, lambda batch: {"loss": loss(batch)[0]})
        return torch.tensor(means["loss"], dtype=params.dtype, device=params.device)

    def gradient(self, params: Tensor, samples: Sequence[Any] | None = None) -> Tensor:
        return self._mean_gradient(
            params, self._passes if samples is None else samples, training=True
        )

    def evaluation_gradient(self, params: Tensor) -> Tensor:
        with _aside():
            return self._mean_gradient(params, self._passes, training=False)

    def _mean_gradient(self, params: Tensor, batches: Iterable[Any], training: bool) -> Tensor:
        self.flat.load(params)
        self._switch(training)
        seen = 0
        for batch in batches:
            with torch.enable_grad():
                loss, samples = self._loss_on(batch)
                found = torch.autograd.grad(loss, self.flat.parameters, materialize_grads=True)
            seen += samples
            for mean, gradient in zip(self.flat.gradient_blocks, found, strict=True):
                if seen == samples:
                    mean.copy_(gradient)
                else:
                    mean.lerp_(gradient.unsqueeze(0), samples / seen)
        return self.flat.gradient

    def _loss_on(self, batch: Any) -> tuple[Tensor, int]:
        """The loss on a batch, and the samples that it is the mean of."""
        batch = _placed(batch, self.flat.vector)
        samples = batch_length(batch)
        try:
            loss = self.loss(self.flat.module, batch)
        except REFUSALS as error:
            raise DataError(
                f"BatchObjective: loss fails on a batch of {_kind(batch)}, expected what the "
                f"batches hold ({reason(error)})"
            ) from error
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            given = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)[:80]
            raise DataError(
                f"BatchObjective: loss returns {given}, expected one number, the mean over "
                "the samples"
            )
        return loss.reshape(()), samples

    def _try_a_sample(self) -> None:
        with _aside():
            self._loss_on(next(iter(self._passes)))

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> BatchObjective:
        self.flat.to(dtype, device)
        return self


@dataclass(frozen=True, eq=False)
class BatchMetrics:
    """Metrics on held-out batches, for the field `test` of a `Problem`.

    Args:
        module: The module of the clients' objectives.
        metrics: `metrics(module, batch)` returns means over the samples of a batch by name, such as
            `{"test_accuracy": ...}`; the result is their mean over all samples.  With `finish` it
            returns tensors with one entry per sample instead, such as scores and labels.
        batches: As in `BatchObjective`.
        length: Number of batches; None counts them.
        finish: For metrics that are no means, such as an F1 score or an AUC: function from the
            tensors of all samples to the metrics; None for means.

    Example:
        >>> import torch, fedadmm as fa
        >>> batches = [(torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [4.0]]))]
        >>> def metrics(module, batch):
        ...     return {"test_error": (module(batch[0]) - batch[1]).abs().mean()}
        >>> fa.BatchMetrics(torch.nn.Linear(1, 1, bias=False), metrics, batches)(torch.zeros(1))
        {'test_error': 3.0}
    """

    module: FlatModule | nn.Module
    metrics: BatchValues
    batches: Batches
    length: int | None = None
    finish: Callable[[dict[str, Tensor]], Mapping[str, float]] | None = None
    flat: FlatModule = field(init=False)
    _passes: _Passes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "flat", FlatModule.of(self.module))
        object.__setattr__(self, "_passes", _Passes(self, self.batches, self.length))

    def __call__(self, params: Tensor) -> dict[str, float]:
        """The metrics of a vector, in evaluation mode."""
        vector = self.flat.vector

        def measure(batch: Any) -> Mapping[str, Tensor | float]:
            return self.metrics(self.flat.module, _placed(batch, vector))

        if self.finish is None:
            return _means(self.flat, params, self._passes, measure)
        parts: list[Mapping[str, Tensor]] = []

        def collect(batch: Any) -> Mapping[str, float]:
            found, samples = measure(batch), batch_length(batch)
            for name, value in found.items():
                if not isinstance(value, Tensor) or value.ndim == 0 or len(value) != samples:
                    raise DataError(
                        f"BatchMetrics.metrics: got {_kind(value)} as {name!r}, expected a tensor "
                        f"with one entry for each of the {samples} samples with finish."
                    )
            parts.append({name: torch.as_tensor(value) for name, value in found.items()})
            return dict.fromkeys(found, 0.0)

        names = _means(self.flat, params, self._passes, collect)
        whole = {name: torch.cat([part[name] for part in parts]) for name in names}
        return {name: float(value) for name, value in self.finish(whole).items()}


def _means(
    flat: FlatModule,
    params: Tensor,
    passes: _Passes,
    measure: Callable[[Any], Mapping[str, Tensor | float]],
) -> dict[str, float]:
    """Means over all samples of what is measured on batches, in evaluation mode."""
    flat.load(params)
    flat.train(False)
    totals: dict[str, float] = {}
    seen = 0
    with _aside(), torch.no_grad():
        for batch in passes:
            samples = batch_length(batch)
            values = {name: samples * float(value) for name, value in measure(batch).items()}
            if seen and values.keys() != totals.keys():
                raise DataError(
                    f"BatchMetrics: metrics returns {', '.join(values) or 'nothing'} for a batch, "
                    f"expected the same for all, {', '.join(totals) or 'nothing'}"
                )
            totals = {name: totals.get(name, 0.0) + value for name, value in values.items()}
            seen += samples
    return {name: total / seen for name, total in totals.items()}


def batch_length(batch: Any) -> int:
    """How many samples a batch has: the length of the first tensor or list in it."""
    found = batch
    while isinstance(found, Mapping | tuple | list) and len(found):
        first = next(iter(found.values() if isinstance(found, Mapping) else found))
        if not isinstance(first, Tensor | Mapping | tuple | list):
            break  # a list of texts or numbers
        found = first
    if isinstance(found, Tensor) and found.ndim:
        found = range(found.shape[0])
    if not isinstance(found, range | tuple | list) or len(found) == 0:
        raise DataError(
            f"batches: got a batch that is {_kind(batch)}, expected a tensor, or a dict, tuple or "
            "list of tensors or lists."
        )
    return len(found)


def _placed(batch: Any, like: Tensor) -> Any:
    """A batch where the module is, and in its precision."""
    if isinstance(batch, Tensor):
        return batch.to(like) if batch.is_floating_point() else batch.to(like.device)
    if isinstance(batch, Mapping):
        return {name: _placed(value, like) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [_placed(part, like) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def _kind(batch: Any) -> str:
    """What a batch is, in a few words."""
    if isinstance(batch, Tensor):
        return f"shape {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return "a dict of " + (", ".join(map(str, batch)) or "nothing")
    if isinstance(batch, tuple | list):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a {type(batch).__name__}"
