"""`FederatedClassifier` and `FederatedRegressor`: a federation behind scikit-learn's interface.

    FederatedClassifier().fit(X, y, groups=site).predict(X)

Every group of samples is a client of a simulated run.  It reports the sums that
`fedadmm.data.preparation` needs; the loss is the mean over all samples, as in central training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from fedadmm.core.errors import ParameterError
from fedadmm.data import preparation
from fedadmm.data.preparation import Standardised, Weights
from fedadmm.study.estimator.base import Federated
from fedadmm.study.estimator.samples import GroupedSamples, is_gap


class FederatedClassifier(ClassifierMixin, Federated):  # type: ignore[misc]
    """Classes, learnt from clients that keep their samples.

    After `fit` there are `classes_`, `clients_` (the groups in their order), `history_` (one record
    for each round), `preparation_` (how columns were made ready), `lr_` (the learning rate) and
    `module_`, the trained model.

    Args:
        method: the name of a method, or one with its options, such as `fedadmm.FedDyn(eta=10.0)`.
        model: the name of a model ("logistic", "linear", "mlp", "mlp-30-64-2" …), a module, or a
            function that makes one; None for logistic and for linear regression.
        rounds: how many rounds `fit` takes.
        lr: the learning rate of the clients' steps; "auto" is half of 1/L, with L the largest
            curvature found around the start, and at most 1.  It is kept as `lr_`.
        batch_size: the samples of a step; None takes all of a client's.
        epochs: how often a client goes through its samples in a round.
        participation: the share of clients that takes part in a round.
        clients: how many clients the samples are dealt out to when `groups` is not given.
        preparation: "from-sums" imputes, one-hot encodes text and standardises numbers, from
            sums and lists that every client tells; "as-is" takes finite numbers as they are.
        regularizer: a g that is added to the loss, for methods that take one.
        personal: what clients train for themselves, `fedadmm.Ditto` or `fedadmm.PersonalLayers`.
        engine: how clients are run, as in `fedadmm.simulate`.
        random_state: the seed, or where one is drawn from, as in scikit-learn.
    """

    usual_model = "logistic"
    regresses = False

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        rounds: int = 1,
    ) -> Self:
        """Go on with the run for some rounds, duals and all; the first call begins one.

        `classes` are all classes, if the samples of the first call do not hold each of them;
        the other arguments are those of `fit`, and the clients those that the run began with.
        """
        first = "module_" not in vars(self)
        return self._train(X, y, groups, sample_weight, rounds, first, classes)

    def predict_proba(self, X: ArrayLike, groups: ArrayLike | None = None) -> NDArray[np.float64]:
        """The probability of every class, one column for each of `classes_`.

        With `groups`, which say whose each sample is, by the own model of the sample's client.
        """
        scores = self._outputs(X, groups).double()
        if scores.shape[1] == 1:
            scores = torch.hstack([torch.zeros_like(scores), scores])
        shares: NDArray[np.float64] = torch.softmax(scores, dim=1).numpy()
        return shares

    def predict(self, X: ArrayLike, groups: ArrayLike | None = None) -> NDArray[Any]:
        """The most probable class of every sample; `groups` as in `predict_proba`."""
        likely = self.predict_proba(X, groups).argmax(axis=1)
        chosen: NDArray[Any] = self.classes_[likely]
        return chosen

    def _learn_targets(
        self, samples: GroupedSamples, masses: Sequence[Weights] | None, classes: ArrayLike | None
    ) -> None:
        if samples.y.dtype.kind == "O" and any(map(is_gap, samples.y)):
            raise ParameterError(
                f"{type(self).__name__}: y has a gap, but must hold a class for every sample"
            )
        check_classification_targets(samples.y)
        self.classes_ = np.unique(samples.y if classes is None else column_or_1d(classes))
        if len(self.classes_) < 2:
            raise ParameterError(
                f"{type(self).__name__}: y has one class only ({self.classes_[0]}), but needs two"
            )

    def _targets(self, y: NDArray[Any]) -> Tensor:
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ParameterError(
                f"{type(self).__name__}: y holds {unknown[0]!r}, but must hold classes that were "
                f"known when the run began: {', '.join(map(str, self.classes_))}"
            )
        return torch.from_numpy(np.searchsorted(self.classes_, y))


class FederatedRegressor(RegressorMixin, Federated):  # type: ignore[misc]
    """Numbers, learnt from clients that keep their samples.

    Options are those of `FederatedClassifier`; the usual model is linear regression.  Targets are
    scaled as columns are, so that the losses in `history_` are shares of half their variance.
    After `fit` there are `clients_`, `history_`, `preparation_`, `lr_` and `module_`, as there.
    """

    usual_model = "linear"
    regresses = True

    def predict(self, X: ArrayLike, groups: ArrayLike | None = None) -> NDArray[np.float64]:
        """Predict a number per sample; with `groups`, by each client's personalised model."""
        outputs = self._outputs(X, groups).double().squeeze(1).numpy()
        numbers: NDArray[np.float64] = outputs * self._scale.deviation + self._scale.mean
        return numbers

    def _learn_targets(
        self, samples: GroupedSamples, masses: Sequence[Weights] | None, classes: ArrayLike | None
    ) -> None:
        self._scale = Standardised("y", 0.0, 1.0)
        if self.preparation == "from-sums":
            self._scale = preparation.fit_numbers("y", samples.of_clients(samples.y), masses)

    def _targets(self, y: NDArray[Any]) -> Tensor:
        return torch.from_numpy(self._scale.apply(y)[:, 0])
