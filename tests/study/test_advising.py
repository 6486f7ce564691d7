"""Estimates against eigenvalues and hand calculations; advice that runs and converges."""

from __future__ import annotations

import json
import math
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core.objectives import losses
from fedadmm.data import models, problems
from fedadmm.run.engines import VirtualTime
from fedadmm.study import config as configs
from fedadmm.study.advising import advise
from fedadmm.study.config import resolve
from fedadmm.study.estimating import estimate, hessian_product, largest_curvature
from fedadmm.study.running import run
from support.commands import call
from support.federations import federation

QUICK = {
    "problem": {"name": "digits", "clients": 20, "max_train": 600, "max_test": 300},
    "local": {
        "solver": {"name": "sgd", "batch_size": 10},
        "stop": {"name": "epochs", "epochs": 5},
    },
    "sampler": {"name": "uniform", "size": 0.3},
}


def perceptron(loss=losses.cross_entropy) -> fa.ModelObjective:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = models.mlp(3, 4, 2).double()
        inputs = torch.randn(9, 3, dtype=torch.float64)
    return fa.ModelObjective(fa.FlatModule(module), loss, inputs, torch.arange(9) % 2)


def dense_hessian(objective: fa.ModelObjective, params: torch.Tensor) -> torch.Tensor:
    """Column by column from central differences of the loss itself, to the second order."""
    size, h = len(params), 1e-4
    eye = torch.eye(size, dtype=params.dtype) * h
    f = objective.value
    rows = [
        [
            f(params + eye[i] + eye[j])
            - f(params + eye[i] - eye[j])
            - f(params - eye[i] + eye[j])
            + f(params - eye[i] - eye[j])
            for j in range(size)
        ]
        for i in range(size)
    ]
    return torch.tensor(rows, dtype=params.dtype) / (4 * h * h)


def test_products_with_the_hessian_of_a_model():
    objective = perceptron()
    params = objective.flat.vector.clone()
    dense = dense_hessian(objective, params)
    product = hessian_product(objective, params, None)
    draws = torch.Generator().manual_seed(2)
    for _ in range(3):
        vector = torch.randn(len(params), generator=draws, dtype=torch.float64)
        torch.testing.assert_close(product(vector), dense @ vector, rtol=0, atol=1e-5)
    largest = float(torch.linalg.eigvalsh(dense).abs().max())
    found = largest_curvature(product, params, 3, iterations=200, tolerance=1e-9)
    assert found == pytest.approx(largest, rel=1e-3)


def test_products_over_some_rows():
    objective = perceptron()
    rows = torch.tensor([0, 3, 4])
    part = fa.ModelObjective(
        objective.flat, objective.loss, objective.inputs[rows], objective.targets[rows]
    )
    params = objective.flat.vector.clone()
    vector = torch.ones_like(params)
    whole = hessian_product(part, params, None)(vector)
    torch.testing.assert_close(hessian_product(objective, params, rows)(vector), whole)


@pytest.mark.parametrize("concave", [False, True])
def test_the_largest_curvature_of_a_quadratic(concave):
    given = federation(71)
    A = -given.A[0] if concave else given.A[0]
    objective = fa.Quadratic(torch.from_numpy(A), torch.from_numpy(given.b[0]))
    product = hessian_product(objective, given.initial, None)
    found = largest_curvature(product, given.initial, 1, iterations=500, tolerance=1e-10)
    assert found == pytest.approx(np.abs(np.linalg.eigvalsh(A)).max(), rel=1e-4)


def test_heterogeneity_and_gap_by_hand():
    given = federation(72)
    found = estimate(given.problem, given.initial, clients=5)
    assert found.clients == [0, 1, 2, 3, 4]
    gradients = np.array([given.gradient(i, given.start) for i in range(5)])
    squares, mean = (gradients**2).sum(1).mean(), gradients.mean(0)
    assert found.start_gradient == pytest.approx(squares)
    assert found.heterogeneity == pytest.approx(squares / (mean @ mean))
    tops = [np.linalg.eigvalsh(A)[-1] for A in given.A]
    assert found.smoothness == pytest.approx(tops, rel=0.1)
    assert found.largest == max(found.smoothness)
    assert found.spread == pytest.approx(np.std(found.smoothness, ddof=1))
    assert found.convexity == pytest.approx(min(np.linalg.eigvalsh(A)[0] for A in given.A))
    values = [
        given.start @ A @ given.start / 2 - b @ given.start
        for A, b in zip(given.A, given.b, strict=True)
    ]
    assert found.gap == pytest.approx(max(0.0, np.mean(values)))


@pytest.mark.parametrize("looked_at", [5, 3])
def test_the_constants_of_table_1_by_hand(looked_at):
    """f_i = a_i ||x - c_i||²/2: one step of length 1/L leads to c_i, so that the points are known.

    (9) is about the sums over all n clients; from a part of them n times their mean stands in.
    """
    draws = np.random.default_rng(7)
    a, c, start = draws.uniform(0.5, 2.0, 5), draws.normal(size=(5, 3)), 4 * draws.normal(size=3)
    clients = [
        fa.Quadratic(a[i] * torch.eye(3, dtype=torch.float64), torch.from_numpy(a[i] * c[i]))
        for i in range(5)
    ]
    found = estimate(fa.Problem(clients), torch.from_numpy(start), clients=looked_at)
    assert len(found.clients) == looked_at
    B, G = [], []
    for point in (start, *c[found.clients]):
        gradients = np.array([a[i] * (point - c[i]) for i in found.clients])
        squares = np.sum(gradients**2, 1)
        sums = 5 * squares.mean(), np.sum((5 * gradients.mean(0)) ** 2)
        B.append(math.sqrt(sums[0] / sums[1]))
        G.append(math.sqrt(squares.max()))
    assert B[0] < max(B)
    assert found.dissimilarity == pytest.approx(max(B), rel=1e-6)
    assert found.gradient_bound == pytest.approx(max(G), rel=1e-6)
    if looked_at == 5:  # as it is printed
        everyone = np.array([a[i] * (start - c[i]) for i in range(5)])
        printed = np.sum(everyone**2) / np.sum(everyone.sum(0) ** 2)
        assert B[0] ** 2 == pytest.approx(printed)


def test_the_noise_of_single_rows_by_hand():
    """Two rows with gradients g + d and g - d: every batch of one misses by ||d||²."""
    rows = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    objective = fa.LeastSquares(rows, torch.tensor([3.0, -1.0], dtype=torch.float64))
    start = torch.zeros(2, dtype=torch.float64)
    found = estimate(fa.Problem([objective]), start, batch_size=1)
    first, second = rows[0] * (0 - 3.0), rows[1] * (0 + 1.0)
    assert found.batch_noise == pytest.approx(float(((first - second) / 2).square().sum()))
    assert estimate(fa.Problem([objective]), start, batch_size=2).batch_noise == 0.0
    assert estimate(fa.Problem([objective]), start).batch_noise == 0.0


def modelled(module, loss, targets) -> fa.ModelObjective:
    return fa.ModelObjective(module, loss, torch.ones(5, 3), targets)


LABELS = torch.arange(5) % 2
CONVEXITIES = {
    "least squares": (lambda: fa.LeastSquares(torch.ones(3, 2), torch.ones(3), 0.25), 0.25),
    "logistic": (lambda: modelled(models.logistic(3, 4), losses.cross_entropy, LABELS), 0.0),
    "a loss of its own": (
        lambda: modelled(nn.Linear(3, 1), nn.functional.l1_loss, torch.ones(5, 1)),
        None,
    ),
    "perceptron": (lambda: modelled(models.mlp(3, 4, 2), losses.cross_entropy, LABELS), None),
    "concave": (lambda: fa.Quadratic(-torch.eye(2), torch.zeros(2)), None),
}


@pytest.mark.parametrize(("objective", "convexity"), CONVEXITIES.values(), ids=CONVEXITIES)
def test_what_is_known_to_be_convex(objective, convexity):
    made = objective()
    found = estimate(fa.Problem([made]), torch.ones(made.num_parameters))
    assert found.convexity == convexity


def test_known_constants_are_used():
    advice = advise(resolve({"problem": {"name": "quadratics", "smoothness": 3.0}}))
    assert (advice.estimate.largest, advice.estimate.spread) == (3.0, 0.0)
    by_name = {(row.method, row.parameter): row for row in advice.rows}
    gong = by_name["FedADMM (Gong, Theorem 1)", "rho"]
    assert gong.low == pytest.approx((1 + math.sqrt(5)) * 3.0)
    assert gong.low < gong.recommended
    convex = by_name["FedADMM, FedDR (convex losses)", "rho"]
    assert advice.config["algorithm"]["rho"] == float(f"{convex.recommended:.3g}")
    assert advice.rounds["gong"] > 1


def test_without_rounds_the_advice_is_about_asyncfeddr():
    tree = {"problem": {"name": "quadratics"}, "algorithm": {"name": "async-feddr"}}
    advice = advise(resolve(tree | {"engine": {"name": "virtual-time", "concurrency": 3}}))
    assert advice.situation.tau == 3
    assert any(row.method.startswith("asyncFedDR") for row in advice.rows)
    assert advice.config["algorithm"]["name"] == "async-feddr"
    assert resolve(advice.config).engine == VirtualTime(concurrency=3)


def test_a_given_delay_is_taken_as_it_is():
    tree = {"problem": {"name": "quadratics"}, "algorithm": {"name": "async-feddr"}}
    advice = advise(resolve(tree | {"engine": {"name": "given-delays", "max_delay": 7}}))
    assert advice.situation.tau == 7


def test_the_written_configuration_runs_and_learns(tmp_path: Path):
    source, written, out = tmp_path / "a.toml", tmp_path / "b.toml", tmp_path / "run"
    import tomli_w

    source.write_text(tomli_w.dumps(QUICK))
    told = call("advise", source, "--write", written, "--json")
    assert told.exit_code == 0, told.stderr
    document = json.loads(told.stdout)
    config = tomllib.loads(written.read_text())
    assert document["config"] == config
    assert config["algorithm"]["name"] == "aligned-admm"
    assert config["output"]["name"] == "participants-mean"
    remarks = " ".join(document["remarks"])
    assert "(aligned-admm)" in remarks
    assert "seen" not in remarks
    assert config["sampler"]["size"] == 0.3
    rate, steps = config["local"]["solver"]["lr"], document["situation"]["local_steps"]
    assert 0 < rate < 2 / document["estimate"]["L"]
    assert config["algorithm"]["rho"] * rate * steps == pytest.approx(0.25, rel=1e-2)  # 3 digits
    ran = call(
        "run", written, "--rounds", 60, "--engine", "vectorised", "--out", out, "--no-report"
    )
    assert ran.exit_code == 0, ran.stderr
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    accuracies = [record["metrics"]["test_accuracy"] for record in records]
    assert np.mean(accuracies[-5:]) > 0.7 > 0.4 > accuracies[0]


def test_with_everybody_local_work_begins_at_the_global_model(tmp_path: Path):
    """From the clients' own models, with the same numbers, the target is not reached in time."""
    everybody = QUICK | {
        "problem": QUICK["problem"] | {"partition": "shards"},
        "sampler": {"name": "full"},
        "engine": {"name": "vectorised"},
        "rounds": 20,
        "target": {"metric": "test_accuracy", "value": 0.88, "end_run": True},
    }
    advice = advise(resolve(everybody))
    method, rate = advice.config["algorithm"], advice.config["local"]["solver"]["lr"]
    assert (method["name"], advice.config["local"]["start"]) == ("fedadmm", "global")
    steps = advice.situation.local_steps
    assert method["rho"] * rate * steps == pytest.approx(0.25, rel=1e-2)  # three digits
    assert any("start = 'global'" in remark for remark in advice.remarks)
    advised = run(resolve(advice.config), tmp_path / "global")
    local = advice.config["local"] | {"start": "own"}
    own = run(resolve(advice.config | {"local": local}), tmp_path / "own")
    assert advised["rounds_to_target"] is not None
    assert own["rounds_to_target"] is None


def test_a_person_reads_ranges_reasons_and_limits():
    brief = call("advise", "saturating", "--clients", 2)
    assert len(brief.stdout.splitlines()) <= 24, "more than a screen"
    shown = call("advise", "saturating", "--clients", 2, "--why")
    assert shown.stdout.startswith(brief.stdout)
    assert shown.exit_code == 0, shown.stderr
    text = " ".join(shown.stdout.split())
    for words in ("FedDR (Theorem 3.1)", "L 2.5 (known)", "has no guarantee", "gong: at most"):
        assert words in text
    assert re.search(r"B [\d.]+ in Σ‖∇f_i‖² ≤ B²‖Σ∇f_i‖² and G [\d.]+ in ‖∇f_i‖ ≤ G", text)
    told = json.loads(call("advise", "saturating", "--clients", 2, "--json").stdout)
    assert {"dissimilarity", "gradient_bound"} <= told["estimate"].keys()


def test_bad_input():
    wrong = call("advise", "nonsense")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "there is no file, preset or problem 'nonsense'" in wrong.stderr
    flat = fa.Problem([fa.Quadratic(torch.zeros(2, 2), torch.zeros(2))])
    assert estimate(flat, torch.zeros(2)).largest == 0.0


def test_the_problems_by_name_have_a_default_to_advise_on():
    assert "digits" in problems.names()
    advice = call("advise", "digits", "--clients", 2, "--rows", 16, "--json")
    assert json.loads(advice.stdout)["config"]["sampler"] == {"name": "uniform", "size": 0.1}


def test_a_wanted_epsilon_is_what_the_proposed_noise_spends():
    from fedadmm.core.privacy import Accountant, multiplier_for
    from fedadmm.study.advising import private

    run = resolve(
        {
            "problem": {"name": "digits", "clients": 50},
            "sampler": {"name": "uniform", "size": 0.1},
            "rounds": 30,
        }
    )
    found = private(advise(run, clients=2, rows=16), run.sampler, 30, 8.0, 1e-5)
    chosen = found.privacy
    assert chosen is not None
    spent = Accountant(chosen.multiplier, 1e-5, chosen.probability).epsilon(30)
    assert 7.9 < spent <= 8.0
    everybody = multiplier_for(8.0, 1e-5, 1.0, 30)
    assert chosen.multiplier / chosen.probability <= 1.51 * everybody
    assert (
        chosen.probability == 1.0
        or multiplier_for(8.0, 1e-5, chosen.probability / 2, 30) / (chosen.probability / 2)
        > 1.49 * everybody
    )
    assert found.config["upload"][1]["budget"] == 8.0
    assert found.config["algorithm"]["name"] == "fedavg"
    assert found.config["output"]["name"] == "averaged"
    assert found.config["rounds"] == 30
    assert found.config["local"]["solver"]["lr"] == pytest.approx(
        1 / found.situation.safe_smoothness, rel=5e-3
    )
    assert any("adds up the noise of all rounds" in remark for remark in found.remarks)
    assert not any("seen" in remark for remark in found.remarks)
    with pytest.raises(fa.ParameterError, match="delta"):
        private(found, run.sampler, 30, 8.0, 0.02)


def test_a_private_setting_is_shown_written_and_runs(tmp_path):
    path = tmp_path / "private.toml"
    line = ["digits", "--clients", 2, "--rows", 16, "--epsilon", 8, "--write", path]
    shown = call("advise", *line, "--why")
    assert shown.exit_code == 0, shown.stderr
    words = " ".join(shown.stdout.split())
    for told in (f"fedadmm run {path}", "method fedavg", "rounds 80", "noise, multiplier"):
        assert told in words
    plan = resolve(configs.read(str(path)))
    assert plan.rounds == 80
    ran = call("run", path, "--rounds", 1, "--out", tmp_path / "run", "--no-report")
    assert ran.exit_code == 0, ran.stderr
    shorter = call("advise", *line[:-2], "--set", "rounds=30", "--json")
    assert json.loads(shorter.stdout)["privacy"]["rounds"] == 30


def test_noise_is_not_advised_where_there_are_no_rounds(tmp_path):
    path = tmp_path / "asynchronous.toml"
    path.write_text(
        'rounds = 30\nproblem.name = "quadratics"\nalgorithm.name = "async-feddr"\n'
        'engine = { name = "virtual-time", mode = "async" }\n'
    )
    found = call("advise", path, "--clients", 2, "--epsilon", 8)
    assert found.exit_code == 2
    assert "--epsilon is 8, but noise is accounted for by rounds" in " ".join(found.stderr.split())
