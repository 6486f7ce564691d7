"""What the peers share: the rows, the models and the report.

These scripts run in other environments, in which fedadmm need not exist.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def specification() -> SimpleNamespace:
    """The workload that the command line names."""
    return SimpleNamespace(**json.loads(Path(sys.argv[1]).read_text()))


def rows(spec: SimpleNamespace) -> tuple[Tensor, Tensor]:
    """Inputs (clients, samples, ...) as floats and targets (clients, samples)."""
    inputs = torch.from_numpy(np.load(Path(spec.folder) / "inputs.npy"))
    targets = torch.from_numpy(np.load(Path(spec.folder) / "targets.npy"))
    if inputs.dtype == torch.uint8:
        inputs = inputs.float().div_(255)
    shape = (spec.clients, spec.samples)
    return inputs.view(*shape, *inputs.shape[1:]), targets.view(shape)


def model(spec: SimpleNamespace) -> nn.Module:
    """The workload's model."""
    torch.manual_seed(0)
    if spec.model == "cnn1":
        return nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 512),
            nn.ReLU(),
            nn.Linear(512, 10),
        )
    sizes = [int(size) for size in spec.model.split("-")[1:]]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@lru_cache(maxsize=1)
def _held_out(folder: str) -> tuple[Tensor, Tensor]:
    inputs, targets = (
        torch.from_numpy(np.load(Path(folder) / f"test_{name}.npy"))
        for name in ("inputs", "targets")
    )
    return inputs.float().div_(255), targets


def reached(module: nn.Module, spec: SimpleNamespace) -> bool:
    """Whether the module is as accurate on held-out rows as the workload asks for, if it asks."""
    if not spec.target:
        return False
    inputs, targets = _held_out(spec.folder)
    with torch.no_grad():
        right = (module(inputs).argmax(1) == targets).float().mean()
    return float(right) >= spec.target


def train(
    module: nn.Module, optimizer: Any, inputs: Tensor, targets: Tensor, spec: SimpleNamespace
) -> None:
    """One client's local epochs."""
    for _ in range(spec.epochs):
        for batch in torch.randperm(len(targets)).split(spec.batch_size):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(module(inputs[batch]), targets[batch]).backward()
            optimizer.step()


@lru_cache(maxsize=1)
def prepared(text: str) -> tuple[Tensor, Tensor, nn.Module]:
    """Rows and model of a specification as text, on one thread: once a worker process."""
    spec = SimpleNamespace(**json.loads(text))
    torch.set_num_threads(1)
    module = model(spec)
    if spec.model == "cnn1":
        module = module.to(memory_format=torch.channels_last)
    return *rows(spec), module


def report(seconds: list[float], **more: Any) -> None:
    """Print what was measured as the last line of standard output."""
    kilobytes = max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(json.dumps({"seconds": seconds, "peak_rss_mb": kilobytes / 1024, **more}), flush=True)
