"""Data: where it comes from, how it is read, and how it is split among clients."""

from fedadmm.data import partitions
from fedadmm.data.dataset import Dataset, Normalise, TrainTest
from fedadmm.data.digits import digits
from fedadmm.data.federated import FederatedData
from fedadmm.data.partitions import Partition

__all__ = [
    "Dataset",
    "FederatedData",
    "Normalise",
    "Partition",
    "TrainTest",
    "digits",
    "partitions",
]
