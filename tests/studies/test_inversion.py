"""Gradient inversion: what the server infers from messages, what attacks recover, what protects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core import trees
from studies.inversion.__main__ import LR, AttackSetting, attack
from studies.inversion.attacks import analytic, expose, labels, paired, psnr, weighted
from studies.inversion.inference import Inferred, Transcript, attacked, infer, observe
from support.models import small_federation

CLIENT = 2
METHODS = {
    "FedSGD": fa.FedSGD(0.1),
    "FedAvg": fa.FedAvg(),
    "FedDyn": fa.FedDyn(0.9),
    "SCAFFOLD 1": fa.Scaffold(1),
    "SCAFFOLD 2": fa.Scaffold(2),
    "FedADMM": fa.FedADMM(1.1),
    "FedADMM-InSa": fa.FedADMMInSa(1.1),
    "FedDR": fa.FedDR(0.9, 1.5),
}


def small(samples: int = 1) -> fa.Problem:
    return attacked(small_federation(), CLIENT, samples)


def transcript_of(
    algorithm: Any,
    problem: fa.Problem,
    steps: int = 1,
    rounds: int = 1,
    upload: Sequence[Any] = (),
    solver: Any = None,
) -> Transcript:
    solver = fa.SGD(LR, batch_size=None) if solver is None else solver
    return observe(algorithm, problem, solver, steps, rounds, upload)


def known_after(algorithm: Any, problem: fa.Problem, **options: Any) -> Inferred:
    return infer(transcript_of(algorithm, problem, **options), LR)


def samples_of(problem: fa.Problem) -> tuple[torch.Tensor, torch.Tensor]:
    client: Any = problem.clients[0]
    return client.inputs, client.targets


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("name", METHODS)
def test_server_reproduces_the_client_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[int, Any] = {}
    commit = fa.MemoryStore.commit

    def keep(self: Any, client: int, record: Any, round_index: int) -> None:
        kept[client] = record.state
        commit(self, client, record, round_index)

    monkeypatch.setattr(fa.MemoryStore, "commit", keep)
    found = known_after(METHODS[name], small(9), steps=3, rounds=5)
    pairs = zip(trees.named_tensors(found.state), trees.named_tensors(kept[0]), strict=True)
    for (field, inferred), (_, actual) in pairs:
        np.testing.assert_allclose(inferred, actual, rtol=0, atol=1e-10, err_msg=field)


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("name", METHODS)
def test_single_sample_is_recovered_exactly(name: str, rounds: int) -> None:
    problem = small()
    samples, targets = samples_of(problem)
    found = known_after(METHODS[name], problem, rounds=rounds)
    model = expose(small_federation().clients[CLIENT])
    np.testing.assert_allclose(analytic(model, found, 1), samples, rtol=0, atol=1e-6)
    assert labels(model, found, 1, rng()).tolist() == targets.tolist()


def test_dual_update_reveals_a_sample_by_hand() -> None:
    """u = w + y/rho is the sum of the increments; w = (u + theta - y/rho) / 2; then dW / db."""
    rho, problem = 1.1, small()
    transcript = transcript_of(fa.FedADMM(rho), problem, rounds=4)
    assert transcript.job is not None
    initial = transcript.job.initial.numpy()
    u, y = initial.copy(), np.zeros_like(initial)
    for one in transcript.rounds:
        theta, dual = one.broadcast.theta.numpy(), y
        u = u + one.message.increment.numpy()
        w = (u + theta - dual / rho) / 2
        y = dual + rho * (w - theta)
        gradient = (theta - w) / LR - dual  # one step from theta, where the penalty has no slope
    weight, bias = gradient[:20].reshape(5, 4), gradient[20:25]
    unit = np.abs(bias).argmax()
    np.testing.assert_allclose(weight[unit] / bias[unit], samples_of(problem)[0][0], atol=1e-6)
    np.testing.assert_allclose(infer(transcript, LR).gradient, gradient, rtol=0, atol=1e-9)
    assert np.abs(y).max() > 1e-3


@pytest.mark.parametrize("algorithm", [fa.FedAvg(), fa.FedADMM(1.1), fa.FedDR(0.9)])
def test_single_sample_is_recovered_exactly_after_many_steps(algorithm: Any) -> None:
    """Every step moves the first layer by a multiple of the sample, so that the ratio stays."""
    problem = small()
    found = known_after(algorithm, problem, steps=20, rounds=2)
    model = expose(small_federation().clients[CLIENT])
    np.testing.assert_allclose(analytic(model, found, 1), samples_of(problem)[0], atol=1e-6)


def test_local_change_reveals_the_mean_gradient_that_scaffold_sends() -> None:
    """In the first round both methods make the same steps."""
    moved = known_after(fa.FedAvg(), small(6), steps=6)
    sent = transcript_of(fa.Scaffold(2), small(6), steps=6).rounds[0].message
    np.testing.assert_allclose(moved.gradient, sent.control, rtol=0, atol=1e-9)
    path = moved.end - moved.start
    shares = [float((point - moved.start).norm() / path.norm()) for point in moved.points]
    assert shares == pytest.approx([1 / 12, 5 / 12, 9 / 12])


def test_labels_of_a_batch_are_counted() -> None:
    problem = small(9)
    targets = samples_of(problem)[1].tolist()
    assert len(set(targets)) == 3
    model = expose(small_federation().clients[CLIENT])
    assert labels(model, known_after(fa.FedADMM(1.1), problem), 9, rng()).tolist() == sorted(
        targets
    )


def test_clipping_and_compression_do_not_protect_but_noise_does() -> None:
    problem = fa.problems.load("digits", clients=20, partition="shards")

    def found(**options: Any) -> Any:
        return attack(problem, fa.FedADMM(rho=0.1), AttackSetting("", samples=1, **options), 1, 1)

    for row in (found(), found(clip=True)):
        assert (row.recovered, row.labels) == (1, 1.0)
        assert row.psnr > 60
    assert found(upload=(fa.Quantise(8),)).recovered == 1
    assert found(clip=True, noise=1.0).recovered == 0
    assert found(private=1.0).recovered == 0


def picture_client(samples: int, seed: int) -> fa.Problem:
    """One client with smooth pictures that enter a convolution."""
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.rand(samples, 1, 2, 2, generator=draws, dtype=torch.float64)
    inputs = nn.functional.interpolate(inputs, size=6, mode="bilinear")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 4)
        ).double()
    targets = torch.arange(samples) % 4
    objective = fa.ModelObjective(module, nn.functional.cross_entropy, inputs, targets)
    return fa.Problem([objective], initial=objective.flat.vector.clone())


def test_picture_behind_a_convolution_is_recovered_by_gradient_matching() -> None:
    problem = picture_client(1, seed=2)
    client: Any = problem.clients[0]
    model = expose(client)
    assert model.entry is None
    found = known_after(fa.FedSGD(0.1), problem)
    made = weighted(model, found, torch.tensor([0]), rng(), steps=200)
    assert model.low <= float(made.min()) < float(made.max()) <= model.high
    assert psnr(client.inputs[0], made[0], 1.0) > 25


def test_reconstructions_are_paired_and_scored_by_their_definitions() -> None:
    rows = torch.tensor([[0.0], [1.0], [2.0]])
    found = paired(rows, torch.tensor([[2.2], [0.1], [0.9]]))
    assert found.flatten().tolist() == pytest.approx([0.1, 0.9, 2.2])
    one = torch.rand(9, 8, generator=rng())
    assert psnr(one, one + 0.01, 2.0) == pytest.approx(20 * np.log10(200), rel=1e-6)
    assert psnr(one, one, 1.0) == 120.0


def test_model_without_a_linear_layer_is_rejected() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 6), nn.Flatten())
    client = fa.ModelObjective(
        module, nn.functional.cross_entropy, torch.rand(2, 1, 6, 6), torch.tensor([0, 1])
    )
    with pytest.raises(fa.errors.CompatibilityError, match=r"^model: "):
        expose(client)
