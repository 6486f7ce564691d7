"""IIADMM of Ryu and Kim (APPFL) = FedADMM(tracking, everybody) with SGD of rate 1/(rho + zeta).

In IIADMM a client makes linearised steps on z with a proximal weight zeta, then both it and the
server move the dual lambda, so that z alone is sent:

    z      <- (rho theta + zeta z + lambda - g(z)) / (rho + zeta)       several times
    lambda <- lambda + rho (theta - z)                                  at the client, at the server
    theta  <- mean of z - lambda / rho
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.core.rng import derive, permutation
from support.federations import ROUNDS, assert_same

RHO, ZETA, SEED = 0.8, 5.0, 3
SIZES, D = (9, 16, 12, 5), 3
EPOCHS = 3


def data():
    draws = np.random.default_rng(17)
    inputs = [draws.normal(size=(rows, D)) for rows in SIZES]
    targets = [x @ draws.normal(size=D) + draws.normal(size=len(x)) for x in inputs]
    return inputs, targets, draws.normal(size=D)


def batches(client: int, number: int, epoch: int, size: int | None):
    rows = SIZES[client]
    if size is None or size >= rows:
        return [np.arange(rows)]
    order = permutation(derive(SEED, "client", number, client), epoch, rows).numpy()
    return [order[begin : begin + size] for begin in range(0, rows, size)]


def iiadmm(batch_size: int | None) -> list[np.ndarray]:
    """As Ryu and Kim write it, with their signs and with both sides' duals."""
    inputs, targets, start = data()
    clients = len(SIZES)
    z = np.tile(start, (clients, 1))
    duals, server_duals = np.zeros((clients, D)), np.zeros((clients, D))
    thetas = []
    for number in range(ROUNDS):
        theta = np.mean(z - server_duals / RHO, axis=0)
        for p in range(clients):
            for epoch in range(EPOCHS):
                for rows in batches(p, number, epoch, batch_size):
                    x, y = inputs[p][rows], targets[p][rows]
                    gradient = x.T @ (x @ z[p] - y) / len(rows)
                    z[p] = (RHO * theta + ZETA * z[p] + duals[p] - gradient) / (RHO + ZETA)
            duals[p] += RHO * (theta - z[p])
        server_duals += RHO * (theta - z)
        thetas.append(np.mean(z - server_duals / RHO, axis=0))
    return thetas


@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_iiadmm(batch_size, engine):
    inputs, targets, start = data()
    problem = fa.Problem(
        [
            fa.LeastSquares(torch.from_numpy(x), torch.from_numpy(y))
            for x, y in zip(inputs, targets, strict=True)
        ]
    )
    result = fa.simulate(
        fa.FedADMM(RHO),
        problem,
        ROUNDS,
        solver=fa.SGD(1 / (RHO + ZETA), batch_size),
        stop=fa.Epochs(EPOCHS),
        start="own",
        seed=SEED,
        initial=torch.from_numpy(start),
        keep_trajectory=True,
        evaluate=False,
        engine=engine,
    )
    expected = np.array(iiadmm(batch_size))
    assert_same(result.trajectory, expected)
    assert np.linalg.norm(expected[-1] - start) > 0.1  # something happened
