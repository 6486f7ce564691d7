"""Set rows aside for testing."""

from __future__ import annotations

import numpy as np

from fedadmm.data.dataset import Dataset, TrainTest
from fedadmm.errors import DataError, check_range
from fedadmm.rng import derive, numpy_generator


def hold_out(rows: Dataset, fraction: float = 0.2, seed: int = 0) -> TrainTest:
    """Split off a random part of the rows, of every natural client's rows where there are any.

    A client with a single row keeps it for training.
    """
    check_range("hold_out", "fraction", fraction, 0.0, 1.0, open_low=True, open_high=True)
    groups = np.zeros(len(rows), np.int64) if rows.groups is None else rows.groups
    shuffled = numpy_generator(derive(seed, "hold-out")).permutation(len(rows))
    order = shuffled[np.argsort(groups[shuffled], kind="stable")]
    sizes = np.bincount(groups)
    begins = np.cumsum(sizes) - sizes
    rank = np.arange(len(rows)) - np.repeat(begins, sizes)
    aside = np.minimum(np.ceil(sizes * fraction), np.maximum(sizes - 1, 0))
    test = rank < np.repeat(aside, sizes)
    if not bool(test.any()):
        raise DataError(f"{rows.name}: no client has two rows, so that none can be held out")
    return TrainTest(rows.take(np.sort(order[~test])), rows.take(np.sort(order[test])))
