"""FedExP: FedAvg with a server step that grows with the disagreement of the clients.

Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023,
Algorithm 1.

    client   as FedAvg's: w <- local steps on f_i, started at theta
             delta_i = w - theta;   send  delta_i  and  ||delta_i||^2
    server   delta = mean over S of delta_i
             step = max(1, mean over S of ||delta_i||^2 / (2 (||delta||^2 + epsilon)))
             theta <- theta + step delta

The step depends on two sums only, so that it is compatible with secure aggregation.  Both means are
weighted; the paper's are not.  theta oscillates, and the paper returns the mean of its last two
iterates: use the output "averaged", a longer mean, or "participants-mean", the model with step 1.
The limit has client drift, as FedAvg's.  The paper's rates were not checked.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from torch import Tensor

from fedadmm.algorithms.fed_avg import LocalSteps, Stateless
from fedadmm.core.capabilities import ParticipantsMeanModel
from fedadmm.core.contracts import Cohort, LocalResult, Regularizer, Theta
from fedadmm.core.parts import Positive, part


class Server(NamedTuple):
    """The global model, and the participants' mean model."""

    theta: Tensor
    mean: Tensor


class Message(NamedTuple):
    """The change of the model by local training, and its squared norm."""

    delta: Tensor
    square: Tensor


@part("algorithm", "fedexp")
class FedExP(ParticipantsMeanModel[Server], LocalSteps[Server, Message]):
    """FedExP: FedAvg with an extrapolated server step (Jhunjhunwala et al., 2023).

        delta_i = w_i - theta;   delta = weighted mean over S of delta_i
        theta <- theta + max(1, mean of ||delta_i||^2 / (2 (||delta||^2 + epsilon))) delta

    Args:
        epsilon: Bounds the step if the clients' changes cancel.  Default 1e-3.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.tensor([2.0]))
        >>> result = fa.simulate(fa.FedExP(), problem, 1, solver=fa.ExactSolver())
        >>> round(result.params.item(), 2)  # 3.5 times as far from 2.0 as FedAvg's 3.0
        5.5
    """

    paper: ClassVar[str] = "Jhunjhunwala et al., FedExP, ICLR 2023"
    deltas: ClassVar[tuple[str, ...]] = ("delta",)

    epsilon: Positive = 1e-3

    def init_server(self, params: Tensor) -> Server:
        return Server(params, params)

    def client_update(
        self, broadcast: Theta, client: Stateless, result: LocalResult
    ) -> tuple[Stateless, Message]:
        delta = result.params - broadcast.theta
        return client, Message(delta, delta.square().sum(-1, keepdim=True))

    def server_update(
        self, server: Server, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        delta = total.delta / cohort.weight
        spread = total.square / cohort.weight / (2 * (delta.square().sum() + self.epsilon))
        return Server(server.theta + spread.clamp(min=1) * delta, server.theta + delta)

    def participants_mean(self, server: Server) -> Tensor:
        return server.mean
