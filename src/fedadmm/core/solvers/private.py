"""DP-SGD: example-level differential privacy by noise on sums of clipped gradients.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy,
CCS 2016.  With K steps in an epoch over n samples,

    every sample is in the batch B of a step with probability 1/K, independently of the others
    g = (sum over B of clip_C(grad of the sample's loss) + z C N(0, I)) / (n/K)

and w, the dual and the upload depend on the data through g only.  The sum is divided by the
expected number of samples, because the actual one would reveal whether a sample is present.  A
gradient that is not finite is replaced by zero, so that no sample determines whether the result is
finite.
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
"""Approximate limit of the numbers in per-sample gradients that are in memory at a time."""


class RecordNoise(NamedTuple):
    """Example-level differential privacy of a solver, and its privacy budget."""

    multiplier: float
    """Standard deviation of the noise, in units of the largest influence of a sample."""
    clip: float
    """Largest norm of a sample's gradient."""
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
        if (
            reason := setup.problem.clients[0].sample_gradients_unavailable(setup.initial)
        ) is not None:
            yield f"{solver}: {reason}"
        for client, objective in enumerate(setup.problem.clients):
            if (samples := objective.num_samples) >= 1 / self.delta:
                raise ParameterError(
                    f"{solver}.delta: got {self.delta:g}, expected less than one over the number "
                    f"of samples of every client, {1 / samples:.4g} at client {client}. Otherwise "
                    "the disclosure of a sample would be allowed."
                )


@part("solver", "dp-sgd")
class DPSGD(RatedSolver):
    """DP-SGD: SGD with clipped per-sample gradients and Gaussian noise (Abadi et al., 2016).

        g = (sum over B of clip_C(gradient of a sample) + multiplier * C * N(0, I)) / expected |B|

    It provides example-level differential privacy with respect to everything that the client sends;
    `GaussianNoise` in the pipeline provides client-level privacy.  Samples are drawn independently
    (Poisson sampling), as the accountant assumes: an epoch has as many steps as for SGD, and every
    sample is in each of them with the inverse of that number as probability.

    Args:
        lr: Learning rate: a number, a schedule over rounds, or one number per client.
        clip: C, the largest norm of a sample's gradient.
        multiplier: Standard deviation of the noise, in units of C.
        batch_size: Expected number of samples in a step; a full batch has no amplification by
            sampling.  Default 32.
        momentum: Share of the last step that is added to the next one.  Default 0.
        delta: delta of (epsilon, delta), below one over the number of samples of every client.
            Default 1e-5.
        budget: Largest epsilon of a client; the run ends before it is exceeded.  None for no limit.

    Example:
        >>> import torch, fedadmm as fa
        >>> client = fa.LeastSquares(torch.ones(20, 1), torch.full((20,), 2.0))
        >>> problem = fa.Problem([client] * 3, initial=torch.zeros(1))
        >>> solver = fa.DPSGD(lr=0.1, clip=1.0, multiplier=2.0, batch_size=2, delta=0.01)
        >>> result = fa.simulate(fa.FedAvg(), problem, 2, solver=solver)
        >>> privacy = [record["privacy"]["epsilon"] for record in result.history]
        >>> privacy[0] < privacy[1]  # the consumed epsilon grows with the rounds
        True
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
    """The samples of a step, and where its noise comes from, of each of the first clients."""

    samples: list[Tensor]
    generators: list[KeyedGenerator]


class _NoisedObjectives(Objectives):
    """Objectives of whose samples nothing is to be had but noised sums of clipped gradients."""

    draws_samples = True

    def __init__(self, objectives: Objectives, solver: DPSGD, deployed: bool) -> None:
        self._objectives = objectives
        self._solver = solver
        self._deployed = deployed
        self.sizes = objectives.sizes
        self._per_epoch = [-(-size // solver.batch_size) for size in self.sizes]

    def batches(
        self, keys: Sequence[Key], epoch: int, batch_size: int, limits: Sequence[int]
    ) -> Iterator[tuple[int, _Drawn]]:
        # Every sample with the same probability, whatever the other samples do.
        for step in range(limits[0]):
            count = sum(limit > step for limit in limits)
            generators = [
                KeyedGenerator(None if self._deployed else derive(key, "noised step", epoch, step))
                for key in keys[:count]
            ]
            columns = zip(generators, self.sizes, self._per_epoch, strict=False)
            samples = [  # the purpose "rows" determines the random numbers: do not rename it
                (one.uniform(size, "rows") * steps < 1).nonzero().flatten()
                for one, size, steps in columns
            ]
            yield count, _Drawn(samples, generators)

    def gradient(self, params: Tensor, samples: Any = None) -> Tensor:
        drawn: _Drawn = samples
        total = self._clipped_sum(params, drawn.samples)
        like = params.new_empty(params.shape[-1])
        noise = torch.stack([one.normal(like, "noise") for one in drawn.generators]).view_as(total)
        total.add_(noise, alpha=self._solver.multiplier * self._solver.clip)
        columns = zip(drawn.samples, self.sizes, self._per_epoch, strict=False)
        expected = params.new_tensor([size / steps for _, size, steps in columns])
        return total.div_(expected.view(*params.shape[:-1], 1))

    def _clipped_sum(self, params: Tensor, samples: list[Tensor]) -> Tensor:
        """The sum of clipped gradients, over this many samples at a time that memory holds them."""
        total = torch.zeros_like(params, memory_format=torch.contiguous_format)
        width = max(map(len, samples))
        turn = max(1, NUMBERS // params.numel())
        for begin in range(0, width, turn):
            some = [one[begin : begin + turn] for one in samples]
            gradients = self._objectives.sample_gradients(params, some)
            lengths = norm(gradients)
            finite = lengths.isfinite()  # a sample that overflows must not show in the result
            shares = (self._solver.clip / lengths).clamp(max=1.0).where(finite, 0.0)
            total.add_((shares.mT @ gradients.where(finite, 0.0)).squeeze(-2))
        return total

    def evaluation_gradient(self, params: Tensor) -> Tensor:
        return self._objectives.evaluation_gradient(params)

    def workspace(self, params: Tensor) -> Tensor:
        return self._objectives.workspace(params)

    def sample_gradients(self, params: Tensor, samples: Sequence[Tensor]) -> Tensor:
        return self._objectives.sample_gradients(params, samples)

    def select(self, clients: Sequence[int]) -> _NoisedObjectives:
        return _NoisedObjectives(self._objectives.select(clients), self._solver, self._deployed)
