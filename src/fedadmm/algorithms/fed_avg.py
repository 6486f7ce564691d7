"""FedSGD and FedAvg: the clients send gradients, or the change of the model by local steps.

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
    """The change of the model by local training, w - theta."""

    delta: Tensor


State = TypeVar("State")
BroadcastType = TypeVar("BroadcastType")
Sent = TypeVar("Sent")


class KeepsNothing(Algorithm[State, Stateless, BroadcastType, Sent]):
    """Base class of methods whose clients keep no state between rounds."""

    bias: ClassVar[str | None] = (
        "several local steps, or partial participation, have another fixed point than the optimum"
    )

    def init_client(self, params: Tensor) -> Stateless:
        return Stateless()


@part("algorithm", "fedsgd")
class FedSGD(KeepsNothing[Theta, Theta, Gradient]):
    """FedSGD: gradient descent with the participants' mean gradient (McMahan et al., 2017).

        theta <- theta - lr * weighted mean over S of grad f_i(theta)

    Args:
        lr: Learning rate of the server.  Default 0.1.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> round(fa.simulate(fa.FedSGD(lr=0.1), problem, 100).params.item(), 2)
        2.0
    """

    paper: ClassVar[str] = "McMahan et al., Communication-Efficient Learning, AISTATS 2017"
    requirements: ClassVar[Requirements] = Requirements(
        local=LocalNeeds(local_solve=False, start_gradient=True)
    )
    bias: ClassVar[str | None] = (
        "with partial participation the mean gradient is not zero at the optimum"
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
    """Base class of methods whose clients minimise f_i, started at theta."""

    def local_problem(self, broadcast: Theta, client: Stateless) -> LocalProblem:
        return LocalProblem(start=broadcast.theta)


class SendsMove(LocalSteps[State, Delta]):
    """Base class of methods with FedAvg's clients, which receive theta and send w - theta."""

    deltas: ClassVar[tuple[str, ...]] = ("delta",)

    def client_update(
        self, broadcast: Theta, client: Stateless, result: LocalResult
    ) -> tuple[Stateless, Delta]:
        return client, Delta(result.params - broadcast.theta)


@part("algorithm", "fedavg")
class FedAvg(SendsMove[Theta]):
    """FedAvg: the mean of models after several local steps (McMahan et al., 2017).

        w_i <- local steps on f_i, started at theta;   theta <- weighted mean over S of w_i

    It has no hyper-parameters of its own: see the solver and its stopping rule.  With clients that
    differ and several local steps it converges to a biased point.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> result = fa.simulate(fa.FedAvg(), problem, 50, solver=fa.ExactSolver())
        >>> round(result.params.item(), 2)  # biased: the mean of the clients' minimisers 6, 3 and 0
        3.0
    """

    paper: ClassVar[str] = "McMahan et al., Communication-Efficient Learning, AISTATS 2017"

    def server_update(
        self, server: Theta, total: Delta, cohort: Cohort, regularizer: Regularizer
    ) -> Theta:
        return Theta(server.theta + total.delta / cohort.weight)
