"""Consensus ADMM in the classic order: the dual is updated against the new global model.

Boyd, Parikh, Chu, Peleato, Eckstein: Distributed Optimization and Statistical Learning via the
Alternating Direction Method of Multipliers, 2011, section 7.1.

    minimise sum_i a_i f_i(theta) + g(theta),  with scaled duals u_i = y_i / rho and z_i = w_i + u_i

    client   u_i  = z_i - theta,  on arrival of theta
             w_i+ ~ argmin f_i(w) + (rho/2) ||w - theta + u_i||^2, started at theta
             z_i+ = w_i+ + u_i;  send  z_i+ - z_i = w_i+ - theta
    server   mean <- mean + sum over S of a_i (z_i+ - z_i);  theta = prox_{g/rho}(mean)

FedADMM updates u_i against the theta that the client received, and its server adds mean u to
mean w.  Both orders are Douglas-Rachford splitting with the two operators exchanged and have the
same fixed points.  Here sum_i a_i u_i = 0 after every round with full participation if g = 0, so
that theta is the mean of the w_i, without the momentum that the mean dual gives to FedADMM.  That
momentum oscillates where rho is small and local work is short.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from torch import Tensor

from fedadmm.core.capabilities import ClientRemoval, ProximalServer
from fedadmm.core.contracts import (
    Algorithm,
    Cohort,
    LocalProblem,
    LocalResult,
    Regularizer,
    Requirements,
    Theta,
)
from fedadmm.core.parts import Positive, part
from fedadmm.core.schedules import PerWork, at


class Server(NamedTuple):
    """The mean of all z_i and theta = prox(mean)."""

    mean: Tensor
    theta: Tensor


class Client(NamedTuple):
    """z_i = w_i + u_i after the client's last round; theta^0 before the first."""

    z: Tensor


class Message(NamedTuple):
    """z_i+ - z_i = w_i+ - theta."""

    increment: Tensor


@part("algorithm", "consensus-admm")
class ConsensusADMM(
    ClientRemoval[Server, Message], ProximalServer, Algorithm[Server, Client, Theta, Message]
):
    """Consensus ADMM of Boyd et al. with partial participation.

    Args:
        rho: penalty, a number or `PerWork`, which fits it to the local work (the default).

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic(torch.eye(1), torch.tensor([b])) for b in (0.0, 3.0, 6.0)]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> fa.simulate(fa.ConsensusADMM(rho=1.0), problem, 40, solver=fa.ExactSolver()).params
        tensor([3.])
    """

    paper: ClassVar[str] = (
        "Boyd et al., Distributed Optimization and Statistical Learning via ADMM, 2011"
    )

    rho: Positive | PerWork = PerWork(0.25)

    @property
    def requirements(self) -> Requirements:
        return Requirements(regularizer=True, stale_updates=True)

    @property
    def prox_step(self) -> float:
        return 1 / at(self.rho, 0)

    @property
    def increments(self) -> tuple[str, ...]:
        return ("increment",)

    def init_server(self, params: Tensor) -> Server:
        return Server(params, params)

    def init_client(self, params: Tensor) -> Client:
        return Client(params)

    def local_problem(self, broadcast: Theta, client: Client) -> LocalProblem:
        theta, rho = broadcast.theta, at(self.rho, 0)
        return LocalProblem(theta, rho * (client.z - theta), rho, theta)

    def client_update(
        self, broadcast: Theta, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        increment = result.params - broadcast.theta
        return Client(client.z + increment), Message(increment)

    def server_update(
        self, server: Server, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        mean = server.mean + total.increment
        return Server(mean, regularizer.prox(mean, self.prox_step))

    def remove_client(self, server: Server, past: Message, regularizer: Regularizer) -> Server:
        """Subtract a_i (z_i - theta^0) from the mean."""
        mean = server.mean - past.increment
        return Server(mean, regularizer.prox(mean, self.prox_step))
