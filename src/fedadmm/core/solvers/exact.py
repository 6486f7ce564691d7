"""The exact solution of a quadratic local problem; the theorem tests stand on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from fedadmm.core.errors import PairingError
from fedadmm.core.local_work import IN_NO_ROUND, LocalSolver, SolveContext, SolveInfo
from fedadmm.core.objectives import Objective
from fedadmm.core.objectives.closed_form import QuadraticObjective
from fedadmm.core.parts import part
from fedadmm.core.protocols import LocalProblem, LocalResult, norm
from fedadmm.core.rng import Key
from fedadmm.core.solvers.local_loss import LocalLoss, OneObjective
from fedadmm.core.stopping import StoppingRule

if TYPE_CHECKING:
    from fedadmm.core.setup import Setup


@part("solver", "exact")
class ExactSolver(LocalSolver):
    """Solves (A + weight I) w = b - linear + weight centre; meets every stopping rule."""

    def refuses(self, setup: Setup) -> Iterator[str]:
        """Objectives that are not quadratic."""
        yield from super().refuses(setup)
        client = setup.problem.clients[0]
        if setup.algorithm.needs.local_solve and not isinstance(client, QuadraticObjective):
            yield (
                "ExactSolver needs quadratic objectives, but the clients' are "
                f"{type(client).__name__}; use SGD, GradientDescent, AcceleratedGradient or LBFGS"
            )

    def solve(
        self,
        objective: Objective,
        problem: LocalProblem,
        stop: StoppingRule,
        key: Key,
        context: SolveContext = IN_NO_ROUND,
    ) -> tuple[LocalResult, SolveInfo]:
        if not isinstance(objective, QuadraticObjective):
            raise PairingError(
                f"ExactSolver: the objective is a {type(objective).__name__}, but a quadratic one "
                "is needed (Quadratic, LeastSquares)"
            )
        loss = LocalLoss(OneObjective(objective), problem)
        matrix = objective.hessian()
        matrix = matrix + loss.weight * torch.eye(len(matrix)).to(matrix)
        right = objective.offset() if loss.offset is None else objective.offset() - loss.offset
        params, info = torch.linalg.solve_ex(matrix, right)
        if int(info) != 0:
            raise PairingError(
                "ExactSolver: the local problem has no unique solution (singular matrix), but a "
                "penalty or a strongly convex objective is needed"
            )
        start_gradient = objective.gradient(problem.start) if context.needs.start_gradient else None
        accuracy = float(norm(loss.gradient(params)))
        passes = 2.0 + context.needs.start_gradient  # one for the matrix, one for the accuracy
        info = SolveInfo(1, 1.0, passes, "solved exactly", accuracy)
        return LocalResult(params, start_gradient), info
