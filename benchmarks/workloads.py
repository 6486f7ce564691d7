"""The workloads: what is trained, on how many clients, how often."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedadmm.core.errors import DataError
from fedadmm.core.validation import check

PEERS = ("pfl", "flower", "plain", "jax")


@dataclass(frozen=True)
class Workload:
    """Federated averaging, or FedADMM, of a model over clients with equally many rows."""

    name: str
    model: str
    shape: tuple[int, ...]
    cohort: int
    epochs: int
    lr: float
    rounds: int
    """Rounds that are timed in one repeat."""
    clients: int = 1000
    samples: int = 60
    batch_size: int = 10
    method: str = "fedavg"
    state: str = "memory"
    saved: bool = False
    """Write a checkpoint every ten rounds."""
    warm_up: int = 1
    target: float = 0.0
    """The accuracy on held-out rows that ends the run; the whole command is timed then."""
    peers: tuple[str, ...] = PEERS[:3]

    def specification(self, folder: Path, cores: int) -> dict[str, Any]:
        """What a contender's process is told."""
        return asdict(self) | {"folder": str(folder), "cores": cores, "seed": 0}


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("cnn", "cnn1", (1, 28, 28), cohort=20, epochs=5, lr=0.01, rounds=2),
        Workload(
            "mlp", "mlp-60-32-10", (60,), cohort=100, epochs=20, lr=0.05, rounds=2, peers=PEERS
        ),
        Workload(
            "logistic",
            "mlp-784-10",
            (1, 28, 28),
            cohort=10,
            epochs=1,
            lr=0.03,
            rounds=100,
            peers=PEERS,
        ),
        Workload(
            *("mlp-10k", "mlp-784-128-10", (1, 28, 28)),
            cohort=100,
            epochs=1,
            lr=0.1,
            rounds=30,
            clients=10_000,
            samples=10,
            peers=("pfl", "plain", "jax"),
        ),
        Workload(
            *("cifar-cnn", "cnn2", (3, 32, 32)),
            cohort=10,
            epochs=1,
            lr=0.01,
            rounds=2,
            clients=20,
            samples=500,
            batch_size=50,
        ),
        Workload(
            *("tutorial-cnn", "tutorial-cnn", (3, 32, 32)),
            cohort=10,
            epochs=5,
            lr=0.01,
            rounds=2,
            clients=100,
            samples=500,
            batch_size=50,
        ),
        Workload(
            *("resnet18", "resnet18", (3, 32, 32)),
            cohort=10,
            epochs=1,
            lr=0.01,
            rounds=1,
            clients=20,
            samples=50,
            peers=("pfl", "plain"),
        ),
        Workload(
            *("transformer", "transformer", (64,)),
            cohort=10,
            epochs=1,
            lr=0.01,
            rounds=2,
            clients=100,
            peers=("pfl", "plain"),
        ),
        Workload(
            *("to-accuracy", "mlp-784-128-10", (1, 28, 28)),
            cohort=10,
            epochs=5,
            lr=0.1,
            rounds=200,
            clients=100,
            samples=600,
            warm_up=0,
            target=0.9,
            peers=("pfl", "flower", "plain"),
        ),
        Workload(
            "growth", "mlp-60-32-10", (60,), cohort=100, epochs=1, lr=0.05, rounds=20, peers=()
        ),
    )
}
GROWTH = (1_000, 1_000_000)
"""The numbers of clients of the growth workload."""


def find(name: str) -> Workload:
    """The named workload."""
    check("benchmarks", "workload", name, Literal[tuple(WORKLOADS)])
    return WORKLOADS[name]


def write_rows(workload: Workload, folder: Path) -> str:
    """Write `inputs.npy` and `targets.npy`, client after client; say where they come from.

    Images are MNIST's where it is at hand, else random pixels: time does not depend on them.  A
    sample of the transformer is a sequence of bytes.
    """
    count = 60_000 if workload.name == "growth" else workload.clients * workload.samples
    if workload.target:
        return _write_shards(workload, folder)
    draws = np.random.default_rng(0)
    targets = draws.integers(0, 10, count)
    source = "random rows"
    if workload.model == "transformer":
        inputs = draws.integers(0, 256, (count, *workload.shape))
    elif len(workload.shape) == 3:
        inputs = draws.integers(0, 256, (count, *workload.shape), dtype=np.uint8)
        mnist = _mnist() if workload.shape[0] == 1 and count <= 60_000 else None
        if mnist is not None:
            (inputs, targets), source = mnist, "MNIST"
    else:
        inputs = draws.normal(size=(count, *workload.shape)).astype(np.float32)
    np.save(folder / "inputs.npy", inputs)
    np.save(folder / "targets.npy", targets)
    return source


def _write_shards(workload: Workload, folder: Path) -> str:
    """MNIST in two shards of one class a client, as the problem of that name splits it."""
    from fedadmm.data.problems import load

    problem = load("mnist", clients=workload.clients, partition="shards", model=workload.model)
    parts = [problem.data.train(client) for client in range(workload.clients)]
    rows = (torch.cat([part[place] for part in parts]) for place in (0, 1))
    test: Any = problem.test
    for name, tensor in zip(
        ("inputs", "targets", "test_inputs", "test_targets"),
        (*rows, test.inputs, test.targets),
        strict=True,
    ):
        np.save(folder / f"{name}.npy", tensor.numpy())
    return "MNIST"


def read_specification() -> SimpleNamespace:
    """What this contender's process was told: the workload, its folder and the cores to use."""
    return SimpleNamespace(**json.loads(Path(sys.argv[1]).read_text()))


def read_rows(spec: SimpleNamespace) -> tuple[Tensor, Tensor]:
    """The rows that `write_rows` wrote, as floats, and their targets."""
    inputs, targets = (
        torch.from_numpy(np.load(Path(spec.folder) / f"{name}.npy"))
        for name in ("inputs", "targets")
    )
    return inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs, targets


def _mnist() -> tuple[Any, Any] | None:
    """MNIST's training rows, or None when they are not on this machine: nothing is fetched."""
    from fedadmm.data.download import VARIABLE
    from fedadmm.data.problems import load

    if VARIABLE not in os.environ:
        return None
    try:
        problem = load("mnist", clients=1000, partition="iid", model="cnn1")
    except DataError:
        return None
    rows = problem.data.samples
    return rows.inputs.numpy(), rows.targets.numpy()
