"""What people hand over as data: arrays are taken, what does not fit is said before round 0."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm import losses

ROWS = np.random.default_rng(0).normal(size=(6, 4))
LABELS = np.array([0, 1, 2, 0, 1, 2])
cross_entropy = nn.functional.cross_entropy
logits = nn.functional.binary_cross_entropy_with_logits


def module(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, outputs))


def objective(
    inputs: Any = ROWS, targets: Any = LABELS, loss: Any = cross_entropy, outputs: int = 3
) -> fa.ModelObjective:
    return fa.ModelObjective(module(outputs), loss, inputs, targets)


def train(client: Any, lazy: bool = False) -> fa.Result:
    clients: Any = fa.LazyClients(1, lambda _: client) if lazy else [client]
    problem = fa.Problem(clients, initial=torch.full((client.num_parameters,), 0.1))
    return fa.simulate(fa.FedADMM(1.0), problem, 3, solver=fa.SGD(lr=0.1, batch_size=2))


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "an array": lambda array: array,
    "lists": lambda array: array.tolist(),
    "an array that cannot be written": lambda array: np.broadcast_to(array, array.shape),
    "an array backwards": lambda array: array[::-1].copy()[::-1],
}


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_and_lists_are_taken_for_the_tensors_they_hold(kind: str) -> None:
    as_given = KINDS[kind]
    wanted = train(objective(torch.tensor(ROWS), torch.tensor(LABELS))).params
    assert torch.equal(train(objective(as_given(ROWS), as_given(LABELS))).params, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_closed_forms_take_them_too_and_round_nothing(kind: str) -> None:
    given = KINDS[kind]
    matrix, binary = ROWS.T @ ROWS / 3, (LABELS > 0).astype(np.float64)
    x = torch.linspace(0, 1, 4, dtype=torch.float64)
    for made, value in (
        (fa.Quadratic(given(matrix), given(ROWS[0])), x.numpy() @ matrix @ x.numpy() / 2
         - ROWS[0] @ x.numpy()),
        (fa.LeastSquares(given(ROWS), given(binary)),
         ((ROWS @ x.numpy() - binary) ** 2).mean() / 2),
        (fa.LogisticRegression(given(ROWS), given(binary)),
         np.log1p(np.exp(-(2 * binary - 1) * (ROWS @ x.numpy()))).mean()),
    ):  # fmt: skip
        found = made.to(torch.float64).value(x)
        assert float(found) == pytest.approx(value, rel=1e-14)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a label too many": (
        lambda: objective(targets=LABELS + 1),
        "ModelObjective: targets hold 3, expected 0 … 2, because the module has 3 outputs",
    ),
    "-1": (
        lambda: objective(targets=np.where(LABELS == 1, -1, LABELS)),
        "ModelObjective: targets hold -1, expected 0 … 2, because the module has 3 outputs",
    ),
    "-100, which cross-entropy ignores": (
        lambda: objective(targets=np.where(LABELS == 1, -100, LABELS)),
        "ModelObjective: targets hold -100, expected 0 … 2, because the module has 3 outputs",
    ),
    "a label too many in a loss of one's own": (
        lambda: objective(targets=LABELS + 7, loss=lambda z, y: cross_entropy(z, y)),
        "ModelObjective: targets hold 7, expected 0 … 2, because the module has 3 outputs",
    ),
    "two classes called 1 and 2": (
        lambda: objective(targets=LABELS, loss=losses.binary_cross_entropy, outputs=1),
        "ModelObjective: targets hold 2, expected 0 … 1, because the loss is that of two classes",
    ),
    "two classes called -1 and 1, as floats": (
        lambda: fa.ModelObjective(
            nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), logits, ROWS, LABELS - 1.0
        ),
        "ModelObjective: targets hold -1, expected 0 … 1, because the loss is that of two classes",
    ),
    "labels as floats": (
        lambda: objective(targets=LABELS.astype(np.float32)),
        "ModelObjective: targets: got shape () and type float32 each, expected what the loss "
        "takes with outputs of shape (3,) and type float32 (",
    ),
    "rows too wide": (
        lambda: objective(np.ones((6, 5))),
        "ModelObjective: inputs are samples of shape (5,) and type float32, expected what the "
        "module takes (mat1 and mat2 shapes cannot be multiplied",
    ),
    "whole numbers as rows": (
        lambda: objective(np.ones((6, 4), dtype=np.int64)),
        "ModelObjective: inputs are samples of shape (4,) and type int64, expected what the "
        "module takes (",
    ),
    "a loss for each row": (
        lambda: objective(loss=lambda z, y: cross_entropy(z, y, reduction="none")),
        "ModelObjective: loss returns shape (2,), expected one number, the mean over the samples",
    ),
    "a loss that is no tensor": (
        lambda: objective(loss=lambda z, y: 1.0),
        "ModelObjective: loss returns float, expected one number, the mean over the samples",
    ),
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_before_round_0(case: str, lazy: bool) -> None:
    make, message = REFUSED[case]
    client = make()
    with pytest.raises(fa.errors.DataError, match=f"^{re.escape(message)}"):
        train(client, lazy)


AT_ONCE: dict[str, tuple[Callable[[], Any], str]] = {
    "lists of unequal length": (
        lambda: objective([[1.0], [1.0, 2.0]], [0, 1]),
        "ModelObjective: inputs: got a list, expected a tensor, an array or lists of numbers (",
    ),
    "words": (
        lambda: objective(targets=["yes"] * 6),
        "ModelObjective: targets: got a list, expected a tensor, an array or lists of numbers "
        "(its entries are <U3)",
    ),
    "nothing": (
        lambda: objective(targets=None),
        "ModelObjective: targets: got a NoneType, expected a tensor, an array or lists of numbers "
        "(its entries are object)",
    ),
    "one number": (
        lambda: objective(1.0, 2),
        "ModelObjective: no samples, but at least one is needed",
    ),
    "a target too few": (
        lambda: objective(targets=LABELS[1:]),
        "ModelObjective: 6 inputs and 5 targets, but there must be one target an input",
    ),
    "a matrix of words": (
        lambda: fa.Quadratic([["a"]], [1.0]),
        "Quadratic: A: got a list, expected a tensor, an array or lists of numbers (",
    ),
}


@pytest.mark.parametrize("case", AT_ONCE)
def test_what_is_no_data_is_refused_at_once(case: str) -> None:
    make, message = AT_ONCE[case]
    with pytest.raises(fa.errors.DataError, match=f"^{re.escape(message)}"):
        make()


def test_a_client_in_the_middle_is_looked_at_too() -> None:
    clients = [objective(), objective(targets=LABELS + 1), objective()]
    with pytest.raises(fa.errors.DataError, match="targets hold 3"):
        fa.Problem(clients)


def test_looking_changes_nothing() -> None:
    """No number is drawn, and no statistic moves."""
    norm = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    client = fa.ModelObjective(norm, cross_entropy, ROWS.astype(np.float32), LABELS)
    before, state = client.flat.buffers(), torch.get_rng_state()
    vector = client.flat.vector.clone()
    client.check()
    assert before is not None
    assert torch.equal(before, client.flat.buffers())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(vector, client.flat.vector)


@pytest.mark.parametrize("loss", [losses.half_squared_error, nn.functional.mse_loss])
def test_whole_numbers_as_targets_of_a_regression_are_no_classes(loss: Any) -> None:
    net = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    client = fa.ModelObjective(net, loss, ROWS.astype(np.float32), LABELS - 100.0)
    client.check()


@pytest.mark.parametrize("field", ["algorithm", "sampler", "solver", "stop", "regularizer"])
def test_a_federation_refuses_a_class_or_a_word_for_a_part(field: str) -> None:
    flower = pytest.importorskip("fedadmm.flower")
    classes = {
        "algorithm": fa.FedAvg,
        "sampler": fa.UniformSampling,
        "solver": fa.SGD,
        "stop": fa.Epochs,
        "regularizer": fa.L1,
    }
    settings: dict[str, Any] = {"algorithm": fa.FedAvg(), "clients": 2, "rounds": 3}
    for value, shown in (
        (classes[field], f"the class {classes[field].__name__}"),
        ("x", "'x'"),
        (7, "7"),
    ):
        owner = {"regularizer": "Federation", "solver": "LocalWork", "stop": "LocalWork"}
        named = f"^{owner.get(field, 'Experiment')}: {field}: got {shown}, expected"
        with pytest.raises(fa.errors.ParameterError, match=named):
            flower.Federation(**(settings | {field: value}), model=module)


@pytest.mark.parametrize("seed", [-5, 1.5, "1", True])
def test_a_deployment_refuses_a_wrong_seed(seed: Any) -> None:
    flower = pytest.importorskip("fedadmm.flower")
    message = f"seed: got {seed!r}, expected a whole number of at least 0"
    with pytest.raises(fa.errors.ParameterError, match=f"^Experiment: {re.escape(message)}"):
        flower.Federation(fa.FedAvg(), 2, 3, model=module, seed=seed)
    with pytest.raises(fa.errors.ParameterError, match=f"^Experiment: {re.escape(message)}"):
        flower.DropIn(fa.FedAvg(), 2, module, seed=seed)


def test_a_problem_refuses_a_word_for_its_regularizer() -> None:
    client = fa.Quadratic(torch.eye(2), torch.zeros(2))
    with pytest.raises(
        fa.errors.ParameterError, match=r"^Problem: regularizer: got 'l1', expected an"
    ):
        fa.Problem([client], "l1")  # type: ignore[arg-type]


def test_a_kind_of_rows_is_tried_once_and_classes_always_looked_at() -> None:
    """A million clients that share a module need no million passes through it."""
    tried: list[tuple[int, ...]] = []
    net = module()
    net.register_forward_hook(lambda _, given, __: tried.append(tuple(given[0].shape)))

    def client(targets: Any = LABELS, inputs: Any = ROWS, loss: Any = cross_entropy) -> Any:
        return fa.ModelObjective(net, loss, inputs, targets)

    clients = [client() for _ in range(3)]
    for one in clients:
        one.check()
    assert tried == [(2, 4)]
    with pytest.raises(fa.errors.DataError, match=r"targets hold 3, expected 0 … 2"):
        client(LABELS + 1).check()
    client(loss=nn.CrossEntropyLoss(label_smoothing=0.1)).check()
    assert len(tried) == 2, "another loss"
    with pytest.raises(fa.errors.DataError, match="expected what the module takes"):
        client(inputs=ROWS[:, :3]).check()
    with pytest.raises(fa.errors.DataError, match="expected what the loss takes"):
        client(ROWS).check()
