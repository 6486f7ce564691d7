"""What a client does in a round: which solver, for how long, where it starts, what it keeps.

Where local training starts is no part of a method's algebra: with exact solves it changes nothing,
with a few epochs it decides much.  So a method says which problem its clients solve, and the local
work where they start.
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
    """How a solve went: never part of any state."""

    steps: int
    epochs: float
    """Steps as shares of a pass over the client's data: what the method asked for."""
    passes: float
    """Gradients evaluated, in passes over the client's data: what the solve cost.

    The rows of all steps, and every full gradient that the stopping rule, the method or the solver
    itself took besides.
    """
    status: str
    accuracy: float
    """The norm of the local problem's full gradient at the result; NaN when not needed."""


class SolveContext(NamedTuple):
    """The circumstances of a solve that some rules and schedules look at."""

    round_index: int = 0
    needs: LocalNeeds = LocalNeeds()
    theta: Tensor | None = None
    """The global vector; None when it was not sent."""
    own: Tensor | None = None
    """The client's own model, wherever the solve starts; None when its method keeps none."""
    clients: Sequence[int] = (0,)
    """Who works: one client, or those of a stack in the order of its rows."""
    regularizer: Regularizer | None = None
    """g, for methods whose local steps take its prox."""
    deployed: bool = False
    """Whether noise must come from the machine's entropy, and not from the seed."""
    memory: tuple[Tensor, ...] | None = None
    """What the solver kept of the client's last round; None in a solve on its own."""


OUTSIDE_RUN = SolveContext()
"""The context of a solve on its own, outside any run."""


@role("solver")
class LocalSolver(Part, ABC):
    """Solves a local problem approximately."""

    averages_gradients: ClassVar[bool] = False
    """Whether `LocalResult.mean_gradient` can be supplied."""
    sums_steps: ClassVar[bool] = False
    """Whether it makes plain steps: it supplies `LocalResult.step_sum`, and takes the prox of g."""
    batch_size: int | None = None
    """The rows of a step; None for all."""

    def requires(self, run: Setup) -> Iterable[Feature]:
        return () if self.noise is None else self.noise.requires(run)

    def check_run(self, run: Setup) -> Iterator[str]:
        yield from super().check_run(run)
        if self.noise is not None:
            yield from self.noise.check_run(run, type(self).__name__)

    @property
    def noise(self) -> RecordNoise | None:
        """How it hides the rows of its client; None for a solver that does not."""
        return None

    def first_memory(self, params: Tensor) -> tuple[Tensor, ...] | None:
        """What it keeps of a client between rounds, before the first; None if it keeps nothing.

        It is part of the client's record: a solve finds it in its context, and returns the next one
        with its result.
        """
        return None

    def without_noise(self) -> LocalSolver:
        """The solver that makes the same steps on gradients as they are; itself without noise."""
        return self

    def rate_of(self, client: int, round_index: int) -> float | None:
        """The length of a client's gradient steps; None for a solver that finds its own."""
        return None

    def length(self, steps: int, client: int) -> float | None:
        """The sum of the sizes of this many steps of a first round; None where it is not known."""
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
        """Minimise the local problem."""


STARTS: tuple[Start, ...] = ("own", "current", "global")


@checked
class LocalWork(Part):
    """The local work of every client.

    Args:
        solver: how local problems are solved; every method but FedSGD needs one.
        stop: when a local solve ends; None takes the method's own rule, or one epoch.
        start: local training starts at the "global" model, at the client's "own", or at its own
            except in its first round ("current"); None takes the method's own, which is "global"
            unless a paper's algorithm says otherwise.
        personal: what each client trains and keeps for itself: a second model (`Ditto`) or some
            layers (`PersonalLayers`).
    """

    solver: LocalSolver | None = None
    stop: StoppingRule | None = None
    start: Start | None = None
    personal: Personalisation | None = None

    @property
    def components(self) -> list[Part]:
        """The solver, the stopping rule and the personalisation, as far as they are given."""
        return [one for one in (self.solver, self.stop, self.personal) if one is not None]

    def requires(self, run: Setup) -> Iterable[Feature]:
        return () if self.start == "global" else (Feature.LOCAL_MODELS,)

    def problem(
        self, algorithm: AnyAlgorithm, broadcast: Any, state: Any, first: Tensor
    ) -> LocalProblem:
        """A client's local problem (or that of a stack) with its start.

        `first`, (1,) or (K, 1), is whether it is the client's first round.
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
        """What is kept of a client's local work before its first round."""
        own = None if self.solver is None else self.solver.first_memory(params)
        return own if self.personal is None else (self.personal.first(params), *(own or ()))
