"""Named problems from random generators: synthetic(alpha, beta) and the InSa regression."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from fedadmm.core.errors import ParameterError, check_count
from fedadmm.core.objectives.closed_form import Loss, ModelObjective
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.problem import LazyClients, Problem
from fedadmm.core.protocols import Objective
from fedadmm.core.regularizers import Zero
from fedadmm.data import models
from fedadmm.data.problems.federation import SplitOptions, federate, fit_loss, model_factory
from fedadmm.data.problems.held_out import HeldOut
from fedadmm.data.problems.registry import Entry, Extras, register
from fedadmm.data.regression import MixedRows
from fedadmm.data.synthetic import SyntheticUsers


@dataclass(frozen=True, kw_only=True)
class SyntheticOptions(SplitOptions):
    """synthetic(alpha, beta) of Li et al. with the perceptron of Wang et al. and FedDR."""

    clients: int | None = 30
    partition: str = "natural"
    model: str = "mlp-60-32-10"
    alpha: float = 0.0
    beta: float = 0.0
    iid: bool = False
    """synthetic-iid: one model and one input distribution for all."""
    data_seed: int = 0
    max_samples: int | None = None
    """No user holds more rows."""
    lazy: bool = False
    """Draw a user's rows whenever they are asked for, instead of keeping everybody's."""
    test_clients: int = 100
    """lazy: the held-out rows of this many users make the test set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self, "test_clients", self.test_clients)
        self.users()
        if self.lazy and (self.partition != "natural" or self.validation or self.max_train):
            raise ParameterError(
                "SyntheticOptions: lazy is True, but works only with partition 'natural', without "
                "validation and max_train"
            )

    def users(self) -> SyntheticUsers:
        """The generator."""
        if self.clients is None:
            raise ParameterError("SyntheticOptions: clients is None, but must be a whole number")
        return SyntheticUsers(
            self.alpha, self.beta, self.iid, self.clients, self.data_seed, self.max_samples
        )


def _synthetic(options: SyntheticOptions, extras: Extras) -> Problem:
    users = options.users()
    if options.lazy:
        return _lazy_synthetic(options, users, extras)
    return federate(users.everybody(), options, name="synthetic", **extras._asdict())


def _draw_user(users: SyntheticUsers, flat: FlatModule, loss: Loss, user: int) -> Objective:
    return ModelObjective(flat, loss, *users.draw(user)[0])


def _lazy_synthetic(options: SyntheticOptions, users: SyntheticUsers, extras: Extras) -> Problem:
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
        name="synthetic",
    )


@dataclass(frozen=True, kw_only=True)
class InsaOptions:
    """The linear regression of FedADMM-InSa: 50,000 rows of 5,000 features, 200 clients."""

    clients: int = 200
    rows: int = 50_000
    features: int = 5_000
    ridge: float = 0.01
    """c in the loss ||Aw - b||^2 / (2m) + c ||w||^2 / 2."""
    data_seed: int = 0
    keep: bool = True
    """Keep the clients' rows once drawn (1 GB at full size) instead of drawing them each time."""

    def __post_init__(self) -> None:
        self.table()

    def table(self) -> MixedRows:
        """The generator."""
        return MixedRows(self.clients, self.rows, self.features, self.ridge, self.data_seed)


def _insa(options: InsaOptions, extras: Extras) -> Problem:
    return Problem(
        clients=LazyClients(options.clients, options.table().draw, options.keep),
        regularizer=extras.regularizer or Zero(),
        initial=partial(models.initial_vector, "linear", inputs=options.features, bias=False),
        name="insa-regression",
    )


register(Entry("synthetic", SyntheticOptions, _synthetic, "synthetic(α, β): 30 users, 60 features"))
register(Entry("insa-regression", InsaOptions, _insa, "least squares, 50,000 × 5,000, 200 clients"))
