"""Partitions of samples among clients, as pure functions of (labels or groups, clients, seed).

Each function returns a `Partition`: disjoint lists of sample indices, one per client, in random
order.  Unless stated otherwise, each sample belongs to a client.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedadmm.core.atomic_files import make_directory, replacing
from fedadmm.core.errors import DataError, ParameterError
from fedadmm.core.parts import Count, Natural, NotNegative, Positive, checked_arguments
from fedadmm.core.rng import Key, derive, numpy_generator
from fedadmm.core.validation import check
from fedadmm.data.checked_files import read_npz

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Partition:
    """Disjoint lists of sample indices: client i has `indices[offsets[i] : offsets[i + 1]]`."""

    indices: Indices
    offsets: Indices

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Indices:
        if not -len(self) <= client < len(self):
            raise IndexError(client)
        begin, end = self.offsets[client % len(self)], self.offsets[client % len(self) + 1]
        return self.indices[begin:end]

    def __iter__(self) -> Iterator[Indices]:
        return (self[client] for client in range(len(self)))

    @property
    def sizes(self) -> Indices:
        """The number of samples of each client."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> Indices:
        """The client of each entry of `indices`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def save(self, path: str | Path) -> None:
        """Write the partition as .npz, atomically."""
        make_directory(Path(path).parent)
        with replacing(Path(path)) as stream:
            np.savez_compressed(stream, indices=self.indices, offsets=self.offsets)

    @classmethod
    def load(cls, path: str | Path) -> Partition:
        """Read a file written by `save`; a DataError if it is not a valid partition."""
        arrays = read_npz(Path(path), ("indices", "offsets"))
        indices, offsets = arrays["indices"], arrays["offsets"]
        sound = (
            indices.dtype == np.int64
            and offsets.dtype == np.int64
            and indices.ndim == offsets.ndim == 1
            and len(offsets) >= 2
            and offsets[0] == 0
            and offsets[-1] == len(indices)
            and bool((np.diff(offsets) >= 0).all())
            and bool((indices >= 0).all())
            and len(np.unique(indices)) == len(indices)
        )
        if not sound:
            raise DataError(
                f"{path}: indices, offsets: got invalid arrays, expected disjoint sample indices "
                "and non-decreasing offsets."
            )
        return cls(indices, offsets)


def iid(num_samples: int, clients: int, seed: Key) -> Partition:
    """Assign random samples to clients of equal sizes, up to one sample."""
    _check_enough("iid", num_samples, clients)
    order = _generator(seed, "iid").permutation(num_samples)
    return Partition(order, _even_offsets(num_samples, clients))


@checked_arguments
def shards(labels: ArrayLike, clients: int, seed: Key, *, per_client: Count = 2) -> Partition:
    """Sort by label, cut into per_client * clients shards, assign per_client shards to each client.

    As in McMahan et al. (2017) and Gong et al.  Shards differ in size by at most one sample, so
    that any number of clients is possible and all samples are assigned.
    """
    values = _labels("shards", labels, clients)
    count = per_client * clients
    if count > len(values):
        raise ParameterError(
            f"shards: samples: got {len(values)}, expected at least {count} for {clients} clients "
            f"with {per_client} shards each."
        )
    order, generator = _label_sorted(values, seed, "shards")
    return _deal(order, count, np.full(clients, per_client), generator)


@checked_arguments
def dirichlet(
    labels: ArrayLike, clients: int, seed: Key, *, alpha: Positive = 0.5, min_size: Natural = 1
) -> Partition:
    """Divide each label among the clients in proportions drawn from Dirichlet(alpha).

    A small alpha gives few labels per client, a large alpha approaches iid.  Clients below
    `min_size` receive random samples of the currently largest client, so that a partition exists
    whenever there are clients * min_size samples.
    """
    values = _labels("dirichlet", labels, clients)
    if clients * min_size > len(values):
        raise ParameterError(
            f"dirichlet: samples: got {len(values)}, expected at least {clients * min_size} for "
            f"{clients} clients with min_size {min_size}."
        )
    order, generator = _label_sorted(values, seed, "dirichlet")
    owners = np.empty(len(values), np.int64)
    begin = 0
    for count in np.unique(values, return_counts=True)[1]:
        mix = generator.dirichlet(np.full(clients, alpha))
        cuts = np.floor(np.cumsum(mix) * count + 0.5).astype(np.int64).clip(0, count)
        cuts[-1] = count
        owners[begin : begin + count] = np.repeat(np.arange(clients), np.diff(cuts, prepend=0))
        begin += count
    _fill_up(owners, clients, min_size, generator)
    return _by_owner(order, owners, clients, generator)


@checked_arguments
def imbalanced(
    labels: ArrayLike, clients: int, seed: Key, *, shards: Count = 10_000, members: Count = 2
) -> Partition:
    """Imbalanced sizes of Gong et al.: a client in group j has j shards, the last group the rest.

    The label-sorted samples are cut into `shards` shards; the clients form groups of `members`.
    With 200 clients, 10,000 shards and groups of two, 99 groups take 9,900 shards and the two
    members of the last group 50 each.
    """
    values = _labels("imbalanced", labels, clients)
    if clients % members:
        raise ParameterError(
            f"imbalanced: clients: got {clients}, expected a multiple of members ({members})."
        )
    groups = clients // members
    counts = np.repeat(np.arange(1, groups + 1), members)
    rest = shards - int(counts[:-members].sum())
    if rest < members or shards > len(values):
        raise ParameterError(
            f"imbalanced: shards: got {shards}, expected at least {shards - rest + members} for "
            f"{clients} clients in groups of {members}, and at most {len(values)}, the number of "
            "samples."
        )
    counts[-members:] = rest // members
    counts[clients - rest % members :] += 1
    order, generator = _label_sorted(values, seed, "imbalanced")
    return _deal(order, shards, counts, generator)


@checked_arguments
def lognormal(
    num_samples: int, clients: int, seed: Key, *, sigma: NotNegative = 1.0, min_size: Count = 1
) -> Partition:
    """Assign random samples to clients of sizes proportional to LogNormal(0, sigma).

    Each client has at least `min_size` samples.
    """
    spare = num_samples - clients * min_size
    if spare < 0:
        raise ParameterError(
            f"lognormal: samples: got {num_samples}, expected at least {clients * min_size} for "
            f"{clients} clients with min_size {min_size}."
        )
    generator = _generator(seed, "lognormal")
    share = generator.lognormal(0.0, sigma, clients)
    cuts = np.floor(np.cumsum(share / share.sum()) * spare + 0.5).astype(np.int64)
    cuts[-1] = spare
    offsets = np.concatenate([[0], cuts + min_size * np.arange(1, clients + 1)])
    return Partition(generator.permutation(num_samples), offsets)


def natural(groups: ArrayLike, clients: int | None, seed: Key) -> Partition:
    """Make each group (writer, hospital, speaker) one client, in the order of the group indices.

    With fewer clients than groups, a random subset of groups is used and the other samples are left
    out; None uses all groups.
    """
    values = np.asarray(groups)
    present = np.unique(values)
    wanted = len(present) if clients is None else clients
    check("natural", "clients", wanted, Count)
    if wanted > len(present):
        raise ParameterError(
            f"natural: clients: got {wanted}, expected at most {len(present)} (groups)."
        )
    generator = _generator(seed, "natural")
    chosen = np.sort(generator.choice(present, wanted, replace=False))
    position = np.searchsorted(chosen, values).clip(max=wanted - 1)
    samples = np.flatnonzero(chosen[position] == values)
    return _by_owner(samples, position[samples], wanted, generator)


def _generator(seed: Key, name: str) -> np.random.Generator:
    return numpy_generator(derive(seed, f"partition/{name}"))


def _check_enough(name: str, samples: int, clients: int) -> None:
    check(name, "clients", clients, Count)
    if clients > samples:
        raise ParameterError(
            f"{name}: clients: got {clients}, expected at most {samples}, the number of samples."
        )


def _labels(name: str, labels: ArrayLike, clients: int) -> NDArray[np.int64]:
    values = np.asarray(labels)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise DataError(
            f"{name}: labels: got {values.dtype} of shape {values.shape}, expected one integer per "
            "sample."
        )
    _check_enough(name, len(values), clients)
    return values.astype(np.int64, copy=False)


def _label_sorted(
    labels: NDArray[np.int64], seed: Key, name: str
) -> tuple[Indices, np.random.Generator]:
    """Return sample indices sorted by label, in random order within a label."""
    generator = _generator(seed, name)
    shuffled = generator.permutation(len(labels))
    return shuffled[np.argsort(labels[shuffled], kind="stable")], generator


def _even_offsets(samples: int, parts: int) -> Indices:
    return np.arange(parts + 1, dtype=np.int64) * samples // parts


def _deal(
    order: Indices, count: int, per_client: Indices, generator: np.random.Generator
) -> Partition:
    """Cut `order` into `count` shards and assign `per_client[i]` random shards to client i."""
    owner_of_shard = np.empty(count, np.int64)
    owner_of_shard[generator.permutation(count)] = np.repeat(np.arange(len(per_client)), per_client)
    owners = np.repeat(owner_of_shard, np.diff(_even_offsets(len(order), count)))
    return _by_owner(order, owners, len(per_client), generator)


def _by_owner(
    samples: Indices, owners: Indices, clients: int, generator: np.random.Generator
) -> Partition:
    """Return the partition by the client of each sample, in random order within a client."""
    shuffle = generator.permutation(len(samples))
    order = shuffle[np.argsort(owners[shuffle], kind="stable")]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=clients))])
    return Partition(samples[order], offsets)


def _fill_up(owners: Indices, clients: int, least: int, generator: np.random.Generator) -> None:
    """Move random samples from the largest clients until each client has at least `least`."""
    sizes = np.bincount(owners, minlength=clients)
    poor = np.flatnonzero(sizes < least)
    if not len(poor):
        return
    held = _by_owner(np.arange(len(owners)), owners, clients, generator)
    samples_of = {c: held[c].tolist() for c in np.flatnonzero(sizes > least).tolist()}
    rich = [(-len(samples), client) for client, samples in samples_of.items()]
    heapq.heapify(rich)
    for client in np.repeat(poor, least - sizes[poor]).tolist():
        negative_size, donor = heapq.heappop(rich)
        owners[samples_of[donor].pop()] = client
        heapq.heappush(rich, (negative_size + 1, donor))
