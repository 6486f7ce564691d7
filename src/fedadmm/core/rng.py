"""Random numbers without global state.

Every random number is generated from a key that is derived from (seed, purpose, round, client …).
The same seed therefore gives the same mini-batches, cohorts and noise on every engine, in any
order, and after a resume: no generator has a state that would have to be stored.
"""

from __future__ import annotations

import hashlib
import os
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Key = int
"""A 63-bit integer, from which `derive` computes other keys; it seeds a random generator."""


def derive(key: Key, purpose: str, *indices: int) -> Key:
    """Return a key for one purpose, independent of those of other purposes and indices."""
    text = f"{key}/{purpose}/{'/'.join(map(str, indices))}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(key: Key) -> torch.Generator:
    """Return a torch generator on the CPU, so that all devices get the same numbers."""
    return torch.Generator().manual_seed(key)


def numpy_generator(key: Key) -> np.random.Generator:
    """Return a NumPy generator, for distributions that torch does not provide."""
    return np.random.Generator(np.random.PCG64(key))


def uniform(key: Key) -> float:
    """Return a uniform random number from [0, 1)."""
    return float(torch.rand((), generator=generator(key), dtype=torch.float64))


def permutation(key: Key, epoch: int, length: int, draws: torch.Generator | None = None) -> Tensor:
    """Return the order of a client's samples in an epoch.

    Args:
        key: key of the solve.
        epoch: index of the epoch.
        length: number of samples.
        draws: a generator to be seeded anew, because creating one takes as long as the permutation.
    """
    draws = torch.Generator() if draws is None else draws
    return torch.randperm(length, generator=draws.manual_seed(derive(key, "epoch", epoch)))


class KeyedGenerator(NamedTuple):
    """Random numbers for privacy: from a key in a simulation, else from the system's entropy."""

    key: Key | None

    def uniform(self, count: int, purpose: str) -> Tensor:
        """Return independent double-precision numbers from (0, 1), or from [0, 1) with a key."""
        if self.key is not None:
            drawn = generator(derive(self.key, purpose))
            return torch.rand(count, generator=drawn, dtype=torch.float64)
        words = torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64)
        return ((words >> 11) & (2**53 - 1)).to(torch.float64).add(0.5).div(2.0**53)

    def normal(self, like: Tensor, purpose: str) -> Tensor:
        """Return independent standard normal numbers in the shape of `like`."""
        if self.key is not None:
            drawn = generator(derive(self.key, purpose))
            made = torch.randn(like.shape, generator=drawn, dtype=torch.float64)
        else:
            made = torch.special.ndtri(self.uniform(like.numel(), purpose)).reshape(like.shape)
        return made.to(like.device, like.dtype)
