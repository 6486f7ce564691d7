"""Adam on the local problem: steps with a scale for every entry, and the problem's own terms exact.

    m <- beta1 m + (1 - beta1) g;   v <- beta2 v + (1 - beta2) g^2,  g the gradient of f_i at w
    w <- argmin over u of  <m', u> + <linear, u> + (weight/2) ||u - centre||^2
                           + (1/2) (u - w)' P (u - w),     P = diag(sqrt(v') + epsilon) / lr

m' and v' are m and v without the bias of their start at zero.  The minimiser is
w - (m' + linear + weight (w - centre)) / (P + weight): without terms of the local problem this is
the step of `torch.optim.AdamW`, and the only point of rest solves the local problem, whatever P is.
Without a quadratic term nothing bounds the step of a linear one (SCAFFOLD's), unless v knows it: it
is then part of g.
One step of FedADMM from theta has the form of SISA (Zhou et al., Preconditioned Inexact Stochastic
ADMM for Deep Models, Nature Machine Intelligence 2026), with its sigma = rho and its rho = 1 / lr:

    w_i = theta - (g_i + y_i) / (sigma + rho (sqrt(v_i') + epsilon))
    y_i <- y_i + sigma (w_i - theta)

SISA takes the second moment v_i as it is.  Here, as in Adam, v_i' = v_i / (1 - beta2^t) has no bias
towards its initial zero: in the first step, with beta2 = 0.999, the square root of v_i would be 32
times smaller.  The difference vanishes after some 1 / (1 - beta2) steps with kept moments.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedadmm.core.local_work import SolveContext
from fedadmm.core.parts import Count, NotNegative, Positive, Probability, part
from fedadmm.core.solvers.local_loss import LocalLoss, Stepper
from fedadmm.core.solvers.sgd import GradientStepper, Rate, RatedSolver


@part("solver", "adam")
class Adam(RatedSolver):
    """Mini-batch Adam: AdamW steps on f_i, with the other terms of the local problem exact.

        m <- beta1 m + (1 - beta1) g;   v <- beta2 v + (1 - beta2) g^2
        w <- argmin <m', u> + other terms(u) + ||u - w||_P^2 / 2,  P = (sqrt(v') + epsilon) / lr

    Args:
        lr: Learning rate: a number, a schedule over rounds, or one number per client.
            Default 1e-3.
        batch_size: Samples in a step; None for all.  Default 32.
        beta1: Decay of the first moment m; 0 is RMSProp.  Default 0.9.
        beta2: Decay of the second moment v.  Default 0.999.
        epsilon: Added to sqrt(v').  Default 1e-8.
        weight_decay: Decoupled weight decay: w shrinks by lr times this in every step, which
            changes the limit of a run.  Default 0.
        moments: m and v are zero at the start of every round ("fresh"), or stored by the client
            ("kept"), as SISA does with v.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> work = dict(solver=fa.Adam(0.1), stop=fa.Steps(10))
        >>> round(fa.simulate(fa.FedADMM(rho=1.0), problem, 60, **work).params.item(), 2)
        2.0
    """

    stacks = True

    lr: Rate = 1e-3
    batch_size: Count | None = 32
    beta1: Probability = 0.9
    beta2: Probability = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    moments: Literal["fresh", "kept"] = "fresh"

    def rate_of(self, client: int, round_index: int) -> None:
        """Its steps are not lr times a gradient."""

    def length(self, steps: int, client: int) -> None:
        """As above."""

    def first_memory(self, params: Tensor) -> tuple[Tensor, ...] | None:
        if self.moments == "fresh":
            return None
        return torch.zeros_like(params), torch.zeros_like(params), params.new_zeros(1)

    def stepper(self, loss: LocalLoss, context: SolveContext) -> Stepper:
        return _AdamStepper(loss, self.rate(loss, context), self, context.memory)


class _AdamVectors(NamedTuple):
    """What a step reads and writes; vectors are (D,) or (K, D), numbers may be (K, 1)."""

    params: Tensor
    m: Tensor
    v: Tensor
    made: Tensor
    """The steps that m and v are means over."""
    lr: Tensor | float
    weight: Tensor | float
    linear: Tensor | None
    centre: Tensor | None


class _AdamStepper(GradientStepper):
    def __init__(
        self,
        loss: LocalLoss,
        lr: Tensor | float,
        solver: Adam,
        memory: tuple[Tensor, ...] | None,
    ) -> None:
        self._objectives, self._solver, self._perturbation = loss.objectives, solver, None
        start, problem = loss.problem.start, loss.problem
        params = loss.objectives.workspace(start)
        if memory is None:
            like = torch.zeros_like(params)
            memory = (like, like, params.new_zeros(*start.shape[:-1], 1))
        m, v, made = (one.clone() for one in memory)
        centre, weight = (None, 0.0) if loss.target is None else (problem.centre, loss.weight)
        self._vectors = _AdamVectors(params, m, v, made, lr, weight, problem.linear, centre)

    @property
    def params(self) -> Tensor:
        params: Tensor = self._vectors.params
        return params

    @property
    def memory(self) -> tuple[Tensor, ...] | None:
        kept = self._solver.moments == "kept"
        return (self._vectors.m, self._vectors.v, self._vectors.made) if kept else None

    def step(self, samples: Tensor | None) -> Tensor:
        solver, (params, m, v, made, lr, weight, linear, centre) = self._solver, self._vectors
        gradient = self._objectives.gradient(params, samples)
        whole = gradient if linear is None or centre is not None else gradient + linear
        made.add_(1)
        m.lerp_(whole, 1 - solver.beta1)
        v.mul_(solver.beta2).addcmul_(whole, whole, value=1 - solver.beta2)
        way = m / (1 - solver.beta1**made)
        scale = (v / (1 - solver.beta2**made)).sqrt_().add_(solver.epsilon).div_(lr)
        if solver.weight_decay:
            params.mul_(1 - lr * solver.weight_decay)
        if centre is not None:
            way.add_(weight * (params - centre))
            scale.add_(weight)
            if linear is not None:
                way.add_(linear)
        params.addcdiv_(way, scale, value=-1)
        return gradient
