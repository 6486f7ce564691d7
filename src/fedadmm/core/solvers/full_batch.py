"""Full-batch solvers: gradient descent, accelerated gradient, L-BFGS, and the exact solution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from fedadmm.core.contracts import LocalProblem, LocalResult, norm
from fedadmm.core.errors import CompatibilityError, ParameterError
from fedadmm.core.local_work import OUTSIDE_RUN, LocalSolver, SolveContext, SolveInfo
from fedadmm.core.objectives import Objective
from fedadmm.core.objectives.closed_form import QuadraticObjective
from fedadmm.core.parts import Count, Positive, part
from fedadmm.core.rng import Key
from fedadmm.core.schedules import at
from fedadmm.core.solvers.local_loss import LocalLoss, OneObjective, Stepper
from fedadmm.core.solvers.sgd import SGD, IterativeSolver, Rate, RatedSolver
from fedadmm.core.stopping import StoppingRule

if TYPE_CHECKING:
    from fedadmm.core.setup import Setup


@part("solver", "gradient-descent")
class GradientDescent(RatedSolver):
    """Full-batch gradient descent; one epoch is one step.

    Args:
        lr: Learning rate: a number, a schedule over rounds, or one number per client.  Default 0.1.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> work = dict(solver=fa.GradientDescent(0.2), stop=fa.Steps(10))
        >>> round(fa.simulate(fa.FedADMM(rho=1.0), problem, 60, **work).params.item(), 2)
        2.0
    """

    stacks = True
    sums_steps = True

    lr: Rate = 0.1

    def stepper(self, loss: LocalLoss, context: SolveContext) -> Stepper:
        return SGD(self.lr, batch_size=None).stepper(loss, context)

    def step_sum(self, steps: Tensor, loss: LocalLoss, context: SolveContext) -> Tensor:
        return SGD(self.lr, batch_size=None).step_sum(steps, loss, context)


class _AcceleratedStepper(Stepper):
    """FISTA's extrapolation with the gradient restart of O'Donoghue and Candes."""

    def __init__(self, loss: LocalLoss, lr: float) -> None:
        self._params = loss.problem.start.clone()
        self._loss = loss
        self._lr = lr
        self._ahead = self._params.clone()
        self._t = 1.0

    @property
    def params(self) -> Tensor:
        return self._params

    def step(self, samples: Tensor | None) -> Tensor:
        own = self._loss.objectives.gradient(self._ahead, samples).clone()
        gradient = self._loss.complete(self._ahead, own)
        following = self._ahead - self._lr * gradient
        way = following - self._params
        if float((gradient * way).sum()) > 0:
            self._t = 1.0
        t = (1 + math.sqrt(1 + 4 * self._t**2)) / 2
        self._ahead = following + ((self._t - 1) / t) * way
        self._params, self._t = following, t
        return own


@part("solver", "accelerated-gradient")
class AcceleratedGradient(RatedSolver):
    """Full-batch Nesterov acceleration with restarts; one epoch is one step.

    Args:
        lr: Learning rate, at most 1 / (L + weight): a number, a schedule over rounds, or one number
            per client.  Default 0.1.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> work = dict(solver=fa.AcceleratedGradient(0.2), stop=fa.Steps(10))
        >>> round(fa.simulate(fa.FedADMM(rho=1.0), problem, 60, **work).params.item(), 2)
        2.0
    """

    lr: Rate = 0.1

    def stepper(self, loss: LocalLoss, context: SolveContext) -> Stepper:
        return _AcceleratedStepper(loss, at(self.lr, context.round_index, context.clients[0]))


class _LBFGSStepper(Stepper):
    """One iteration of torch.optim.LBFGS with a strong Wolfe line search per step."""

    def __init__(self, loss: LocalLoss, lr: float, history: int) -> None:
        assert isinstance(loss.objectives, OneObjective)  # it does not stack
        self._value = loss.objectives.value
        self._loss = loss
        self._variable = torch.nn.Parameter(loss.problem.start.clone(), requires_grad=True)
        self._optimizer = torch.optim.LBFGS(
            [self._variable],
            lr=lr,
            max_iter=1,
            max_eval=25,
            history_size=history,
            tolerance_grad=0.0,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )
        self._tried = 0

    @property
    def params(self) -> Tensor:
        return self._variable.detach()

    def step(self, samples: Tensor | None) -> None:
        def closure() -> float:
            point = self.params
            self._variable.grad = self._loss.gradient(point)
            self._tried += 1
            return float(self._loss.complete_value(point, self._value(point)))

        if float(norm(self._loss.gradient(self.params))) > 0:
            self._optimizer.step(closure)  # type: ignore[no-untyped-call]

    def passes(self, stepped: float) -> float:
        return stepped + self._tried


@part("solver", "lbfgs")
class LBFGS(IterativeSolver):
    """L-BFGS with a strong Wolfe line search (`torch.optim.LBFGS`); one epoch is one iteration.

    Args:
        lr: Initial step length of the line search.  Default 1.
        history: Number of stored updates.  Default 10.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> work = dict(solver=fa.LBFGS(), stop=fa.Steps(5))
        >>> round(fa.simulate(fa.FedADMM(rho=1.0), problem, 50, **work).params.item(), 2)
        2.0
    """

    lr: Positive = 1.0
    history: Count = 10

    def stepper(self, loss: LocalLoss, context: SolveContext) -> Stepper:
        if context.needs.mean_gradient:
            raise ParameterError("LBFGS: its steps have no mean gradient, but one was asked for")
        return _LBFGSStepper(loss, self.lr, self.history)


@cache
def _is_quadratic(kind: type) -> bool:
    """Whether objectives of a class are quadratic; looking at a protocol's members takes long."""
    return issubclass(kind, QuadraticObjective)


@part("solver", "exact")
class ExactSolver(LocalSolver):
    """Exact solution of local problems with a quadratic objective.

    Solves (A + weight I) w = b - linear + weight * centre, whatever the stopping rule.  The clients
    must be `Quadratic` or `LeastSquares`.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> result = fa.simulate(fa.FedAvg(), problem, 1, solver=fa.ExactSolver())
        >>> result.params  # the mean of the minimisers 6, 3 and 0
        tensor([3.])
    """

    def check_run(self, run: Setup) -> Iterator[str]:
        yield from super().check_run(run)
        client, needs = run.problem.clients[0], run.algorithm.requirements.local
        if needs.local_solve and not _is_quadratic(type(client)):
            yield (
                f"problem: got clients with {type(client).__name__}, expected quadratic objectives "
                "for ExactSolver. Use SGD, GradientDescent, AcceleratedGradient or LBFGS."
            )

    def solve(
        self,
        objective: Objective,
        problem: LocalProblem,
        stop: StoppingRule,
        key: Key,
        context: SolveContext = OUTSIDE_RUN,
    ) -> tuple[LocalResult, SolveInfo]:
        if not _is_quadratic(type(objective)):
            raise CompatibilityError(
                f"ExactSolver: the objective is a {type(objective).__name__}, but a quadratic one "
                "is needed (Quadratic, LeastSquares)"
            )
        quadratic = cast(QuadraticObjective, objective)
        loss = LocalLoss(OneObjective(objective), problem)
        matrix = quadratic.hessian()
        matrix = matrix + loss.weight * torch.eye(len(matrix)).to(matrix)
        right = quadratic.offset() if loss.offset is None else quadratic.offset() - loss.offset
        params, info = torch.linalg.solve_ex(matrix, right)
        if int(info) != 0:
            raise CompatibilityError(
                "ExactSolver: the local problem has no unique solution (singular matrix), but a "
                "penalty or a strongly convex objective is needed"
            )
        start_gradient = objective.gradient(problem.start) if context.needs.start_gradient else None
        accuracy = float(norm(loss.gradient(params)))
        passes = 2.0 + context.needs.start_gradient  # one for the matrix, one for the accuracy
        info = SolveInfo(1, 1.0, passes, "solved exactly", accuracy)
        return LocalResult(params, start_gradient), info
