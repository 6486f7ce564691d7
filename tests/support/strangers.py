"""Parts that are not ours, one a family, named as `support.strangers:Name` in configurations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import fedadmm as fa
from fedadmm.core import trees
from fedadmm.core.contracts import Regularizer
from fedadmm.core.messages import ClientStateStore, Engine, Upload
from fedadmm.core.parts import Positive
from fedadmm.core.problem import Problem
from fedadmm.core.sampling import Sampler
from fedadmm.data import models
from fedadmm.run.client import Job
from fedadmm.run.engines import EngineChoice, Sequential


@dataclass(frozen=True)
class Method(fa.FedProx):
    """FedProx by another name."""

    name: ClassVar[str] = "mine"
    rho: Any = 0.5


@dataclass(frozen=True)
class Needing(fa.FedAvg):
    """A method with a hyper-parameter that has no usual value."""

    size: float


@dataclass(frozen=True)
class Solver(fa.GradientDescent):
    """Gradient descent with a rate of its own."""

    lr: Positive = 0.02


@dataclass(frozen=True)
class Stop(fa.Steps):
    """Two steps."""

    steps: int = 2


@dataclass(frozen=True)
class EveryOther(Sampler):
    """Clients with even numbers, then those with odd ones."""

    def sample(self, seed: Any, round_index: int, clients: int, known: Any = None) -> Sequence[int]:
        return range(round_index % 2, clients, 2)

    def probabilities(self, clients: int) -> NDArray[np.float64]:
        return np.full(clients, 0.5)

    def check(self, clients: int, rounds: int) -> None:
        """Anything goes."""


@dataclass(frozen=True)
class Ridge(Regularizer):
    """0.05 ||x||^2."""

    def value(self, params: Tensor) -> Tensor:
        return 0.05 * params.square().sum()

    def prox(self, params: Tensor, step: float) -> Tensor:
        return params / (1 + 0.1 * step)


@dataclass(frozen=True)
class Median(fa.Aggregator):
    """The median of every entry, which needs each update by itself."""

    def aggregate(self, updates: Iterator[tuple[float, Upload]]) -> Upload | None:
        shares, uploads = zip(*updates, strict=True)
        return trees.map_tensors(
            lambda leaf: sum(shares) * leaf.quantile(0.5, dim=0), trees.stack(uploads)
        )


@dataclass(frozen=True)
class Engineer(EngineChoice):
    """The sequential engine by another name."""

    def start(self, job: Job, store: ClientStateStore) -> Engine:
        return Sequential().start(job, store)


@dataclass(frozen=True)
class Bowls:
    """One bowl a client, around its own number."""

    clients: int = 4

    def load(self) -> Problem:
        eye = torch.eye(2, dtype=torch.float64)
        bowls = [fa.Quadratic(eye, float(i) * eye[0]) for i in range(self.clients)]
        return Problem(bowls, initial=torch.zeros(2, dtype=torch.float64))


@dataclass(frozen=True)
class Halving:
    """1, 1/2, 1/4 …"""

    first: float = 1.0

    def __call__(self, round_index: int) -> float:
        return self.first * 0.5**round_index


def perceptron(inputs: int, classes: int) -> nn.Module:
    """The model of `digits` by another name."""
    return models.mlp(inputs, 32, classes)


@dataclass(frozen=True)
class Counting(fa.Callback):
    """Writes how many records it has seen."""

    file: str = "seen.txt"

    def begin(self, run: Any) -> tuple[Path, list[int]]:
        return run.directory / self.file, []

    def round(self, report: Any, live: tuple[Path, list[int]]) -> None:
        live[1].append(report.record["round"])

    def end(self, summary: Any, live: tuple[Path, list[int]]) -> None:
        live[0].write_text(str(len(live[1])))


@dataclass
class Loose:
    """Not frozen."""


@dataclass(frozen=True)
class Empty:
    """Frozen, and nothing else."""
