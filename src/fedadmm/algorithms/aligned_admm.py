"""Aligned ADMM: absent clients make the participants' mean dual step.

A client of FedADMM that is absent for many rounds keeps an outdated dual: the *dual drift*.  Here
its dual makes sigma times the mean step of the participants' duals in each of them (a *virtual*
step).

    minimise sum_i a_i f_i(theta) + g(theta)

    client   w_i ~ argmin f_i(w) + <y_i, w> + (rho/2) ||w - theta||^2, started at theta
             s_i = rho (w_i - theta);   y_i <- y_i + s_i;   send s_i
    server   s = mean over S of s_i;   m = theta + s / rho, the mean of their models
             y_j <- y_j + sigma s  for all j not in S, which they receive when they participate
             h <- h + (p + sigma (1 - p)) s,  p the weight of S: h is the mean of all duals
             theta <- prox_{g/rho}(m + h / rho)

sigma = 1 is A-FedPD (Sun, Shen, Tao: A-FedPD: Aligning Dual-Drift is All Federated Primal-Dual
Learning Needs, NeurIPS 2024), sigma = 0 is FedDyn (Acar et al., ICLR 2021), and with full
participation every sigma is FedADMM, and FedDR with eta = 1 / rho and alpha = 1.  For every sigma
the only fixed point is the optimum: s = 0 there, so that y_i = -grad f_i(theta), and
h = -grad f(theta) is in the subdifferential of g.

A returning client receives the sum of the virtual steps that it missed (`core.catch_up`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge, Le
from torch import Tensor

from fedadmm.algorithms.fed_admm_state import Broadcast
from fedadmm.algorithms.fed_dyn import Client
from fedadmm.core.capabilities import (
    AbsentClientAlignment,
    ClientRemoval,
    ParticipantsMeanModel,
    ProximalServer,
)
from fedadmm.core.contracts import (
    Algorithm,
    Cohort,
    LocalProblem,
    LocalResult,
    Regularizer,
    Requirements,
    Round,
)
from fedadmm.core.parts import Positive, part
from fedadmm.core.schedules import PerWork, Schedule, at


class Server(NamedTuple):
    """theta, m, h, the sum of all virtual steps, and two weights of clients."""

    theta: Tensor
    mean: Tensor
    h: Tensor
    virtual: Tensor
    members: Tensor
    """Weight of the clients that h runs over."""
    unseen: Tensor
    """Expected weight of the clients that have not participated: the product of 1 - p over the
    rounds."""


class Message(NamedTuple):
    """The client's dual step; with members="seen" also 1 from a client that joins."""

    step: Tensor
    joined: Tensor | None


@part("algorithm", "aligned-admm")
class AlignedADMM(
    AbsentClientAlignment[Server, Client, Message],
    ClientRemoval[Server, Message],
    ParticipantsMeanModel[Server],
    ProximalServer,
    Algorithm[Server, Client, Broadcast, Message],
):
    """FedADMM whose absent clients make the participants' mean dual step.

        y_i <- y_i + s_i with s_i = rho (w_i - theta) for i in S, with w_i as in FedADMM
        y_j <- y_j + sigma s for j not in S, with s the weighted mean over S of s_i
        theta <- prox_{g/rho}(theta + (s + mean dual) / rho)

    Args:
        rho: Penalty: a number, a schedule over rounds, or `PerWork`, which fits it to the local
            work.  Default `PerWork(0.25)`.
        sigma: Share of the participants' mean dual step that absent clients make.  The default
            "auto" is min(1, |S|/10) times the share of the clients seen so far: the mean step of
            ten participants is accurate enough for all clients, but as long as most duals are zero
            the mean dual acts as momentum without damping.
        members: Clients that the mean dual runs over: "all", or those "seen" so far.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> work = dict(solver=fa.ExactSolver(), sampler=fa.UniformSampling(2))
        >>> round(fa.simulate(fa.AlignedADMM(rho=1.0), problem, 100, **work).params.item(), 2)
        2.0
    """

    paper: ClassVar[str] = "Sun, Shen, Tao, A-FedPD, NeurIPS 2024, for any sigma and g"
    requirements: ClassVar[Requirements] = Requirements(regularizer=True)

    rho: Positive | Schedule | PerWork = PerWork(0.25)
    sigma: Annotated[float, Ge(0), Le(1)] | Literal["auto"] = "auto"
    members: Literal["all", "seen"] = "all"
    increments = ("step",)

    @property
    def prox_step(self) -> float:
        return 1 / at(self.rho, 0)

    def init_server(self, params: Tensor) -> Server:
        zero, one = torch.zeros_like(params), params.new_ones(1)
        members = one if self.members == "all" else torch.zeros_like(one)
        return Server(params, params, zero, zero, members, one)

    def init_client(self, params: Tensor) -> Client:
        return Client(torch.zeros_like(params), params.new_zeros(1))

    def broadcast(self, server: Server, round: Round) -> Broadcast:
        return Broadcast(server.theta, server.theta.new_full((1,), at(self.rho, round.round_index)))

    def local_problem(self, broadcast: Broadcast, client: Client) -> LocalProblem:
        return LocalProblem(broadcast.theta, client.y, broadcast.rho, broadcast.theta)

    def client_update(
        self, broadcast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        step = broadcast.rho * (result.params - broadcast.theta)
        joined = None if self.members == "all" else 1 - client.joined
        return Client(client.y + step, torch.ones_like(client.joined)), Message(step, joined)

    def server_update(
        self, server: Server, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        rho, share = at(self.rho, cohort.round_index), cohort.weight
        members, h = server.members, server.h
        if total.joined is not None:  # a client that joins has made the virtual steps so far
            members, h = members + total.joined, h + total.joined * server.virtual
        auto = min(1.0, cohort.size / 10) * (1 - server.unseen)
        sigma = auto if isinstance(self.sigma, str) else self.sigma
        h = h + (1 + sigma * (members / share - 1)) * total.step
        mean = server.theta + total.step / (rho * share)
        weight = rho * members
        theta = regularizer.prox(mean + h / weight, float(members / weight))
        virtual = server.virtual + sigma / share * total.step
        unseen = server.unseen * max(0.0, 1 - share)
        return Server(theta, mean, h, virtual, members, unseen)

    def virtual_steps(self, server: Server) -> Tensor:
        return server.virtual

    def catch_up(self, client: Client, missed: Tensor) -> Client:
        return client._replace(y=client.y + missed)

    def contribution(self, message: Message, virtual: Tensor) -> Message:
        """Return the client's dual step without the virtual one."""
        return message._replace(step=message.step - virtual)

    def remove_client(self, server: Server, past: Message, regularizer: Regularizer) -> Server:
        """Remove the client's dual steps from h, and the client from the members if they vary."""
        members, h = server.members, server.h - past.step
        if past.joined is not None:
            members, h = (members - past.joined).clamp(min=0), h - past.joined * server.virtual
        return server._replace(h=h, members=members)

    def participants_mean(self, server: Server) -> Tensor:
        return server.mean
