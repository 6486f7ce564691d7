"""The rows of many clients as one tensor, and mini-batches of all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedadmm.core.rng import Key, permutation

FULL_ROWS = 256
"""Rows a client in one pass over all data: bounds the padding beside a much larger client."""


class Batch(NamedTuple):
    """Rows of the first k clients of a stack: tensors (k, rows, ...).

    `weights` (k, rows) is what each row's loss counts, zero for padding; or one number for all.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor | float

    @property
    def clients(self) -> int:
        return self.targets.shape[0]


class StackedRows:
    """Clients with `sizes[i]` rows each, client i's from `begins[i]` on."""

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
    def gather(cls, parts: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> StackedRows:
        """All clients' inputs and targets, one client after the other."""
        sizes = [targets.shape[0] for _, targets in parts]
        begins = [0]
        for size in sizes[:-1]:
            begins.append(begins[-1] + size)
        inputs = torch.cat([inputs for inputs, _ in parts])
        return cls(inputs, torch.cat([targets for _, targets in parts]), sizes, begins, dtype)

    def prepared(self, prepare: Callable[[Tensor], Tensor]) -> StackedRows:
        """The same rows with other inputs, made from all of them at once."""
        inputs = prepare(self._inputs)
        return StackedRows(inputs, self._targets, self.sizes, self._begins, self._dtype)

    def column(self, values: Sequence[float]) -> Tensor:
        """One number a client as a (K, 1) tensor."""
        return torch.tensor(values, dtype=self._dtype, device=self._targets.device).unsqueeze(1)

    def select(self, clients: Sequence[int]) -> StackedRows:
        """Some of the clients, in the given order; the rows stay where they are."""
        sizes = [self.sizes[client] for client in clients]
        begins = [self._begins[client] for client in clients]
        return StackedRows(self._inputs, self._targets, sizes, begins, self._dtype)

    def full(self) -> list[Batch]:
        """All rows of all clients in one or more batches; clients are in order of falling size."""
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
        orders = [
            permutation(key, epoch, size) if size > batch_size else torch.arange(size)
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
            rows = self._take(order[:count, begin : begin + width])
            yield Batch(*rows, self._weights_of(count, begin, width))

    def chosen(self, rows: Sequence[Tensor]) -> Batch:
        """These rows of each of the first clients; the weights are 1, and 0 for padding."""
        index = _padded([one.cpu() for one in rows]).to(self._columns.device)
        counts = torch.tensor([len(one) for one in rows], device=index.device).unsqueeze(1)
        real = torch.arange(index.shape[1], device=index.device) < counts
        begins = self._columns[1, : len(rows), None]
        return Batch(*self._take(index + begins), real.to(self._dtype))

    def _weights_of(self, count: int, begin: int, width: int) -> Tensor | float:
        """1 / (a client's real rows), the same in every epoch."""
        if (count, begin) not in self._weights:
            weights: Tensor | float = 1.0 / width
            if min(self.sizes[:count]) - begin < width:
                real = (self._columns[0, :count, None] - begin).clamp(max=width)
                mask = torch.arange(width, device=real.device) < real
                weights = mask.to(self._dtype) / real
            self._weights[count, begin] = weights
        return self._weights[count, begin]

    def _take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        flat = index.reshape(-1)
        inputs = self._inputs.index_select(0, flat).view(*index.shape, *self._inputs.shape[1:])
        targets = self._targets.index_select(0, flat).view(*index.shape, *self._targets.shape[1:])
        return inputs, targets


def _padded(orders: list[Tensor]) -> Tensor:
    """Equally long rows; the padding is row 0 of the client, which will count nothing."""
    return pad_sequence(orders, batch_first=True)
