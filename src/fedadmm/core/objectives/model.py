"""Objectives of PyTorch modules with a loss and tensors."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedadmm.core.errors import DataError
from fedadmm.core.objectives import Objective, Pull
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.objectives.layers import Sink, channels_last
from fedadmm.core.objectives.losses import (
    as_tensor,
    check_classes,
    check_fit,
    count_correct,
    reason,
)
from fedadmm.core.objectives.networks import Network

EVALUATION_SAMPLES = 2048
"""Largest number of samples in a forward pass of an evaluation."""
_FEWEST_SAMPLES, _VALUES = 128, 2**17


def evaluation_parts(inputs: Tensor) -> list[slice]:
    """Return slices of the samples, which bound the memory of an evaluation.

    Large samples need fewer: the activations of a CNN for 2,048 images are so large that the C
    library requests new pages from the system every time, which takes nearly as long as the CNN.
    """
    wide = max(_FEWEST_SAMPLES, _VALUES // max(1, inputs[:1].numel()))
    step = min(EVALUATION_SAMPLES, wide)
    return [slice(begin, begin + step) for begin in range(0, len(inputs), step)]


def prepared(inputs: Tensor, prepare: Prepare | None, flat: FlatModule) -> Tensor:
    """Return stored samples in the module's precision, and images in the faster layout."""
    if prepare is not None:
        inputs = prepare(inputs)
    if inputs.is_floating_point():
        inputs = inputs.to(flat.vector.dtype)
    if flat.convolves and inputs.ndim == 4 and inputs.device.type == "cpu":
        return channels_last(inputs)
    return inputs


def samples_are_mixed(by: str) -> str:
    """Return why a model has no per-sample gradients."""
    return (
        f"the model has {by}, through which samples act on each other, expected none; use "
        "GroupNorm or LayerNorm"
    )


Loss = Callable[[Tensor, Tensor], Tensor]
Prepare = Callable[[Tensor], Tensor]


class ModuleObjective(Objective):
    """Base class of objectives with a module."""

    flat: FlatModule

    @property
    def num_parameters(self) -> int:
        return self.flat.num_parameters

    def workspace(self, params: Tensor) -> Tensor:
        return self.flat.load(params)

    def work(self, samples: int) -> float:
        """Return the multiplications of a forward pass, measured with one sample.

        A weight of a linear layer is used once per sample, one of a convolution once per pixel, one
        of a recurrent layer once per step.  An embedding has no multiplications.
        """
        places: list[float] = []

        def count(layer: nn.Module, _: object, output: object) -> None:
            result = output[0] if isinstance(output, tuple) else output
            assert isinstance(result, Tensor)
            convolves = isinstance(layer, nn.modules.conv._ConvNd)
            width = result.shape[1 if convolves else -1] if result.ndim else 1
            own = sum(parameter.numel() for parameter in layer.parameters(recurse=False))
            places.append(own * result.numel() / max(1, width))

        layers = [
            layer
            for layer in self.flat.module.modules()
            if not isinstance(layer, nn.Embedding) and list(layer.parameters(recurse=False))
        ]
        hooks = [layer.register_forward_hook(count) for layer in layers]
        try:
            self._switch(training=False)
            with torch.no_grad():
                self._try_a_sample()
        finally:
            for hook in hooks:
                hook.remove()
        return sum(places) * samples

    def _switch(self, training: bool) -> None:
        self.flat.train(training)

    @abstractmethod
    def _try_a_sample(self) -> None:
        """Make a forward pass with one sample."""


@dataclass(frozen=True, eq=False)
class ModelObjective(ModuleObjective):
    """Objective of a PyTorch module with a loss and one client's tensors.

    Args:
        module: Shared by all clients of a problem.
        loss: `loss(outputs, targets)` returns the mean over the samples of a batch.
        inputs: Tensor, array or list with one entry per sample.
        targets: Tensor, array or list with one entry per sample.
        prepare: Function from stored inputs to the module's input, applied to every batch, so that
            uint8 images can stay uint8 in memory; None for none.

    Raises:
        DataError: The numbers of inputs and targets differ, or there are no samples.

    Example:
        >>> import torch, fedadmm as fa
        >>> module, mse = torch.nn.Linear(1, 1, bias=False), torch.nn.functional.mse_loss
        >>> f = fa.ModelObjective(module, mse, [[1.0], [2.0]], [[2.0], [4.0]])
        >>> f.value(torch.zeros(1)), f.gradient(torch.zeros(1))
        (tensor(10.), tensor([-10.]))
    """

    descends: ClassVar[bool] = True

    module: FlatModule | nn.Module
    loss: Loss
    inputs: Tensor
    targets: Tensor
    prepare: Prepare | None = None
    flat: FlatModule = field(init=False)

    def __post_init__(self) -> None:
        for name in ("inputs", "targets"):
            object.__setattr__(self, name, as_tensor(self, name, getattr(self, name)))
        inputs, targets = (len(t) if t.ndim else 0 for t in (self.inputs, self.targets))
        if inputs != targets:
            raise DataError(
                f"ModelObjective: {inputs} inputs and {targets} targets, but there must be one "
                "target an input"
            )
        if targets == 0:
            raise DataError("ModelObjective: no samples, but at least one is needed")
        object.__setattr__(self, "flat", FlatModule.of(self.module))

    def check(self) -> None:
        inputs, targets = self.inputs, self.targets
        shapes = (inputs.shape[1:], inputs.dtype, targets.shape[1:], targets.dtype)
        key = (self.loss, id(self.prepare), *shapes)
        if key in self.flat.fitting:  # others have tried a sample of this kind
            check_classes(self, self.loss, targets, self.flat.fitting[key][0])
            return
        if inputs.is_floating_point():
            inputs = inputs.to(self.flat.vector.dtype)
        self._switch(training=False)
        with torch.no_grad():
            run = self.flat.module
            scores = check_fit(
                self, lambda samples: run(self.prepared(samples)), self.loss, (inputs, targets)
            )
        self.flat.fitting[key] = (scores, self.prepare)

    @property
    def num_samples(self) -> int:
        return self.targets.shape[0]

    @property
    def is_random(self) -> bool:
        for module in self.flat.module.modules():
            drops = isinstance(module, nn.modules.dropout._DropoutNd)
            # recurrent and attention layers have a rate of their own
            rate = module.p if drops else getattr(module, "dropout", 0.0)
            if isinstance(module, nn.RReLU) or (isinstance(rate, float | int) and rate > 0):
                return True
        return False

    @property
    def has_classes(self) -> bool:
        return self.targets.ndim == 1 and not self.targets.is_floating_point()

    def value(self, params: Tensor) -> Tensor:
        return self._measured(params, count=False)[0]

    def value_and_correct(self, params: Tensor) -> tuple[Tensor, int]:
        if not self.has_classes:
            return super().value_and_correct(params)
        return self._measured(params, count=True)

    def _measured(self, params: Tensor, count: bool) -> tuple[Tensor, int]:
        """Return the mean loss over all samples in evaluation mode, and the correct classes."""
        self.flat.load(params)
        self._switch(training=False)
        total, correct = torch.zeros((), dtype=params.dtype, device=params.device), 0
        for part in evaluation_parts(self.inputs):
            inputs, targets = self._batch(part)
            with torch.no_grad():
                outputs = self.flat.module(inputs)
            total += self.loss(outputs, targets) * len(targets)
            correct += int(count_correct(outputs, targets)) if count else 0
        return total / self.num_samples, correct

    def gradient(self, params: Tensor, samples: Tensor | None = None) -> Tensor:
        self.flat.load(params)
        self._write_gradient(*self._batch(samples), training=True)
        return self.flat.gradient

    def sample_gradients_unavailable(self, params: Tensor) -> str | None:
        if self.flat.mixes_samples is not None:
            return samples_are_mixed(self.flat.mixes_samples)
        try:
            self.sample_gradients(params, torch.arange(1, device=params.device))
        except Exception as error:  # whatever a user's module does under vmap
            return f"the model does not run under torch.func.vmap ({reason(error)})"
        return None

    def sample_gradients(self, params: Tensor, samples: Tensor) -> Tensor:
        def row_loss(vector: Tensor, sample: Tensor, target: Tensor) -> Tensor:
            views, batch = self.flat.views(vector), (sample.unsqueeze(0),)
            outputs: Any = functional_call(self.flat.module, views, batch)
            return self.loss(outputs, target.unsqueeze(0))

        self._switch(training=True)
        each = vmap(grad(row_loss), in_dims=(None, 0, 0), randomness="different")
        found: Tensor = each(params, *self._batch(samples))
        return found

    def evaluation_gradient(self, params: Tensor) -> Tensor:
        self.flat.load(params)
        for part in evaluation_parts(self.inputs):
            inputs, targets = self._batch(part)
            share = len(targets) / self.num_samples
            self._write_gradient(inputs, targets, False, share, keep=part.start > 0)
        return self.flat.gradient

    def descend(
        self, params: Tensor, samples: Tensor | None, lr: float, pull: Pull | None = None
    ) -> None:
        """Apply `pull`, then params -= lr * gradient, in place on the workspace.

        The gradient is the one before the pull.  It never exists as one vector, which saves two
        passes over D numbers.
        """
        flat, network = self.flat, self._network()
        inputs, targets = self._batch(samples)
        if network is None:
            gradients = self._autograd(inputs, targets, training=True)
            if pull is not None:
                pull(flat.vector, 0, flat.num_parameters)
            for block, gradient in zip(flat.blocks, gradients, strict=True):
                block.add_(gradient, alpha=-lr)
            return

        def before(index: int) -> None:
            slot = flat.slots[index]
            assert pull is not None
            pull(flat.vector[slot.begin : slot.end], slot.begin, slot.end)

        sink = Sink(flat.blocks, -lr, keep=True, before=None if pull is None else before)
        self._differentiate(network, inputs, targets, sink)

    def _write_gradient(
        self,
        inputs: Tensor,
        targets: Tensor,
        training: bool,
        share: float = 1.0,
        keep: bool = False,
    ) -> None:
        """Write share * gradient into the buffer, or add it to what the buffer holds."""
        network = self._network()
        sink = Sink(self.flat.gradient_blocks, share, keep)
        if network is not None:
            self._differentiate(network, inputs, targets, sink)
            return
        for index, gradient in enumerate(self._autograd(inputs, targets, training)):
            sink.tensor(index, gradient)

    def _network(self) -> Network | None:
        network = self.flat.network(self.loss)
        accepted = network is not None and network.accepts(self.inputs, self.targets)
        return network if accepted else None

    def _differentiate(self, network: Network, inputs: Tensor, targets: Tensor, sink: Sink) -> None:
        stack = inputs.unsqueeze(0), targets.unsqueeze(0)
        network.differentiate(self.flat.blocks, *stack, 1.0 / len(targets), sink)

    def _autograd(self, inputs: Tensor, targets: Tensor, training: bool) -> tuple[Tensor, ...]:
        self._switch(training)
        with torch.enable_grad():
            loss = self.loss(self.flat.module(inputs), targets)
            return torch.autograd.grad(loss, self.flat.parameters, materialize_grads=True)

    def needs_two_samples(self) -> str | None:
        if self.flat.mixes_samples is None:
            return None
        model = copy.deepcopy(self.flat.module).train()
        try:
            with torch.no_grad():
                model(self.prepared(self.inputs[:1]))
        except ValueError:
            return self.flat.mixes_samples
        return None

    def _try_a_sample(self) -> None:
        self.flat.module(self.prepared(self.inputs[:1]))

    def _batch(self, samples: Tensor | slice | None) -> tuple[Tensor, Tensor]:
        if samples is None:
            return self.prepared(self.inputs), self.targets
        return self.prepared(self.inputs[samples]), self.targets[samples]

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> ModelObjective:
        """The same objective in another precision or on another device.

        The shared module moves with it, so move all clients of a problem or none.
        """
        self.flat.to(dtype, device)
        inputs, targets = (
            one.to(device, dtype) if one.is_floating_point() else one.to(device)
            for one in (self.inputs, self.targets)
        )
        if inputs is self.inputs and targets is self.targets:
            return self
        return replace(self, module=self.flat, inputs=inputs, targets=targets)

    def prepared(self, inputs: Tensor) -> Tensor:
        """Return stored samples as inputs of the module."""
        return prepared(inputs, self.prepare, self.flat)
