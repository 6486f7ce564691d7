"""The audit: what a server infers from messages, what the attacks make of it, and what protects."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core import trees
from fedadmm.core.local_work import LocalWork
from fedadmm.core.uploads import Uploads
from fedadmm.run.simulation import make_job
from fedadmm.study import config
from fedadmm.study.auditing import audit
from fedadmm.study.auditing.attacks import (
    _distance,
    analytic,
    expose,
    labels,
    matching,
    paired,
    score,
    ssim,
)
from fedadmm.study.auditing.audit import _attacks as suited
from fedadmm.study.auditing.inference import from_the_sum, infer, observe, prepared_rows, with_rows
from fedadmm.study.config import resolve
from fedadmm.study.report.audit_page import audit_page
from support.commands import call, write_small
from support.models import small_federation
from test_properties import ROWS, cohort, rows_federation

CLIENT = 2
LR = 0.1
METHODS = {
    "FedSGD": fa.FedSGD(0.1),
    "FedAvg": fa.FedAvg(),
    "FedDyn": fa.FedDyn(0.9),
    "SCAFFOLD 1": fa.Scaffold(1),
    "SCAFFOLD 2": fa.Scaffold(2),
    "FedADMM": fa.FedADMM(1.1),
    "FedADMM aligned": fa.AlignedADMM(1.1),
    "FedADMM-InSa": fa.FedADMMInSa(1.1),
    "FedDR": fa.FedDR(0.9, 1.5),
}


def job_of(algorithm: Any, rows: int = 1, **options: Any) -> Any:
    """The perceptrons of `small_federation`, of which one client has only some rows."""
    problem = with_rows(small_federation(), CLIENT, rows, 0)
    settings: dict[str, Any] = {"solver": fa.SGD(LR, batch_size=None), "stop": fa.Steps(1)}
    settings |= {key: value for key, value in options.items() if key != "upload"}
    initial = problem.start(0)
    job = make_job(algorithm, problem, LocalWork(settings["solver"], settings["stop"]), 3, initial)
    return job._replace(uploads=Uploads.of(options.get("upload", ())))


def known_after(job: Any, before: int = 0) -> Any:
    return infer(job, CLIENT, observe(job, fa.UniformSampling(2), CLIENT, before))


def own_rows(job: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return prepared_rows(job.problem.clients[CLIENT])


def dice() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("name", ROWS)
def test_the_server_knows_every_clients_state_from_its_messages(name, monkeypatch):
    """Whatever a method keeps to itself: random cohorts, batches, amounts of work, momentum."""
    row, given = ROWS[name], rows_federation()
    solver = fa.SGD(0.1, batch_size=4, momentum=0.3)
    job = make_job(
        row.algorithm, given.problem, LocalWork(solver, fa.UniformEpochs(3)), 3, given.initial
    )
    results = []
    solve = fa.SGD.solve

    def spied(self, objective, *rest):
        result, info = solve(self, objective, *rest)
        if isinstance(objective, fa.LeastSquares):  # not what the server solves on its own
            results.append((objective.num_samples, result))
        return result, info

    monkeypatch.setattr(fa.SGD, "solve", spied)
    kept = {}
    commit = fa.MemoryStore.commit

    def keep(self, client, record, round_index):
        kept[client] = record.state
        commit(self, client, record, round_index)

    monkeypatch.setattr(fa.MemoryStore, "commit", keep)
    observed = observe(job, cohort(row), 1, before=4)
    assert len(observed) >= 5
    found = infer(job, 1, observed)
    for (field, mine), (_, theirs) in zip(
        trees.named_tensors(found.state), trees.named_tensors(kept[1]), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-10, err_msg=field)
    if row.algorithm.needs.local_solve:
        last = [result for size, result in results if size == given.problem.clients[1].num_samples]
        np.testing.assert_allclose(found.end, last[-1].params, rtol=0, atol=1e-10)


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("name", METHODS)
def test_one_row_is_recovered_exactly_from_every_methods_own_message(name, before):
    job = job_of(METHODS[name])
    rows, targets = own_rows(job)
    found = known_after(job, before)
    model = expose(small_federation().clients[CLIENT])
    np.testing.assert_allclose(analytic(model, found, 1), rows, rtol=0, atol=1e-6)
    assert labels(model, found, 1, dice()).tolist() == targets.tolist()


def test_a_dual_upload_gives_a_row_away_by_hand():
    """u = w + y/rho is the sum of what was sent; w = (u + theta - y/rho) / 2; y moves; dW / db."""
    rho = 1.1
    job = job_of(fa.FedADMM(rho))
    observed = observe(job, fa.UniformSampling(2), CLIENT, 3)
    initial = job.initial.numpy()
    u, y = initial.copy(), np.zeros_like(initial)
    for one in observed:
        theta, dual = one.download.cast.theta.numpy(), y
        u = u + one.message.increment.numpy()
        w = (u + theta - dual / rho) / 2
        y = dual + rho * (w - theta)
        gradient = (theta - w) / LR - dual  # one step from theta, where the penalty has no slope
    weight, bias = gradient[:20].reshape(5, 4), gradient[20:25]
    unit = np.abs(bias).argmax()
    rows, _ = own_rows(job)
    np.testing.assert_allclose(weight[unit] / bias[unit], rows[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(infer(job, CLIENT, observed).gradient, gradient, rtol=0, atol=1e-9)
    assert np.abs(y).max() > 1e-3


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("algorithm", [fa.FedAvg(), fa.FedADMM(1.1), fa.FedDR(0.9)])
def test_one_row_is_recovered_exactly_after_many_steps(algorithm, momentum):
    """Every step moves the layer by a multiple of the row, so that the ratio stays what it is."""
    solver = fa.SGD(LR, batch_size=None, momentum=momentum)
    job = job_of(algorithm, solver=solver, stop=fa.Steps(20))
    found = known_after(job, 1)
    model = expose(small_federation().clients[CLIENT])
    np.testing.assert_allclose(analytic(model, found, 1), own_rows(job)[0], rtol=0, atol=1e-6)


def test_a_move_tells_the_mean_gradient_that_scaffold_sends():
    """In the first round both make the same steps; SCAFFOLD's control is the mean gradient."""
    options = {"rows": 6, "solver": fa.SGD(LR, batch_size=2), "stop": fa.Epochs(2)}
    moved = known_after(job_of(fa.FedAvg(), **options))
    observed = observe(job_of(fa.Scaffold(2), **options), fa.UniformSampling(2), CLIENT)
    np.testing.assert_allclose(moved.gradient, observed[0].message.control, rtol=0, atol=1e-9)
    between = [
        float((p - moved.start).norm() / (moved.end - moved.start).norm()) for p in moved.points
    ]
    assert between == pytest.approx([1 / 12, 5 / 12, 9 / 12])


def test_a_solve_to_the_end_gives_away_the_gradient_at_its_result():
    draws = torch.Generator().manual_seed(0)
    clients = [
        fa.LeastSquares(
            torch.randn(9, 4, generator=draws, dtype=torch.float64),
            torch.randn(9, generator=draws, dtype=torch.float64),
        )
        for _ in range(3)
    ]
    problem = fa.Problem(clients, initial=torch.zeros(4, dtype=torch.float64))
    job = make_job(fa.FedADMM(0.7), problem, LocalWork(fa.ExactSolver()), 0, problem.start(0))
    found = infer(job, 1, observe(job, fa.FullParticipation(), 1, 2))
    expected = clients[1].gradient(found.end)
    assert float(expected.norm()) > 1e-2
    np.testing.assert_allclose(found.gradient, expected, rtol=0, atol=1e-9)
    job = job._replace(algorithm=fa.FedAvg(), local=replace(job.local, start="global"))
    with pytest.raises(fa.PairingError, match="chooses its own steps and FedAvg has no penalty"):
        infer(job, 1, observe(job, fa.FullParticipation(), 1))


def test_labels_of_a_batch_are_counted():
    job = job_of(fa.FedADMM(1.1), rows=9)
    _, targets = own_rows(job)
    assert len(set(targets.tolist())) == 3
    model = expose(small_federation().clients[CLIENT])
    assert labels(model, known_after(job), 9, dice()).tolist() == sorted(targets.tolist())


def labelled(targets: list[int], *, bias: bool = True, upload: Any = ()) -> tuple[Any, Any]:
    """A client with ten classes, some of which it has, and what the server knows of it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 10, bias=bias)).double()
    rows = torch.rand(len(targets), 4, dtype=torch.float64, generator=dice()) + 0.2
    client = fa.ModelObjective(
        module, nn.functional.cross_entropy, rows, torch.tensor(targets, dtype=torch.int64)
    )
    problem = fa.Problem([client], initial=client.flat.vector.clone())
    job = make_job(fa.FedSGD(0.1), problem, LocalWork(), 0, problem.start(0))
    job = job._replace(uploads=Uploads.of(upload))
    return expose(client), infer(job, 0, observe(job, fa.FullParticipation(), 0))


def test_labels_are_read_off_the_weights_where_there_is_no_bias():
    model, found = labelled([0, 3, 4], bias=False)
    assert labels(model, found, 3, dice()).tolist() == [0, 3, 4]


def test_labels_of_a_clipped_message_are_counted_by_the_classes_that_are_not_there():
    given = [1, 1, 1, 1, 1, 7]
    model, found = labelled(given, upload=[fa.Clip(1e-3)])
    assert labels(model, found, 6, dice(), cut=True).tolist() == given
    assert labels(model, found, 6, dice()).tolist() != given


def test_a_clip_protects_nothing_and_noise_hides_the_row_from_those_who_see_the_sum():
    model = expose(small_federation().clients[CLIENT])
    span = model.high - model.low
    stages = [fa.Clip(0.01), fa.GaussianNoise(1.0, 1e-3)]
    job = job_of(fa.FedADMM(1.1), upload=stages)
    (row,), targets = own_rows(job)
    observed = observe(job, fa.UniformSampling(2), CLIENT)
    assert float(observed[0].message.increment.norm()) == pytest.approx(0.01)
    by_server = infer(job, CLIENT, observed)
    assert score(row, analytic(model, by_server, 1)[0], span).psnr > 100
    assert labels(model, by_server, 1, dice(), cut=True).tolist() == targets.tolist()
    noised = from_the_sum(job, CLIENT, observed)
    noise = noised[0].message.increment - observed[0].message.increment
    assert float(noise.std()) == pytest.approx(0.01, rel=0.2)  # equal weights: multiplier * norm
    from_sum = infer(job, CLIENT, noised)
    assert score(row, analytic(model, from_sum, 1)[0], span).psnr < 15


def test_dp_sgd_hides_the_row_from_the_server_too():
    model = expose(small_federation().clients[CLIENT])
    psnr = {}
    for multiplier in (1e-9, 1.0):
        solver = fa.DPSGD(LR, clip=1.0, multiplier=multiplier, batch_size=8, momentum=0.5)
        job = job_of(fa.FedADMM(1.1), solver=solver, stop=fa.Steps(2))
        (row,), _ = own_rows(job)
        made = analytic(model, known_after(job, 1), 1)
        psnr[multiplier] = score(row, made[0], model.high - model.low).psnr
    assert psnr[1e-9] > 100  # its clipped gradient is a multiple of the row's
    assert psnr[1.0] < 15


def pictures(kind: Any, seed: int, rows: int = 1) -> tuple[fa.Problem, torch.Tensor]:
    """One client with smooth pictures and a small network."""
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.rand(rows, 1, 2, 2, generator=draws, dtype=torch.float64)
    inputs = nn.functional.interpolate(inputs, size=6, mode="bilinear")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = kind().double()
    objective = fa.ModelObjective(
        module, nn.functional.cross_entropy, inputs, torch.arange(rows) % 4
    )
    return fa.Problem([objective], initial=objective.flat.vector.clone()), inputs


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 4)
    )


def test_matching_gets_a_picture_back_that_enters_a_convolution():
    problem, inputs = pictures(convolution, 2)
    model = expose(problem.clients[0])
    assert model.entry is None
    job = make_job(fa.FedSGD(0.1), problem, LocalWork(), 0, problem.start(0))
    found = infer(job, 0, observe(job, fa.FullParticipation(), 0))
    made = matching(model, found, torch.tensor([0]), dice(), weighted=False, steps=200)
    assert model.low <= float(made.min()) < float(made.max()) <= model.high
    near = score(inputs[0], made[0], 1.0)
    assert near.psnr > 25
    assert near.ssim is not None
    assert near.ssim > 0.95


def test_the_models_between_start_and_end_explain_several_steps_better_than_the_start():
    """The client's own rows have nearly the inferred gradient there, but not at the start."""
    problem, inputs = pictures(convolution, 1, rows=3)
    client = problem.clients[0]
    job = make_job(
        fa.FedAvg(),
        problem,
        LocalWork(fa.SGD(0.02, batch_size=None), fa.Steps(8)),
        0,
        problem.start(0),
    )
    found = infer(job, 0, observe(job, fa.FullParticipation(), 0))

    def miss(points):
        made = sum(client.gradient(point).clone() for point in points)
        return 1 - float(nn.functional.cosine_similarity(made, found.gradient, dim=0))

    assert len(found.points) == 3
    assert miss(found.points) < miss([found.start]) / 2
    model = expose(client)
    made = matching(model, found, torch.arange(3), dice(), weighted=True, steps=100)
    assert made.shape == inputs.shape
    assert miss_of(model, found, made) < miss_of(model, found, torch.full_like(made, 0.5)) / 2


def miss_of(model: Any, found: Any, inputs: torch.Tensor) -> float:
    """What the weighted attack makes small."""
    models = [model.flat.views(point) for point in found.points]
    wanted = model.flat.views(found.gradient)
    weights = [10.0, 10.0, 1.0, 1.0]  # of the convolution and of the layer behind it
    targets = torch.arange(len(inputs))
    return _distance(model, models, wanted, weights, inputs, targets).item()


def test_scores_are_those_of_their_definitions():
    draws = np.random.default_rng(0)
    a, b = draws.random((2, 9, 8)), draws.random((2, 9, 8))
    expected = []
    for channel in range(2):
        for i in range(3):
            for j in range(2):
                x, y = (v[channel, i : i + 7, j : j + 7].ravel() for v in (a, b))
                (vx, both), (_, vy) = np.cov(x, y)
                top = (2 * x.mean() * y.mean() + 1e-4) * (2 * both + 9e-4)
                below = (x.mean() ** 2 + y.mean() ** 2 + 1e-4) * (vx + vy + 9e-4)
                expected.append(top / below)
    one, other = torch.tensor(a), torch.tensor(b)
    assert ssim(one, other, 1.0) == pytest.approx(np.mean(expected))
    assert score(one, one + 0.01, 2.0).psnr == pytest.approx(20 * np.log10(200))
    assert score(one, one, 1.0) == (120.0, pytest.approx(1.0))
    assert score(one[0, 0], one[0, 0], 1.0).ssim is None
    rows = torch.tensor([[0.0], [1.0], [2.0]])
    assert paired(rows, torch.tensor([[2.2], [0.1], [0.9]])).flatten().tolist() == pytest.approx(
        [0.1, 0.9, 2.2]
    )


SMALL = {
    "problem": {"name": "digits", "clients": 20},
    "local": {
        "solver": {"name": "sgd", "lr": 0.1, "batch_size": 10},
        "stop": {"name": "epochs", "epochs": 2},
    },
    "sampler": {"name": "uniform", "size": 2},
}


def test_an_audit_shows_what_protects():
    changes = {"algorithm": {"name": "aligned-admm", "rho": 0.5}}
    found = audit(resolve(SMALL | changes), client=1, rows=2, attack="analytic")
    outcomes = {one.setting.title: one for one in found.outcomes}
    assert outcomes["1 step, 1 row"].best.psnr > 60
    assert outcomes["1 step, clip"].best.recovered == outcomes["1 step"].best.recovered > 0
    assert outcomes["1 step, noise 1"].best.recovered == 0
    assert outcomes["1 step, noise 1"].best.psnr < outcomes["1 step, noise 0.01"].best.psnr
    assert [one.steps for one in found.outcomes[:4]] == [2, 1, 5, 20]
    assert {one.setting.title for one in found.outcomes if one.setting.in_sum} == {
        f"1 step, noise {z}" for z in ("0.01", "0.1", "1")
    }
    assert found.left_out == {}
    assert outcomes["1 step, DP-SGD 1"].best.recovered == 0


def test_what_a_method_cannot_be_run_with_is_left_out_with_the_reason():
    found = audit(resolve(SMALL | {"algorithm": {"name": "fednova"}}), rows=1, attack="analytic")
    assert set(found.left_out) == {f"1 step, noise {z}" for z in ("0.01", "0.1", "1")}
    assert "FedNova sends work beside its vectors" in found.left_out["1 step, noise 1"]


def test_a_table_of_few_columns_is_audited_too():
    """Of 14 entries a hundredth is none, and a tenth may leave nothing of the bias."""
    tree = {
        "problem": {"name": "heart"},
        "algorithm": {"name": "fedadmm", "rho": 0.01},  # L-BFGS has no rate to fit a penalty to
        "local": {"solver": {"name": "lbfgs"}},
    }
    found = audit(resolve(SMALL | tree), rows=3, attack="analytic")
    assert list(found.left_out) == ["1 step, top-k 1 %"]
    assert "TopK: keep is 0.01, which is 0 of 14 entries" in found.left_out["1 step, top-k 1 %"]
    outcomes = {one.setting.title: one for one in found.outcomes}
    assert all(bool(one.best.found.isfinite().all()) for one in found.outcomes)
    assert outcomes["1 step, 1 row"].best.psnr > 100
    assert outcomes["1 step, 1 row"].best.ssim is None
    assert outcomes["1 step, 1 row"].labels == 1.0
    page = audit_page(found)
    assert page.count("data:image/png;base64,") == 2 * sum(len(o.rows[:8]) for o in found.outcomes)
    assert "Not run: 1 step, top-k 1 %" in page


@pytest.fixture
def configured(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(config.write(SMALL))
    return path


def test_the_command_writes_a_page_and_one_document(configured, tmp_path):
    out = tmp_path / "out"
    options = ["--rows", 2, "--attack", "analytic", "--algorithm", "fedsgd", "--out", out]
    done = call("audit", configured, *options, "--set", "algorithm.lr=0.1", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((out / "audit.json").read_text()) | {
        "report": str(out / "audit.html")
    }
    first = found["settings"][0]
    assert first["title"] == "as configured"
    assert first["labels"] == 1.0
    assert len(first["attacks"]["analytic"]["each"]) == 2
    page = (out / "audit.html").read_text()
    shown = sum(min(8, one["rows"]) for one in found["settings"])
    assert page.count("data:image/png;base64,") == 2 * shown
    assert "<script" not in page
    assert (out / "tables" / "audit.csv").read_text().count("\n") == 1 + len(found["settings"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--client", 99], "client is 99, but must be a whole number of at least 0 and at most 19"),
        (["--rows", 1000], "rows is 1000, but must be a whole number of at least 1 and at most "),
        (["--rows", 0], "0 is not in the range x>=1"),
        (["--attack", "magic"], "attack is 'magic', but there is no such attack; there are"),
    ],
)
def test_bad_input_is_one_sentence(configured, tmp_path, arguments, told):
    done = call("audit", configured, "--out", tmp_path / "out", *arguments)
    assert done.exit_code == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_linear_layer_is_refused_before_anything_runs(tmp_path):
    done = call("audit", write_small(tmp_path / "small.toml"), "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "without a linear layer, but the attacks read one" in done.stderr
    with pytest.raises(fa.PairingError, match="is Sequential without a linear layer"):
        expose(pictures(lambda: nn.Sequential(nn.Conv2d(1, 4, 6), nn.Flatten()), 0)[0].clients[0])


def test_rows_and_targets_that_no_attack_suits_are_refused():
    def client(module, inputs, targets, loss=nn.functional.cross_entropy):
        return fa.ModelObjective(module, loss, inputs, targets)

    characters = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    text = client(characters, torch.zeros(4, 2, dtype=torch.int64), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(fa.PairingError, match=r"rows are torch\.int64, whole numbers"):
        expose(text)
    same = client(nn.Linear(2, 2), torch.ones(3, 2), torch.tensor([0, 1, 0]))
    with pytest.raises(fa.PairingError, match="every value of the rows is 1"):
        expose(same)
    behind = expose(pictures(convolution, 0)[0].clients[0])
    with pytest.raises(fa.PairingError, match="'analytic', but the rows enter no linear layer"):
        suited(behind, "analytic")
    assert suited(behind, None) == ["weighted"]
    assert suited(behind, "matching") == ["matching"]
    line = client(nn.Linear(2, 1), torch.rand(3, 2), torch.rand(3, 1), nn.functional.mse_loss)
    assert suited(expose(line), None) == ["analytic"]
    with pytest.raises(fa.PairingError, match="'weighted', but the targets are no classes"):
        suited(expose(line), "weighted")
    bare = client(
        nn.Linear(2, 1, bias=False), torch.rand(3, 2), torch.rand(3, 1), nn.functional.mse_loss
    )
    with pytest.raises(fa.PairingError, match="so that no attack applies"):
        suited(expose(bare), None)
