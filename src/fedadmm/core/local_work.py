"""Local training of a client in a round: solver, stopping rule, initial point, personalisation.

The initial point of local training does not affect a method with exact solves, but it matters with
a few epochs.  Therefore it is an option of the local work, and the method defines the local problem
only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedadmm.core.capabilities import local_model
from fedadmm.core.compatibility import Feature
from fedadmm.core.contracts import (
    AnyAlgorithm,
    LocalNeeds,
    LocalProblem,
    LocalResult,
    Regularizer,
    Start,
)
from fedadmm.core.objectives import Objective
from fedadmm.core.parts import Part, checked, role
from fedadmm.core.personalisation import Personalisation
from fedadmm.core.rng import Key
from fedadmm.core.stopping import StoppingRule

if TYPE_CHECKING:
    from fedadmm.core.setup import Setup
    from fedadmm.core.solvers.private import RecordNoise


class SolveInfo(NamedTuple):
    """Statistics of a local solve, which are not part of any state."""

    steps: int
    epochs: float
    """Steps in units of a pass over the client's data."""
    passes: float
    """Cost of the solve: gradient evaluations in units of a pass over the client's data.

    This includes full gradients that the stopping rule, the method or the solver computed.
    """
    status: str
    accuracy: float
    """Norm of the full gradient of the local problem at the result; NaN if not computed."""


class SolveContext(NamedTuple):
    """Context of a local solve for stopping rules, schedules and solvers."""

    round_index: int = 0
    needs: LocalNeeds = LocalNeeds()
    theta: Tensor | None = None
    """The global vector; None if it was not sent."""
    own: Tensor | None = None
    """The client's local model; None if its method keeps none."""
    clients: Sequence[int] = (0,)
    """Ids: one client, or those of a stack in the order of its rows."""
    regularizer: Regularizer | None = None
    """g, for methods with proximal local steps."""
    deployed: bool = False
    """Whether noise must be drawn from the system's entropy instead of the seed."""
    memory: tuple[Tensor, ...] | None = None
    """State of the solver after the client's last round; None outside a run."""


OUTSIDE_RUN = SolveContext()
"""Context of a solve outside a run."""


@role("solver")
class LocalSolver(Part, ABC):
    """Base class of solvers of the local problem.

    A subclass is a frozen dataclass that defines `solve`.

    Example:
        >>> import torch, fedadmm as fa
        >>> from fedadmm.core.contracts import LocalProblem
        >>> f = fa.Quadratic(torch.eye(1), torch.tensor([6.0]))
        >>> problem = LocalProblem(start=torch.zeros(1), weight=1.0, centre=torch.zeros(1))
        >>> result, info = fa.ExactSolver().solve(f, problem, fa.Epochs(1), key=0)
        >>> result.params, info.status
        (tensor([3.]), 'solved exactly')
    """

    averages_gradients: ClassVar[bool] = False
    """Whether the solver returns `LocalResult.mean_gradient` on request."""
    sums_steps: ClassVar[bool] = False
    """Whether it makes plain gradient steps: it can return `LocalResult.step_sum`, and apply the
    prox of g."""
    batch_size: int | None = None
    """Samples in a step; None for all."""

    def requires(self, run: Setup) -> Iterable[Feature]:
        return () if self.noise is None else self.noise.requires(run)

    def check_run(self, run: Setup) -> Iterator[str]:
        yield from super().check_run(run)
        if self.noise is not None:
            yield from self.noise.check_run(run, type(self).__name__)

    @property
    def noise(self) -> RecordNoise | None:
        """Example-level differential privacy of the solver; None for a solver without noise."""
        return None

    def first_memory(self, params: Tensor) -> tuple[Tensor, ...] | None:
        """Return the solver's state of a client before its first round, or None if it has none.

        The state is part of the client's record: a solve receives it in its context, and returns
        the next one with its result.
        """
        return None

    def without_noise(self) -> LocalSolver:
        """Return the solver that makes the same steps without noise."""
        return self

    def rate_of(self, client: int, round_index: int) -> float | None:
        """Return a client's learning rate, or None for a solver without one."""
        return None

    def length(self, steps: int, client: int) -> float | None:
        """Return the sum of the learning rates of these steps in the first round, if known."""
        return None

    @abstractmethod
    def solve(
        self,
        objective: Objective,
        problem: LocalProblem,
        stop: StoppingRule,
        key: Key,
        context: SolveContext = OUTSIDE_RUN,
    ) -> tuple[LocalResult, SolveInfo]:
        """Minimise the local problem approximately.

        Args:
            objective: f_i.
            problem: the other terms of the local problem, and the initial point.
            stop: stopping rule.
            key: random key, from which mini-batches are drawn.
            context: round, clients, and what the method requires of the result.

        Returns:
            The result, and statistics of the solve.
        """


STARTS: tuple[Start, ...] = ("own", "current", "global")


@checked
class LocalWork(Part):
    """Local training of the clients, the same for all.

    Args:
        solver: Solver of the local problems; every method except FedSGD needs one.
        stop: Stopping rule; None for the method's default, which is one epoch for most methods.
        start: Initial point: the "global" model, the client's "own" local model, or "current", the
            own one except in the client's first round.  None for the method's default, which is
            "global" for most methods.
        personal: Personalisation: a second model per client (`Ditto`) or local layers
            (`PersonalLayers`); None for none.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> local = fa.LocalWork(solver=fa.GradientDescent(0.2), stop=fa.Steps(5), start="own")
        >>> round(fa.simulate(fa.FedADMM(rho=1.0), problem, 50, local=local).params.item(), 2)
        2.0
    """

    solver: LocalSolver | None = None
    stop: StoppingRule | None = None
    start: Start | None = None
    personal: Personalisation | None = None

    @property
    def components(self) -> list[Part]:
        """The solver, the stopping rule and the personalisation, those that are not None."""
        return [one for one in (self.solver, self.stop, self.personal) if one is not None]

    def requires(self, run: Setup) -> Iterable[Feature]:
        return () if self.start == "global" else (Feature.LOCAL_MODELS,)

    def problem(
        self, algorithm: AnyAlgorithm, broadcast: Any, state: Any, first: Tensor
    ) -> LocalProblem:
        """Return the local problem of a client, or of a stack, with its initial point.

        Args:
            algorithm: the method.
            broadcast: what the clients received.
            state: the client's state.
            first: whether this is the client's first round, of shape (1,) or (K, 1).
        """
        problem = algorithm.local_problem(broadcast, state)
        if self.start == "global":
            return problem
        start = local_model(algorithm, state)
        assert start is not None, "Feature.LOCAL_MODELS is required"
        if self.start != "own":
            start = torch.where(first, problem.start, start)
        return problem._replace(start=start)

    def first_memory(self, params: Tensor) -> tuple[Tensor, ...] | None:
        """Return the state of solver and personalisation before a client's first round."""
        own = None if self.solver is None else self.solver.first_memory(params)
        return own if self.personal is None else (self.personal.first(params), *(own or ()))
