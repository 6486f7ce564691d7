"""Named problems from random generators: synthetic(alpha, beta) and the InSa regression."""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge

from fedadmm.core.errors import ParameterError
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.objectives.model import Loss, ModelObjective
from fedadmm.core.parts import Count, Natural, NotNegative, part
from fedadmm.core.problem import LazyClients, Problem
from fedadmm.core.protocols import Objective
from fedadmm.core.regularizers import Zero
from fedadmm.data import models
from fedadmm.data.dataset import TrainTest
from fedadmm.data.generators import MixedRows, SyntheticUsers
from fedadmm.data.problems.federation import RowsProblem, fit_loss, model_factory
from fedadmm.data.problems.held_out import HeldOut
from fedadmm.data.problems.registry import Extras, NamedProblem


@part("problem", "synthetic")
class SyntheticOptions(RowsProblem):
    """synthetic(alpha, beta) of Li et al. with the perceptron of Wang et al. and FedDR."""

    summary: ClassVar[str] = "synthetic(α, β): 30 users, 60 features"
    clients: Count = 30
    partition: str = "natural"
    model: str = "mlp-60-32-10"
    alpha: NotNegative = 0.0
    beta: NotNegative = 0.0
    iid: bool = False
    """synthetic-iid: one model and one input distribution for all."""
    data_seed: Natural = 0
    max_samples: Annotated[int, Ge(2)] | None = None
    """No user holds more rows."""
    lazy: bool = False
    """Draw a user's rows whenever they are asked for, instead of keeping everybody's."""
    test_clients: Count = 100
    """lazy: the held-out rows of this many users make the test set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lazy and (self.partition != "natural" or self.validation or self.max_train):
            raise ParameterError(
                "SyntheticOptions: lazy is True, but works only with partition 'natural', without "
                "validation and max_train"
            )

    def users(self) -> SyntheticUsers:
        """The generator."""
        return SyntheticUsers(
            self.alpha, self.beta, self.iid, self.clients, self.data_seed, self.max_samples
        )

    def rows(self) -> TrainTest:
        """All users' rows."""
        return self.users().everybody()

    def make(self, extras: Extras) -> Problem:
        """The problem, with everybody's rows or with a user's whenever they are asked for."""
        return _lazy_synthetic(self, extras) if self.lazy else super().make(extras)


def _draw_user(users: SyntheticUsers, flat: FlatModule, loss: Loss, user: int) -> Objective:
    return ModelObjective(flat, loss, *users.draw(user)[0])


def _lazy_synthetic(options: SyntheticOptions, extras: Extras) -> Problem:
    users = options.users()
    test = users.some(range(min(options.test_clients, users.users))).test
    assert test is not None
    make = model_factory(extras.model or options.model, test, options.as_released)
    flat = FlatModule(models.build(make))
    loss = fit_loss(flat.module, test)
    weights = torch.from_numpy(users.train_sizes) if options.weights == "samples" else None
    return Problem(
        clients=LazyClients(users.users, partial(_draw_user, users, flat, loss)),
        regularizer=extras.regularizer or Zero(),
        weights=weights,
        test=HeldOut(flat, loss, test.inputs, test.targets),
        initial=partial(models.initial_vector, make),
        buffers=extras.buffers,
        name=options.name,
    )


@part("problem", "insa-regression")
class InsaOptions(NamedProblem):
    """The linear regression of FedADMM-InSa: 50,000 rows of 5,000 features, 200 clients."""

    summary: ClassVar[str] = "least squares, 50,000 × 5,000, 200 clients"
    clients: Count = 200
    rows: Count = 50_000
    features: Count = 5_000
    ridge: NotNegative = 0.01
    """c in the loss ||Aw - b||^2 / (2m) + c ||w||^2 / 2."""
    data_seed: Natural = 0
    keep: bool = True
    """Keep the clients' rows once drawn (1 GB at full size) instead of drawing them each time."""

    def __post_init__(self) -> None:
        self.table()

    def table(self) -> MixedRows:
        """The generator."""
        return MixedRows(self.clients, self.rows, self.features, self.ridge, self.data_seed)

    def make(self, extras: Extras) -> Problem:
        """The problem; no row is drawn yet."""
        return Problem(
            clients=LazyClients(self.clients, self.table().draw, self.keep),
            regularizer=extras.regularizer or Zero(),
            initial=partial(models.initial_vector, "linear", inputs=self.features, bias=False),
            name=self.name,
        )
