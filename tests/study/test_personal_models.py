"""Each client's own model: measured beside the global one, read, exported and predicted with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.core.errors import ParameterError
from fedadmm.run.metrics import metric
from fedadmm.study.config import resolve
from fedadmm.study.run_dir import RunDir
from support.commands import call, write_small
from support.federations import WEIGHTS, federation, run

RHO = 1.3
KEEPING = [fa.FedADMM(RHO), fa.FedADMMIn(RHO), fa.FedDR(1 / RHO), fa.FedPD(1 / RHO)]
BOTH = fa.Evaluation(target="both", clients=True)


@pytest.mark.parametrize("method", KEEPING, ids=lambda method: method.name)
@pytest.mark.parametrize("engine", ["sequential", "workers"])
def test_own_models_and_their_gain_are_those_of_the_proximal_step(method: Any, engine: str) -> None:
    """From a fresh start and zero duals a client's first own model is prox of f_i at theta."""
    given = federation(31, weights=WEIGHTS)
    sampler = (
        fa.FullParticipation() if method.requirements.full_participation else fa.UniformSampling(3)
    )
    options: dict[str, Any] = {"sampler": sampler, "seed": 2, "evaluate": BOTH, "engine": engine}
    result = run(method, given, 1, **options)
    took_part = list(sampler.sample(2, 0, given.clients))

    def value(client: int, x: Any) -> float:
        return float(x @ given.A[client] @ x / 2 - given.b[client] @ x)

    theta = result.params.numpy()
    gains: list[float | None] = [None] * given.clients
    own = {client: given.prox(client, given.start, 1 / RHO) for client in took_part}
    for client, x in own.items():
        np.testing.assert_allclose(result.personal(client), x, rtol=0, atol=1e-12)
        gains[client] = value(client, theta) - value(client, x)
    record, shares = result.history[0], given.a[took_part] / given.a[took_part].sum()
    expected = shares @ [value(client, own[client]) for client in took_part]
    assert record["metrics"]["loss_own"] == pytest.approx(expected, abs=1e-12)
    expected = shares @ [gains[client] for client in took_part]
    assert record["metrics"]["loss_gain"] == pytest.approx(expected, abs=1e-12)
    for found, wanted in zip(record["clients"]["loss_gain_by_client"], gains, strict=True):
        assert found == (None if wanted is None else pytest.approx(wanted, abs=1e-12))
    whole = given.a @ [value(client, theta) for client in range(given.clients)]
    assert record["metrics"]["loss"] == pytest.approx(whole, abs=1e-12)
    absent = [client for client in range(given.clients) if client not in took_part]
    for client in [*absent, given.clients]:
        with pytest.raises(ParameterError, match=f"^client: got {client}, "):
            result.personal(client)


def test_a_method_without_own_models_measures_and_has_none() -> None:
    options: dict[str, Any] = {"solver": fa.GradientDescent(0.1), "stop": fa.Steps(2)}
    result = run(fa.FedAvg(), federation(32), 2, evaluate=BOTH, **options)
    plain = run(fa.FedAvg(), federation(32), 2, evaluate=fa.Evaluation(clients=True), **options)
    assert result.history[-1]["metrics"] == plain.history[-1]["metrics"]
    with pytest.raises(ParameterError, match=r"^algorithm: got FedAvg, "):
        result.personal(1)


def test_held_out_rows_are_those_of_the_client() -> None:
    given = federation(33)
    tests = [lambda x, i=i: {"score": float(x[0]) + i, "test_loss": float(x[1])} for i in range(5)]
    problem = fa.Problem(given.problem.clients, client_tests=tests)
    evaluation = fa.Evaluation(target="both", objective=False)
    options = {"initial": given.initial, "solver": fa.ExactSolver(), "evaluate": evaluation}
    result = fa.simulate(fa.FedADMM(RHO), problem, 2, **options)
    found = result.history[-1]["metrics"]
    own = np.mean([result.clients[i].w[:2].numpy() for i in range(5)], axis=0)
    theta = result.params[:2].numpy()
    assert found.keys() == {f"{x}_{y}" for x in ("score", "test_loss") for y in ("own", "gain")}
    assert found["score_own"] == pytest.approx(own[0] + 2, abs=1e-12)
    assert found["score_gain"] == pytest.approx(own[0] - theta[0], abs=1e-12)
    assert found["test_loss_gain"] == pytest.approx(theta[1] - own[1], abs=1e-12)  # less is better


def test_what_nobody_measures_of_a_client_is_refused() -> None:
    evaluation = fa.Evaluation(target="both", objective=False)
    with pytest.raises(
        fa.errors.CompatibilityError, match=r"^Evaluation: target is 'both', but nothing is"
    ):
        run(fa.FedADMM(RHO), federation(34), 1, evaluate=evaluation)


def test_a_gain_is_better_when_it_is_larger() -> None:
    assert metric("test_loss_gain_worst").up
    assert not metric("test_loss_gain_spread").up
    assert not metric("test_loss_own").up
    title = "Test loss, gain of the local models over the global one, worst client"
    assert metric("test_loss_gain_worst").title == title


PERSONAL: dict[str, Any] = {
    "fedadmm": {"algorithm": {"name": "fedadmm", "rho": 1.0}},
    "ditto": {"algorithm": {"name": "fedavg"}, "local": {"personal": {"name": "ditto"}}},
    "layers": {
        "algorithm": {"name": "fedavg"},
        "local": {"personal": {"name": "layers", "stay": ["3.*"]}},
    },
}


@pytest.mark.parametrize(
    ("kept", "store"),
    [("fedadmm", "memory"), ("fedadmm", "disk"), ("ditto", "memory"), ("layers", "disk")],
)
def test_an_exported_own_model_is_that_of_the_run(tmp_path: Path, store: str, kept: str) -> None:
    """Of the last round, although another one has the best global model."""
    problem = {"name": "digits", "clients": 4, "max_train": 80, "max_test": 40}
    own = PERSONAL[kept] | {"sampler": {"name": "uniform", "size": 2}}
    solver = {"name": "sgd", "lr": 0.1, "batch_size": 10}
    local = {"solver": solver} | own.get("local", {})
    rounds = 3 if kept == "layers" else 2
    tree = own | {"rounds": rounds, "problem": problem, "local": local}
    tree |= {"store": {"name": store}, "evaluate": {"objective": False}}
    config = write_small(tmp_path / "c.toml", **tree)
    folder = tmp_path / "out"
    assert call("run", config, "--out", folder, "--no-report").exit_code == 0
    best = RunDir(folder).best()
    assert best is not None
    assert (best["round"] < rounds) == (kept == "layers")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    result = fa.simulate(resolve(RunDir(folder).config()))
    client = max(result.clients)
    said = call("export", folder, "--format", "state-dict", "--client", client)
    assert said.exit_code == 0, said.stderr
    assert f"client {client}'s own model, round {rounds}" in " ".join(said.stdout.split())
    path = folder / f"client-{client}-state_dict.pt"
    exported = torch.load(path, weights_only=True)
    vector = torch.cat([tensor.reshape(-1) for tensor in exported.values()])
    assert torch.equal(vector, result.personal(client))
    assert not torch.equal(vector, result.params)
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    written = {path, path.with_suffix(".json")}  # the model, and what it is
    assert {one for one in after if before.get(one) != after[one]} <= written
    absent = max({0, 1, 2, 3} - {*result.clients}, default=7)
    refused = call("export", folder, "--format", "onnx", "--client", absent)
    assert refused.exit_code == 2
    assert f"client: got {absent}, expected one that has participated" in refused.stderr
    refused = call("export", folder, "--client", client)
    assert refused.exit_code == 2
    assert f"--client is {client}, but --format is 'csv'; use one of state-dict" in refused.stderr


def test_the_report_shows_every_clients_gain(tmp_path: Path) -> None:
    config = write_small(tmp_path / "c.toml", evaluate={"target": "both", "clients": True})
    assert call("run", config, "--out", tmp_path / "out").exit_code == 0
    page = (tmp_path / "out/report.html").read_text()
    assert "Loss, gain of the local models over the global one of each client" in page


def test_rows_of_a_site_are_predicted_by_its_own_model() -> None:
    """Two sites with opposite slopes: one line is right for neither, one intercept for both."""
    draws = np.random.default_rng(0)
    x = draws.normal(size=(80, 1))
    x -= np.tile([x[::2].mean(), x[1::2].mean()], 40)[:, None]
    site = np.array(["north", "south"])[np.arange(80) % 2]
    y = np.where(site == "north", 1.0, -1.0) * x[:, 0]
    options = {"batch_size": None, "epochs": 20, "lr": 0.5, "rounds": 2}
    model = fa.FederatedRegressor(fa.FedADMM(0.01), **options).fit(x, y, groups=site)
    assert abs(np.corrcoef(model.predict(x), y)[0, 1]) < 0.5
    np.testing.assert_allclose(model.predict(x, groups=site), y, atol=0.1)
    mixed = draws.permutation(80)
    np.testing.assert_allclose(
        model.predict(x[mixed], groups=site[mixed]), model.predict(x, groups=site)[mixed]
    )
    with pytest.raises(ParameterError, match="groups names 'west', expected clients that"):
        model.predict(x, groups=["west"] * 80)
    classes = fa.FederatedClassifier(fa.FedADMM(0.01), **options).fit(x, y > 0, groups=site)
    assert (classes.predict(x, groups=site) == (y > 0)).mean() > 0.95
    assert (classes.predict(x) == (y > 0)).mean() < 0.8
    for personal in (fa.Ditto(0.01), fa.PersonalLayers(["*.weight"])):
        line = fa.FederatedRegressor("fedavg", personal=personal, **options)
        line.fit(x, y, groups=site).partial_fit(x, y, groups=site, rounds=2)
        assert abs(np.corrcoef(line.predict(x), y)[0, 1]) < 0.5
        np.testing.assert_allclose(line.predict(x, groups=site), y, atol=0.1)
    usual = fa.FederatedClassifier(rounds=1).fit(x, y > 0, groups=site)
    with pytest.raises(ParameterError, match="groups is given, but AlignedADMM keeps no model"):
        usual.predict(x, groups=site)
