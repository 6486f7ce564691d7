"""What the peers share: the rows, the models and the report.

These scripts run in other environments, in which fedadmm need not exist.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
from collections.abc import Callable
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


def two_convolutions(channels: tuple[int, int, int], padding: int, *sizes: int) -> nn.Sequential:
    """Two convolutions 5×5 with pooling, and a perceptron with these layer sizes."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(channels):
        layers += [nn.Conv2d(inputs, outputs, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Residual(nn.Module):
    """The basic block of a ResNet with group normalisation."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(2, outputs) for _ in range(2))
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            narrow = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.short = nn.Sequential(narrow, nn.GroupNorm(2, outputs))

    def forward(self, images: Tensor) -> Tensor:
        inner = torch.relu(self.norms[0](self.one(images)))
        return torch.relu(self.norms[1](self.two(inner)) + self.short(images))


def resnet18() -> nn.Module:
    """ResNet-18 for images of 32×32 pixels, with group normalisation."""
    widths = (64, 64, 128, 256, 512)
    blocks = [
        Residual(inputs if place == 0 else outputs, outputs, 2 if place == 0 < stage else 1)
        for stage, (inputs, outputs) in enumerate(itertools.pairwise(widths))
        for place in (0, 1)
    ]
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(2, 64), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Transformer(nn.Module):
    """Two layers of width 128 over 64 bytes, classified by the mean of the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 128)
        self.position = nn.Parameter(torch.zeros(64, 128))
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs = self.encoder(self.embedding(tokens) + self.position)
        scores: Tensor = self.head(outputs.mean(1))
        return scores


CONVOLUTIONS: dict[str, Callable[[], nn.Module]] = {
    "cnn1": lambda: two_convolutions((1, 32, 64), 2, 64 * 7 * 7, 512, 10),
    "cnn2": lambda: two_convolutions((3, 32, 64), 2, 64 * 8 * 8, 256, 10),
    "tutorial-cnn": lambda: two_convolutions((3, 6, 16), 0, 16 * 5 * 5, 120, 84, 10),
    "resnet18": resnet18,
}
"""Models of images, which are trained with channels last."""


def arranged(module: nn.Module, spec: SimpleNamespace) -> nn.Module:
    """The module with channels last where that is faster."""
    return module.to(memory_format=torch.channels_last) if spec.model in CONVOLUTIONS else module


def model(spec: SimpleNamespace) -> nn.Module:
    """The workload's model."""
    torch.manual_seed(0)
    if spec.model in CONVOLUTIONS:
        return CONVOLUTIONS[spec.model]()
    if spec.model == "transformer":
        return Transformer()
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
    return *rows(spec), arranged(model(spec), spec)


def report(seconds: list[float], **more: Any) -> None:
    """Print what was measured as the last line of standard output."""
    kilobytes = max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(json.dumps({"seconds": seconds, "peak_rss_mb": kilobytes / 1024, **more}), flush=True)
