"""FedADMM: each client minimises its augmented Lagrangian and sends one increment.

Gong, Li, Freris: FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System
Heterogeneity, ICDE 2022, Algorithm 1.  Wang, Marella, Anderson: FedADMM: A federated primal-dual
algorithm allowing partial participation, CDC 2022, Algorithm 2.

    minimise sum_i a_i f_i(theta) + g(theta)

    client   w_i+ ~ argmin f_i(w) + <y_i, w> + (rho/2) ||w - theta||^2
             y_i+ = y_i + rho (w_i+ - theta)
             send  Delta_i = u_i+ - u_i  with  u_i = w_i + y_i / rho
    server   mean <- mean + (step/|S|) sum over S of Delta_i;   theta = prox_{g/rho}(mean)

`step = "tracking"` is |S|/n.  Then `mean` is exactly the mean of all u_i, as both convergence
theorems assume.  Gong et al. use step = 1 in their experiments.  Then `mean` is not the mean of the
u_i, and the limit solves grad f(theta) = rho (1 - |S|/(n step)) (theta - theta^0), which is close
to the optimum only for a small rho.  If rho follows a schedule or members="seen", the mean is
weighted: see `fed_admm_state`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedadmm.algorithms.fed_admm_state import (
    Broadcast,
    Client,
    Message,
    Server,
    add_to_mean,
    weighted_change,
)
from fedadmm.core import trees
from fedadmm.core.capabilities import (
    ClientRemoval,
    InitialDuals,
    PrimalDualStates,
    ProximalServer,
    TrackedMean,
)
from fedadmm.core.contracts import (
    Algorithm,
    Cohort,
    LocalProblem,
    LocalResult,
    PrimalDual,
    Regularizer,
    Requirements,
    Round,
)
from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Positive, part
from fedadmm.core.schedules import PerWork, Schedule, at


@part("algorithm", "fedadmm")
class FedADMM(
    InitialDuals,
    PrimalDualStates[Client],
    TrackedMean[Server],
    ClientRemoval[Server, Message],
    ProximalServer,
    Algorithm[Server, Client, Broadcast, Message],
):
    """FedADMM: federated consensus ADMM with partial participation (Gong et al., Wang et al.).

        w_i ~ argmin f_i(w) + <y_i, w> + (rho/2) ||w - theta||^2;   y_i <- y_i + rho (w_i - theta)
        mean <- mean + (step/|S|) sum over S of the change of w_i + y_i / rho
        theta = prox_{g/rho}(mean)

    Args:
        rho: Penalty: a number, a schedule over rounds, or `PerWork`, which fits it to the local
            work.  Default `PerWork(0.25)`; Gong et al. use 0.01.
        step: Server step: "tracking" (|S|/n, which keeps the mean exact), a number, or a schedule
            over rounds.
        members: Clients that the mean runs over: "all" as in the papers, or those "seen" so far.
        dual: Initial value of y_i: "zero", or "gradient" for -grad f_i(theta^0), which takes an
            initial round with all clients and step="tracking".

    Raises:
        ParameterError: A numeric step with members="seen", dual="gradient" or a schedule of rho.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.FedADMM(rho=1.0), problem, 50, solver=fa.ExactSolver())
        >>> round(result.params.item(), 2)
        2.0
    """

    paper: ClassVar[str] = "Gong et al., FedADMM, ICDE 2022; Wang et al., FedADMM, CDC 2022"

    rho: Positive | Schedule | PerWork = PerWork(0.25)
    step: Literal["tracking"] | Positive | Schedule = "tracking"
    members: Literal["all", "seen"] = "all"
    dual: Literal["zero", "gradient"] = "zero"

    def __post_init__(self) -> None:
        if (self.weighted or self.dual == "gradient") and self.step != "tracking":
            raise ParameterError(
                f"FedADMM.step: got {self.step!r}, expected 'tracking' with members 'seen', dual "
                "'gradient' or a schedule of rho, because only then the weighted mean is exact. "
                "FedADMMPrinted accepts a schedule of rho with a numeric step."
            )

    @property
    def weighted(self) -> bool:
        """Whether the weight of a client in the mean can change."""
        return self.members != "all" or callable(self.rho)

    @property
    def bias(self) -> str | None:
        pull = "a numeric step pulls the limit by rho (1 - |S|/(n step)) (theta - theta^0)"
        return None if self.step == "tracking" else pull

    @property
    def requirements(self) -> Requirements:
        return Requirements(
            initial_round=self.initial_round,
            regularizer=True,
            # With "tracking" an update changes the mean by the client's own share only.
            stale_updates=self.step == "tracking",
        )

    def numeric_step(self, round_index: int) -> float | None:
        return None if isinstance(self.step, str) else at(self.step, round_index)

    @property
    def prox_step(self) -> float:
        return 1 / at(self.rho, 0)

    @property
    def increments(self) -> tuple[str, ...]:
        return () if self.weighted else ("increment",)

    def init_server(self, params: Tensor) -> Server:
        members = params.new_full((1,), 1.0 if self.members == "all" else 0.0)
        return Server(params, params, members, members)

    def init_client(self, params: Tensor) -> Client:
        rho = params.new_full((1,), at(self.rho, 0))
        return Client(params, torch.zeros_like(params), rho, params.new_zeros(1))

    def broadcast(self, server: Server, round: Round) -> Broadcast:
        return Broadcast(server.theta, server.theta.new_full((1,), at(self.rho, round.round_index)))

    def local_problem(self, broadcast: Broadcast, client: Client) -> LocalProblem:
        return LocalProblem(broadcast.theta, client.y, broadcast.rho, broadcast.theta)

    def client_update(
        self, broadcast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        w, rho = result.params, broadcast.rho.expand_as(client.rho).clone()
        y = self.dual_after(client.y + broadcast.rho * (w - broadcast.theta), result)
        before, after = client.w + client.y / client.rho, w + y / broadcast.rho
        new = Client(w, y, rho, torch.ones_like(client.joined))
        if not self.weighted:
            return new, Message(after - before)
        joined = None if self.members == "all" else client.joined
        had, weight = client.rho / at(self.rho, 0), broadcast.rho / at(self.rho, 0)
        message = weighted_change(before, after, had, weight, joined)
        return new, message if callable(self.rho) else message._replace(weight=None)

    def server_update(
        self, server: Server, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        rho = at(self.rho, 0 if self.weighted else cohort.round_index)
        if isinstance(self.step, str):  # the sum of a_i Delta_i is |S|/n times their mean over S
            return add_to_mean(server, total, rho, regularizer)
        factor = at(self.step, cohort.round_index) / cohort.weight
        return add_to_mean(server, Message(factor * total.increment), rho, regularizer)

    def remove_client(
        self, server: Server, past: Message, regularizer: Regularizer
    ) -> Server | None:
        """Remove the client's u_i from the mean; None with a numeric step, which keeps no mean."""
        if self.step != "tracking":
            return None
        return add_to_mean(server, trees.scaled(past, -1.0), at(self.rho, 0), regularizer)

    def local_params(self, client: Client) -> Tensor:
        return client.w

    def primal_dual(self, client: Client) -> PrimalDual:
        return PrimalDual(client.w, client.y, client.rho)

    def tracked_mean(self, server: Server) -> Tensor | None:
        return None if self.weighted else server.mean
