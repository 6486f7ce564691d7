"""FedSGD and FedAvg: the clients send gradients, or how far several local steps lead.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep
Networks from Decentralized Data, AISTATS 2017.

    FedSGD   client   g_i = grad f_i(theta)
             server   theta <- theta - lr * weighted mean over S of g_i
    FedAvg   client   w <- local steps on f_i, started at theta;  send w - theta
             server   theta <- theta + weighted mean over S
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, TypeVar

from torch import Tensor

from fedadmm.core.contracts import (
    Algorithm,
    Cohort,
    LocalNeeds,
    LocalProblem,
    LocalResult,
    Regularizer,
    Requirements,
    Theta,
)
from fedadmm.core.parts import Positive, part


class Stateless(NamedTuple):
    """A client that keeps nothing between rounds."""


class Gradient(NamedTuple):
    """The full local gradient at theta."""

    gradient: Tensor


class Delta(NamedTuple):
    """How far the local steps moved the model."""

    delta: Tensor


State = TypeVar("State")
BroadcastType = TypeVar("BroadcastType")
Sent = TypeVar("Sent")


class KeepsNothing(Algorithm[State, Stateless, BroadcastType, Sent]):
    """Clients without a state: what methods without duals and memories share."""

    baseline: ClassVar[bool] = True
    bias: ClassVar[str | None] = (
        "several local steps, or some of the clients, have a fixed point of their own"
    )

    def init_client(self, params: Tensor) -> Stateless:
        return Stateless()


@part("algorithm", "fedsgd")
class FedSGD(KeepsNothing[Theta, Theta, Gradient]):
    """FedSGD with server learning rate `lr`."""

    paper: ClassVar[str] = "McMahan et al., Communication-Efficient Learning, AISTATS 2017"
    requirements: ClassVar[Requirements] = Requirements(
        local=LocalNeeds(local_solve=False, start_gradient=True)
    )
    bias: ClassVar[str | None] = (
        "the mean gradient of some of the clients is not zero at the optimum"
    )
    deltas: ClassVar[tuple[str, ...]] = ("gradient",)

    lr: Positive = 0.1

    def local_problem(self, broadcast: Theta, client: Stateless) -> LocalProblem:
        return LocalProblem(start=broadcast.theta)

    def client_update(
        self, broadcast: Theta, client: Stateless, result: LocalResult
    ) -> tuple[Stateless, Gradient]:
        assert result.start_gradient is not None
        return client, Gradient(result.start_gradient)

    def server_update(
        self, server: Theta, total: Gradient, cohort: Cohort, regularizer: Regularizer
    ) -> Theta:
        return Theta(server.theta - self.lr * total.gradient / cohort.weight)


class LocalSteps(KeepsNothing[State, Theta, Sent]):
    """Clients that make local steps on f_i from theta."""

    def local_problem(self, broadcast: Theta, client: Stateless) -> LocalProblem:
        return LocalProblem(start=broadcast.theta)


class SendsMove(LocalSteps[State, Delta]):
    """The clients' half of FedAvg, which other servers share: theta in, w - theta out."""

    deltas: ClassVar[tuple[str, ...]] = ("delta",)

    def client_update(
        self, broadcast: Theta, client: Stateless, result: LocalResult
    ) -> tuple[Stateless, Delta]:
        return client, Delta(result.params - broadcast.theta)


@part("algorithm", "fedavg")
class FedAvg(SendsMove[Theta]):
    """FedAvg; all hyper-parameters are those of the solver and its stopping rule."""

    paper: ClassVar[str] = "McMahan et al., Communication-Efficient Learning, AISTATS 2017"

    def server_update(
        self, server: Theta, total: Delta, cohort: Cohort, regularizer: Regularizer
    ) -> Theta:
        return Theta(server.theta + total.delta / cohort.weight)
