"""Data sets: download, loading, preparation and partitioning among clients.

Names are imported on first use, so that data sets can be listed without importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_EXPORTS = {
    "fedadmm.data.dataset": "Dataset FederatedData Normalise TrainTest hold_out",
    "fedadmm.data.loaders.adapters": "from_hugging_face from_partitioner from_torch",
    "fedadmm.data.loaders.leaf": "femnist",
    "fedadmm.data.loaders.heart": "heart",
    "fedadmm.data.loaders.pictures": (
        "cifar10 cifar10_small digits fashion_mnist idx_folder mnist mnist_writers"
    ),
    "fedadmm.data.loaders.tabular": "tabular",
    "fedadmm.data.partitions": "Partition",
    "fedadmm.data.heterogeneity": "Summary summarise",
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names.split()}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'fedadmm.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
