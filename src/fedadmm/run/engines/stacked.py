"""The objectives of many clients as one: parameters (K, D) in, gradients (K, D) out."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.utils.rnn import pad_sequence

from fedadmm.core import trees
from fedadmm.core.objectives.flat import FlatModule, Slot
from fedadmm.core.objectives.layers import Sink
from fedadmm.core.objectives.model import Loss
from fedadmm.core.objectives.networks import Network
from fedadmm.core.rng import Key, permutation
from fedadmm.core.solvers.local_loss import LocalLoss, Objectives, OwnTerms, Stepper

FULL_ROWS = 256
"""Largest number of samples per client in a pass, which bounds padding for larger clients."""


class Batch(NamedTuple):
    """Samples of the first k clients of a stack: tensors (k, samples, ...).

    `weights` (k, samples) are those of the samples' losses, zero for padding; or one number.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor | float

    @property
    def clients(self) -> int:
        return self.targets.shape[0]


class StackedSamples:
    """Clients with `sizes[i]` samples each, client i's from `begins[i]` on."""

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        sizes: Sequence[int],
        begins: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        self._inputs = inputs
        self._targets = targets
        self._dtype = dtype
        self.sizes = list(sizes)
        self._begins = list(begins)
        self._columns = torch.tensor([self.sizes, self._begins], device=targets.device)
        self._full: list[Batch] | None = None
        self._weights: dict[tuple[int, int], Tensor | float] = {}

    @classmethod
    def gather(
        cls,
        parts: Sequence[tuple[Tensor, Tensor]],
        dtype: torch.dtype,
        prepare: Callable[[Tensor], Tensor] | None = None,
    ) -> StackedSamples:
        """All clients' inputs and targets, one client after the other.

        `prepare` makes the inputs from the stored ones, all at once.
        """
        sizes = [targets.shape[0] for _, targets in parts]
        begins = [0, *itertools.accumulate(sizes[:-1])]
        inputs = torch.cat([inputs for inputs, _ in parts])
        targets = torch.cat([targets for _, targets in parts])
        return cls(prepare(inputs) if prepare else inputs, targets, sizes, begins, dtype)

    def column(self, values: Sequence[float]) -> Tensor:
        """One number a client as a (K, 1) tensor."""
        return torch.tensor(values, dtype=self._dtype, device=self._targets.device).unsqueeze(1)

    def select(self, clients: Sequence[int]) -> StackedSamples:
        """Some of the clients, in the given order; the samples stay where they are."""
        sizes = [self.sizes[client] for client in clients]
        begins = [self._begins[client] for client in clients]
        return StackedSamples(self._inputs, self._targets, sizes, begins, self._dtype)

    def full(self) -> list[Batch]:
        """Yield all samples of all clients in batches; clients are in order of decreasing size."""
        if self._full is None:
            self._full = [self._all_from(b) for b in range(0, self.sizes[0], FULL_ROWS)]
        return self._full

    def _all_from(self, begin: int) -> Batch:
        count = sum(size > begin for size in self.sizes)
        width = min(FULL_ROWS, self.sizes[0] - begin)
        sizes, begins = self._columns[:, :count, None]
        places = torch.arange(begin, begin + width, device=sizes.device)
        real = places < sizes
        batch = self._take(begins + places * real)
        if min(self.sizes[:count]) == self.sizes[0]:
            return Batch(*batch, 1.0 / self.sizes[0])
        return Batch(*batch, real.to(self._dtype) / sizes)

    def epoch(
        self, keys: Sequence[Key], epoch: int, batch_size: int, limits: Sequence[int]
    ) -> Iterator[Batch]:
        """The mini-batches of one epoch; client i makes `limits[i]` steps, which never rise."""
        draws = torch.Generator()
        orders = [
            permutation(key, epoch, size, draws) if size > batch_size else torch.arange(size)
            for key, size in zip(keys, self.sizes, strict=True)
        ]
        order = torch.stack(orders) if len(set(self.sizes)) == 1 else _padded(orders)
        order = order.to(self._columns.device) + self._columns[1, :, None]
        count = len(limits)
        for step in range(limits[0]):
            while limits[count - 1] <= step:
                count -= 1
            begin = step * batch_size
            width = min(batch_size, max(self.sizes[:count]) - begin)
            samples = self._take(order[:count, begin : begin + width])
            if (count, begin) not in self._weights:  # 1 / (a client's real samples) in every epoch
                weights: Tensor | float = 1.0 / width
                if min(self.sizes[:count]) - begin < width:
                    real = (self._columns[0, :count, None] - begin).clamp(max=width)
                    mask = torch.arange(width, device=real.device) < real
                    weights = mask.to(self._dtype) / real
                self._weights[count, begin] = weights
            yield Batch(*samples, self._weights[count, begin])

    def chosen(self, samples: Sequence[Tensor]) -> Batch:
        """Return the given samples of the first clients with weights: 1, or 0 for padding."""
        index = _padded([one.cpu() for one in samples]).to(self._columns.device)
        counts = torch.tensor([len(one) for one in samples], device=index.device).unsqueeze(1)
        real = torch.arange(index.shape[1], device=index.device) < counts
        begins = self._columns[1, : len(samples), None]
        return Batch(*self._take(index + begins), real.to(self._dtype))

    def _take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        flat = index.reshape(-1)
        inputs = self._inputs.index_select(0, flat).view(*index.shape, *self._inputs.shape[1:])
        targets = self._targets.index_select(0, flat).view(*index.shape, *self._targets.shape[1:])
        return inputs, targets


def _padded(orders: list[Tensor]) -> Tensor:
    """Equally long samples; the padding is sample 0 of the client, which will count nothing."""
    return pad_sequence(orders, batch_first=True)


Core = Callable[[Tensor, Batch], Tensor]
"""The gradient of sum over samples of weight * loss, for k clients at once: a new (k, D) tensor.

A core leaves the ridge term out."""


class NetworkCore:
    """Hand-written passes."""

    def __init__(self, network: Network, slots: Sequence[Slot]) -> None:
        self.network = network
        self.slots = tuple(slots)

    def blocks(self, params: Tensor) -> list[Tensor]:
        """Contiguous blocks (k, *shape), one a parameter."""
        return [
            params[:, slot.begin : slot.end].reshape(len(params), *slot.shape).contiguous()
            for slot in self.slots
        ]

    def __call__(self, params: Tensor, batch: Batch) -> Tensor:
        """The gradient, written into blocks and joined."""
        blocks = self.blocks(params)
        found = [torch.empty_like(block) for block in blocks]
        self.network.differentiate(blocks, *batch, Sink(found, 1.0, keep=False))
        return joined(found)


def joined(blocks: Sequence[Tensor]) -> Tensor:
    """Blocks (k, *shape) as one (k, D) tensor."""
    return torch.cat([block.flatten(1) for block in blocks], dim=1)


def module_core(flat: FlatModule, loss: Loss) -> Core:
    """Any module without buffers and dropout, through `torch.func`."""

    def row_loss(output: Tensor, target: Tensor) -> Tensor:
        return loss(output.unsqueeze(0), target.unsqueeze(0))

    def client_loss(params: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        outputs: Any = functional_call(flat.module, flat.views(params), (inputs,))
        return (vmap(row_loss)(outputs, targets) * weights).sum()

    gradients = vmap(grad(client_loss))

    def core(params: Tensor, batch: Batch) -> Tensor:
        if not flat.module.training:
            flat.module.train()
        weights = torch.as_tensor(batch.weights, dtype=params.dtype, device=params.device)
        weights = weights.expand(batch.targets.shape[:2])
        result: Tensor = gradients(params, batch.inputs, batch.targets, weights)
        return result

    return core


def least_squares_core(params: Tensor, batch: Batch) -> Tensor:
    """X'(w * (Xp - y))."""
    return _pulled_back(_scores(params, batch) - batch.targets, batch)


def logistic_core(params: Tensor, batch: Batch) -> Tensor:
    """X'(w * (sigmoid(Xp) - y))."""
    error = torch.sigmoid(_scores(params, batch)) - batch.targets.to(params.dtype)
    return _pulled_back(error, batch)


def quadratic_core(params: Tensor, batch: Batch) -> Tensor:
    """Ap - b; a client is one sample, whose input is A and whose target is b."""
    return torch.bmm(batch.inputs[:, 0], params.unsqueeze(-1))[..., 0] - batch.targets[:, 0]


def _scores(params: Tensor, batch: Batch) -> Tensor:
    return torch.bmm(batch.inputs, params.unsqueeze(-1)).squeeze(-1)


def _pulled_back(error: Tensor, batch: Batch) -> Tensor:
    return torch.bmm((error * batch.weights).unsqueeze(1), batch.inputs).squeeze(1)


class StackedObjective(Objectives):
    """f_i of many clients, in order of falling size where all their samples are wanted.

    What stacks has no buffers, and behaves in training as it does in evaluation.
    """

    def __init__(self, core: Core, samples: StackedSamples, ridge: Tensor | None = None) -> None:
        self.core = core
        self.samples = samples
        self.sizes = samples.sizes
        self._ridge = ridge

    def batches(
        self, keys: Sequence[Key], epoch: int, batch_size: int, limits: Sequence[int]
    ) -> Iterator[tuple[int, Batch]]:
        return ((b.clients, b) for b in self.samples.epoch(keys, epoch, batch_size, limits))

    def plain_stepper(self, loss: LocalLoss, lr: Tensor | float) -> BlockStepper | None:
        # Blocks have one rate for all clients.
        if isinstance(self.core, NetworkCore) and not isinstance(lr, Tensor):
            return BlockStepper(self, self.core, loss, lr)
        return None

    def select(self, clients: Sequence[int]) -> StackedObjective:
        ridge = None if self._ridge is None else self._ridge[list(clients)]
        return StackedObjective(self.core, self.samples.select(clients), ridge)

    def gradient(self, params: Tensor, samples: Batch | None = None) -> Tensor:
        if samples is not None:
            total = self.core(params, samples)
        else:
            first, *more = self.samples.full()
            total = self.core(params, first)
            for part in more:
                total[: part.clients] += self.core(params[: part.clients], part)
        if self._ridge is not None:
            total.addcmul_(self._ridge[: len(params)], params)
        return total

    def sample_gradients(self, params: Tensor, samples: Sequence[Tensor]) -> Tensor:
        # Every sample as a client of its own.
        batch = self.samples.chosen(samples)
        clients, width = batch.targets.shape[:2]
        single = Batch(
            batch.inputs.flatten(0, 1)[:, None], batch.targets.flatten(0, 1)[:, None], 1.0
        )
        found = self.core(params.repeat_interleave(width, 0), single)
        found = found.view(clients, width, -1)
        if self._ridge is not None:
            found.add_((self._ridge[:clients] * params).unsqueeze(1))
        return found * torch.as_tensor(batch.weights).unsqueeze(-1)


class BlockStepper(Stepper):
    """Plain SGD with hand-written passes: gradients go straight into the parameters.

    A matrix product can only be accumulated into contiguous memory, so the layers' parameters
    are kept apart while the solve lasts.
    """

    def __init__(self, objective: StackedObjective, core: NetworkCore, loss: LocalLoss, lr: float):
        self._objective = objective
        self._core = core
        self._lr = lr
        self._terms = OwnTerms.of(loss, lr)
        start = loss.problem.start
        self._blocks = [
            start[:, slot.begin : slot.end]
            .clone(memory_format=torch.contiguous_format)
            .view(len(start), *slot.shape)
            for slot in core.slots
        ]

    @property
    def params(self) -> Tensor:
        return joined(self._blocks)

    def result(self) -> Tensor:
        return self.params

    def step(self, samples: Batch | None) -> None:
        if samples is not None:
            self._accumulate(samples)
            return
        parts = self._objective.samples.full()
        if len(parts) == 1:
            self._accumulate(parts[0])
            return
        gradient = self._objective.gradient(self.params)
        for index, (block, slot) in enumerate(zip(self._blocks, self._core.slots, strict=True)):
            self._pull(index)
            block.sub_(gradient[:, slot.begin : slot.end].view_as(block), alpha=self._lr)

    def select(self, clients: Tensor | slice) -> BlockStepper:
        chosen = copy.copy(self)
        chosen._blocks = [block[clients] for block in self._blocks]
        chosen._terms = trees.select(self._terms, clients)
        if isinstance(clients, Tensor):
            chosen._objective = self._objective.select(clients.tolist())
        return chosen

    def _accumulate(self, batch: Batch) -> None:
        before = None if self._terms is None else self._pull
        sink = Sink(self._blocks, -self._lr, True, before)
        self._core.network.differentiate(self._blocks, *batch, sink)

    def _pull(self, index: int) -> None:
        if self._terms is not None:
            slot, block = self._core.slots[index], self._blocks[index]
            self._terms.pull(block.view(len(block), -1), slot.begin, slot.end)
