"""FedDualAvg: federated dual averaging, in which the prox of a dual vector is the model.

Yuan, Zaheer, Reddi: Federated Composite Optimization, ICML 2021, Algorithm 3, with the Euclidean
mirror map.

    client   from z_i = z and r_i = r, several times
             z_i <- z_i - lr g_i(prox_{r_i g}(z_i));   r_i <- r_i + lr
             send  z_i - z  and  r_i - r
    server   z <- z + step mean over S of (z_i - z);   r <- r + step mean over S of (r_i - r)
             theta = prox_{r g}(z)

r is the sum of the steps' weights so far, the accumulated weight of g; with equal numbers of steps
it is the paper's step K (rounds) lr.  z and r are broadcast, and the clients compute theta.

Means are taken of dual vectors, before the prox, so that one local step with full participation is
dual averaging on f + g, for any clients: its limit is the optimum.  For identical clients it is the
optimum with any number of local steps.  Both are tested on a lasso, against the optimum of FedDR.
With several steps of different clients it has the drift of FedAvg.  With g = 0 it is FedAvg.  The
paper's rates were not checked.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from torch import Tensor

from fedadmm.algorithms.fed_avg import KeepsNothing, Stateless
from fedadmm.core.contracts import (
    Cohort,
    LocalNeeds,
    LocalProblem,
    LocalResult,
    Regularizer,
    Requirements,
    Round,
)
from fedadmm.core.parts import Positive, part


class Server(NamedTuple):
    """The dual vector, the accumulated weight of g, and the global model."""

    z: Tensor
    reach: Tensor
    theta: Tensor


class Broadcast(NamedTuple):
    """The dual vector, and the accumulated weight of g."""

    z: Tensor
    reach: Tensor


class Message(NamedTuple):
    """The change of the dual vector by local training, and the sum of the steps' weights."""

    delta: Tensor
    work: Tensor


@part("algorithm", "feddualavg")
class FedDualAvg(KeepsNothing[Server, Broadcast, Message]):
    """FedDualAvg: federated dual averaging for f + g (Yuan et al., 2021).

        z_i <- z_i - lr g_i(prox_{r_i g}(z_i));   r_i <- r_i + lr, several times, from z and r
        z <- z + step * mean change of z_i;   r <- r + step * mean change of r_i
        theta = prox_{r g}(z)

    Args:
        step: Server step as a multiple of the mean change.  Default 1.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, fa.L1(1.0), initial=torch.zeros(1))  # optimum 1.5
        >>> work = dict(solver=fa.GradientDescent(0.1), stop=fa.Steps(1))
        >>> round(fa.simulate(fa.FedDualAvg(), problem, 100, **work).params.item(), 2)
        1.5
    """

    paper: ClassVar[str] = "Yuan et al., Federated Composite Optimization, ICML 2021"
    requirements: ClassVar[Requirements] = Requirements(
        local=LocalNeeds(step_sum=True, local_prox="dual"),
        regularizer=True,
        broadcasts_theta=False,  # clients compute it from the dual vector
    )
    deltas: ClassVar[tuple[str, ...]] = ("delta",)

    step: Positive = 1.0

    def init_server(self, params: Tensor) -> Server:
        """Return z = theta = x^0 and r = 0."""
        return Server(params, params.new_zeros(1), params)

    def broadcast(self, server: Server, round: Round) -> Broadcast:
        return Broadcast(server.z, server.reach)

    def local_problem(self, broadcast: Broadcast, client: Stateless) -> LocalProblem:
        return LocalProblem(broadcast.z, prox_step=broadcast.reach)

    def client_update(
        self, broadcast: Broadcast, client: Stateless, result: LocalResult
    ) -> tuple[Stateless, Message]:
        assert result.step_sum is not None
        return client, Message(result.params - broadcast.z, result.step_sum)

    def server_update(
        self, server: Server, total: Message, cohort: Cohort, regularizer: Regularizer
    ) -> Server:
        z = server.z + self.step * total.delta / cohort.weight
        reach = server.reach + self.step * total.work / cohort.weight
        number = float(reach)
        return Server(z, reach, regularizer.prox(z, number) if number else z)
