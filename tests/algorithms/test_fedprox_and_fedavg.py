"""FedADMM without a dual is FedProx; FedProx(0) is FedAvg; FedAvg with one step is FedSGD."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given as hypothesis_given, strategies as st

import fedadmm as fa
from fedadmm.algorithms.fed_admm_state import Message
from fedadmm.core.contracts import Round
from support.federations import SAMPLERS, WEIGHTS, assert_same, federation, run
from support.models import small_federation


@dataclass(frozen=True)
class FrozenDual(fa.FedADMM):
    """FedADMM whose duals never leave zero."""

    def client_update(self, cast, client, result):
        state, _ = super().client_update(cast, client, result)
        frozen = state._replace(y=torch.zeros_like(state.y))
        return frozen, Message(frozen.w - client.w)


@hypothesis_given(seed=st.integers(0, 2**20), rho=st.floats(0.0625, 8.0))
def test_fedadmm_with_its_dual_frozen_at_zero_solves_the_problem_of_fedprox(seed, rho):
    given = federation(seed)
    theta = given.initial
    admm, prox = fa.FedADMM(rho), fa.FedProx(rho)
    cast = admm.broadcast(admm.init_server(theta), Round(0, 0))
    client = admm.init_client(theta + 1)
    solver, rule = fa.ExactSolver(), fa.Epochs(1)
    one, _ = solver.solve(given.problem.clients[0], admm.local_problem(cast, client), rule, 0)
    server = prox.init_server(theta)
    local = prox.local_problem(prox.broadcast(server, Round(0, 0)), prox.init_client(theta))
    two, _ = solver.solve(given.problem.clients[0], local, rule, 0)
    assert_same([one.params], [two.params])
    expected = given.prox(0, given.start, 1 / rho)
    assert_same(one.params.numpy(), expected)


def test_fedadmm_with_frozen_duals_runs_like_fedprox():
    """With everybody taking part the mean of all w_i is FedProx's mean of the participants."""
    given = federation(42, weights=WEIGHTS)
    frozen = run(FrozenDual(1.3), given)
    assert_same(frozen.trajectory, run(fa.FedProx(1.3), given).trajectory)
    # inexact solves agree as well, when both begin at theta
    options = {"solver": fa.GradientDescent(0.1), "stop": fa.Steps(2)}
    frozen = run(FrozenDual(1.3), given, start="global", **options)
    assert_same(frozen.trajectory, run(fa.FedProx(1.3), given, **options).trajectory)


@pytest.mark.parametrize("sampler", ["full", "uniform", "bernoulli"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedprox_without_penalty_is_fedavg_bit_for_bit(sampler, momentum):
    given = federation(43, weights=WEIGHTS)
    options = {
        "sampler": SAMPLERS[sampler],
        "solver": fa.SGD(0.1, momentum=momentum),
        "stop": fa.Epochs(3),
    }
    avg = run(fa.FedAvg(), given, **options)
    prox = run(fa.FedProx(0.0), given, **options)
    assert all(torch.equal(a, b) for a, b in zip(avg.trajectory, prox.trajectory, strict=True))
    other = run(fa.FedProx(0.5), given, rounds=1, **options)
    assert not torch.equal(other.trajectory[0], avg.trajectory[0])


def test_fedprox_without_penalty_is_fedavg_bit_for_bit_on_a_network_with_mini_batches():
    problem = small_federation()
    options = {
        "rounds": 6,
        "sampler": fa.UniformSampling(2),
        "solver": fa.SGD(0.2, batch_size=7, momentum=0.5),
        "stop": fa.Epochs(2),
        "keep_trajectory": True,
        "seed": 4,
    }
    avg = fa.simulate(fa.FedAvg(), problem, **options)
    prox = fa.simulate(fa.FedProx(0), problem, **options)
    assert all(torch.equal(a, b) for a, b in zip(avg.trajectory, prox.trajectory, strict=True))
    assert not torch.equal(avg.trajectory[0], avg.trajectory[-1])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_fedavg_with_one_full_step_is_fedsgd(sampler):
    given = federation(44, weights=WEIGHTS)
    lr, chosen = 0.2, SAMPLERS[sampler]
    avg = run(fa.FedAvg(), given, sampler=chosen, solver=fa.GradientDescent(lr), stop=fa.Steps(1))
    sgd = run(fa.FedSGD(lr), given, sampler=chosen, solver=None)
    assert_same(avg.trajectory, sgd.trajectory)


def test_fedavg_with_one_full_step_is_fedsgd_on_a_network():
    problem = small_federation()
    options = {"rounds": 5, "sampler": fa.UniformSampling(2), "keep_trajectory": True}
    solver = fa.SGD(0.3, batch_size=None)
    avg = fa.simulate(fa.FedAvg(), problem, solver=solver, stop=fa.Epochs(1), **options)
    sgd = fa.simulate(fa.FedSGD(0.3), problem, **options)
    assert_same(avg.trajectory, sgd.trajectory)


def test_fedsgd_under_full_participation_is_gradient_descent():
    given = federation(45, weights=WEIGHTS)
    result = run(fa.FedSGD(0.1), given, solver=None)
    theta = given.start.copy()
    for vector in result.trajectory:
        theta = theta - 0.1 * sum(
            given.a[i] * given.gradient(i, theta) for i in range(given.clients)
        )
        assert_same(vector.numpy(), theta)


@pytest.mark.parametrize("start", ["global", "own"])
def test_pfedme_rests_where_the_mean_moreau_envelope_is_least(start):
    """grad F_i(theta) = rho (theta - v_i) = (I + A_i / rho)^-1 (A_i theta - b_i)."""
    given, rho = federation(44, weights=WEIGHTS), 1.7
    smoothed = [np.linalg.inv(np.eye(len(A)) + A / rho) for A in given.A]
    left = sum(a * S @ A for a, S, A in zip(given.a, smoothed, given.A, strict=True))
    right = sum(a * S @ b for a, S, b in zip(given.a, smoothed, given.b, strict=True))
    expected = np.linalg.solve(left, right)
    result = run(fa.PFedMe(rho), given, rounds=300, start=start)
    np.testing.assert_allclose(result.params, expected, rtol=0, atol=1e-10)
    assert np.linalg.norm(expected - given.optimum) > 1e-3
    for client, state in result.clients.items():
        own = np.linalg.solve(given.A[client] + rho * np.eye(4), given.b[client] + rho * expected)
        np.testing.assert_allclose(state.v, own, rtol=0, atol=1e-10)


def test_pfedme_with_step_one_trains_theta_as_fedprox_does():
    given = federation(45, weights=WEIGHTS)
    options = {"sampler": fa.UniformSampling(2), "solver": fa.GradientDescent(0.1)}
    personal = run(fa.PFedMe(0.7), given, **options)
    assert_same(personal.trajectory, run(fa.FedProx(0.7), given, **options).trajectory)
