"""Named problems and problems from your own samples."""

import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedadmm.core.errors import DataError, ParameterError
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.parts import part
from fedadmm.core.problem import LazyClients, Problem
from fedadmm.core.regularizers import L1
from fedadmm.data import Dataset, Normalise, Partition, partitions, problems

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def digits() -> Problem:
    return problems.load("digits")


def own_rows(rows: int = 60, classes: int | None = 3, clients: int | None = 5) -> Dataset:
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 4, generator=source)
    targets = inputs[:, 0] if classes is None else torch.arange(rows) % classes
    groups = None if clients is None else np.arange(rows) // 3 % clients
    names = () if clients is None else tuple(f"site {i}" for i in range(clients))
    return Dataset(inputs, targets, classes, groups, names, name="mine")


def test_the_quickstart_problem(digits: Problem) -> None:
    assert digits.num_clients == 50
    assert digits.num_parameters == 64 * 32 + 32 + 32 * 10 + 10
    assert digits.name == "digits"
    labels = [len(client.targets.unique()) for client in digits.clients]
    assert np.mean(labels) < 2.5
    metrics = digits.test(digits.start(0))
    assert set(metrics) == {"test_loss", "test_accuracy"}
    assert metrics["test_loss"] == pytest.approx(np.log(10), rel=0.05)


def test_start_vectors_are_functions_of_the_seed(digits: Problem) -> None:
    assert torch.equal(digits.start(1), digits.start(1))
    assert not torch.equal(digits.start(1), digits.start(2))


def test_all_clients_share_one_module_and_rows_are_not_copied(digits: Problem) -> None:
    first, last = digits.clients[0], digits.clients[-1]
    assert isinstance(first.flat, FlatModule)
    assert first.flat is last.flat is digits.test.flat
    store = digits.data.samples.inputs.untyped_storage().data_ptr()
    assert first.inputs.untyped_storage().data_ptr() == store
    assert last.inputs.untyped_storage().data_ptr() == store
    assert digits.clients[49].inputs.data_ptr() == last.inputs.data_ptr()
    with pytest.raises(IndexError):
        digits.clients[50]
    assert len(digits.clients[3:6]) == 3


def test_clients_hold_the_rows_of_their_partition() -> None:
    rows = own_rows()
    partition = partitions.dirichlet(rows.labels, 7, 3, alpha=0.4)
    problem = problems.from_data(rows, model="logistic", partition=partition)
    for client, mine in zip(problem.clients, partition, strict=True):
        assert torch.equal(client.inputs, rows.inputs[mine])
        assert torch.equal(client.targets, rows.targets[mine])


def test_the_held_out_loss_and_accuracy_are_what_they_say(digits: Problem) -> None:
    params = digits.start(3)
    module = digits.test.flat.module
    digits.test.flat.load(params)
    with torch.no_grad():
        scores = module(digits.test.inputs)
    found = digits.test(params)
    expected = nn.functional.cross_entropy(scores, digits.test.targets)
    assert found["test_loss"] == pytest.approx(float(expected), rel=1e-5)
    right = (scores.argmax(1) == digits.test.targets).double().mean()
    assert found["test_accuracy"] == pytest.approx(float(right))


def test_a_long_held_out_set_is_evaluated_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problems.load("digits")
    whole = problem.test(problem.start(0))
    monkeypatch.setattr("fedadmm.core.objectives.model.EVALUATION_SAMPLES", 7)
    parts = problem.test(problem.start(0))
    assert parts["test_loss"] == pytest.approx(whole["test_loss"], rel=1e-5)
    assert parts["test_accuracy"] == whole["test_accuracy"]


def test_weights_are_uniform_or_by_training_rows() -> None:
    rows = own_rows()
    even = problems.from_data(rows, clients=4, partition="lognormal")
    assert [even.weight(i) for i in range(4)] == [0.25] * 4
    options = {"clients": 4, "partition": "lognormal", "weights": "samples", "validation": 0.25}
    by_rows = problems.from_data(rows, **options)
    sizes = [client.num_samples for client in by_rows.clients]
    assert [by_rows.weight(i) for i in range(4)] == pytest.approx(np.array(sizes) / sum(sizes))


def test_validation_rows_are_kept_from_training() -> None:
    rows = own_rows(90, clients=None)
    problem = problems.from_data(rows, clients=6, validation=0.2)
    seen = []
    for client in range(6):
        train, held = problem.data.train(client), problem.data.validation(client)
        assert (len(train[1]), len(held[1])) == (12, 3)
        assert torch.equal(problem.clients[client].inputs, train[0])
        seen += [*train[0].tolist(), *held[0].tolist()]
    assert sorted(seen) == sorted(rows.inputs.tolist())
    metrics = problem.client_tests[2](problem.start(0))
    assert set(metrics) == {"validation_loss", "validation_accuracy"}


def test_a_client_with_one_row_keeps_it() -> None:
    rows = own_rows(5, clients=None)
    problem = problems.from_data(rows, clients=5, validation=0.5)
    assert [client.num_samples for client in problem.clients] == [1] * 5
    assert problem.client_tests[0](problem.start(0)) == {}


def test_natural_clients_have_their_own_test_rows() -> None:
    train, test = own_rows(60, clients=5), own_rows(30, clients=5)
    problem = problems.from_data(train, test, validation=0.3)
    assert problem.num_clients == 5
    assert problem.data.client_names() == [f"site {i}" for i in range(5)]
    params = problem.start(0)
    weighted = 0.0
    for client in range(5):
        metrics = problem.client_tests[client](params)
        rows = int((test.groups == client).sum())
        weighted += rows * metrics["test_loss"] / len(test)
        assert "validation_loss" in metrics
    assert problem.test(params)["test_loss"] == pytest.approx(weighted, rel=1e-5)


def test_only_the_test_rows_of_participating_natural_clients_count() -> None:
    problem = problems.from_data(own_rows(60), own_rows(30), clients=2)
    assert len(problem.test.targets) == 12
    mixed = problems.from_data(own_rows(60), own_rows(30), clients=2, partition="iid")
    assert len(mixed.test.targets) == 30
    assert mixed.client_tests is None


def test_rows_can_be_limited() -> None:
    problem = problems.load("digits", clients=5, max_train=100, max_test=40)
    assert sum(client.num_samples for client in problem.clients) == 100
    assert len(problem.test.targets) == 40


def test_normalised_by_batch_or_once_is_the_same_function() -> None:
    by_batch = problems.load("digits", normalise="batch", clients=5)
    once = problems.load("digits", normalise="once", clients=5)
    params = once.start(0)
    assert by_batch.clients[0].inputs.dtype == torch.uint8
    assert once.clients[0].inputs.dtype == torch.float32
    torch.testing.assert_close(by_batch.gradient(params), once.gradient(params))
    assert by_batch.test(params) == pytest.approx(once.test(params))


def test_a_regression_and_two_classes_get_their_losses() -> None:
    regression = problems.from_data(own_rows(classes=None), model="linear")
    w = regression.start(0)
    client = regression.clients[0]
    outputs = client.inputs @ w[:4] + w[4]
    expected = (outputs - client.targets).square().mean() / 2
    torch.testing.assert_close(client.value(w), expected)
    binary = problems.from_data(own_rows(classes=2), own_rows(classes=2), model="logistic")
    assert binary.num_parameters == 5
    client = binary.clients[0]
    signs = 2 * client.targets - 1
    margins = signs * (client.inputs @ w[:4] + w[4])
    torch.testing.assert_close(client.value(w), nn.functional.softplus(-margins).mean())
    scores = binary.test.inputs @ w[:4] + w[4]
    right = ((scores > 0) == (binary.test.targets == 1)).double().mean()
    assert binary.test(w)["test_accuracy"] == pytest.approx(float(right))


def test_models_of_the_user() -> None:
    module = nn.Sequential(nn.Linear(4, 3))
    problem = problems.from_data(own_rows(), model=module)
    assert torch.equal(problem.start(0)[:12].view(3, 4), module[0].weight)

    def mine(inputs: int, classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, classes))

    factory = problems.load(
        "digits", model=lambda classes: nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    )
    assert factory.num_parameters == 650
    assert problems.from_data(own_rows(), model=mine).num_parameters == 4 * 8 + 8 + 8 * 3 + 3


def test_test_rows_are_prepared_in_their_own_way() -> None:
    """Rows that are stored as bytes for training and as floats for testing are the same samples."""
    train = Dataset(
        torch.arange(24, dtype=torch.uint8).reshape(6, 4),
        torch.arange(6) % 3,
        3,
        np.arange(6) // 2,
        ("a", "b", "c"),
        Normalise((0.5,), (2.0,), scale=10.0),
    )
    problem = problems.from_data(train, train.prepared())
    params = problem.start(0)
    losses = [float(client.value(params)) for client in problem.clients]
    assert [test(params)["test_loss"] for test in problem.client_tests] == pytest.approx(losses)
    assert problem.test(params)["test_loss"] == pytest.approx(sum(losses) / 3)


def test_only_clients_that_need_no_rows_travel_as_a_recipe() -> None:
    """An engine that sends `LazyClients` as they are would otherwise send everybody's samples."""
    stored = problems.load("digits", clients=4)
    drawn = problems.load("insa-regression", clients=4, rows=40, features=1000)
    for problem, travels in ((stored, False), (drawn, True)):
        for one in (problem, problem.to(torch.float64)):
            assert isinstance(one.clients, LazyClients) is travels
            assert one.clients[-1].num_samples == problem.clients[3].num_samples
    first = drawn.clients[0]
    assert len(pickle.dumps(drawn.clients)) < first.features.numel() * 4


def test_a_saved_partition_can_be_used_again(tmp_path: Path) -> None:
    first = problems.load("digits", clients=9, partition="dirichlet")
    first.data.partition.save(tmp_path / "split.npz")
    again = problems.load("digits", partition=str(tmp_path / "split.npz"))
    other = problems.load("digits", partition=Partition.load(tmp_path / "split.npz"))
    for problem in (again, other):
        assert problem.num_clients == 9
        assert torch.equal(problem.clients[4].inputs, first.clients[4].inputs)


def test_lazy_synthetic_clients_are_those_of_the_stored_ones() -> None:
    options = {"alpha": 1.0, "beta": 1.0, "clients": 6, "max_samples": 120, "weights": "samples"}
    stored = problems.load("synthetic", **options)
    lazy = problems.load("synthetic", lazy=True, **options)
    assert lazy.data is None
    for client in range(6):
        mine, theirs = lazy.clients[client], stored.clients[client]
        order = [torch.argsort(x.inputs[:, 0]) for x in (mine, theirs)]
        assert torch.equal(mine.inputs[order[0]], theirs.inputs[order[1]])
        assert lazy.weight(client) == pytest.approx(stored.weight(client))
    params = lazy.start(2)
    assert torch.equal(params, stored.start(2))
    assert lazy.test(params) == pytest.approx(stored.test(params), rel=1e-5)
    assert stored.client_tests is not None


def test_a_hundred_thousand_synthetic_clients_are_described_not_built() -> None:
    problem = problems.load("synthetic", clients=100_000, lazy=True)
    assert problem.num_clients == 100_000
    assert problem.clients[99_999].num_samples >= 45


def test_insa_regression_keeps_what_it_has_drawn() -> None:
    options = {"clients": 4, "rows": 40, "features": 10}
    problem = problems.load("insa-regression", **options)
    assert problem.clients[1] is problem.clients[1]
    again = problems.load("insa-regression", **options)
    assert torch.equal(again.clients[1].features, problem.clients[1].features)
    assert problem.num_parameters == 10
    copy = pickle.loads(pickle.dumps(problem.clients))
    assert torch.equal(copy[1].features, problem.clients[1].features)
    assert len(problem.clients[:2]) == 2
    with pytest.raises(IndexError):
        problem.clients[4]


def test_the_full_insa_regression_is_described_at_once() -> None:
    problem = problems.load("insa-regression")
    assert (problem.num_clients, problem.num_parameters) == (200, 5000)
    assert problem.clients[199].features.shape == (250, 5000)


def test_a_regularizer_is_taken_over() -> None:
    assert problems.load("digits", clients=2, regularizer=L1(0.5)).regularizer == L1(0.5)


@pytest.mark.parametrize("name", problems.names())
def test_every_problem_has_frozen_plain_options_with_defaults(name: str) -> None:
    options = problems.options(name)()
    assert dataclasses.is_dataclass(options)
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        for one in value if isinstance(value, tuple) else (value,):  # a list of columns, say
            assert isinstance(one, str | int | float | bool | None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.clients = 3
    assert problems.options(name).summary


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: problems.load("imagenet"), "name: got 'imagenet', expected one of cifar10"),
        (lambda: problems.load("digits", shards=3), "digits: there is no option 'shards', but"),
        (lambda: problems.load("digits", clients=0), "clients: got 0"),
        (lambda: problems.load("digits", clients=None), "needs a number of clients"),
        (lambda: problems.load("digits", partition="random"), "partition: got 'random'"),
        (lambda: problems.load("digits", partition="natural"), "no natural clients"),
        (lambda: problems.load("digits", clients=1000), "expected at least 2000"),
        (lambda: problems.load("digits", validation=1.0), "validation: got 1.0"),
        (lambda: problems.load("digits", weights="size"), "weights: got 'size'"),
        (lambda: problems.load("digits", model="vgg"), "name: got 'vgg'"),
        (lambda: problems.load("digits", model="logistic", as_released="gong"), "no variant"),
        (lambda: problems.load("synthetic", alpha=-1.0), "alpha: got -1.0"),
        (lambda: problems.load("synthetic", clients=None), "clients: got None"),
        (lambda: problems.load("synthetic", lazy=True, partition="iid"), "works only with"),
        (lambda: problems.from_data(own_rows(), shards=3), "unexpected keyword argument"),
        (
            lambda: part("problem", "digits")(type("Own", (), {})),
            "problem: name 'digits' is taken already",
        ),
    ],
)
def test_what_cannot_be_loaded_is_refused(call, message: str) -> None:
    with pytest.raises(ParameterError) as error:
        call()
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: problems.load("digits", model="cnn2"), "the model cannot read samples of shape"),
        (lambda: problems.load("digits", model="mlp-64-7"), "expected 10 scores a sample"),
        (
            lambda: problems.from_data(own_rows(classes=None), model=nn.Linear(4, 2)),
            "expected one number a sample",
        ),
        (
            lambda: problems.from_data(own_rows(classes=None), clients=3, partition="shards"),
            "has no class labels",
        ),
        (
            lambda: problems.from_data(
                own_rows(), partition=Partition(np.array([70]), np.array([0, 1]))
            ),
            "names sample 70, but mine has only 60 samples",
        ),
        (
            lambda: problems.from_data(
                own_rows(), partition=Partition(np.array([7]), np.array([0, 1, 1]))
            ),
            "client 1 of the partition holds no samples",
        ),
        (lambda: Dataset(torch.zeros(2, 1), torch.zeros(3)), "2 inputs and 3 targets"),
        (lambda: Dataset(torch.zeros(0, 1), torch.zeros(0)), "holds no samples"),
        (
            lambda: Dataset(np.zeros((2, 1), np.float32), torch.zeros(2)),
            "inputs: got ndarray of float32, expected a tensor",
        ),
        (
            lambda: Dataset(torch.zeros(1, 1), torch.zeros(1), None, np.array(["a"]), ("a",)),
            "groups: got ndarray of <U1, expected an array of whole numbers",
        ),
        (lambda: Dataset(torch.full((1, 1), torch.nan), torch.zeros(1)), "NaN or an infinity"),
        (lambda: Dataset(torch.zeros(1, 1), torch.zeros(1), 2), "class labels are torch.float32"),
        (
            lambda: Dataset(torch.zeros(1, 1), torch.zeros(1), None, np.array([1]), ("a",)),
            "groups run from 1 to 1, but 1 group names",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_round_0(call, message: str) -> None:
    with pytest.raises(DataError) as error:
        call()
    assert message in str(error.value)


def test_normalise_refuses_nonsense() -> None:
    with pytest.raises(ParameterError, match="equal lengths"):
        Normalise((0.1, 0.2), (1.0,))
    with pytest.raises(ParameterError, match="expected > 0"):
        Normalise((0.1,), (0.0,))


def hospitals(path: Path) -> Path:
    lines = ["hospital,age,dose,sick"]
    for i in range(300):
        age, dose = (i * 7) % 60 - 30, (i * 5) % 11
        lines.append(f"{i % 3},{age / 30},{dose / 10},{'yes' if age + dose > 5 else 'no'}")
    path.write_text("\n".join(lines))
    return path


def test_a_table_of_your_own_by_name(tmp_path: Path) -> None:
    path = str(hospitals(tmp_path / "hospitals.csv"))
    problem = problems.load("table", path=path, target="sick", client="hospital")
    assert problem.num_clients == 3
    assert len(problem.test.targets) == 60
    assert problem.client_tests is not None
    everything = problems.load(
        "table", path=path, target="sick", client="hospital", test_fraction=0
    )
    assert everything.test is None


def test_the_example_in_the_guide_runs(tmp_path: Path) -> None:
    example = ROOT / "examples/bring_your_own_data.py"
    code = [line for line in example.read_text().splitlines() if line.strip()]
    assert len(code) < 15
    assert example.read_text().split('"""')[2].strip() in (ROOT / "docs/data.md").read_text()
    done = subprocess.run(
        [sys.executable, str(example), str(hospitals(tmp_path / "hospitals.csv"))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "3 clients" in done.stdout
    assert float(done.stdout.split("test_accuracy': ")[1].rstrip("}\n")) > 0.9


@pytest.mark.skipif(not os.environ.get("FEDADMM_DATA"), reason="FEDADMM_DATA is not set")
@pytest.mark.parametrize(
    ("name", "options", "clients", "parameters"),
    [
        ("mnist", {"clients": 1000, "max_train": 6000}, 1000, 1_663_370),
        ("fashion-mnist", {"partition": "imbalanced", "clients": 200}, 200, 1_663_370),
        ("cifar10-small", {"as_released": "gong", "pixels": "halves"}, 100, 1_105_098),
        ("femnist", {"max_test": 500}, 300, 6_603_710),
        ("mnist-writers", {"model": "mlp-784-128-10"}, 539, 101_770),
        ("heart-disease", {}, 4, 14),
    ],
)
def test_problems_from_real_data(
    name: str, options: dict, clients: int | None, parameters: int | None
) -> None:
    problem = problems.load(name, **options)
    assert clients in (None, problem.num_clients)
    assert parameters in (None, problem.num_parameters)
    smallest = int(np.argmin(problem.data.train_sizes))
    assert torch.isfinite(problem.clients[smallest].gradient(problem.start(0))).all()
    if name in ("heart-disease", "femnist"):
        assert set(problem.client_tests[0](problem.start(0))) <= {"test_loss", "test_accuracy"}
    else:
        assert problem.client_tests is None


@pytest.mark.skipif(not os.environ.get("FEDADMM_DATA"), reason="FEDADMM_DATA is not set")
def test_hospitals_are_learnable() -> None:
    """A few hundred steps of gradient descent on the pooled logistic loss predict well."""
    problem = problems.load("heart-disease", weights="samples")
    params = problem.start(0)
    for _ in range(200):
        params = params - 0.5 * problem.gradient(params)
    assert problem.test(params)["test_accuracy"] > 0.75


@pytest.mark.skipif(not os.environ.get("FEDADMM_DATA"), reason="FEDADMM_DATA is not set")
@pytest.mark.parametrize(
    "name", [name for name in problems.names() if problems.options(name).sites]
)
def test_a_site_alone_is_the_client_that_it_is_among_others(name: str) -> None:
    sites = problems.options(name).sites
    together = problems.load(name)
    assert list(sites.names) == together.data.client_names()
    assert sites.inputs == together.data.samples.inputs.shape[1]
    assert sites.classes == together.data.samples.num_classes
    params = together.start(0)
    for client, path in enumerate(sites.files()):
        alone = sites.load(problems.options(name)(), path, client)
        assert alone.num_clients == 1
        torch.testing.assert_close(
            alone.clients[0].gradient(params), together.clients[client].gradient(params)
        )
        assert alone.test(params) == pytest.approx(together.client_tests[client](params))
