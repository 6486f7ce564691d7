"""FedDR: randomised Douglas-Rachford splitting.

Tran-Dinh, Pham, Phan, Nguyen: FedDR: Randomized Douglas-Rachford Splitting Algorithms for
Nonconvex Federated Composite Optimization, NeurIPS 2021, Algorithm 1 (y_i is v_i here).

    minimise sum_i a_i f_i(x) + g(x)

    client   v_i+ = v_i + alpha (xbar - x_i)
             x_i+ ~ prox_{eta f_i}(v_i+)
             send the increment of  xhat_i = 2 x_i - v_i
    server   xtilde <- xtilde + (1/n) sum over S;   xbar = prox_{eta g}(xtilde)

The paper initialises clients with x_i = prox_{eta f_i}(x^0) but the server with x^0, so that xtilde
is not the mean of the xhat_i.  Here init="start" sets x_i = x^0, and init="prox" begins with one
round of all clients: in both cases xtilde is the mean of the xhat_i.

asyncFedDR, Algorithm 2, has no rounds: a client trains when it is free, and its update, computed
from xbar^(k - delay), is one server step when it arrives.  Under an asynchronous engine FedDR
is this method, and so is, by Wang et al., Theorem 1, FedADMM(rho=1/eta) for alpha = 1.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NamedTuple, TypeVar

from annotated_types import Gt, Lt
from torch import Tensor

from fedadmm.core.capabilities import ClientRemoval, PrimalDualStates, ProximalServer, TrackedMean
from fedadmm.core.contracts import (
    Algorithm,
    Cohort,
    LocalNeeds,
    LocalProblem,
    LocalResult,
    PrimalDual,
    Regularizer,
    Requirements,
    Theta,
)
from fedadmm.core.parts import Positive, part
from fedadmm.core.schedules import PerWork, at

State = TypeVar("State")


class Server(NamedTuple):
    """The mean of all xhat_i and its prox, the global model."""

    xtilde: Tensor
    xbar: Tensor


class Client(NamedTuple):
    """The governing sequence v_i and the local model x_i."""

    v: Tensor
    x: Tensor


class Message(NamedTuple):
    """The increment of xhat_i."""

    increment: Tensor


class DouglasRachford(
    PrimalDualStates[State],
    TrackedMean[Server],
    ClientRemoval[Server, Message],
    ProximalServer,
    Algorithm[Server, State, Theta, Message],
):
    """Base class of FedDR and FedDR-II: the server's update."""

    eta: float | PerWork
    increments = ("increment",)

    @property
    def requirements(self) -> Requirements:
        """Stale updates are allowed: each changes only the client's own term of the mean."""
        return Requirements(regularizer=True, stale_updates=True)

    @property
    def prox_step(self) -> float:
        return at(self.eta, 0)

    def init_server(self, params: Tensor) -> Server:
        return Server(params, params)

    def server_update(
        self, server: Server, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        xtilde = server.xtilde + total.increment
        return Server(xtilde, regularizer.prox(xtilde, self.prox_step))

    def remove_client(self, server: Server, past: Message, regularizer: Regularizer) -> Server:
        """Reset the client's xhat_i to x^0."""
        xtilde = server.xtilde - past.increment
        return Server(xtilde, regularizer.prox(xtilde, self.prox_step))

    def global_params(self, server: Server) -> Tensor:
        return server.xbar

    def tracked_mean(self, server: Server) -> Tensor | None:
        return server.xtilde


@part("algorithm", "feddr")
class FedDR(DouglasRachford[Client]):
    """FedDR: randomised Douglas-Rachford splitting (Tran-Dinh et al., 2021).

        v_i <- v_i + alpha (xbar - x_i);   x_i ~ prox_{eta f_i}(v_i)
        xtilde = mean of 2 x_i - v_i;      xbar = prox_{eta g}(xtilde)

    Args:
        eta: Step size of the proximal operators, the inverse of a penalty: a number, or `PerWork`,
            whose penalty fits the local work.  Default `PerWork(0.25)`, with which FedDR and
            FedADMM are the same method for alpha = 1.
        alpha: Relaxation, 0 < alpha < 2.  Default 1.
        init: Initial x_i: "start" for x^0, or "prox" for an initial round with all clients.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.FedDR(eta=1.0), problem, 50, solver=fa.ExactSolver())
        >>> round(result.params.item(), 2)
        2.0
    """

    paper: ClassVar[str] = "Tran-Dinh et al., FedDR, NeurIPS 2021"

    eta: Positive | PerWork = PerWork(0.25)
    alpha: Annotated[float, Gt(0), Lt(2)] = 1.0
    init: Literal["start", "prox"] = "start"

    @property
    def requirements(self) -> Requirements:
        """With init="prox" an initial round computes x_i = prox_{eta f_i}(x^0), with v_i = x^0."""
        initial = LocalNeeds() if self.init == "prox" else None
        return super().requirements._replace(initial_round=initial)

    def init_client(self, params: Tensor) -> Client:
        return Client(params, params)

    def _governing(self, broadcast: Theta, client: Client) -> Tensor:
        return client.v + self.alpha * (broadcast.theta - client.x)

    def local_problem(self, broadcast: Theta, client: Client) -> LocalProblem:
        return LocalProblem(
            broadcast.theta, None, 1 / self.prox_step, self._governing(broadcast, client)
        )

    def client_update(
        self, broadcast: Theta, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        new = Client(self._governing(broadcast, client), result.params)
        return new, Message((2 * new.x - new.v) - (2 * client.x - client.v))

    def local_params(self, client: Client) -> Tensor:
        return client.x

    def primal_dual(self, client: Client) -> PrimalDual:
        return PrimalDual(client.x, (client.x - client.v) / self.prox_step, 1 / self.prox_step)


@part("algorithm", "async-feddr")
class AsyncFedDR(FedDR):
    """asyncFedDR: FedDR in which every arriving update is one server step (Tran-Dinh et al., 2021).

    `simulate` runs it in virtual time; its rounds are server steps.

    Args:
        eta: Step size of the proximal operators, the inverse of a penalty: a number, or `PerWork`,
            whose penalty fits the local work.  Default `PerWork(0.25)`, with which FedDR and
            FedADMM are the same method for alpha = 1.
        alpha: Relaxation, 0 < alpha < 2.  Default 1.
        init: Initial x_i: "start" for x^0, or "prox" for an initial round with all clients.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.AsyncFedDR(eta=1.0), problem, 150, solver=fa.ExactSolver())
        >>> round(result.params.item(), 2)
        2.0
    """

    title: ClassVar[str] = "asyncFedDR"
    paper: ClassVar[str] = "Tran-Dinh et al., FedDR, NeurIPS 2021, Algorithm 2"

    @property
    def requirements(self) -> Requirements:
        return super().requirements._replace(asynchronous=True)
