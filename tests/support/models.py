"""Small networks as federations, in float64."""

from __future__ import annotations

import torch
from torch import nn

import fedadmm as fa
from fedadmm.core.objectives.flat import FlatModule


def perceptron(seed: int = 0, *extra: nn.Module) -> nn.Sequential:
    """4 inputs, 5 hidden units, 3 classes; `extra` modules follow the first layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(4, 5), *extra, nn.Tanh(), nn.Linear(5, 3))
    return module.double()


def rows(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs with classes that depend on them."""
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=draws, dtype=torch.float64)
    targets = (inputs @ torch.randn(4, 3, generator=draws, dtype=torch.float64)).argmax(1)
    return inputs, targets


def small_federation(*extra: nn.Module, clients: int = 4, **options: object) -> fa.Problem:
    """Clients with different row counts that share one perceptron."""
    flat = FlatModule(perceptron(0, *extra))
    initial = flat.vector.clone()
    objectives = [
        fa.ModelObjective(flat, nn.functional.cross_entropy, *rows(i, 15 + 4 * i))
        for i in range(clients)
    ]
    return fa.Problem(objectives, initial=initial, **options)
