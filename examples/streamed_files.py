"""Rows that do not fit into memory: every client reads its own file, a batch at a time."""

import random
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

import fedadmm as fa

SENSORS, ROWS = 5, 400
random.seed(0)
for sensor in range(SENSORS):  # in place of files that you have
    with Path(f"sensor-{sensor}.csv").open("w") as file:
        for _ in range(ROWS):
            hour, wind = random.random(), random.gauss(sensor / SENSORS, 1)
            power = 2 * hour - wind + 0.5 + random.gauss(0, 0.1)
            print(hour, wind, power, sep=",", file=file)

Batch = dict[str, Tensor]


def batches(path: Path) -> Iterator[Batch]:
    """The file's rows, 50 at a time; every pass opens it anew."""
    with path.open() as lines:
        while some := list(islice(lines, 50)):
            table = torch.tensor([[float(cell) for cell in line.split(",")] for line in some])
            yield {"weather": table[:, :2], "power": table[:, 2:]}


def loss(module: nn.Module, batch: Batch) -> Tensor:
    """A loss of your own: too little costs three times as much as too much."""
    missing = batch["power"] - module(batch["weather"])
    return torch.where(missing > 0, 3 * missing.square(), missing.square()).mean()


def metrics(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """A metric of your own."""
    return {"too_little": (batch["power"] > module(batch["weather"])).float().mean()}


torch.manual_seed(0)
model = nn.Linear(2, 1)
paths = sorted(Path().glob("sensor-*.csv"))
clients = [fa.BatchObjective(model, loss, partial(batches, path)) for path in paths[:-1]]
problem = fa.Problem(
    clients,
    test=fa.BatchMetrics(model, metrics, partial(batches, paths[-1])),
    initial=clients[0].flat.vector.clone(),
)
solver = fa.SGD(lr=0.02, batch_size=1)  # one batch a step
result = fa.simulate(fa.FedADMM(rho=0.1), problem, 20, solver=solver, stop=fa.Epochs(2))
print("loss", *(f"{record['metrics']['loss']:.3f}" for record in result.history[::19]))
print(f"too little: {result.history[-1]['metrics']['too_little']:.1%}")
