"""How many threads a run has: the caller's number, or a rule that counts and does not time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core.objectives import losses
from fedadmm.run.engines import VirtualTime
from fedadmm.run.engines.choice import WORTH_SPLITTING, torch_threads
from support.federations import federation, run
from support.models import small_federation
from support.rejections import naming

SEEN = 3
"""More threads than any machine of ours has by itself, so that nothing passes by chance."""


def watched(**options: Any) -> tuple[fa.Result, set[int], int]:
    """A run where torch was given `SEEN` threads; what an evaluator saw, and what was left."""
    seen: set[int] = set()

    def look(params: torch.Tensor) -> dict[str, float]:
        seen.add(torch.get_num_threads())
        return {}

    with torch_threads(SEEN):
        result = run(fa.FedADMM(1.0), options.pop("given"), 2, evaluate=look, **options)
        return result, seen, torch.get_num_threads()


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "workers", VirtualTime("sync")])
@pytest.mark.parametrize("threads", [2, "auto"])
def test_a_run_has_the_threads_that_it_is_given_and_gives_them_back(engine, threads):
    solver = {"solver": fa.GradientDescent(0.1), "stop": fa.Steps(1)}
    given = federation(1)
    result, seen, left = watched(given=given, engine=engine, threads=threads, **solver)
    expected = 1 if threads == "auto" else threads
    assert (result.threads, seen, left) == (expected, {expected}, SEEN)


def test_a_run_that_fails_gives_its_threads_back_too():
    def fail(params: torch.Tensor) -> dict[str, float]:
        raise RuntimeError("an evaluator that fails")

    with torch_threads(SEEN):
        with pytest.raises(RuntimeError, match="an evaluator that fails"):
            run(fa.FedADMM(1.0), federation(1), 2, evaluate=fail, threads=2)
        assert torch.get_num_threads() == SEEN


class Sized(fa.Quadratic):
    """A quadratic with rows, which says that a gradient over r of them is r times `unit`."""

    unit: float
    num_samples = 40

    def work(self, rows: int) -> float:
        return self.unit * rows

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Sized:
        return self


@pytest.mark.parametrize(
    ("method", "solver", "rows"),
    [
        (fa.FedADMM(1.0), fa.SGD(0.1, batch_size=8), 8),
        (fa.FedADMM(1.0), fa.SGD(0.1, batch_size=99), 40),
        (fa.FedADMM(1.0), fa.SGD(0.1, batch_size=None), 40),
        (fa.FedADMM(1.0), fa.GradientDescent(0.1), 40),
        (fa.FedSGD(0.1), fa.SGD(0.1, batch_size=8), 40),
    ],
)
def test_the_work_of_one_gradient_of_the_solver_decides(method, solver, rows):
    """Exactly at the limit further threads are used, below it they are not."""
    eye, options = torch.eye(3), {"solver": solver, "stop": fa.Steps(1), "initial": torch.ones(3)}
    for share, expected in ((1.0, SEEN), (0.999, 1)):
        client = Sized(eye, torch.zeros(3))
        object.__setattr__(client, "unit", share * WORTH_SPLITTING / rows)
        with torch_threads(SEEN):
            result = fa.simulate(method, fa.Problem([client] * 2), 1, evaluate=False, **options)
        assert result.threads == expected


@pytest.mark.parametrize(
    ("module", "inputs", "targets", "multiplications"),
    [
        (nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), (4,), (), 5 * 5 + 6 * 3),
        (
            # 2 channels of 3 x 3 on 4 x 4 places, then 32 inputs of 3 outputs
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)),
            (1, 6, 6),
            (),
            (9 + 1) * 2 * 16 + 33 * 3,
        ),
    ],
)
def test_a_models_work_is_that_of_its_layers(module, inputs, targets, multiplications):
    """Counted by hand, biases as one more input; the module is left as it was."""
    flat = fa.FlatModule(module)
    rows = torch.randn(6, *inputs)
    objective = fa.ModelObjective(flat, losses.cross_entropy, rows, torch.zeros(6).long())
    before = flat.vector.clone()
    assert objective.work(7) == 7 * multiplications
    assert torch.equal(flat.vector, before)
    assert all(not layer._forward_hooks for layer in module.modules())


def test_measuring_the_work_changes_neither_statistics_nor_random_numbers():
    norm = nn.Sequential(nn.BatchNorm1d(5), nn.Dropout(0.5))
    problem = small_federation(norm, buffers="average")
    objective = problem.clients[0]
    before, generator = objective.flat.buffers().clone(), torch.get_rng_state()
    assert objective.work(1) == 5 * 5 + 2 * 5 + 6 * 3
    assert torch.equal(objective.flat.buffers(), before)
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_recurrent_layer_counts_every_step_and_an_embedding_none():
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.lstm = nn.Embedding(50, 4), nn.LSTM(4, 6, batch_first=True)
            self.scores = nn.Linear(6, 50)

        def forward(self, text: torch.Tensor) -> torch.Tensor:
            return self.scores(self.lstm(self.embedding(text))[0][:, -1])

    flat = fa.FlatModule(Reader())
    text = torch.zeros(3, 9, dtype=torch.long)
    objective = fa.ModelObjective(flat, losses.cross_entropy, text, text[:, 0])
    assert objective.work(1) == 9 * 4 * 6 * (4 + 6 + 2) + 50 * (6 + 1)


@pytest.mark.parametrize(
    ("threads", "names"),
    [
        (0, "Experiment threads 0 1"),
        (True, "Experiment threads True 1 'auto'"),
        ("all", "Experiment threads 'all' 1 'auto'"),
    ],
)
def test_an_invalid_number_of_threads_is_rejected(threads: Any, names: str) -> None:
    with pytest.raises(fa.errors.ParameterError, match=naming(names)):
        run(fa.FedADMM(1.0), federation(1), 1, threads=threads)
