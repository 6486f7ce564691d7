"""What both estimators share: samples become clients, clients a run, the run a model."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from fedadmm.core.contracts import Algorithm, AnyAlgorithm, Regularizer
from fedadmm.core.errors import ParameterError, StateError
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.objectives.model import evaluation_parts
from fedadmm.core.outputs import ParticipantsMean
from fedadmm.core.personalisation import Personalisation
from fedadmm.core.problem import Problem
from fedadmm.core.sampling import UniformSampling
from fedadmm.core.solvers import SGD
from fedadmm.core.stopping import Epochs
from fedadmm.core.validation import Count, Share, check
from fedadmm.data import models, preparation, problems
from fedadmm.data.dataset import Dataset
from fedadmm.data.preparation import Column, OneHot, Weights
from fedadmm.data.problems.named_problem import model_factory
from fedadmm.run.checkpoint import MemoryCheckpoints
from fedadmm.run.engines import EngineChoice
from fedadmm.run.evaluation import Evaluation
from fedadmm.run.record import Record
from fedadmm.run.simulate import Result, simulate
from fedadmm.run.state import RoundReport
from fedadmm.study import run_history
from fedadmm.study.estimator.samples import (
    GroupedSamples,
    categories,
    cells_of,
    groups_of,
    reject_times,
    samples_of,
    split_groups,
)
from fedadmm.study.methods import named_method
from fedadmm.study.report import write_report
from fedadmm.study.run_dir import RunDir, create
from fedadmm.study.run_history import Columns, Summary, partition_of
from fedadmm.theory.constants import estimate_constants

if TYPE_CHECKING:
    from sklearn.utils import Tags


CLIENTS = 5
"""Number of clients that samples without groups are divided among."""
_NO_GROUPS = (
    "{}: groups: got None, so that the samples are divided at random among {} clients of equal "
    "distribution. Name a column of X by the parameter groups, which also works in GridSearchCV "
    "and cross_val_score (they pass their own groups to the splitter only), or state the number "
    "of random clients by the parameter clients."
)


class Federated(BaseEstimator):  # type: ignore[misc]
    """An estimator that is trained by clients which keep their samples."""

    usual_model: ClassVar[str]
    """The model that None means."""
    regresses: ClassVar[bool]
    """Whether the targets are numbers."""

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
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.method = method
        self.model = model
        self.rounds = rounds
        self.lr = lr
        self.batch_size = batch_size
        self.epochs = epochs
        self.participation = participation
        self.clients = clients
        self.groups = groups
        self.preparation = preparation
        self.regularizer = regularizer
        self.personal = personal
        self.engine = engine
        self.verbose = verbose
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        prepares = self.preparation == "from-sums"
        tags.input_tags.allow_nan = prepares
        tags.input_tags.string = prepares
        tags.input_tags.categorical = prepares
        return tags

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        groups: ArrayLike | str | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train from the start.

        Args:
            X: the samples, an array or a data frame; gaps and words are welcome.
            y: a class, or a number, for each sample.
            groups: the client of each sample: a site, a hospital, a person; or the name of the
                column of a data frame that holds it, which is then no feature.  None means the
                parameter `groups`; if that is None, too, the samples are assigned at random to
                `clients` clients of nearly equal size.
            sample_weight: what each sample counts; a sample of weight 0 is left out.
        """
        return self._train(X, y, groups, sample_weight, self.rounds, first=True)

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        groups: ArrayLike | str | None = None,
        sample_weight: ArrayLike | None = None,
        rounds: int = 1,
    ) -> Self:
        """Go on with the run for some rounds, duals and all; the first call begins one.

        The clients must be those that the run began with.  Their samples may differ, but what
        was fitted to the first ones, as the scale of the columns, stays.

        Args:
            X: the samples.
            y: a class, or a number, for each sample.
            groups: whose each sample is, as in `fit`.
            sample_weight: what each sample counts.
            rounds: how many more rounds.
        """
        first = "_params" not in vars(self)
        return self._train(X, y, groups, sample_weight, rounds, first)

    def report(self, directory: str | Path) -> Path:
        """Write the page about the run into a folder, with its records, and return its path."""
        check_is_fitted(self, "_params")
        algorithm = self._algorithm()
        summary = {
            **self._ending,
            "algorithm": algorithm.name,
            "method": algorithm.title,
            "label": algorithm.name.rpartition(":")[2],
            "seed": self._seed,
            **Columns(self.history_).tally(None),
        }
        options = self.get_params(deep=False) | {"lr": self.lr_, "model": self._model()}
        options["kind"] = type(self).__name__
        return write_page(Path(directory), options, summary, self._partition, self.history_)

    @abstractmethod
    def _learn_targets(
        self, samples: GroupedSamples, masses: Sequence[Weights] | None, classes: ArrayLike | None
    ) -> None:
        """What is known of the targets before the first round."""

    @abstractmethod
    def _targets(self, y: NDArray[Any]) -> Tensor:
        """Targets as the loss takes them."""

    def _train(
        self,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike | str | None,
        sample_weight: ArrayLike | None,
        rounds: int,
        first: bool,
        classes: ArrayLike | None = None,
    ) -> Self:
        """Begin a run, or go on with it, for some rounds."""
        check(self, "rounds", rounds, Count)
        owner, given = type(self).__name__, self.groups if groups is None else groups
        X, groups = split_groups(owner, X, given)
        self._groups_column = given if isinstance(given, str) else None
        if groups is None and self.clients is None:
            warnings.warn(_NO_GROUPS.format(owner, CLIENTS), UserWarning, stacklevel=3)
        reject_times(X)
        check(self, "preparation", self.preparation, Literal[("from-sums", "as-is")])
        if first:
            self._seed = _seed(self.random_state)
        kinds = {"y_numeric": self.regresses, "reset": first}
        array, targets = validate_data(self, X, y, **kinds, **self._accepted())
        clients = CLIENTS if self.clients is None else self.clients
        weight = self._sample_weight(array, targets, sample_weight)
        samples = samples_of(
            owner, array, targets, self._names(), groups, weight, clients, self._seed
        )
        if first:
            self._learn(samples, categories(X), classes)
        elif samples.names != tuple(self.clients_):
            raise ParameterError(
                f"{owner}: groups names {', '.join(samples.names)}, expected the clients that "
                f"the run began with, {', '.join(self.clients_)}"
            )
        problem = self._problem(samples)
        start = problem.start(self._seed)
        if isinstance(self._model(), str):
            start = start.double()  # as exact as the rest of scikit-learn; a module stays as it is
        if first or not isinstance(self.lr, str):  # one that is found stays
            self.lr_ = self._rate(problem, start)
        self._keep(problem, self._simulate(problem, start, rounds))
        return self

    def _sample_weight(
        self, X: NDArray[Any], y: NDArray[Any], sample_weight: ArrayLike | None
    ) -> ArrayLike | None:
        """Return the weight of each sample in the loss; None for equal weights."""
        return sample_weight

    def _accepted(self) -> dict[str, Any]:
        """Return the restrictions on `X` that scikit-learn checks."""
        if self.preparation == "from-sums":
            return {"dtype": None, "ensure_all_finite": "allow-nan"}
        return {"dtype": np.float64}

    def _names(self) -> list[str]:
        named = "feature_names_in_" in vars(self)
        return (
            list(self.feature_names_in_) if named else [f"x{i}" for i in range(self.n_features_in_)]
        )

    def _learn(self, samples: GroupedSamples, words: set[str], classes: ArrayLike | None) -> None:
        """What is fitted before the first round, from what every client tells of its samples."""
        masses = None if samples.weights is None else samples.of_clients(samples.weights)
        self._learn_targets(samples, masses, classes)
        self.preparation_: list[Column] | None = None
        if self.preparation == "from-sums":
            given: dict[str, Any] = {"weights": masses, "categories": words}
            remedy = "X.drop(columns=[{}])"
            self.preparation_ = preparation.fit(samples.clients(), "X", **given, remedy=remedy)
        self.clients_ = np.array(samples.names)
        self.history_: list[Record] = []
        self._kept: Kept = {}

    def _inputs(self, cells: dict[str, NDArray[Any]]) -> Tensor:
        if self.preparation_ is None:
            return torch.from_numpy(np.stack(list(cells.values()), axis=1))
        return torch.from_numpy(preparation.apply(self.preparation_, cells))

    def _problem(self, samples: GroupedSamples) -> Problem:
        classes = tuple(map(str, vars(self).get("classes_", ())))  # none for a regression
        data = Dataset(
            self._inputs(samples.cells).float(),
            self._targets(samples.y),
            len(classes) or None,
            samples.owners,
            samples.names,
            name=type(self).__name__,
            preparation=preparation.described(self.preparation_) if self.preparation_ else None,
            weights=None if samples.weights is None else torch.from_numpy(samples.weights),
            class_names=classes,
        )
        options: dict[str, Any] = {"model": self._model(), "regularizer": self.regularizer}
        problem = problems.from_data(data, weights="samples", **options)
        if _flat(problem).buffers() is None:
            return problem
        return problems.from_data(data, weights="samples", buffers="average", **options)

    def _model(self) -> models.Model:
        return self.usual_model if self.model is None else self.model

    def _algorithm(self) -> AnyAlgorithm:
        method = self.method
        algorithm = named_method(method) if isinstance(method, str) else method
        check(self, "method", algorithm, Algorithm)
        return algorithm

    def _rate(self, problem: Problem, start: Tensor) -> float:
        if not isinstance(self.lr, str):
            return self.lr
        if self.lr != "auto":
            raise ParameterError(
                f"{type(self).__name__}: lr: got {self.lr!r}, expected a number > 0, or 'auto'"
            )
        smoothness = estimate_constants(problem, start, seed=self._seed).smoothness
        return 1.0 if smoothness <= 0.5 else 0.5 / smoothness

    def _simulate(self, problem: Problem, start: Tensor, rounds: int) -> Result:
        """Go on for some rounds."""
        check(self, "participation", self.participation, Share)
        everybody = self.participation == 1
        total = len(run_history.rounds(self.history_)) + rounds
        result, self._kept = go_on(
            self._kept,
            self._algorithm(),
            problem,
            total,
            sampler=None if everybody else UniformSampling(float(self.participation)),
            solver=SGD(lr=self.lr_, batch_size=self.batch_size),
            stop=Epochs(self.epochs),
            personal=self.personal,
            seed=self._seed,
            initial=start,
            engine=self.engine,
            evaluate=Evaluation(train=problem.clients[0].has_classes),
            output=ParticipantsMean(),
            callbacks=[partial(_print_round, total)] if self.verbose else (),
        )
        return result

    def _keep(self, problem: Problem, result: Result) -> None:
        self._params = result.params.numpy()
        self._buffers = None if result.buffers is None else result.buffers.numpy()
        again = {one["round"] for one in result.history}  # a round that was given up
        kept = [one for one in self.history_ if one["round"] not in again]
        self.history_ = kept + result.history
        self._ending = {"status": result.status, "code": result.code}
        self._partition = partition_of(problem)
        found = {name: result.clients.record(i) for i, name in enumerate(self.clients_)}
        owns = {
            name: result.own_models.find(record, result.params)
            for name, record in found.items()
            if record is not None
        }
        self._own = {name: own.numpy() for name, own in owns.items() if own is not None}
        if result.code == "diverged":
            warning = (
                f"{type(self).__name__}: {result.status}; a smaller lr than {self.lr_:g} may help"
            )
            warnings.warn(warning, ConvergenceWarning, stacklevel=4)

    @property
    def module_(self) -> nn.Module:
        """The trained model of prepared samples, built from the fitted arrays at each access."""
        return self._flat_module().module

    def _flat_module(self) -> FlatModule:
        check_is_fitted(self, "_params")
        count = len(vars(self).get("classes_", ())) or None
        inputs = torch.zeros(1, len(self.get_feature_names_out()))
        blank = Dataset(inputs, torch.zeros(1, dtype=torch.long), count)
        flat = FlatModule(models.build(model_factory(self._model(), blank, None)))
        params = torch.from_numpy(self._params)
        flat.to(params.dtype)
        flat.load(params)
        if self._buffers is not None:
            flat.load_buffers(torch.from_numpy(self._buffers))
        return flat

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the names of the prepared columns, in the order of `coef_`.

        Args:
            input_features: ignored; the names of `fit` are used.
        """
        check_is_fitted(self, "clients_")
        if self.preparation_ is None:
            return np.array(self._names(), dtype=object)
        return np.array(
            [
                name
                for column in self.preparation_
                for name in (
                    [f"{column.name}_{one}" for one in column.categories]
                    if isinstance(column, OneHot)
                    else [column.name]
                )
            ],
            dtype=object,
        )

    @property
    def coef_(self) -> NDArray[np.float64]:
        """Coefficients of a linear model, in the units of the columns before standardisation."""
        return self._linear()[0]

    @property
    def intercept_(self) -> NDArray[np.float64]:
        """Intercept of a linear model, for columns before standardisation."""
        return self._linear()[1]

    def _linear(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return coefficients and intercepts, one row and one number per output."""
        layers = [one for one in self.module_.modules() if not any(one.children())]
        layers = [one for one in layers if not isinstance(one, nn.Flatten)]
        if len(layers) != 1 or not isinstance(layers[0], nn.Linear):
            raise AttributeError(f"coef_: the model {self._model()!r} is not linear")
        weights: NDArray[np.float64] = layers[0].weight.detach().double().numpy()
        bias = np.zeros(len(weights))
        if layers[0].bias is not None:
            bias = layers[0].bias.detach().double().numpy()
        begin = 0
        for column in self.preparation_ or ():
            if isinstance(column, OneHot):
                begin += len(column.categories)
                continue
            weights[:, begin] /= column.deviation
            bias = bias - weights[:, begin] * column.mean
            begin += 1
        return weights, bias

    def to_onnx(self, path: str | Path) -> Path:
        """Write model and preparation as an ONNX file, and return its path.

        The file takes one number per column of `fit`: NaN for a missing value, and for a category
        its place in the sorted list, from 0.  It is compared with this model before it is written.
        It needs `pip install 'fedadmm[onnx]'`.
        """
        from fedadmm.study.export import to_onnx

        module, path = self.module_, Path(path)
        columns = self.preparation_
        about = {
            "problem": "your samples",
            "model": str(self._model()),
            "target": "y",
            "labels": [str(label) for label in vars(self).get("classes_", ())],
            "preparation": None if columns is None else self._described(columns),
        }
        to_onnx(path, module.eval(), len(self.get_feature_names_out()), about)
        return path

    def _described(self, columns: Sequence[Column]) -> dict[str, Any]:
        """Return the preparation as plain values."""
        return preparation.described(columns)

    def score_by_group(
        self,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike | str | None = None,
        *,
        personalised: bool = False,
    ) -> dict[str, float]:
        """Return the score of each group of samples: the accuracy, or R² of a regression.

        Args:
            X: the samples.
            y: the true class, or number, of each sample.
            groups: the group of each sample, or the name of the column that holds it; by default
                the column that `fit` was given.
            personalised: whether each group is predicted by its own client's model.
        """
        check_is_fitted(self, "_params")
        owner = type(self).__name__
        X, labels = split_groups(owner, X, self._groups_column if groups is None else groups)
        truth = column_or_1d(y)
        own = np.array([str(one) for one in groups_of(owner, labels, len(truth))])
        predicted = self.predict(X, own if personalised else None)
        measure = r2_score if self.regresses else accuracy_score
        return {
            str(name): float(measure(truth[own == name], predicted[own == name]))
            for name in np.unique(own)
        }

    @abstractmethod
    def predict(self, X: ArrayLike, groups: ArrayLike | str | None = None) -> NDArray[Any]:
        """Predict the target of every sample; with `groups`, by its own client's model."""

    def _outputs(self, X: ArrayLike, groups: ArrayLike | str | None = None) -> Tensor:
        """Return the outputs per sample, of each sample's own client if it is named."""
        flat = self._flat_module()
        owner = type(self).__name__
        if isinstance(groups, str):
            X, groups = split_groups(owner, X, groups)
        elif self._groups_column in getattr(X, "columns", ()):
            X, _ = split_groups(owner, X, self._groups_column)
        array = validate_data(self, X, reset=False, **self._accepted())
        inputs = self._inputs(cells_of(array, self._names()))
        inputs = inputs.to(flat.vector.dtype)
        if groups is None:
            return _through(flat.module, inputs)
        if not self._own:
            raise ParameterError(
                f"{owner}: groups is given, but {type(self._algorithm()).__name__} keeps no model "
                "of each client; use a method that does ('fedadmm', 'feddr', 'fedpd'), or "
                "personal=Ditto()"
            )
        names = np.array([str(one) for one in groups_of(owner, groups, len(inputs))])
        unknown = sorted({*names.tolist()} - {*self._own})
        if unknown:
            raise ParameterError(
                f"{owner}: groups names {unknown[0]!r}, expected clients that have taken "
                f"part: {', '.join(self._own)}"
            )
        outputs: list[Tensor] = [inputs] * len(inputs)
        for name in np.unique(names):
            flat.load(torch.from_numpy(self._own[name]))
            mine = np.flatnonzero(names == name)
            for sample, output in zip(mine, _through(flat.module, inputs[mine]), strict=True):
                outputs[sample] = output
        return torch.stack(outputs)


def _print_round(total: int, report: RoundReport) -> None:
    """Print the metrics of a round."""
    record = report.record
    values = [
        f"{name} {value:.4g}" for name, value in record["metrics"].items() if value is not None
    ]
    print(f"[fedadmm] round {record['round']}/{total}: {', '.join(values)}")


def _through(module: nn.Module, inputs: Tensor) -> Tensor:
    """A module's outputs in evaluation mode."""
    module.eval()
    with torch.no_grad():
        return torch.cat([module(inputs[part]) for part in evaluation_parts(inputs)])


def _flat(problem: Problem) -> FlatModule:
    flat = problem.clients[0].flat
    assert flat is not None  # clients made from samples have a module
    return flat


def _seed(random_state: int | np.random.RandomState | None) -> int:
    """A number as it is; else one is drawn."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


Kept = dict[str, bytes]
"""A checkpoint as bytes by name; empty before the first round."""


def go_on(
    kept: Kept, algorithm: AnyAlgorithm, problem: Problem, rounds: int, **parts: Any
) -> tuple[Result, Kept]:
    """Run until round `rounds` from a checkpoint; return the result and the next checkpoint.

    Args:
        kept: checkpoint of the run so far, which is not changed.
        algorithm: the method.
        problem: the clients.
        rounds: number of rounds since the beginning of the run.
        parts: other arguments of `simulate`.
    """
    checkpoints = MemoryCheckpoints(dict(kept), every=rounds)  # so that only the end is saved
    try:
        result = simulate(
            algorithm, problem, rounds, checkpoints=checkpoints, resume=bool(kept), **parts
        )
    except StateError as error:
        raise ParameterError(f"partial_fit: {error}; begin another run with fit") from None
    return result, checkpoints.content


def write_page(
    directory: Path,
    options: Mapping[str, Any],
    summary: Summary,
    partition: Mapping[str, Any] | None,
    history: Sequence[Record],
) -> Path:
    """Write a run directory with its page; over another estimator's, but over no other run."""
    folder = RunDir(directory)
    if folder.can_be_drawn and "estimator" not in folder.config():
        raise ParameterError(
            f"report: directory is '{directory}', which holds a run of another kind, expected a "
            "new folder or one that `report` has written"
        )
    create(directory)
    plain = {key: _plain(value) for key, value in options.items() if value is not None}
    config = {"problem": {"name": "your samples"}, "estimator": plain}
    folder.begin(config, summary, partition)
    folder.keep(-1)
    for record in history:
        folder.append(record)
    return write_report(directory)


def _plain(value: object) -> Any:
    """An option as TOML can hold it."""
    return value if isinstance(value, str | int | float | bool) else str(value)
