"""How many threads torch may use while clients run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads inside the block.

    Threads that wait for each other at the end of every small operation cost more than they
    bring, and on a busy machine far more.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
