"""The embedded default: scikit-learn's 1,797 handwritten digits of 8×8 pixels."""

from __future__ import annotations

import numpy as np
import torch

from fedadmm.core.rng import derive, numpy_generator
from fedadmm.data.dataset import Dataset, Normalise, TrainTest

_TEST_ROWS = 360
"""A fifth of the rows, held out; which ones never changes, so that results can be compared."""


def digits() -> TrainTest:
    """1,437 training and 360 test images, uint8 with values 0 … 16, shape (rows, 1, 8, 8)."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = numpy_generator(derive(0, "digits/test")).permutation(len(labels))
    everything = Dataset(
        torch.from_numpy(images.astype(np.uint8).reshape(-1, 1, 8, 8)),
        torch.from_numpy(labels.astype(np.int64)),
        num_classes=10,
        prepare=Normalise(scale=16.0),
        name="digits",
    )
    return TrainTest(everything.take(order[_TEST_ROWS:]), everything.take(order[:_TEST_ROWS]))
