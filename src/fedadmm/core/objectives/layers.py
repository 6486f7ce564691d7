"""The layers: one forward and one backward pass each, for K clients at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

Blocks = Sequence[Tensor]
"""One tensor (K, *shape) for every trainable parameter, in the module's order."""
Weights = Tensor | float
"""What each sample's loss counts: (K, samples), or one number for all samples."""

FEW_SAMPLES, MANY_CHANNELS = 32, 16
"""Up to how many images, and from how many channels on, channels are best outermost."""


class Sink(NamedTuple):
    """Where gradients go: block <- block + alpha * gradient, or without `keep` alpha * gradient.

    `before(i)` is called when block i has been read for the last time and is about to change.
    """

    blocks: Blocks
    alpha: float
    keep: bool
    before: Callable[[int], None] | None = None

    def product(self, index: int, left: Tensor, right: Tensor) -> None:
        """Take the gradient left @ right of a matrix."""
        if self.before is not None:
            self.before(index)
        self.blocks[index].baddbmm_(left, right, beta=float(self.keep), alpha=self.alpha)

    def tensor(self, index: int, gradient: Tensor) -> None:
        """Take a gradient that has been formed."""
        if self.before is not None:
            self.before(index)
        block = self.blocks[index]
        gradient = gradient.view_as(block)
        if self.keep:
            block.add_(gradient, alpha=self.alpha)
        else:
            torch.mul(gradient, self.alpha, out=block)


class Layer(Protocol):
    """One layer: its forward pass returns what its backward pass wants to see again."""

    def forward(self, blocks: Blocks, inputs: Tensor) -> tuple[Tensor, Any]:
        """Outputs and what to keep."""

    def backward(
        self, blocks: Blocks, kept: Any, outer: Tensor, sink: Sink, wanted: bool
    ) -> Tensor:
        """The gradient for the inputs (if `wanted`); parameters' gradients go to the sink."""


class Linear(NamedTuple):
    """outputs = inputs @ weight' + bias."""

    weight: int
    bias: int | None

    def forward(self, blocks: Blocks, inputs: Tensor) -> tuple[Tensor, Tensor]:
        weight = blocks[self.weight].transpose(1, 2)
        if self.bias is None:
            return torch.bmm(inputs, weight), inputs
        return torch.baddbmm(blocks[self.bias].unsqueeze(1), inputs, weight), inputs

    def backward(
        self, blocks: Blocks, kept: Tensor, outer: Tensor, sink: Sink, wanted: bool
    ) -> Tensor:
        inner = torch.bmm(outer, blocks[self.weight]) if wanted else outer
        sink.product(self.weight, outer.transpose(1, 2), kept)
        if self.bias is not None:
            sink.tensor(self.bias, outer.sum(1))
        return inner


class ReLU(NamedTuple):
    """max(inputs, 0), in place where the inputs are not needed again."""

    in_place: bool

    def forward(self, blocks: Blocks, inputs: Tensor) -> tuple[Tensor, Tensor]:
        outputs = inputs.clamp_(min=0) if self.in_place else inputs.clamp(min=0)
        return outputs, outputs

    def backward(
        self, blocks: Blocks, kept: Tensor, outer: Tensor, sink: Sink, wanted: bool
    ) -> Tensor:
        result: Tensor = torch.ops.aten.threshold_backward(outer, kept, 0)
        return result


class Flatten(NamedTuple):
    """Samples become vectors, in the order of (C, H, W)."""

    def forward(self, blocks: Blocks, inputs: Tensor) -> tuple[Tensor, torch.Size]:
        return inputs.flatten(2), inputs.shape

    def backward(
        self, blocks: Blocks, kept: torch.Size, outer: Tensor, sink: Sink, wanted: bool
    ) -> Tensor:
        inner = outer.view(kept)
        return channels_last(inner[0]).unsqueeze(0) if inner.ndim == 5 else inner


class Conv2d(NamedTuple):
    """A plain convolution for one client; it takes and returns channels-last images.

    Few images of many channels are convolved faster with channels outermost, by a fifth, and the
    way there and back is cheap; gradients for the weights are as fast either way.
    """

    weight: int
    bias: int | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    def forward(self, blocks: Blocks, inputs: Tensor) -> tuple[Tensor, Tensor]:
        images = _arranged(inputs[0], inputs[0])
        bias = None if self.bias is None else blocks[self.bias][0]
        outputs = torch.conv2d(images, blocks[self.weight][0], bias, self.stride, self.padding)
        return channels_last(outputs).unsqueeze(0), images

    def backward(
        self, blocks: Blocks, kept: Tensor, outer: Tensor, sink: Sink, wanted: bool
    ) -> Tensor:
        weight = blocks[self.weight][0]
        inner, by_weight, by_bias = torch.ops.aten.convolution_backward(
            _arranged(outer[0], kept),
            kept,
            weight,
            [weight.shape[0]],
            self.stride,
            self.padding,
            [1, 1],
            False,
            [0, 0],
            1,
            [wanted, True, self.bias is not None],
        )
        sink.tensor(self.weight, by_weight.contiguous())
        if self.bias is not None:
            sink.tensor(self.bias, by_bias)
        return channels_last(inner).unsqueeze(0) if wanted else outer


def _arranged(tensor: Tensor, images: Tensor) -> Tensor:
    """A tensor in the layout in which these images are convolved fastest."""
    samples, channels = images.shape[:2]
    outermost = samples <= FEW_SAMPLES and channels >= MANY_CHANNELS
    return tensor.contiguous() if outermost else channels_last(tensor)


class MaxPool2d(NamedTuple):
    """Max-pooling for one client."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    def forward(self, blocks: Blocks, inputs: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        outputs, places = torch.ops.aten.max_pool2d_with_indices(
            inputs[0], self.kernel, self.stride, self.padding
        )
        return outputs.unsqueeze(0), (inputs, places)

    def backward(
        self, blocks: Blocks, kept: tuple[Tensor, Tensor], outer: Tensor, sink: Sink, wanted: bool
    ) -> Tensor:
        inputs, places = kept
        inner: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            outer[0], inputs[0], self.kernel, self.stride, self.padding, [1, 1], False, places
        )
        return inner.unsqueeze(0)


def channels_last(images: Tensor) -> Tensor:
    """Images (samples, C, H, W) with channels innermost, also when C is 1.

    For one channel torch takes both layouts for equal and keeps the strides as they are, and the
    convolution then chooses the slow layout for all that follows.
    """
    _, channels, height, width = images.shape
    if channels == 1:
        return images.contiguous().as_strided(images.shape, (height * width, 1, width, 1))
    return images.contiguous(memory_format=torch.channels_last)


Head = Callable[[Tensor, Tensor, Weights], Tensor]
"""(outputs, targets, weights) -> the gradient of sum of weights * losses for the outputs."""


def by_cross_entropy(outputs: Tensor, targets: Tensor, weights: Weights) -> Tensor:
    """Softmax - one-hot.

    With few classes torch.softmax takes 0.1 us a sample, as it vectorises over classes only: too
    much for a stack.
    """
    scale, index = _rowwise(weights), targets.unsqueeze(-1)
    if len(outputs) > 1:
        inner = (outputs - outputs.amax(-1, keepdim=True)).exp_()
        inner.mul_(inner.sum(-1, keepdim=True).reciprocal_().mul_(scale))
        ones = scale if isinstance(scale, Tensor) else inner.new_full((1, 1, 1), scale)
        return inner.scatter_add_(-1, index, (-ones).expand(index.shape))
    inner = torch.softmax(outputs, dim=-1)
    inner.scatter_add_(-1, index, inner.new_full((1, 1, 1), -1.0).expand(index.shape))
    return inner.mul_(scale)


def by_binary_cross_entropy(outputs: Tensor, targets: Tensor, weights: Weights) -> Tensor:
    """Sigmoid - target."""
    inner = torch.sigmoid(outputs).sub_(targets.to(outputs.dtype).unsqueeze(-1))
    return inner.mul_(_rowwise(weights))


def by_half_squared_error(outputs: Tensor, targets: Tensor, weights: Weights) -> Tensor:
    """Output - target."""
    return (outputs - targets.unsqueeze(-1)).mul_(_rowwise(weights))


def _rowwise(weights: Weights) -> Weights:
    return weights.unsqueeze(-1) if isinstance(weights, Tensor) else weights
