"""A federation behind scikit-learn's interface: its own checks, and what it is asked for beyond."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    LeaveOneGroupOut,
    cross_val_score,
    cross_validate,
    train_test_split,
)
from sklearn.utils.estimator_checks import check_estimator
from skops import io as skops_io
from torch import nn

import fedadmm as fa
from fedadmm.core.errors import DataError
from support.commands import write_small
from support.rejections import naming

NOT_MET = {
    "check_sample_weight_equivalence_on_dense_data": (
        "without groups rows are dealt out by their number, so that a row given twice changes who "
        "holds which; with groups and full batches the equivalence holds, and is tested below"
    )
}
"""The checks of scikit-learn that the estimators do not pass, and why."""
FULL: dict[str, Any] = {"batch_size": None, "lr": 0.2}


@pytest.mark.parametrize("kind", [fa.FederatedClassifier, fa.FederatedRegressor])
def test_scikit_learn_s_own_checks_pass(kind: type[Any]) -> None:
    estimator = kind(rounds=3, epochs=4, clients=2, batch_size=None)
    found = check_estimator(estimator, expected_failed_checks=NOT_MET, on_skip=None)
    assert {one["check_name"] for one in found if one["status"] == "xfail"} == set(NOT_MET)


@pytest.mark.parametrize(
    ("load", "kind", "least"),
    [
        (datasets.load_breast_cancer, fa.FederatedClassifier, 0.93),
        (datasets.load_iris, fa.FederatedClassifier, 0.93),
        (datasets.load_wine, fa.FederatedClassifier, 0.95),
        (datasets.load_digits, fa.FederatedClassifier, 0.93),
        (datasets.load_diabetes, fa.FederatedRegressor, 0.3),
    ],
)
def test_the_first_fit_works_without_an_option(load: Any, kind: type[Any], least: float) -> None:
    x, y = load(return_X_y=True)
    train, test, known, hidden = train_test_split(x, y, random_state=0)
    assert kind(clients=5).fit(train, known).score(test, hidden) >= least


def sites(rows: tuple[int, ...] = (30, 12, 18)) -> tuple[Any, Any, Any]:
    """Sites of different size and level, whose own best models differ."""
    draws = np.random.default_rng(3)
    parts = [draws.normal(site, 1 + site, (count, 3)) for site, count in enumerate(rows)]
    slopes = [np.array([1.0, -2.0, 0.5 * site]) for site in range(len(rows))]
    y = [
        part @ slope + draws.normal(0, 0.3, len(part))
        for part, slope in zip(parts, slopes, strict=True)
    ]
    names = [f"site {site}" for site, count in enumerate(rows) for _ in range(count)]
    return np.vstack(parts), np.concatenate(y), np.array(names)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_regression_ends_at_the_least_squares_of_all_rows_together(weighted: bool) -> None:
    x, y, site = sites()
    weights = np.random.default_rng(4).uniform(0.2, 3, len(y)) if weighted else None
    options: dict[str, Any] = {"rounds": 50, "batch_size": None, "epochs": 10}
    model = fa.FederatedRegressor(fa.FedADMM(rho=1.0), **options)
    model.fit(x, y, groups=site, sample_weight=weights)
    root = np.ones(len(y)) if weights is None else np.sqrt(weights)
    table = np.hstack([x, np.ones((len(x), 1))])
    best, *_ = np.linalg.lstsq(table * root[:, None], y * root, rcond=None)
    np.testing.assert_allclose(model.predict(x), table @ best, atol=2e-3)


def test_a_row_of_weight_two_is_a_row_given_twice_and_one_of_weight_zero_none() -> None:
    x, y, site = sites()
    labels = np.where(y > np.median(y), "high", "low")
    counts = np.random.default_rng(5).integers(0, 3, len(y))
    again = np.repeat(np.arange(len(y)), counts)
    model = fa.FederatedClassifier(rounds=4, **FULL)
    weighted = model.fit(x, labels, groups=site, sample_weight=counts).predict_proba(x)
    given_twice = model.fit(x[again], labels[again], groups=site[again]).predict_proba(x)
    np.testing.assert_allclose(weighted, given_twice, atol=1e-6)
    assert np.abs(model.fit(x, labels, groups=site).predict_proba(x) - weighted).max() > 0.01


def test_weights_are_the_same_on_another_engine() -> None:
    x, y, site = sites()
    weights = np.random.default_rng(4).uniform(0.2, 3, len(y))
    found = [
        fa.FederatedRegressor(rounds=3, lr=0.1, batch_size=8, engine=engine)
        .fit(x, y, groups=site, sample_weight=weights)
        .predict(x)
        for engine in ("sequential", "vectorised")
    ]
    np.testing.assert_allclose(*found, atol=1e-8)


@pytest.fixture
def frame() -> pd.DataFrame:
    """Numbers, words, numbers that are categories, truths and gaps of all kinds."""
    draws = np.random.default_rng(6)
    age = draws.normal(50, 9, 80)
    table = pd.DataFrame(
        {
            "age": np.where(np.arange(80) % 7 == 0, np.nan, age),
            "ward": pd.Series(draws.choice(["north", "south"], 80)).where(age < 64),
            "scanner": pd.Categorical(draws.choice([1, 2, 3], 80)),
            "smokes": draws.random(80) < 0.4,
            "visits": pd.Series(draws.integers(0, 9, 80), dtype="Int64").where(age > 40),
        }
    )
    return table.assign(sick=np.where(age + 20 * table["smokes"] > 58, "yes", "no"))


def test_a_data_frame_is_made_ready_from_what_each_site_tells(frame: pd.DataFrame) -> None:
    x, y = frame.drop(columns="sick"), frame["sick"]
    model = fa.FederatedClassifier().fit(x, y, groups=np.arange(80) % 4)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.clients_.tolist() == ["0", "1", "2", "3"]
    assert model.feature_names_in_.tolist() == x.columns.tolist()
    age, ward, scanner, smokes, visits = model.preparation_
    assert (age.mean, age.deviation) == pytest.approx((x["age"].mean(), x["age"].std(ddof=0)))
    assert ward.categories == ("north", "south")
    assert scanner.categories == ("1", "2", "3")
    assert smokes.mean == pytest.approx(x["smokes"].mean())
    assert visits.mean == pytest.approx(x["visits"].mean())
    assert model.score(x, y) > 0.9
    assert set(model.predict(x)) == {"no", "yes"}
    unseen = x.iloc[:2].assign(ward=["west", "north"])
    assert model.predict_proba(unseen).shape == (2, 2)
    with pytest.raises(DataError, match="'age' held numbers in all training rows"):
        model.predict(x.astype({"age": object}).assign(age="old"))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(x.rename(columns={"age": "years"}))


def test_partial_fit_goes_on_with_the_same_run_also_after_a_nap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solves = []
    solve = fa.SGD.descend
    monkeypatch.setattr(
        fa.SGD, "descend", lambda *given, **named: solves.append(1) or solve(*given, **named)
    )
    x, y, site = sites((20, 9, 14, 11))
    labels = (y > 0).astype(int)
    options: dict[str, Any] = {"batch_size": 8, "participation": 0.5, "random_state": 7}
    whole = fa.FederatedClassifier(rounds=6, **options).fit(x, labels, groups=site)
    parts = fa.FederatedClassifier(rounds=2, **options)
    parts.partial_fit(x, labels, groups=site, rounds=1)
    parts.partial_fit(x, labels, groups=site, rounds=3)
    assert [one["round"] for one in parts.history_] == [1, 2, 3, 4]
    solves.clear()
    parts = pickle.loads(pickle.dumps(parts)).partial_fit(x, labels, groups=site, rounds=2)
    again = len(solves)
    solves.clear()
    fa.FederatedClassifier(rounds=6, **options).fit(x, labels, groups=site)
    assert again == len(solves) / 3  # two rounds of six
    np.testing.assert_array_equal(parts.predict_proba(x), whole.predict_proba(x))
    losses = [[one["metrics"]["loss"] for one in model.history_] for model in (parts, whole)]
    assert losses[0] == losses[1]
    assert len(parts.fit(x, labels, groups=site).history_) == 2


def test_cross_validation_over_sites_trains_on_the_other_sites() -> None:
    x, y, site = sites()
    labels = (y > 0).astype(int)
    model, options = fa.FederatedClassifier(rounds=3), {"cv": LeaveOneGroupOut()}
    found = cross_validate(
        model, x, labels, groups=site, params={"groups": site}, return_estimator=True, **options
    )
    with sklearn.config_context(enable_metadata_routing=True):
        routed = cross_validate(
            model.set_fit_request(groups=True), x, labels, params={"groups": site}, **options
        )
    trained = [one.clients_.tolist() for one in found["estimator"]]
    assert trained == [["site 1", "site 2"], ["site 0", "site 2"], ["site 0", "site 1"]]
    assert routed["test_score"].tolist() == found["test_score"].tolist()


def test_fit_without_groups_warns_unless_random_clients_are_asked_for() -> None:
    x, y, site = sites()
    labels = y > 0
    with pytest.warns(UserWarning, match="groups"):
        fa.FederatedClassifier(rounds=1).fit(x, labels)
    with pytest.warns(
        UserWarning, match="groups"
    ):  # scikit-learn gives groups to the splitter only
        cross_val_score(
            fa.FederatedClassifier(rounds=1), x, labels, groups=site, cv=LeaveOneGroupOut()
        )
    fa.FederatedClassifier(rounds=1, clients=2).fit(x, labels)  # warnings are errors here


def test_a_column_of_the_data_frame_names_the_clients_in_a_grid_search() -> None:
    x, y, site = sites()
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(site=site)
    options: dict[str, Any] = {"rounds": 2, **FULL}
    model = fa.FederatedClassifier(groups="site", **options).fit(frame, y > 0)
    given = fa.FederatedClassifier(**options).fit(frame[["a", "b", "c"]], y > 0, groups=site)
    assert model.clients_.tolist() == ["site 0", "site 1", "site 2"]
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    expected = given.predict_proba(frame[["a", "b", "c"]])
    np.testing.assert_array_equal(model.predict_proba(frame), expected)
    np.testing.assert_array_equal(model.predict_proba(frame[["a", "b", "c"]]), expected)
    named = fa.FederatedClassifier(**options).fit(frame, y > 0, groups="site")
    np.testing.assert_array_equal(named.predict_proba(frame), expected)
    search = GridSearchCV(model, {"epochs": [1, 2]}, cv=GroupKFold(3))
    search.fit(frame, y > 0, groups=site)
    assert search.best_estimator_.clients_.tolist() == ["site 0", "site 1", "site 2"]
    with pytest.raises(fa.errors.ParameterError, match=naming("groups place a b c site")):
        model.fit(frame, y > 0, groups="place")


def test_scores_of_groups_are_those_of_their_samples_alone() -> None:
    x, y, site = sites()
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(site=site)
    labels = (y > 0).astype(int)
    model = fa.FederatedClassifier(rounds=3, groups="site", personal=fa.Ditto()).fit(frame, labels)
    names = ["site 0", "site 1", "site 2"]
    expected = {name: model.score(frame[site == name], labels[site == name]) for name in names}
    assert model.score_by_group(frame, labels) == pytest.approx(expected)
    own = model.predict(frame, groups="site")
    expected = {name: float((own == labels)[site == name].mean()) for name in names}
    assert model.score_by_group(frame, labels, personalised=True) == pytest.approx(expected)
    numbers = fa.FederatedRegressor(rounds=3, clients=2).fit(x, y)
    first = numbers.score_by_group(x, y, site)["site 0"]
    assert first == pytest.approx(numbers.score(x[site == "site 0"], y[site == "site 0"]))


def test_balanced_classes_weigh_equally_as_in_scikit_learn() -> None:
    draws = np.random.default_rng(0)
    rare = draws.random(600) < 0.05
    x = draws.normal(0, 1, (600, 2)) + rare[:, None]
    site = np.arange(600) % 3
    fixed: dict[str, Any] = {"rounds": 60, "batch_size": None, "epochs": 20}
    model = fa.FederatedClassifier(class_weight="balanced", **fixed).fit(x, rare, groups=site)
    usual = LogisticRegression(class_weight="balanced", C=np.inf).fit(x, rare)
    np.testing.assert_allclose(model.predict_proba(x), usual.predict_proba(x), atol=0.02)
    plain = fa.FederatedClassifier(**fixed).fit(x, rare, groups=site)
    assert model.predict(x).mean() > 3 * plain.predict(x).mean()
    doubled = fa.FederatedClassifier(class_weight={True: 2.0}, **fixed).fit(x, rare, groups=site)
    weighted = plain.fit(x, rare, groups=site, sample_weight=np.where(rare, 2.0, 1.0))
    np.testing.assert_allclose(doubled.predict_proba(x), weighted.predict_proba(x), atol=1e-9)
    both = doubled.fit(x, rare, groups=site, sample_weight=np.where(rare, 3.0, 1.0))
    product = plain.fit(x, rare, groups=site, sample_weight=np.where(rare, 6.0, 1.0))
    np.testing.assert_allclose(both.predict_proba(x), product.predict_proba(x), atol=1e-9)


def test_coefficients_of_a_linear_model_reproduce_its_scores(frame: pd.DataFrame) -> None:
    x, sick = frame.drop(columns="sick"), frame["sick"]
    model = fa.FederatedClassifier(rounds=3).fit(x, sick, groups=np.arange(80) % 4)
    encoded = ["ward_north", "ward_south", "scanner_1", "scanner_2", "scanner_3"]
    columns = ["age", *encoded, "smokes", "visits"]
    assert model.get_feature_names_out().tolist() == columns
    numbers = x[["age", "visits"]].astype(float)
    table = numbers.fillna(numbers.mean()).assign(smokes=x["smokes"].astype(float))
    for name in encoded:
        column, category = name.split("_")
        table[name] = (x[column].astype(str) == category).astype(float)
    score = table[columns].to_numpy() @ model.coef_.T + model.intercept_
    odds = model.predict_proba(x)
    np.testing.assert_allclose(score[:, 0], np.log(odds[:, 1] / odds[:, 0]), atol=1e-6)
    a, y, site = sites()
    line = fa.FederatedRegressor(rounds=3).fit(a, y, groups=site)
    assert line.coef_.shape == (3,)
    np.testing.assert_allclose(a @ line.coef_ + line.intercept_, line.predict(a), atol=1e-6)
    assert not hasattr(fa.FederatedRegressor(model="mlp", rounds=1).fit(a, y, groups=site), "coef_")
    assert not hasattr(fa.FederatedRegressor(), "coef_")


def test_a_fitted_estimator_is_stored_without_pickle() -> None:
    x, y, site = sites()
    model = fa.FederatedRegressor(fa.FedADMM(0.1), model="mlp", rounds=2, random_state=3)
    model.fit(x, y, groups=site)
    usual = fa.FederatedClassifier(rounds=2, batch_size=8).fit(x, y > 0, groups=site)
    for fitted in (model, usual):
        data = skops_io.dumps(fitted)
        unknown = skops_io.get_untrusted_types(data=data)
        assert all(name.startswith("fedadmm.") for name in unknown), unknown
        loaded = skops_io.loads(data, trusted=unknown)
        np.testing.assert_array_equal(loaded.predict(x), fitted.predict(x))
        more, again = (
            one.partial_fit(x, fitted.predict(x), groups=site) for one in (loaded, fitted)
        )
        np.testing.assert_array_equal(more.predict(x), again.predict(x))


def test_onnx_takes_raw_columns_and_agrees_with_predict(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    x, y, site = sites()
    x[::7, 1] = np.nan
    model = fa.FederatedRegressor(rounds=2).fit(x, y, groups=site)
    path = model.to_onnx(tmp_path / "model.onnx")
    session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(outputs[:, 0], model.predict(x), atol=1e-9)


def test_verbose_prints_a_line_per_round(capsys: pytest.CaptureFixture[str]) -> None:
    x, y, site = sites()
    model = fa.FederatedRegressor(rounds=2, verbose=1).fit(x, y, groups=site)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(model.history_) == 2
    loss = model.history_[-1]["metrics"]["loss"]
    assert "2/2" in printed[-1]
    assert f"{loss:.4g}" in printed[-1]
    model.set_params(verbose=0).fit(x, y, groups=site)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("dates", [pd.date_range("2024-01-01", periods=60), [pd.Timedelta(1)] * 60])
def test_dates_are_rejected_with_a_column_to_compute(dates: Any) -> None:
    _, y, site = sites()
    frame = pd.DataFrame({"seen": dates, "age": np.arange(60.0)})
    for table in (frame, frame[["seen"]], frame.astype(object)):
        with pytest.raises(TypeError, match=naming("seen dates dt.days drop")):
            fa.FederatedRegressor(rounds=1).fit(table, y, groups=site)


def test_a_module_with_statistics_is_trained_as_it_is() -> None:
    torch.manual_seed(0)  # the module is drawn here, not by the run
    x, y, site = sites()
    body = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    first = body[0].weight.detach().clone()
    model = fa.FederatedClassifier("fedavg", body, rounds=5).fit(x, y > 0, groups=site)
    assert model.score(x, y > 0) == model.history_[-1]["metrics"]["train_accuracy"] > 0.8
    assert model.module_[0].weight.dtype == first.dtype
    assert float(model.module_[1].running_mean.abs().sum()) > 0
    assert bool((body[0].weight == first).all()), "the module that was given is left alone"


def test_the_report_is_written_and_written_again_but_over_no_other_run(tmp_path: Path) -> None:
    x, y, site = sites()
    model = fa.FederatedClassifier(rounds=2).fit(x, np.where(y > 0, "up", "down"), groups=site)
    for _ in range(2):
        page = model.report(tmp_path / "report").read_text()
        assert "site 2" in page
        assert "AlignedADMM" in page
    shown = json.loads((tmp_path / "report" / "partition.json").read_text())
    assert shown["labels"] == ["down", "up"]
    assert len((tmp_path / "report" / "metrics.jsonl").read_text().splitlines()) == 2
    other = write_small(tmp_path / "config.toml")
    with pytest.raises(fa.errors.ParameterError, match="holds a run of another kind"):
        model.report(other.parent)


def test_seeds_are_drawn_where_none_is_given() -> None:
    x, y, site = sites()
    model = fa.FederatedRegressor(rounds=1, batch_size=4)

    def predicted(state: Any) -> NDArray[Any]:
        found: NDArray[Any] = model.set_params(random_state=state).fit(x, y, groups=site).predict(x)
        return found

    drawn = np.random.RandomState(1).randint(2**31 - 1)
    np.testing.assert_array_equal(predicted(np.random.RandomState(1)), predicted(drawn))
    assert (predicted(0) != predicted(1)).any()
    assert (predicted(None) != predicted(None)).any()


def test_a_run_that_diverges_is_told() -> None:
    x, y, site = sites()
    with pytest.warns(ConvergenceWarning, match=r"a smaller lr than 1000 may help"):
        fa.FederatedRegressor(lr=1000.0).fit(x, y, groups=site)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "fedadm"}, "method is 'fedadm', which is not known; .*fedadmm"),
        (
            {"method": "support.strangers:Needing"},
            r"method is 'support.strangers:Needing', which has no usual size; .*Needing\(size=…\)",
        ),
        ({"method": fa.FedADMM}, r"method: got the class FedADMM, .* as in FedADMM\(...\)"),
        ({"model": "tree"}, "model: name: got 'tree'.*mlp"),
        ({"model": 7}, "model: got 7, expected a name, a module"),
        ({"rounds": 0}, "rounds: got 0, expected a whole number of at least 1"),
        ({"lr": "fast"}, "lr: got 'fast', expected a number > 0, or 'auto'"),
        ({"lr": -1.0}, "SGD: lr: got -1.0, expected > 0"),
        ({"participation": 0}, "participation: got 0, expected > 0 and <= 1"),
        ({"preparation": "none"}, "preparation: got 'none', expected one of 'from-sums', 'as-is'"),
        ({"regularizer": fa.L1(0.1), "method": "fedavg"}, "regularizer: got L1.*FedAvg"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    x, y, site = sites()
    with pytest.raises(ValueError, match=message):
        fa.FederatedClassifier(**options).fit(x, y > 0, groups=site)


def test_rows_that_cannot_be_are_refused() -> None:
    x, y, site = sites()
    model = fa.FederatedClassifier(rounds=1)
    with pytest.raises(NotFittedError):
        model.report("nowhere")
    with pytest.raises(ValueError, match=naming("groups missing")):
        model.fit(x, y > 0, groups=np.where(site == "site 1", None, site))
    mixed = np.where(site == "site 1", 1, site.astype(object))
    with pytest.raises(
        fa.errors.ParameterError, match=naming("FederatedClassifier groups int str")
    ):
        model.fit(x, y > 0, groups=mixed)
    many = len(x)
    wide = np.stack([site, site], axis=1)
    for short, shape in (
        (site[1:], f"({many - 1},)"),
        (7, "()"),
        (wide, f"({many}, 2)"),
    ):
        with pytest.raises(
            fa.errors.ParameterError, match=naming("FederatedClassifier groups")
        ) as e:
            model.fit(x, y > 0, groups=short)
        assert shape in str(e.value)
        assert str(many) in str(e.value)
    with pytest.raises(fa.errors.ParameterError, match=naming("FederatedClassifier y")):
        model.fit(x, np.where(y > 0, "sick", None), groups=site)
    with pytest.raises(ValueError, match=naming("FederatedClassifier sample_weight -1 1")):
        model.fit(x, y > 0, groups=site, sample_weight=np.where(y > 0, 1, -1))
    with pytest.raises(ValueError, match="could not convert string to float"):
        fa.FederatedClassifier(clients=2, preparation="as-is").fit([["a"], ["b"]], [0, 1])
    names = np.array([[f"row {row}"] for row in range(150)], dtype=object)
    days = np.datetime_as_string(np.datetime64("2024-01-01") + np.arange(150))[:, None]
    with pytest.raises(DataError, match=naming("x0 150 dates days")):
        model.set_params(clients=5).fit(days.astype(object), np.arange(150) % 2)
    with pytest.raises(DataError, match=r"'x0' holds 150 different words.*X\.drop"):
        model.set_params(clients=5).fit(names, np.arange(150) % 2)
    model.fit(x, y > 0, groups=site)
    with pytest.raises(ValueError, match="expected the clients that the run began with, site 0"):
        model.partial_fit(x[:42], y[:42] > 0, groups=site[:42])
    with pytest.raises(ValueError, match=r"y holds .*2.*, expected classes that were known"):
        model.partial_fit(x, np.full(len(x), 2), groups=site)


def test_options_that_change_between_two_calls_count_from_then_on() -> None:
    """A rate that is given does, too; another method or model needs another run."""
    x, y, site = sites()
    still, moved = (fa.FederatedRegressor("fedavg", rounds=2, lr=0.2) for _ in "ab")
    still.fit(x, y, groups=site)
    moved.fit(x, y, groups=site).set_params(lr=1e-12).partial_fit(x, y, groups=site)
    assert moved.lr_ == 1e-12
    np.testing.assert_allclose(moved.predict(x), still.predict(x), atol=1e-6)
    found = fa.FederatedRegressor(rounds=2).fit(x, y, groups=site)
    rate = found.lr_
    assert found.partial_fit(x, y, groups=site).lr_ == rate
    with pytest.raises(
        fa.errors.ParameterError,
        match=r'the run so far belongs .*algorithm is "aligned-admm" there and "fedavg"',
    ):
        found.set_params(method="fedavg").partial_fit(x, y, groups=site)


def test_a_round_that_was_given_up_stands_once_in_the_history() -> None:
    x, y, site = sites()
    model = fa.FederatedRegressor("fedavg", lr=1e200, model="mlp", rounds=2)
    with pytest.warns(ConvergenceWarning):
        model.fit(x, y, groups=site)
    with pytest.warns(ConvergenceWarning):
        model.partial_fit(x, y, groups=site)
    assert [record["round"] for record in model.history_] == [1]


def test_a_module_may_have_any_precision() -> None:
    x, y, site = sites()
    module = nn.Linear(x.shape[1], 1)
    one, two = (
        fa.FederatedRegressor(model=copy.deepcopy(module).to(kind), rounds=3).fit(x, y, groups=site)
        for kind in (torch.float32, torch.float64)
    )
    assert next(two.module_.parameters()).dtype == torch.float64
    np.testing.assert_allclose(two.predict(x), one.predict(x), rtol=1e-3, atol=1e-3)
