"""`FederatedClassifier` and `FederatedRegressor`: a federation behind scikit-learn's interface.

    FederatedClassifier().fit(X, y, groups=site).predict(X)

Every group of samples is a client of a simulated run.  It reports the sums that
`fedadmm.data.preparation` needs; the loss is the mean over all samples, as in central training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import column_or_1d, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from fedadmm.core.contracts import AnyAlgorithm, Regularizer
from fedadmm.core.errors import ParameterError
from fedadmm.core.personalisation import Personalisation
from fedadmm.data import models, preparation
from fedadmm.data.preparation import Column, Standardised, Weights
from fedadmm.run.engines import EngineChoice
from fedadmm.study.estimator.base import Federated
from fedadmm.study.estimator.samples import GroupedSamples, is_gap


class FederatedClassifier(ClassifierMixin, Federated):  # type: ignore[misc]
    """Scikit-learn classifier that is trained by federated clients.

    Args:
        method: Name of a method, or a method with options, such as `fedadmm.FedDyn(eta=10.0)`.
        model: Name of a model ("logistic", "linear", "mlp", "mlp-30-64-2" …), a module, or a
            function that returns one; None for logistic and for linear regression.
        rounds: Number of rounds of `fit`.  Default 30.
        lr: Learning rate of the clients; "auto" is half of 1/L, with L the largest curvature near
            the initial model, and at most 1.
        batch_size: Samples in a step; None for all of a client's.  Default 32.
        epochs: Passes over a client's samples in a round.  Default 5.
        participation: Share of clients that participate in a round.  Default 1.
        clients: Number of clients that samples are divided among at random if there are no groups;
            None for 5, with a warning.
        groups: Name of the column of a data frame that holds the client of each sample and is no
            feature; `fit(groups=…)` goes before it.
        preparation: "from-sums" imputes, one-hot encodes text and standardises numbers, from sums
            and lists that every client reports; "as-is" uses finite numbers without preparation.
        regularizer: g, for methods that support one; None for none.
        personal: Personalisation, `fedadmm.Ditto` or `fedadmm.PersonalLayers`; None for none.
        engine: Runs the clients, as in `fedadmm.simulate`.
        verbose: Whether to print the metrics of every round.
        class_weight: "balanced", or a weight per class, by which the weights of its samples are
            multiplied; None for equal weights.
        random_state: Seed, or a generator to draw it from, as in scikit-learn.

    Attributes:
        classes_: Sorted class labels.
        clients_: Groups, in the order of the clients.
        history_: One record per round.
        preparation_: Preparation of the columns.
        lr_: Learning rate that was used.
        module_: The trained model.
        coef_: Coefficients of a linear model for the columns `get_feature_names_out()`.
        intercept_: Its intercept.

    Example:
        >>> import numpy as np, fedadmm as fa
        >>> X, y = np.arange(6.0)[:, None], ["low", "low", "low", "high", "high", "high"]
        >>> model = fa.FederatedClassifier(clients=2, rounds=5).fit(X, y)
        >>> model.predict([[0.0], [5.0]]).tolist()
        ['low', 'high']
    """

    usual_model = "logistic"
    regresses = False

    def __init__(
        self,
        method: str | AnyAlgorithm = "aligned-admm",
        model: models.Model | None = None,
        *,
        rounds: int = 30,
        lr: float | Literal["auto"] = "auto",
        batch_size: int | None = 32,
        epochs: float = 5,
        participation: float = 1.0,
        clients: int | None = None,
        groups: str | None = None,
        preparation: Literal["from-sums", "as-is"] = "from-sums",
        regularizer: Regularizer | None = None,
        personal: Personalisation | None = None,
        engine: str | EngineChoice | None = None,
        verbose: int = 0,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        super().__init__(
            method,
            model,
            rounds=rounds,
            lr=lr,
            batch_size=batch_size,
            epochs=epochs,
            participation=participation,
            clients=clients,
            groups=groups,
            preparation=preparation,
            regularizer=regularizer,
            personal=personal,
            engine=engine,
            verbose=verbose,
            random_state=random_state,
        )
        self.class_weight = class_weight

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        *,
        groups: ArrayLike | str | None = None,
        sample_weight: ArrayLike | None = None,
        rounds: int = 1,
    ) -> Self:
        """Go on with the run for some rounds, duals and all; the first call begins one.

        `classes` are all classes, if the samples of the first call do not hold each of them;
        the other arguments are those of `fit`, and the clients those that the run began with.
        """
        first = "_params" not in vars(self)
        return self._train(X, y, groups, sample_weight, rounds, first, classes)

    def predict_proba(
        self, X: ArrayLike, groups: ArrayLike | str | None = None
    ) -> NDArray[np.float64]:
        """The probability of every class, one column for each of `classes_`.

        With `groups`, by the personalised model of each sample's client.
        """
        scores = self._outputs(X, groups).double()
        if scores.shape[1] == 1:
            scores = torch.hstack([torch.zeros_like(scores), scores])
        shares: NDArray[np.float64] = torch.softmax(scores, dim=1).numpy()
        return shares

    def predict(self, X: ArrayLike, groups: ArrayLike | str | None = None) -> NDArray[Any]:
        """The most probable class of every sample; `groups` as in `predict_proba`."""
        likely = self.predict_proba(X, groups).argmax(axis=1)
        chosen: NDArray[Any] = self.classes_[likely]
        return chosen

    def _sample_weight(
        self, X: NDArray[Any], y: NDArray[Any], sample_weight: ArrayLike | None
    ) -> ArrayLike | None:
        if self.class_weight is None:
            return sample_weight
        own: NDArray[np.float64] = compute_sample_weight(self.class_weight, y)
        return own if sample_weight is None else own * _check_sample_weight(sample_weight, X)

    def _learn_targets(
        self, samples: GroupedSamples, masses: Sequence[Weights] | None, classes: ArrayLike | None
    ) -> None:
        if samples.y.dtype.kind == "O" and any(map(is_gap, samples.y)):
            raise ParameterError(
                f"{type(self).__name__}: y has a gap, expected a class for every sample"
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
                f"{type(self).__name__}: y holds {unknown[0]!r}, expected classes that were "
                f"known when the run began: {', '.join(map(str, self.classes_))}"
            )
        return torch.from_numpy(np.searchsorted(self.classes_, y))


class FederatedRegressor(RegressorMixin, Federated):  # type: ignore[misc]
    """Scikit-learn regressor that is trained by federated clients.

    Options and attributes are those of `FederatedClassifier`, except `class_weight` and `classes_`;
    the default model is linear regression.  Targets are standardised as columns are, so that the
    losses in `history_` are in units of half their variance.

    Example:
        >>> import numpy as np, fedadmm as fa
        >>> X = np.arange(6.0)[:, None]
        >>> model = fa.FederatedRegressor(clients=2, rounds=20).fit(X, 2 * X[:, 0])
        >>> model.predict([[10.0]]).round(1).tolist()
        [20.0]
    """

    usual_model = "linear"
    regresses = True

    def _linear(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        weights, bias = super()._linear()
        scale = self._scale
        return weights[0] * scale.deviation, bias[0] * scale.deviation + scale.mean

    def _described(self, columns: Sequence[Column]) -> dict[str, Any]:
        return preparation.described(columns, self._scale)

    def predict(self, X: ArrayLike, groups: ArrayLike | str | None = None) -> NDArray[np.float64]:
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
