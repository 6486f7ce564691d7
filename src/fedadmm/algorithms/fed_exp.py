"""FedExP: FedAvg whose server goes further the more the clients disagree.

Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023,
Algorithm 1.

    client   as FedAvg's: w <- local steps on f_i, started at theta
             delta_i = w - theta;   send  delta_i  and  ||delta_i||^2
    server   delta = mean over S of delta_i
             step = max(1, mean over S of ||delta_i||^2 / (2 (||delta||^2 + epsilon)))
             theta <- theta + step delta

The step needs two sums, so that it works where the server sees nothing else.  Both means are
weighted; the paper's are plain.  theta swings, so that the paper hands out the mean of its last two
iterates: choose the output "averaged", which is longer, or "participants-mean", the model with
step 1.  The limit has client drift, as FedAvg's.  The paper's rates were not checked.
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
    """How far the local steps moved the model, and the square of its length."""

    delta: Tensor
    square: Tensor


@part("algorithm", "fedexp")
class FedExP(ParticipantsMeanModel[Server], LocalSteps[Server, Message]):
    """FedExP: FedAvg with an extrapolated server step.

    Args:
        epsilon: keeps the step from growing where the moves cancel out.
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
