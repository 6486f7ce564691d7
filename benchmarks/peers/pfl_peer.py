"""pfl's simulator, in as many processes as it was launched with."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import torch
from common import arranged, model, reached, report, rows, specification
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Model(nn.Module):
    """The workload's model with what pfl asks of it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, inputs: Tensor, targets: Tensor, is_eval: bool = False) -> Tensor:
        """The mean cross-entropy."""
        return nn.functional.cross_entropy(self.inner(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, targets: Tensor, is_eval: bool = True) -> dict[str, Any]:
        """The loss alone."""
        loss = nn.functional.cross_entropy(self.inner(inputs), targets, reduction="sum")
        return {"loss": Weighted(float(loss), len(targets))}


class Clock(TrainingProcessCallback):
    """Notes when a round ends."""

    def __init__(self, spec: Any) -> None:
        self._spec = spec
        self.times = [time.perf_counter()]

    def after_central_iteration(self, _: Any, model: Any, **__: Any) -> tuple[bool, Metrics]:
        """One more round has ended."""
        self.times.append(time.perf_counter())
        return reached(model.pytorch_model.inner, self._spec), Metrics()


def main() -> None:
    """Run the workload."""
    spec = specification()
    torch.set_num_threads(max(1, spec.cores // int(os.environ.get("WORLD_SIZE", "1"))))
    inputs, targets = rows(spec)
    clients = FederatedDataset(
        lambda user: Dataset(raw_data=[inputs[user], targets[user]]),
        get_user_sampler("random", list(range(spec.clients))),
    )
    module = Model(arranged(model(spec), spec))
    clock = Clock(spec)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=spec.warm_up + spec.rounds,
            evaluation_frequency=10**6,
            train_cohort_size=spec.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=clients, val_data=clients),
        model=PyTorchModel(
            model=module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=spec.epochs,
            local_learning_rate=spec.lr,
            local_batch_size=spec.batch_size,
        ),
        model_eval_params=None,
        callbacks=[clock],
    )
    if os.environ.get("RANK", "0") == "0":
        times = clock.times
        seconds = [after - before for before, after in itertools.pairwise(times)]
        report(seconds[spec.warm_up :])


main()
