"""A run that explodes ends long before its numbers are not finite, measured or not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import fedadmm as fa
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.run.engines import VirtualTime, Workers
from fedadmm.run.round_callbacks import model_norm
from fedadmm.run.state import RoundReport
from support.federations import federation, run
from support.rejections import naming

GIVEN = federation(1)
ENGINES: dict[str, Any] = {
    "sequential": "sequential",
    "vectorised": "vectorised",
    "workers": Workers(workers=2, timeout=60.0),
    "clock": VirtualTime("sync"),
}
TOO_LONG = {"solver": fa.GradientDescent(1.5), "stop": fa.Steps(2)}


def check(result: fa.Result, start: float, method: Any) -> None:
    """It ends in the first round beyond the bound, and says so."""
    norms = [start, *(float(theta.norm()) for theta in result.trajectory)]
    moved = next(k for k in range(1, len(norms)) if norms[k] != norms[k - 1])
    limit = 1e6 * (1 + max(norms[moved - 1], norms[moved]))
    assert result.code == "diverged"
    assert norms[-1] > limit
    assert max(norms[:-1]) <= limit
    assert re.search(naming(f"round {len(norms) - 1} norm {norms[-1]:g} client"), result.status)
    assert len(result.history) == len(norms) - 1


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_ends_a_run_whose_norm_explodes(name):
    result = run(fa.FedAvg(), GIVEN, 500, engine=ENGINES[name], **TOO_LONG)
    check(result, float(GIVEN.initial.norm()), fa.FedAvg())


def test_without_rounds_too():
    """One reply a step, in full, however late: FedBuff's own safeguards are off.  Its first replies
    do not move the model, and say nothing about its size."""
    given = federation(1, clients=12)
    method = fa.FedBuff(size=2, staleness="constant", lr=2.0)
    zero = torch.zeros_like(given.initial)
    result = run(method, given, 2000, engine=VirtualTime(), initial=zero)
    assert not bool(result.trajectory[0].any())
    check(result, 0.0, method)


def test_a_start_that_is_far_away_is_no_explosion():
    """Neither is a large optimum, from zero: the first step tells the size."""
    far = run(
        fa.FedADMM(1.0), GIVEN, 30, initial=GIVEN.initial * 1e12, sampler=fa.UniformSampling(1)
    )
    assert far.code == "completed"
    clients = [fa.Quadratic(torch.eye(2).double(), torch.full((2,), 1e9).double())] * 3
    options = {"solver": fa.GradientDescent(0.01), "stop": fa.Steps(1), "evaluate": False}
    problem, zero = fa.Problem(clients), torch.zeros(2).double()
    large = fa.simulate(fa.FedAvg(), problem, 2000, initial=zero, **options)
    assert large.code == "completed"
    assert float(large.params[0]) == pytest.approx(1e9, rel=1e-6)


def test_the_norm_is_judged_by_the_first_move_of_the_whole_run(tmp_path: Path):
    whole = run(fa.FedAvg(), GIVEN, 500, **TOO_LONG)
    saved, half = Checkpoints(tmp_path, every=1), len(whole.history) // 2
    seen: list[float | None] = []

    def observe(report: RoundReport) -> None:
        seen.append(report.state.components["divergence"].norm)

    options: dict[str, Any] = {"checkpoints": saved, "callbacks": [observe], **TOO_LONG}
    run(fa.FedAvg(), GIVEN, half, **options)
    rest = run(fa.FedAvg(), GIVEN, 500, resume=True, **options)
    assert rest.status == whole.status
    assert len(rest.history) == len(whole.history) - half
    first = max(float(GIVEN.initial.norm()), float(whole.trajectory[0].norm()))
    assert set(seen) == {first}


def test_half_precision_does_not_make_a_norm_infinite():
    large = torch.full((4,), 6e4, dtype=torch.float16)
    assert model_norm(large) == pytest.approx(1.2e5, rel=1e-3)
