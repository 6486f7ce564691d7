"""Hand-written passes against autograd, which knows nothing about them."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from fedadmm.core.objectives import losses
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.objectives.layers import Sink, by_cross_entropy
from fedadmm.core.objectives.model import ModelObjective
from fedadmm.core.objectives.networks import compile_network
from fedadmm.data import models

Case = tuple[nn.Module, tuple[int, ...], object]


def _images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 3, stride=2, bias=False),
        nn.MaxPool2d(2, stride=1, padding=1),
        nn.ReLU(),
        nn.Sequential(nn.Flatten(), nn.Linear(4 * 3 * 3, 6), nn.ReLU()),
        nn.Linear(6, 5),
    )


CASES = {
    "perceptron": lambda: (models.mlp(6, 7, 4, 3), (6,), losses.cross_entropy),
    "flattened images": lambda: (models.mlp(12, 5, 3), (3, 2, 2), nn.functional.cross_entropy),
    "no bias": lambda: (nn.Sequential(nn.Linear(4, 3, bias=False)), (4,), losses.cross_entropy),
    "two classes": lambda: (models.logistic(5), (5,), losses.binary_cross_entropy),
    "regression": lambda: (models.linear(5), (5,), losses.half_squared_error),
    "ReLU first": lambda: (
        nn.Sequential(nn.ReLU(), nn.Linear(4, 3)),
        (4,),
        losses.cross_entropy,
    ),
    "convolutions": lambda: (_images(), (2, 10, 10), losses.cross_entropy),
    "one channel": lambda: (
        nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)
        ),
        (1, 6, 6),
        losses.cross_entropy,
    ),
}


def _rows(name: str, shape: tuple[int, ...], rows: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(7)
    inputs = torch.randn(rows, *shape, generator=draws, dtype=torch.float64)
    if name == "regression":
        return inputs, torch.randn(rows, generator=draws, dtype=torch.float64)
    classes = 2 if name == "two classes" else 3
    return inputs, torch.randint(0, classes, (rows,), generator=draws)


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_steps_equal_autograds(name: str) -> None:
    module, shape, loss = CASES[name]()
    module = module.double()
    inputs, targets = _rows(name, shape, 9)
    reference = copy.deepcopy(module)
    loss(reference(inputs[2:7]), targets[2:7]).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in reference.parameters()])

    objective = ModelObjective(FlatModule(module), loss, inputs, targets)
    assert objective.flat.network(loss) is not None
    kept = inputs.clone()
    start = objective.flat.vector.clone()
    rows = torch.arange(2, 7)
    torch.testing.assert_close(objective.gradient(start, rows), expected, rtol=0, atol=1e-13)

    target = torch.linspace(-1, 1, len(start), dtype=torch.float64)

    def pull(part: Tensor, begin: int, end: int) -> None:
        part.lerp_(target[begin:end], 0.25)

    with torch.no_grad():
        live = objective.workspace(start)
        objective.descend(live, rows, 0.1, pull)
    wanted = 0.75 * start + 0.25 * target - 0.1 * expected
    torch.testing.assert_close(live, wanted, rtol=0, atol=1e-13)
    assert torch.equal(inputs, kept)


@pytest.mark.parametrize("name", ["perceptron", "flattened images", "two classes", "regression"])
def test_a_stack_with_weighted_samples_equals_one_client_after_the_other(name: str) -> None:
    clients = [CASES[name]()[0].double() for _ in range(3)]
    _, shape, loss = CASES[name]()
    inputs, targets = _rows(name, shape, 12)
    inputs, targets = inputs.view(3, 4, *shape), targets.view(3, 4)
    counts = [4, 1, 3]
    weights = torch.zeros(3, 4, dtype=torch.float64)
    for client, count in enumerate(counts):
        weights[client, :count] = 1 / count
    blocks = [torch.stack(block) for block in zip(*(m.parameters() for m in clients), strict=True)]
    blocks = [block.detach() for block in blocks]
    found = [torch.full_like(block, torch.nan) for block in blocks]
    network = compile_network(clients[0], loss)
    assert network is not None
    network.differentiate(blocks, inputs, targets, weights, Sink(found, 1.0, keep=False))
    for client, (module, count) in enumerate(zip(clients, counts, strict=True)):
        loss(module(inputs[client, :count]), targets[client, :count]).backward()
        for block, parameter in zip(found, module.parameters(), strict=True):
            torch.testing.assert_close(block[client], parameter.grad, rtol=0, atol=1e-13)


def _hooked() -> nn.Module:
    module = models.mlp(4, 3, 2)
    module[1].register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("module", "loss"),
    [
        (models.mlp(4, 3, 2), lambda outputs, targets: (outputs.sum(1) - targets).square().mean()),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2)), losses.cross_entropy),
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), losses.cross_entropy),
        (nn.Sequential(nn.Linear(4, 2)).requires_grad_(False), losses.cross_entropy),
        (_hooked(), losses.cross_entropy),
        (nn.Sequential(nn.Conv2d(1, 2, 3, groups=1, dilation=2), nn.Flatten(), nn.Linear(8, 2)),
         losses.cross_entropy),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(4, 2)), losses.cross_entropy),
        (models.mlp(4, 3), losses.binary_cross_entropy),
    ],
)  # fmt: skip
def test_what_is_not_known_is_left_to_autograd(module: nn.Module, loss: object) -> None:
    assert compile_network(module, loss) is None


def test_shared_weights_are_left_to_autograd() -> None:
    layer = nn.Linear(3, 3)
    assert compile_network(nn.Sequential(layer, nn.ReLU(), layer), losses.cross_entropy) is None


def test_samples_of_another_shape_are_left_to_autograd() -> None:
    """A Linear acts on the last dimension of whatever it gets; the network knows vectors only."""
    module = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    inputs = torch.randn(4, 5, 3, dtype=torch.float64)
    objective = ModelObjective(
        FlatModule(module), losses.half_squared_error, inputs, torch.zeros(4, 5).double()
    )
    reference = copy.deepcopy(module)
    losses.half_squared_error(reference(inputs), objective.targets).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in reference.parameters()])
    torch.testing.assert_close(objective.gradient(objective.flat.vector), expected)


@pytest.mark.parametrize("clients", [1, 3])
def test_large_scores_give_the_exact_softmax(clients: int) -> None:
    """exp would overflow at 1,000: the gradient is softmax - one-hot, times the rows' weights."""
    scores = torch.tensor([[1000.0, 999.0, -1000.0], [-5000.0, -5000.0, -5000.0]])
    share = 1 / (1 + math.exp(-1.0))
    expected = torch.tensor([[share - 1, 1 - share, 0.0], [1 / 3, 1 / 3, -2 / 3]])
    targets = torch.tensor([[0, 2]]).expand(clients, -1)
    weights = torch.tensor([[0.5, 0.25]]).expand(clients, -1)
    found = by_cross_entropy(scores.expand(clients, -1, -1), targets, weights)
    torch.testing.assert_close(found, (expected * weights[0, :, None]).expand(clients, -1, -1))
    plain = by_cross_entropy(scores.expand(clients, -1, -1), targets, 0.5)
    torch.testing.assert_close(plain, (expected * 0.5).expand(clients, -1, -1))
