"""One flat vector for all trainable parameters of a module.

The module's parameters become views of one buffer, and gradients are written into another, so
that a solver step is a handful of operations on vectors of length D.
Frozen parameters stay in the module and never travel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from fedadmm.core.errors import ParameterError
from fedadmm.core.objectives.networks import Network, compile_network

_BOUND: WeakValueDictionary[int, FlatModule] = WeakValueDictionary()
"""Flat vectors of modules, by the module's id."""


class Slot(NamedTuple):
    """Position of a parameter in the flat vector."""

    name: str
    shape: torch.Size
    begin: int
    end: int


class FlatModule:
    """A module whose trainable parameters are views of one flat vector.

    `vector` and `gradient` are buffers: writing to `vector` changes the module.  `blocks` and
    `gradient_blocks` are the same memory as parameters, each a stack of one client.

    Args:
        module: Its parameters are replaced by views; copy it first (`copy.deepcopy`) to keep an
            independent one.  Parameters without `requires_grad` are neither trained nor sent.

    Raises:
        ParameterError: There is no trainable parameter, or they differ in precision or device.

    Example:
        >>> import torch, fedadmm as fa
        >>> flat = fa.FlatModule(torch.nn.Linear(2, 1))
        >>> [(slot.name, slot.begin, slot.end) for slot in flat.slots]
        [('weight', 0, 2), ('bias', 2, 3)]
        >>> _ = flat.load(torch.tensor([1.0, 2.0, 3.0]))
        >>> flat.module(torch.ones(1, 2)).item()
        6.0
    """

    def __init__(self, module: nn.Module) -> None:
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not trainable:
            raise ParameterError(
                f"module is {type(module).__name__} with no trainable parameter, expected one"
            )
        kinds = {(p.dtype, p.device) for _, p in trainable}
        if len(kinds) > 1:
            raise ParameterError(f"module has parameters of several kinds {kinds}, but needs one")
        self.module = module
        ends = [0, *itertools.accumulate(p.numel() for _, p in trainable)]
        self.slots = tuple(
            Slot(name, parameter.shape, begin, end)
            for (name, parameter), (begin, end) in zip(
                trainable, itertools.pairwise(ends), strict=True
            )
        )
        self.convolves = any(isinstance(part, nn.Conv2d) for part in module.modules())
        self._networks: dict[object, Network | None] = {}
        self.fitting: dict[object, tuple[int, object]] = {}
        """Kinds of samples that the module has processed, and its number of scores."""
        (dtype, device) = kinds.pop()
        self._bind(trainable, dtype, device)
        self._moving = tuple(_moving(module))
        self._first_buffers = self.buffers()
        _BOUND[id(module)] = self

    @classmethod
    def of(cls, module: FlatModule | nn.Module) -> FlatModule:
        """Return the flat vector of a module, which is created once and shared.

        A second vector would take the parameters away from the first.
        """
        if isinstance(module, FlatModule):
            return module
        bound = _BOUND.get(id(module))
        return bound if bound is not None and bound.module is module else cls(module)

    def _bind(
        self, trainable: list[tuple[str, nn.Parameter]], dtype: torch.dtype, device: torch.device
    ) -> None:
        length = self.slots[-1].end
        self.vector = torch.empty(length, dtype=dtype, device=device)
        self.gradient = torch.zeros(length, dtype=dtype, device=device)
        self.parameters = [parameter for _, parameter in trainable]
        for parameter, view in zip(self.parameters, self.views(self.vector).values(), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        self.blocks = [view.unsqueeze(0) for view in self.views(self.vector).values()]
        self.gradient_blocks = [view.unsqueeze(0) for view in self.views(self.gradient).values()]

    @property
    def num_parameters(self) -> int:
        """D, the number of trainable parameters."""
        return self.vector.numel()

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> FlatModule:
        """Move module and buffers to another precision or device, in place."""
        target = torch.device(device)
        if (dtype, target) != (self.vector.dtype, self.vector.device):
            self.module.to(device=target, dtype=dtype)
            trainable = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
            self._bind(trainable, dtype, target)
        return self

    def train(self, training: bool) -> None:
        """Switch the module between training and evaluation."""
        if self.module.training != training:  # walking through all layers costs as much as one
            self.module.train(training)

    def load(self, params: Tensor) -> Tensor:
        """Copy a vector into the module and return the buffer."""
        if params.data_ptr() != self.vector.data_ptr():
            self.vector.copy_(params)
        return self.vector

    def network(self, loss: object) -> Network | None:
        """Return the hand-written network of this module with a loss, or None."""
        if loss not in self._networks:
            self._networks[loss] = compile_network(self.module, loss)
        return self._networks[loss]

    def views(self, params: Tensor) -> dict[str, Tensor]:
        """Return the vector as named views of the parameters, for `torch.func.functional_call`."""
        return {s.name: params[s.begin : s.end].view(s.shape) for s in self.slots}

    @property
    def mixes_samples(self) -> str | None:
        """The layer through which samples of a batch affect each other, or None."""
        kinds = nn.modules.batchnorm._BatchNorm
        mixing = {type(part).__name__ for part in self.module.modules() if isinstance(part, kinds)}
        if not mixing and self.buffers() is not None:
            mixing = {"buffers"}
        return ", ".join(sorted(mixing)) or None

    def buffers(self) -> Tensor | None:
        """Return the BatchNorm statistics and other trained buffers as one vector, or None.

        A BatchNorm with `momentum=None` weighs a batch by the number of batches so far, so that
        number is one of its statistics: it stays with its client or is averaged as they are.
        Other whole-number buffers change no result, and stay in the module.
        """
        exact = torch.promote_types(self.vector.dtype, torch.float32)  # bfloat16 counts to 256
        parts = [
            buffer.detach().reshape(-1).to(buffer.dtype if buffer.is_floating_point() else exact)
            for buffer in self._moving_buffers()
        ]
        return torch.cat(parts) if parts else None

    def initial_buffers(self) -> Tensor | None:
        """`buffers` as the module came, whatever has been trained with it since."""
        now = self.buffers()
        return None if now is None or self._first_buffers is None else self._first_buffers.to(now)

    def load_buffers(self, values: Tensor) -> None:
        """Set the buffers from one vector; integer buffers are rounded."""
        offset = 0
        for buffer in self._moving_buffers():
            part = values[offset : offset + buffer.numel()].view_as(buffer)
            buffer.copy_(part if buffer.is_floating_point() else part.round())
            offset += buffer.numel()

    def _moving_buffers(self) -> Iterator[Tensor]:
        return (self.module.get_buffer(name) for name in self._moving)


def _moving(module: nn.Module) -> Iterator[str]:
    """Yield the names of the buffers that training changes, which are in the state_dict."""
    counts = {
        id(part.num_batches_tracked)
        for part in module.modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.momentum is None
    }
    kept = module.state_dict(keep_vars=True).keys()
    for name, buffer in module.named_buffers():
        if name in kept and (buffer.is_floating_point() or id(buffer) in counts):
            yield name
