"""A Flower app with its own training loop, behind `DropIn`, in the simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedadmm as fa
from fedadmm.flower import DropIn
from fedadmm.flower.federation import Federation

LR, STEPS = 0.2, 2


class Vector(torch.nn.Module):
    """One vector of doubles."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(dimension, dtype=torch.float64))


def drop_in_of(settings: dict[str, Any]) -> DropIn:
    """Return the settings of a federation as a `DropIn`, without their local solver."""
    given = dict(settings)
    dimension = len(given.pop("initial"))
    for name in ("solver", "stop", "rounds"):
        del given[name]
    every = given.pop("evaluate_every")
    algorithm, clients = given.pop("algorithm"), given.pop("clients")
    return DropIn(algorithm, clients, lambda: Vector(dimension), every, **given)


def app_of(drop_in: DropIn, federation: Federation, load: Callable[[Context], Any]) -> ClientApp:
    """Return the app of a site; its loop makes steps of gradient descent.

    Args:
        drop_in: Its mod.
        federation: The site's own copy of the federation.
        load: Returns the site of a context.
    """
    drop_in.federation = federation
    app = ClientApp(mods=[drop_in.mod])

    def model_of(message: Message, objective: fa.Quadratic) -> Vector:
        model = Vector(objective.num_parameters)
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        model.load_state_dict(arrays.to_torch_state_dict())
        return model

    def loss_of(model: Vector, objective: fa.Quadratic) -> torch.Tensor:
        return model.weight @ objective.A @ model.weight / 2 - objective.b @ model.weight

    @app.train()
    def train(message: Message, context: Context) -> Message:
        objective = load(context).objective
        model = model_of(message, objective)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, objective).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        content = RecordDict({"arrays": ArrayRecord(model.state_dict())})  # type: ignore[arg-type]
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        site = load(context)
        model = model_of(message, site.objective)
        found = {"loss": float(loss_of(model, site.objective))}
        if site.test is not None:
            found |= site.test(model.weight.detach())
        return Message(RecordDict({"metrics": MetricRecord(found)}), reply_to=message)  # type: ignore[arg-type]

    return app
