"""Random numbers without global state.

Every draw comes from a key derived from (seed, purpose, round, client …).  The same seed
therefore gives the same batches, cohorts and coins on every engine, in every order, and
after a resume: there is no generator whose position could be lost.
"""

from __future__ import annotations

import hashlib
import os
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Key = int
"""A 63-bit integer; `derive` makes more of them, `generator` and `numpy_generator` use them."""


def derive(key: Key, purpose: str, *indices: int) -> Key:
    """A new key for one purpose, independent of every other (purpose, indices)."""
    text = f"{key}/{purpose}/{'/'.join(map(str, indices))}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(key: Key) -> torch.Generator:
    """A torch generator on the CPU; draws are moved to a device afterwards, so devices agree."""
    return torch.Generator().manual_seed(key)


def numpy_generator(key: Key) -> np.random.Generator:
    """A numpy generator, for draws that torch has no good routine for."""
    return np.random.Generator(np.random.PCG64(key))


def uniform(key: Key) -> float:
    """One number from [0, 1)."""
    return float(torch.rand((), generator=generator(key), dtype=torch.float64))


def permutation(key: Key, epoch: int, length: int, draws: torch.Generator | None = None) -> Tensor:
    """The order in which one epoch visits the samples of one client.

    A generator costs as much as the order: whoever wants many may give one, which is seeded anew.
    """
    draws = torch.Generator() if draws is None else draws
    return torch.randperm(length, generator=draws.manual_seed(derive(key, "epoch", epoch)))


class KeyedGenerator(NamedTuple):
    """Random numbers for privacy: from a key in a simulation, else from the machine's entropy."""

    key: Key | None

    def uniform(self, count: int, purpose: str) -> Tensor:
        """Independent double-precision numbers from (0, 1), or from [0, 1) with a key."""
        if self.key is not None:
            drawn = generator(derive(self.key, purpose))
            return torch.rand(count, generator=drawn, dtype=torch.float64)
        words = torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64)
        return ((words >> 11) & (2**53 - 1)).to(torch.float64).add(0.5).div(2.0**53)

    def normal(self, like: Tensor, purpose: str) -> Tensor:
        """Independent standard normal numbers."""
        if self.key is not None:
            drawn = generator(derive(self.key, purpose))
            made = torch.randn(like.shape, generator=drawn, dtype=torch.float64)
        else:
            made = torch.special.ndtri(self.uniform(like.numel(), purpose)).reshape(like.shape)
        return made.to(like.device, like.dtype)
