"""Problems with synthetic samples: synthetic(alpha, beta), and the regression of FedADMM-InSa."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from fedadmm.core.contracts import Regularizer
from fedadmm.core.errors import ParameterError
from fedadmm.core.objectives import Objective
from fedadmm.core.objectives.closed_form import LeastSquares
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.objectives.model import Loss, ModelObjective
from fedadmm.core.parts import Count, Natural, NotNegative, part
from fedadmm.core.problem import LazyClients, Problem
from fedadmm.core.regularizers import Zero
from fedadmm.core.rng import derive, numpy_generator
from fedadmm.data import models
from fedadmm.data.dataset import Dataset, Samples, TrainTest
from fedadmm.data.problems.named_problem import (
    DatasetProblem,
    HeldOut,
    NamedProblem,
    fit_loss,
    model_factory,
)

_FEATURES, _CLASSES = 60, 10
_TESTED = 100
"""Number of users whose test samples are the test set of a lazy problem."""


@part("problem", "synthetic")
class SyntheticOptions(DatasetProblem):
    """synthetic(alpha, beta) of Li et al. (FedProx) with the perceptron of Wang et al. and FedDR.

        n_i = int(LogNormal(4, 2)) + 50
        u_i ~ N(0, alpha),  B_i ~ N(0, beta)            alpha, beta are standard deviations
        W_i, b_i ~ N(u_i, 1),  v_i ~ N(B_i, 1)
        x ~ N(v_i, diag(j^-1.2)),  y = argmax(x W_i + b_i)

    alpha controls the heterogeneity of the models, beta that of the inputs.  The first 90 % of a
    user's samples are for training.  The samples of a user depend on the seed and its id only.
    """

    summary: ClassVar[str] = "synthetic(α, β): 30 users, 60 features"
    clients: Count = 30
    partition: str = "natural"
    model: str = "mlp-60-32-10"
    alpha: NotNegative = 0.0
    beta: NotNegative = 0.0
    iid: bool = False
    """Whether all users have the same W, b ~ N(0, 1), and v_i = 0 (synthetic-iid)."""
    data_seed: Natural = 0
    max_samples: Annotated[int, Ge(2)] | None = None
    """Largest number of samples per user; None for no limit of the heavy-tailed distribution."""
    lazy: bool = False
    """Generate a user's samples when they are needed instead of storing all; the test samples of
    the first hundred users are the test set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lazy and (self.partition != "natural" or self.validation or self.max_train):
            raise ParameterError(
                "SyntheticOptions: lazy is True, but works only with partition 'natural', without "
                "validation and max_train"
            )

    def datasets(self) -> TrainTest:
        return self.some(range(self.clients))

    def load(self, regularizer: Regularizer | None = None, **given: Any) -> Problem:
        return (self._lazy if self.lazy else super().load)(regularizer, **given)

    def _lazy(
        self,
        regularizer: Regularizer | None = None,
        model: models.Model | None = None,
        **given: Any,
    ) -> Problem:
        test = self.some(range(min(_TESTED, self.clients))).test
        assert test is not None
        make = model_factory(model or self.model, test, self.as_released)
        flat = FlatModule(models.build(make))
        loss = fit_loss(flat.module, test)
        return Problem(
            clients=LazyClients(self.clients, partial(self._objective, flat, loss)),
            regularizer=regularizer or Zero(),
            weights=torch.from_numpy(self.train_sizes) if self.weights == "samples" else None,
            test=HeldOut(flat, loss, test.inputs, test.targets),
            initial=partial(models.initial_vector, make),
            buffers=given.get("buffers"),
            name=self.name,
        )

    def _objective(self, flat: FlatModule, loss: Loss, user: int) -> Objective:
        return ModelObjective(flat, loss, *self.draw(user)[0])

    def _generator(self, purpose: str, *indices: int) -> np.random.Generator:
        return numpy_generator(derive(self.data_seed, f"synthetic/{purpose}", *indices))

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """n_i, the number of samples of each user."""
        drawn = self._generator("sizes").lognormal(4.0, 2.0, self.clients).astype(np.int64) + 50
        return drawn if self.max_samples is None else np.minimum(drawn, self.max_samples)

    @cached_property
    def train_sizes(self) -> NDArray[np.int64]:
        """The number of training samples of each user."""
        return (self.sizes * 0.9).astype(np.int64)

    @cached_property
    def _centres(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """u_i and B_i."""
        return (
            self._generator("models").normal(0.0, self.alpha, self.clients),
            self._generator("inputs").normal(0.0, self.beta, self.clients),
        )

    def draw(self, user: int) -> tuple[Samples, Samples]:
        """Generate the training and test samples of one user."""
        generator = self._generator("user", user)
        if self.iid:
            shared = self._generator("shared")
            weights = shared.normal(0.0, 1.0, (_FEATURES, _CLASSES))
            bias = shared.normal(0.0, 1.0, _CLASSES)
            mean = np.zeros(_FEATURES)
        else:
            model_centre, input_centre = (float(centre[user]) for centre in self._centres)
            weights = generator.normal(model_centre, 1.0, (_FEATURES, _CLASSES))
            bias = generator.normal(model_centre, 1.0, _CLASSES)
            mean = generator.normal(input_centre, 1.0, _FEATURES)
        deviation = np.arange(1, _FEATURES + 1) ** -0.6
        x = generator.normal(mean, deviation, (int(self.sizes[user]), _FEATURES))
        y = (x @ weights + bias).argmax(axis=1)
        inputs, targets = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)
        cut = int(self.train_sizes[user])
        return (inputs[:cut], targets[:cut]), (inputs[cut:], targets[cut:])

    def some(self, users: range) -> TrainTest:
        """Generate the samples of several users."""
        drawn = [self.draw(user) for user in users]
        return TrainTest(*(_dataset([pair[part] for pair in drawn], users) for part in (0, 1)))


def _dataset(rows: list[Samples], users: range) -> Dataset:
    return Dataset(
        torch.cat([inputs for inputs, _ in rows]),
        torch.cat([targets for _, targets in rows]),
        num_classes=_CLASSES,
        groups=np.repeat(np.arange(len(rows)), [len(targets) for _, targets in rows]),
        group_names=tuple(f"user {user}" for user in users),
        name="synthetic",
    )


@part("problem", "insa-regression")
class InsaOptions(NamedProblem):
    """Linear regression of FedADMM-InSa: 50,000 samples with 5,000 features, 200 clients.

    One third of the samples is from Student's t distribution with five degrees of freedom, one
    third uniform on (-5, 5), one third from N(0, 1).  Features and targets have the same
    distribution and are independent.  The samples are shuffled and divided evenly; each client is
    generated when it is needed.
    """

    costly_objective: ClassVar[bool] = True
    summary: ClassVar[str] = "least squares, 50,000 × 5,000, 200 clients"
    clients: Count = 200
    rows: Count = 50_000
    features: Count = 5_000
    ridge: NotNegative = 0.01
    """c in the loss ||Aw - b||^2 / (2m) + c ||w||^2 / 2."""
    data_seed: Natural = 0

    def __post_init__(self) -> None:
        if self.rows % self.clients:
            raise ParameterError(
                f"InsaOptions: rows: got {self.rows}, expected a multiple of the {self.clients} "
                "clients"
            )

    def load(self, regularizer: Regularizer | None = None, **given: Any) -> Problem:
        return Problem(
            clients=LazyClients(self.clients, self.draw, keep=True),  # 1 GB at full size
            regularizer=regularizer or Zero(),
            initial=partial(models.initial_vector, "linear", inputs=self.features, bias=False),
            name=self.name,
        )

    @cached_property
    def kinds(self) -> NDArray[np.int8]:
        """The distribution of each sample (0: t, 1: uniform, 2: normal), sorted by client."""
        third = -(-self.rows // 3)
        kinds = np.full(self.rows, 2, np.int8)
        kinds[:third] = 0
        kinds[third : 2 * third] = 1
        shuffled: NDArray[np.int8] = numpy_generator(
            derive(self.data_seed, "mixed/kinds")
        ).permutation(kinds)
        return shuffled

    def draw(self, client: int) -> LeastSquares:
        """Generate f_i(w) = ||A w - b||^2 / (2m) + ridge ||w||^2 / 2, in float32."""
        each = self.rows // self.clients
        kinds = self.kinds[client * each : (client + 1) * each]
        generator = numpy_generator(derive(self.data_seed, "mixed/client", client))
        values = np.empty((each, self.features + 1), np.float32)
        student, uniform, normal = (np.flatnonzero(kinds == kind) for kind in range(3))
        width = self.features + 1
        values[student] = generator.standard_t(5, (len(student), width))
        values[uniform] = generator.uniform(-5, 5, (len(uniform), width))
        values[normal] = generator.standard_normal((len(normal), width), np.float32)
        table = torch.from_numpy(values)
        return LeastSquares(table[:, :-1].contiguous(), table[:, -1].contiguous(), self.ridge)
