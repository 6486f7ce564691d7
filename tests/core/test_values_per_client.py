"""A number per client: every client works as in a run where everybody has its number."""

from __future__ import annotations

import pytest
import torch

import fedadmm as fa
from fedadmm.core import trees
from support.engines import ALGORITHMS, PROBLEMS, SIZES, assert_same_run, run
from support.thinning import thinned

BATCH = 5
RATES = [0.05, 0.1, 0.2, 0.15, 0.02, 0.07]
CASES = {
    "lr": lambda v: {"solver": fa.SGD(v(RATES), BATCH)},
    "lr with momentum": lambda v: {"solver": fa.SGD(v(RATES), BATCH, momentum=0.6)},
    "lr of full batches": lambda v: {"solver": fa.GradientDescent(v(RATES))},
    "accelerated lr": lambda v: {"solver": fa.AcceleratedGradient(v(RATES))},
    "epochs": lambda v: {"stop": fa.Epochs(v([1, 3, 2, 0.5, 2.5, 0.01]))},
    "drawn epochs": lambda v: {"stop": fa.UniformEpochs(v([1, 5, 2, 4, 9, 3]))},
    "steps": lambda v: {"stop": fa.Steps(v([3, 1, 4, 1, 5, 9]))},
    "epsilon": lambda v: {
        "stop": fa.stopping.GradientTolerance(v([1.0, 0.1, 2.0, 0.5, 0.05, 0.3]), 9)
    },
    "sigma": lambda v: {"stop": fa.stopping.InSaCriterion(v([0.9, 0.5, 0.3, 0.7, 0.8, 0.6]))},
    "c": lambda v: {"stop": fa.stopping.InSaCriterion(c=v([0.01, 1.0, 10.0, 0.1, 5.0, 0.5]))},
    "lr and epochs": lambda v: {
        "solver": fa.SGD(v(RATES), BATCH),
        "stop": fa.Epochs(v([1, 3, 2, 0.5, 2.5, 4])),
    },
}


STACKED = [case for case in CASES if case != "accelerated lr"]
RUNS = [
    (engine, case, name)
    for engine in ("sequential", "vectorised", "workers")
    for case in (STACKED if engine == "vectorised" else CASES)
    for name in ("fedadmm-insa", "scaffold-2")
    if not (case == "c" and name == "scaffold-2")  # without a penalty c does not matter
]


@pytest.mark.parametrize("run_of", thinned(3, RUNS))
def test_a_value_per_client_equals_the_common_value_for_each_client(run_of):
    engine, case, name = run_of
    """One round from one start with everybody; each client is then compared on its own."""
    options = {"sampler": None, "rounds": 1}
    method, problem = ALGORITHMS[name], PROBLEMS["perceptron"]
    mixed = run(engine, method, problem(), **options, **CASES[case](lambda values: values))
    steps = []
    for client in range(len(SIZES)):
        own = CASES[case](lambda values, client=client: values[client])
        alike = run("sequential", method, problem(), **options, **own)
        pairs = zip(
            trees.tensors(mixed.clients[client]), trees.tensors(alike.clients[client]), strict=True
        )
        for found, expected in pairs:
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        steps.append(alike.history[0]["work"]["steps"])
    assert len(set(steps)) > 1 or "lr" in case  # the numbers made a difference


@pytest.mark.parametrize("case", STACKED)
@pytest.mark.parametrize("problem", ["perceptron", "tanh", "least squares"])
def test_stacks_agree_over_rounds_with_some_clients(case, problem):
    options = CASES[case](lambda values: values)
    method, options = ALGORITHMS["fedadmm"], options | {"start": "current"}
    expected = run("sequential", method, PROBLEMS[problem](), **options)
    assert_same_run(run("vectorised", method, PROBLEMS[problem](), **options), expected)


@pytest.mark.parametrize(
    ("epochs", "steps"), [(1, 5), (0.5, 2), (0.7, 4), (0.01, 1), (2.5, 12), (3.0, 15)]
)
def test_a_part_of_an_epoch_is_the_nearest_number_of_steps(epochs, steps):
    """18 rows in batches of 4 are 5 steps an epoch; 2.5 and 12.5 round to the even neighbour."""
    assert fa.Epochs(epochs).budget(5, 0, 0) == steps


def test_sentences_of_clients_with_their_own_numbers():
    assert fa.Epochs([1, 2]).sentence(False) == "the client's own number of epochs done"
    assert fa.Steps([1, 2]).sentence(False) == "the client's own number of steps done"
    assert fa.Epochs(2.5).sentence(False) == "2.5 epochs done"
