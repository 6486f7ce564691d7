"""What a process that runs seeds does; not in `__main__`, where other processes do not find it."""

from __future__ import annotations

import gc
import warnings
from collections import Counter

Result = tuple[int, Counter[str], str]


def one(seed: int) -> Result:
    """A seed's counts, and what did not hold in it."""
    from .scenario import run_seed

    if seed % 16 == 0:
        gc.collect()
    try:
        return seed, run_seed(seed), ""
    except Exception as error:
        return seed, Counter(), f"{type(error).__name__}: {error}"


def prepare() -> None:
    """Flower's own dependencies warn while they load; and seeds share the cores."""
    import torch

    warnings.simplefilter("ignore")
    from . import scenario  # noqa: F401

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # what was imported is never garbage
    gc.disable()  # looking for it at any time takes a quarter of a seed
