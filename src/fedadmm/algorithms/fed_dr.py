"""FedDR: randomised Douglas-Rachford splitting.

Tran-Dinh, Pham, Phan, Nguyen: FedDR: Randomized Douglas-Rachford Splitting Algorithms for
Nonconvex Federated Composite Optimization, NeurIPS 2021, Algorithms 1 and 2 (y_i is v_i here).

    client   v_i+ = v_i + alpha (xbar - x_i)
             x_i+ ~ prox_{eta f_i}(v_i+)
             send the increment of  xhat_i = 2 x_i - v_i
    server   xtilde <- xtilde + (1/n) sum over S;   xbar = prox_{eta g}(xtilde)

asyncFedDR (Algorithm 2) is the same without rounds: a client that is free receives xbar and works,
and when its reply arrives, made from xbar^(k - delay), the server makes one step with its increment
alone.  The class says that it means nothing else; under an asynchronous engine FedDR itself is that
method, and so is, by Wang et al., Theorem 1, FedADMM(rho=1/eta) for alpha = 1.

The paper starts clients at x_i = prox_{eta f_i}(x^0) but the server at x^0, so that xtilde is not
the mean of the xhat_i.  Here init="start" begins with x_i = x^0 everywhere, and init="prox" runs
one round with all clients first: both keep xtilde = mean xhat_i.

With absent="aligned" clients that sit a round out move along (`fedadmm.algorithms.alignment`): for
sigma = 1 that is v_j+ = v_j + xbar - x_j and x_j+ = the mean of the participants' x_i+.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeVar

from annotated_types import Gt, Lt
from torch import Tensor

from fedadmm.algorithms.alignment import Alignable, Steps
from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Positive, part
from fedadmm.core.protocols import (
    Algorithm,
    LocalProblem,
    LocalResult,
    PrimalDual,
    Received,
    Regularizer,
    Round,
)

State = TypeVar("State")


class Server(NamedTuple):
    """The mean of all xhat_i and its prox, the global model."""

    xtilde: Tensor
    xbar: Tensor


class Client(NamedTuple):
    """The governing sequence v_i and the local model x_i."""

    v: Tensor
    x: Tensor


class Broadcast(NamedTuple):
    """The global model."""

    theta: Tensor


class Message(NamedTuple):
    """The increment of xhat_i."""

    increment: Tensor


class DouglasRachford(Algorithm[Server, State, Broadcast, Message]):
    """The server's half, which FedDR and FedDR-II share."""

    eta: float

    @property
    def prox_step(self) -> float:
        """eta."""
        return self.eta

    @property
    def tolerates_stale(self) -> bool:
        """A reply moves the mean by its own share."""
        return True

    @property
    def increments(self) -> tuple[str, ...]:
        """Those of xhat_i."""
        return ("increment",)

    def init_server(self, params: Tensor) -> Server:
        """Xtilde = xbar = x^0."""
        return Server(params, params)

    def broadcast(self, server: Server, turn: Round) -> Broadcast:
        """xbar."""
        return Broadcast(self.global_params(server))

    def server_update(
        self, server: Server, total: Message, received: Received, regularizer: Regularizer
    ) -> Server:
        """Fold the increments, which keeps the exact mean, and apply prox_{eta g}."""
        xtilde = server.xtilde + total.increment
        return Server(xtilde, regularizer.prox(xtilde, self.eta))

    def without(self, server: Server, past: Message, regularizer: Regularizer) -> Server:
        """Take a client's xhat_i back to x^0."""
        xtilde = server.xtilde - past.increment
        return Server(xtilde, regularizer.prox(xtilde, self.eta))

    def global_params(self, server: Server) -> Tensor:
        """xbar."""
        return server.xbar

    def tracked_mean(self, server: Server) -> Tensor | None:
        """Xtilde, the mean of all xhat_i."""
        return server.xtilde


@dataclass(frozen=True)
class PrintedFedDR(DouglasRachford[Client]):
    """The recursion, where absent clients keep what they have."""

    eta: Positive = 100.0
    alpha: Annotated[float, Gt(0), Lt(2)] = 1.0
    init: Literal["start", "prox"] = "start"

    @property
    def relaxation(self) -> float:
        """alpha."""
        return self.alpha

    @property
    def starts_with_everyone(self) -> bool:
        """init="prox": v_i stays at x^0 in that round, so x_i = prox_{eta f_i}(x^0)."""
        return self.init == "prox"

    def init_client(self, params: Tensor) -> Client:
        """v_i = x_i = x^0."""
        return Client(params, params)

    def _governing(self, cast: Broadcast, client: Client) -> Tensor:
        return client.v + self.alpha * (cast.theta - client.x)

    def local_problem(self, cast: Broadcast, client: Client) -> LocalProblem:
        """prox_{eta f_i}(v_i+), started at x_i."""
        return LocalProblem(client.x, None, 1 / self.eta, self._governing(cast, client))

    def client_update(
        self, cast: Broadcast, client: Client, result: LocalResult
    ) -> tuple[Client, Message]:
        """Send the increment of xhat_i = 2 x_i - v_i."""
        new = Client(self._governing(cast, client), result.params)
        return new, Message((2 * new.x - new.v) - (2 * client.x - client.v))

    def local_params(self, client: Client) -> Tensor | None:
        """x_i."""
        return client.x

    def primal_dual(self, client: Client) -> PrimalDual | None:
        """x_i and (x_i - v_i) / eta."""
        return PrimalDual(client.x, (client.x - client.v) / self.eta, 1 / self.eta)


@part("algorithm", "feddr")
class FedDR(Alignable, PrintedFedDR):
    """FedDR: Douglas-Rachford splitting, where a client steps towards its prox and back.

    Args:
        eta: the step.
        alpha: the relaxation, 0 < alpha < 2.
        init: x_i begins at the "start" x^0, or at its "prox" in an initial round with everybody.
        absent: what becomes of a client that sits a round out: it is "kept" as it is, as printed,
            or "aligned": it moves along with the participants.
        alignment: sigma, the share of the participants' mean dual step that aligned clients take,
            or "auto".
    """

    paper: ClassVar[str] = "Tran-Dinh et al., FedDR, NeurIPS 2021"
    accepts_regularizer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.absent == "aligned" and self.alpha != 1:
            raise ParameterError(
                f"{type(self).__name__}: alpha is {self.alpha!r}, but must be 1 with "
                "absent='aligned', where a client does not hold the x_i that a relaxation needs"
            )

    def common_penalty(self, round_index: int) -> float:
        """1 / eta."""
        return 1 / self.eta

    def weights_of(self, before: Client, after: Client) -> Steps:
        """Nothing beside the dual step."""
        return Steps(after.x)

    def returned(self, client: Client, missed: Tensor) -> Client:
        """The dual is (x_i - v_i) / eta, so that v_i takes the virtual steps."""
        return client._replace(v=client.v - self.eta * missed)


@part("algorithm", "async-feddr")
class AsyncFedDR(FedDR):
    """asyncFedDR: FedDR where every arriving reply is one server step."""

    title: ClassVar[str] = "asyncFedDR"
    paper: ClassVar[str] = "Tran-Dinh et al., FedDR, NeurIPS 2021, Algorithm 2"
    asynchronous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.absent == "aligned":
            raise ParameterError(
                "AsyncFedDR: absent is 'aligned', but must be 'kept': whoever is free is at work, "
                "so that nobody is absent"
            )
