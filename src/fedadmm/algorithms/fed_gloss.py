"""FedGloSS: FedDyn whose clients start from a model that the server has perturbed.

Caldarola, Cagnasso, Caputo, Ciccone: Beyond Local Sharpness: Communication-Efficient Global
Sharpness-aware Minimization for Federated Learning, CVPR 2025, Algorithm 1.

    server   send  theta~ = theta + perturb d,  d the direction of theta~ - m of the last round
    client   as FedDyn's, from theta~: w ~ argmin f_i(w) + <y_i, w> + ||w - theta~||^2 / (2 eta)
             y_i <- y_i + (w - theta~) / eta;   send w - theta~
    server   h <- h + (1/(eta n)) sum over S of (w - theta~)
             theta <- theta + mean over S of (w - theta~) + eta h

theta~ - m, with m the mean of the participants' models, is the last pseudo-gradient: the server
climbs along it, and the clients' descent from there is applied to theta itself.  The local steps
are SAM's: `SGD(lr, perturb=SAM(r))`.  The paper's sigma is -h and its beta is eta.  Its program
divides what it adds to sigma by n and by |S|, so that sigma is no mean of the clients' states;
here it is.

perturb = 0 is FedDyn.  Otherwise the length of the perturbation stays while the pseudo-gradient
vanishes, so that a run does not rest at the optimum but moves around it.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedadmm.algorithms.fed_dyn import FedDyn, Message
from fedadmm.core.parts import NotNegative, part
from fedadmm.core.protocols import Received, Regularizer, Round, Theta, norm


class Server(NamedTuple):
    """FedDyn's state, and the participants' last mean move."""

    theta: Tensor
    h: Tensor
    members: Tensor
    move: Tensor


@part("algorithm", "fedgloss")
class FedGloSS(FedDyn):
    """FedGloSS: FedDyn with sharpness-aware steps of the server.

    Args:
        eta: the step.
        members: the mean dual runs over "all" clients as printed, or over those "seen" so far.
        perturb: how far the server perturbs the model that it sends.
    """

    paper: ClassVar[str] = "Caldarola et al., Beyond Local Sharpness, CVPR 2025"

    perturb: NotNegative = 0.05

    @property
    def bias(self) -> str | None:
        return "the perturbed broadcast keeps its distance from theta" if self.perturb else None

    def init_server(self, params: Tensor) -> Any:
        return Server(*super().init_server(params), torch.zeros_like(params))

    def broadcast(self, server: Any, round: Round) -> Theta:
        way = server.move / norm(server.move).clamp(min=torch.finfo(server.move.dtype).tiny)
        return Theta(server.theta - self.perturb * way)

    def server_update(
        self, server: Any, total: Message, received: Received, regularizer: Regularizer
    ) -> Any:
        new: Any = super().server_update(server, total, received, regularizer)
        return new._replace(move=total.delta / received.weight)
