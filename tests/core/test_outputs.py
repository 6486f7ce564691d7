"""Which model is handed out: drawn as the theorems say, seen by everybody, fed back to nobody."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core.outputs import Iterate
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.run.engines import VirtualTime
from fedadmm.run.state import RoundReport
from fedadmm.study.config import resolve
from fedadmm.study.single_run import run as run_configured
from support.commands import SMALL
from support.federations import WEIGHTS, federation, run
from support.models import small_federation
from support.rejections import naming
from support.resumable import assert_continued, interrupted, run as resumable_run

RANDOM = fa.outputs.RandomIterate()


def test_every_iterate_is_handed_out_equally_often():
    """Of x^0 … x^5 each in a sixth of 6,000 seeds, within four standard deviations; after fewer
    rounds each in its share of those."""
    rounds, seeds = 5, 6000
    counts = np.zeros((rounds + 1, rounds + 1))
    iterates = [Iterate(torch.tensor([float(k)])) for k in range(rounds + 1)]
    for seed in range(seeds):
        note = RANDOM.init_state(iterates[0])
        counts[0, 0] += 1
        for k in range(1, rounds + 1):
            note = RANDOM.update(note, iterates[k], k, seed)
            counts[k, int(RANDOM.model(note, iterates[k]).params)] += 1
    for k in range(rounds + 1):
        share = 1 / (k + 1)
        spread = 4 * np.sqrt(seeds * share * (1 - share))
        assert np.abs(counts[k, : k + 1] - seeds * share).max() <= spread
        assert not counts[k, k + 1 :].any()


def handed_out(result: fa.Result, reference: fa.Result, initial: torch.Tensor) -> list[int]:
    """Which iterate each round handed out, by comparison with a run that hands out the last."""
    iterates = [initial, *reference.trajectory]
    found = []
    for number, params in enumerate(result.trajectory, 1):
        (index,) = [k for k in range(number + 1) if torch.equal(iterates[k], params)]
        found.append(index)
    return found


METHODS = {
    "fedadmm": (fa.FedADMM(1.0), {"sampler": fa.UniformSampling(2)}),
    "feddr with g": (fa.FedDR(0.8), {"sampler": fa.UniformSampling(2)}),
    "without rounds": (fa.AsyncFedDR(0.6, 1.2), {"engine": VirtualTime(ratio=3.0)}),
}


@pytest.mark.parametrize("name", METHODS)
def test_training_goes_on_with_theta_and_everything_else_sees_what_is_handed_out(name):
    method, options = METHODS[name]
    given = federation(3, regularizer=fa.L1(0.1) if "g" in name.split() else None)
    states: list[Any] = []
    last = run(method, given, 12, seed=4, **options)
    result = run(
        method,
        given,
        12,
        seed=4,
        evaluate=lambda x: {"first": float(x[0])},
        output=RANDOM,
        callbacks=[lambda report: states.append(report.state)],
        **options,
    )
    kept = handed_out(result, last, given.initial)
    assert all(now in (before, number) for number, (before, now) in enumerate(pairwise(kept), 2))
    assert len(set(kept)) > 1
    assert kept[-1] != 12
    assert torch.equal(result.params, result.trajectory[-1])
    assert torch.equal(method.global_params(result.server), last.params)
    for record, params, state, theta in zip(
        result.history, result.trajectory, states, last.trajectory, strict=True
    ):
        assert record["metrics"]["first"] == float(params[0])
        assert record["metrics"]["loss"] == pytest.approx(
            float(given.problem.value(params)), abs=1e-12
        )
        assert torch.equal(method.global_params(state.server), theta)


def test_the_first_iterate_is_the_one_after_an_initial_round_with_full_participation():
    given = federation(5)
    method = fa.FedDR(0.8, init="prox")
    everyone = np.mean(
        [2 * given.prox(i, given.start, 0.8) - given.start for i in range(5)], axis=0
    )
    seeds = [s for s in range(40) if _keeps_the_first(s, 2)]
    assert seeds
    for seed in seeds[:3]:
        result = run(method, given, 2, output=RANDOM, seed=seed)
        np.testing.assert_allclose(result.params.numpy(), everyone, rtol=0, atol=1e-12)


def _keeps_the_first(seed: int, rounds: int) -> bool:
    note = RANDOM.init_state(Iterate(torch.zeros(1)))
    for k in range(1, rounds + 1):
        note = RANDOM.update(note, Iterate(torch.full((1,), float(k))), k, seed)
    return not bool(note.params.any())


CARRIED = {
    "FedAvgM": fa.FedAvgM(0.5, 0.7),
    "Nesterov": fa.FedAvgM(0.5, nesterov=True),
    "FedAdam": fa.FedAdam(),
    "FedYogi": fa.FedYogi(),
    "FedAdagrad": fa.FedAdagrad(),
}


@pytest.mark.parametrize("name", CARRIED)
def test_m_is_the_mean_of_what_the_participants_made_of_theta(name):
    """And the average of m is what its formula says, while theta goes on as without either."""
    given, sampler = federation(6, weights=WEIGHTS), fa.UniformSampling(2)
    options: dict[str, Any] = {
        "sampler": sampler,
        "solver": fa.GradientDescent(0.1),
        "stop": fa.Steps(3),
        "seed": 2,
    }
    thetas = run(CARRIED[name], given, 15, **options).trajectory
    means = run(
        CARRIED[name], given, 15, output=fa.outputs.ParticipantsMean(), **options
    ).trajectory
    averages = run(CARRIED[name], given, 15, output=fa.outputs.Averaged(), **options).trajectory
    average = given.start
    for t, before in enumerate([given.start, *(theta.numpy() for theta in thetas[:-1])]):
        ids = sampler.sample(2, t, given.clients)
        models = []
        for client in ids:
            w = before.copy()
            for _ in range(3):
                w = w - 0.1 * given.gradient(client, w)
            models.append(w)
        m = given.a[ids] @ np.array(models) / given.a[ids].sum()
        average = average + min(1.0, 9 / (t + 9)) * (m - average)
        np.testing.assert_allclose(means[t].numpy(), m, rtol=0, atol=1e-12)
        np.testing.assert_allclose(averages[t].numpy(), average, rtol=0, atol=1e-12)
        assert not np.allclose(thetas[t].numpy(), m, atol=1e-4)


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("after", [2, 5])
def test_a_run_is_taken_up_with_what_it_would_hand_out(
    after: int, kind: str, tmp_path: Path
) -> None:
    for seed in (1, 2, 3):
        options: dict[str, Any] = {"output": RANDOM, "seed": seed}
        resume = interrupted(tmp_path / str(seed), after, kind=kind, **options)
        assert_continued(resume(), resumable_run(8, **options), after)
        # and once more when nothing is left to do
        again = resume()
        assert torch.equal(again.params, resumable_run(8, **options).params)
        assert again.history == []


def test_another_output_cannot_go_on_with_a_run(tmp_path: Path) -> None:
    last, kept = fa.outputs.LastIterate(), "output.params"
    for first, second, held, needed in (
        (RANDOM, last, kept, "nothing"),
        (last, RANDOM, "nothing", kept),
    ):
        saved = Checkpoints(tmp_path / type(first).__name__, 1)
        resumable_run(3, output=first, checkpoints=saved)
        with pytest.raises(fa.errors.StateError, match=naming(f"round 3 output {held} {needed}")):
            resumable_run(5, output=second, checkpoints=saved, resume=True)


def test_a_model_is_handed_out_with_the_statistics_of_its_own_round():
    problem = small_federation(nn.BatchNorm1d(5).double(), buffers="average")
    options: dict[str, Any] = {"solver": fa.GradientDescent(0.3), "stop": fa.Steps(2), "seed": 1}
    states: list[Any] = []

    def keep(report: RoundReport) -> None:
        states.append((report.state.server, report.state.buffers))

    flat = problem.clients[0].flat
    initial = flat.initial_buffers()
    seen: list[torch.Tensor] = []
    evaluation = fa.Evaluation(extra=lambda x: seen.append(flat.buffers().clone()) or {})
    result = fa.simulate(
        fa.FedAvg(),
        problem,
        6,
        output=RANDOM,
        keep_trajectory=True,
        callbacks=[keep],
        evaluate=evaluation,
        **options,
    )
    thetas = [problem.start(1), *(fa.FedAvg().global_params(server) for server, _ in states)]
    statistics = [initial, *(buffers for _, buffers in states)]
    for params, buffers in zip(result.trajectory, seen, strict=True):
        (index,) = [k for k, theta in enumerate(thetas) if torch.equal(theta, params)]
        assert torch.equal(statistics[index], buffers)
    assert torch.equal(result.buffers, seen[-1])
    assert not torch.equal(result.buffers, statistics[-1])


class _Spoiled(fa.Quadratic):
    """Its second gradient is not finite."""

    calls = 0

    def gradient(self, params: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        _Spoiled.calls += 1
        return super().gradient(params) * (float("nan") if _Spoiled.calls > 1 else 1.0)

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> _Spoiled:
        return self


@pytest.mark.parametrize("init", ["start", "prox"])
def test_a_round_that_diverges_is_never_handed_out(init):
    _Spoiled.calls = 1 if init == "prox" else 0
    eye = torch.eye(3, dtype=torch.float64)
    problem = fa.Problem([_Spoiled(eye, torch.zeros(3, dtype=torch.float64))])
    options: dict[str, Any] = {"solver": fa.GradientDescent(0.1), "stop": fa.Steps(1)}
    start = torch.ones(3, dtype=torch.float64)
    result = fa.simulate(
        fa.FedDR(1.0, init=init),
        problem,
        4,
        initial=start,
        evaluate=False,
        output=RANDOM,
        **options,
    )
    assert result.code == "diverged"
    assert result.params.isfinite().all()
    if init == "prox":
        assert torch.equal(result.params, start)


def test_a_configuration_names_it(tmp_path: Path) -> None:
    config = resolve(SMALL | {"rounds": 8, "output": {"name": "random-iterate"}})
    summary = run_configured(config, tmp_path / "a")
    plain = run_configured(resolve(SMALL | {"rounds": 8}), tmp_path / "b")
    assert resolve(SMALL).name("output") == "last-iterate"
    assert summary["params_sha256"] != plain["params_sha256"]
    assert config.output == RANDOM
    with pytest.raises(fa.errors.StateError, match=naming("output.name")):
        run_configured(resolve(SMALL | {"rounds": 8}), tmp_path / "a", resume=True)
