"""Hand-written forward and backward passes for plain layer sequences, for many clients at once.

`compile_network` understands an `nn.Sequential` of Linear, ReLU, Conv2d, MaxPool2d and Flatten
with one of the house's losses.  The passes run on K clients together: activations are
(K, samples, ...), and parameter i of all clients is one contiguous block (K, *shape).  Against
autograd this saves the graph, and a gradient that is only wanted for an SGD step is never formed:
the product that would make it is accumulated straight into the parameters (`Sink`).

Convolutions run channels-last, and for one client only: stacked they would be grouped
convolutions, which are slower than one client after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedadmm.core.objectives import losses
from fedadmm.core.objectives.layers import (
    Blocks,
    Conv2d,
    Flatten,
    Head,
    Layer,
    Linear,
    MaxPool2d,
    ReLU,
    Sink,
    Weights,
    by_binary_cross_entropy,
    by_cross_entropy,
    by_half_squared_error,
)

Trained = Linear | Conv2d


class Network(NamedTuple):
    """A compiled module and loss."""

    layers: tuple[Layer, ...]
    head: Head
    first: int
    """The first layer with parameters: nothing asks for the gradient of its inputs."""
    row_dims: int | None
    """How many dimensions an input sample has; None when samples are flattened first."""

    @property
    def stacks(self) -> bool:
        """Whether more than one client can run at once."""
        return not any(isinstance(layer, Conv2d | MaxPool2d) for layer in self.layers)

    def accepts(self, inputs: Tensor, targets: Tensor) -> bool:
        """Whether samples of this shape, with these targets, are what the network was made for."""
        labels = self.head is not by_cross_entropy or targets.dtype == torch.int64
        shaped = self.row_dims is None or inputs.ndim == self.row_dims + 1
        return shaped and labels and targets.ndim == 1

    def differentiate(
        self, blocks: Blocks, inputs: Tensor, targets: Tensor, weights: Weights, sink: Sink
    ) -> None:
        """Send the gradient of sum of weights * losses to the sink.

        The sink's blocks may be the parameters' own: each is read for the last time before it
        is written.
        """
        kept = []
        for layer in self.layers:
            inputs, keep = layer.forward(blocks, inputs)
            kept.append(keep)
        outer = self.head(inputs, targets, weights)
        for index in range(len(self.layers) - 1, self.first - 1, -1):
            wanted = index > self.first
            outer = self.layers[index].backward(blocks, kept[index], outer, sink, wanted)


def compile_network(module: nn.Module, loss: object) -> Network | None:
    """The network of a module and a loss, or None when a part of them is not known here.

    Every parameter must be trained and used once, and there must be no buffers.
    """
    named = list(module.named_parameters(remove_duplicate=False))
    once = len({id(parameter) for _, parameter in named}) == len(named)
    trained = once and all(parameter.requires_grad for _, parameter in named)
    parts = _flattened(module)
    if not parts or not trained or list(module.buffers()):
        return None
    head, layers = _head(loss, parts[-1]), _layers(parts)
    if head is None or layers is None:
        return None
    shaping = [layer for layer in layers if isinstance(layer, Flatten | Conv2d | MaxPool2d)]
    row_dims = None if shaping and isinstance(shaping[0], Flatten) else 3 if shaping else 1
    first = next(i for i, layer in enumerate(layers) if isinstance(layer, Trained))
    return Network(tuple(layers), head, first, row_dims)


def _head(loss: object, last: nn.Module) -> Head | None:
    if loss is nn.functional.cross_entropy or loss is losses.cross_entropy:
        return by_cross_entropy
    if not isinstance(last, nn.Linear) or last.out_features != 1:
        return None
    if loss is losses.binary_cross_entropy:
        return by_binary_cross_entropy
    return by_half_squared_error if loss is losses.half_squared_error else None


def _flattened(module: nn.Module) -> list[nn.Module] | None:
    """The layers of nested plain sequences, or None when hooks want to see them run."""
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return None
    if type(module) is not nn.Sequential:
        return [module]
    parts: list[nn.Module] = []
    for child in module:
        inner = _flattened(child)
        if inner is None:
            return None
        parts += inner
    return parts


def _layers(parts: list[nn.Module]) -> list[Layer] | None:
    """The layers, or None; convolutions come first, then Flatten, then matrices.

    ReLU and the max-pooling after it change places: the same function and gradient on fewer
    numbers.
    """
    layers: list[Layer] = []
    parts, used = list(parts), 0
    for index in range(len(parts) - 1):
        if type(parts[index]) is nn.ReLU and type(parts[index + 1]) is nn.MaxPool2d:
            parts[index : index + 2] = reversed(parts[index : index + 2])
    for part in parts:
        layer = _layer(part, used, bool(layers) and not isinstance(layers[-1], Flatten))
        seen = {type(earlier) for earlier in layers}
        spatial = isinstance(layer, Conv2d | MaxPool2d)
        if layer is None or (spatial and seen & {Flatten, Linear}):
            return None
        if isinstance(layer, Linear) and seen & {Conv2d, MaxPool2d} and Flatten not in seen:
            return None
        layers.append(layer)
        used += len(list(part.parameters()))
    return layers if isinstance(layers[-1], Linear) else None


def _layer(part: nn.Module, used: int, fresh: bool) -> Layer | None:
    """One layer, or None; `fresh` says that its input may be overwritten."""
    if type(part) is nn.Linear:
        return Linear(used, None if part.bias is None else used + 1)
    if type(part) is nn.ReLU:
        return ReLU(in_place=fresh)
    if type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1):
        return Flatten()
    if type(part) is nn.Conv2d:
        plain = part.groups == 1 and part.dilation == (1, 1) and part.padding_mode == "zeros"
        if not plain or isinstance(part.padding, str):
            return None
        return Conv2d(used, None if part.bias is None else used + 1, part.stride, part.padding)
    if type(part) is nn.MaxPool2d:
        if part.dilation not in (1, (1, 1)) or part.ceil_mode or part.return_indices:
            return None
        return MaxPool2d(_pair(part.kernel_size), _pair(part.stride), _pair(part.padding))
    return None


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)
