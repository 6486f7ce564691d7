"""DP-SGD: steps along noised sums of clipped gradients, which hide every row of a client.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy,
CCS 2016.  With K steps in an epoch over n rows,

    every row is in the batch B of a step with probability 1/K, whatever the others do
    g = (sum over B of clip_C(grad of the row's loss) + z C N(0, I)) / (n/K)

and w, the dual and the upload are functions of the g alone.  The sum is divided by the rows that
are expected, because how many came would tell of one more or less.  A row whose gradient is not
finite counts as zero, so that no row decides whether the result is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from annotated_types import Gt, Lt
from torch import Tensor

from fedadmm.core.compatibility import Feature
from fedadmm.core.contracts import LocalProblem, LocalResult, norm
from fedadmm.core.errors import ParameterError
from fedadmm.core.local_work import SolveContext, SolveInfo
from fedadmm.core.parts import Count, Positive, Probability, part
from fedadmm.core.rng import Key, KeyedGenerator, derive
from fedadmm.core.solvers.local_loss import LocalLoss, Objectives, Stepper
from fedadmm.core.solvers.sgd import SGD, RatedSolver
from fedadmm.core.stopping import StoppingRule

if TYPE_CHECKING:
    from fedadmm.core.setup import Setup

NUMBERS = 2**22
"""About how many numbers the gradients of single rows may be at a time."""


class RecordNoise(NamedTuple):
    """How a solver hides the single rows of its client, and what of that may be spent."""

    multiplier: float
    """The noise's standard deviation, in units of what a row can change."""
    clip: float
    delta: float
    budget: float | None

    def requires(self, run: Setup) -> Iterable[Feature]:
        """Return what keeps statistics without noise from being computed or sent."""
        return (
            Feature.LOCAL_SOLVE,
            Feature.STOP_WITHOUT_GRADIENTS,
            Feature.STOPPING_RULE_DECIDES,
            Feature.NO_NOISE,
        )

    def check_run(self, setup: Setup, solver: str) -> Iterator[str]:
        """Yield why the samples of a client cannot be privatised."""
        method, needs = type(setup.algorithm).__name__, setup.algorithm.requirements.local_in(-1)
        if needs.start_gradient:
            yield (
                f"algorithm: got {method}, expected a method without full gradients for {solver}, "
                "which adds noise to mini-batch gradients only."
            )
        if (reason := setup.problem.clients[0].row_refusal(setup.initial)) is not None:
            yield f"{solver}: {reason}"
        for client, objective in enumerate(setup.problem.clients):
            if (rows := objective.num_samples) >= 1 / self.delta:
                raise ParameterError(
                    f"{solver}: delta is {self.delta:g}, but must be below one over the number of "
                    f"rows of every client, {1 / rows:.4g} at client {client}: otherwise giving "
                    "one row away would be allowed"
                )


@part("solver", "dp-sgd")
class DPSGD(RatedSolver):
    """DP-SGD: every row's gradient is clipped, and their sum gets Gaussian noise.

    It hides every single row (record) of a client from everybody who sees what the client sends,
    the server too; whom noise in `upload` hides is the client as a whole.  Rows are drawn
    independently of each other, as the accountant wants it: an epoch has as many steps as for
    SGD, and every row is in each of them with probability one over their number.

    Args:
        lr: the learning rate: a number, a schedule over rounds, or one number per client.
        clip: the largest norm of one row's gradient; longer ones are cut to it.
        multiplier: the noise's standard deviation, in units of the clip.
        batch_size: about how many rows a step has; a batch of all rows is not amplified.
        momentum: the share of the last step that is made again.
        delta: the delta of (epsilon, delta), below one over the number of rows of every client.
        budget: the epsilon that any client may spend; the run ends before it would spend more.
    """

    stacks = True
    sums_steps = True

    clip: Positive
    multiplier: Positive
    batch_size: Count = 32
    momentum: Probability = 0.0
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    budget: Positive | None = None

    @property
    def noise(self) -> RecordNoise:
        return RecordNoise(self.multiplier, self.clip, self.delta, self.budget)

    def without_noise(self) -> SGD:
        return SGD(self.lr, self.batch_size, self.momentum)

    def stepper(self, loss: LocalLoss, context: SolveContext) -> Stepper:
        return self.without_noise().stepper(loss, context)

    def step_sum(self, steps: Tensor, loss: LocalLoss, context: SolveContext) -> Tensor:
        return self.without_noise().step_sum(steps, loss, context)

    def length(self, steps: int, client: int) -> float | None:
        return self.without_noise().length(steps, client)

    def descend(
        self,
        objectives: Objectives,
        problem: LocalProblem,
        stop: StoppingRule,
        keys: Sequence[Key],
        context: SolveContext,
    ) -> tuple[LocalResult, list[SolveInfo]]:
        noised = _NoisedObjectives(objectives, self, context.deployed)
        return super().descend(noised, problem, stop, keys, context)


class _Drawn(NamedTuple):
    """The rows of a step, and where its noise comes from, of each of the first clients."""

    rows: list[Tensor]
    dice: list[KeyedGenerator]


class _NoisedObjectives(Objectives):
    """Objectives of whose rows nothing is to be had but noised sums of clipped gradients."""

    draws_rows = True

    def __init__(self, objectives: Objectives, solver: DPSGD, deployed: bool) -> None:
        self._objectives = objectives
        self._solver = solver
        self._deployed = deployed
        self.sizes = objectives.sizes
        self._per_epoch = [-(-size // solver.batch_size) for size in self.sizes]

    def batches(
        self, keys: Sequence[Key], epoch: int, batch_size: int, limits: Sequence[int]
    ) -> Iterator[tuple[int, _Drawn]]:
        # Every row with the same probability, whatever the other rows do.
        for step in range(limits[0]):
            count = sum(limit > step for limit in limits)
            dice = [
                KeyedGenerator(None if self._deployed else derive(key, "noised step", epoch, step))
                for key in keys[:count]
            ]
            columns = zip(dice, self.sizes, self._per_epoch, strict=False)
            rows = [
                (one.uniform(size, "rows") * steps < 1).nonzero().flatten()
                for one, size, steps in columns
            ]
            yield count, _Drawn(rows, dice)

    def gradient(self, params: Tensor, rows: Any = None) -> Tensor:
        total = self._clipped_sum(params, rows.rows)
        like = params.new_empty(params.shape[-1])
        noise = torch.stack([one.normal(like, "noise") for one in rows.dice]).view_as(total)
        total.add_(noise, alpha=self._solver.multiplier * self._solver.clip)
        columns = zip(rows.rows, self.sizes, self._per_epoch, strict=False)
        expected = params.new_tensor([size / steps for _, size, steps in columns])
        return total.div_(expected.view(*params.shape[:-1], 1))

    def _clipped_sum(self, params: Tensor, rows: list[Tensor]) -> Tensor:
        """The sum of clipped gradients, over this many rows at a time that memory holds them."""
        total = torch.zeros_like(params, memory_format=torch.contiguous_format)
        width = max(map(len, rows))
        turn = max(1, NUMBERS // params.numel())
        for begin in range(0, width, turn):
            some = [one[begin : begin + turn] for one in rows]
            gradients = self._objectives.row_gradients(params, some)
            lengths = norm(gradients)
            finite = lengths.isfinite()  # a row that overflows must not show in the result
            shares = (self._solver.clip / lengths).clamp(max=1.0).where(finite, 0.0)
            total.add_((shares.mT @ gradients.where(finite, 0.0)).squeeze(-2))
        return total

    def evaluation_gradient(self, params: Tensor) -> Tensor:
        return self._objectives.evaluation_gradient(params)

    def workspace(self, params: Tensor) -> Tensor:
        return self._objectives.workspace(params)

    def row_gradients(self, params: Tensor, rows: Sequence[Tensor]) -> Tensor:
        return self._objectives.row_gradients(params, rows)

    def select(self, clients: Sequence[int]) -> _NoisedObjectives:
        return _NoisedObjectives(self._objectives.select(clients), self._solver, self._deployed)
