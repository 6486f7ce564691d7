"""The parts of a run together, so that each can refuse what it cannot work with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import names_of
from fedadmm.core.protocols import AnyAlgorithm, LocalProblem, LocalResult, Round
from fedadmm.core.rng import Key, derive
from fedadmm.core.sampling import Sampler

if TYPE_CHECKING:
    from fedadmm.core.aggregation import Aggregation
    from fedadmm.core.local_work import LocalWork
    from fedadmm.core.problem import Problem
    from fedadmm.core.uploads import Uploads


@dataclass(frozen=True)
class Setup:
    """What a part's `refuses` gets before round 0."""

    algorithm: AnyAlgorithm
    problem: Problem
    local: LocalWork
    sampler: Sampler
    uploads: Uploads
    aggregate: Aggregation
    initial: Tensor
    seed: Key
    rounds: int
    asynchronous: bool
    """Whether replies are folded as they arrive, without rounds."""

    @cached_property
    def first_cast(self) -> Any:
        """The broadcast of the first round."""
        server = self.algorithm.init_server(self.initial)
        return self.algorithm.broadcast(server, Round(0, derive(self.seed, "broadcast", 0)))

    @cached_property
    def first_problem(self) -> LocalProblem:
        """The local problem of a client's first round."""
        client = self.algorithm.init_client(self.initial)
        return self.algorithm.local_problem(self.first_cast, client)

    @cached_property
    def sent_as_it_is(self) -> dict[str, Tensor]:
        """The tensors of a message besides moves and increments; only their shapes matter."""
        client, method = self.algorithm.init_client(self.initial), self.algorithm
        result = LocalResult.like(self.initial.new_zeros(self.initial.shape))
        message = method.client_update(self.first_cast, client, result)[1]
        declared = (*method.increments, *method.moves)
        return {name: v for name, v in trees.named_tensors(message) if name not in declared}

    def method_refusals(self) -> Iterator[str]:
        """Why the method cannot work with the sampler, the regulariser or the solver."""
        algorithm, solver = self.algorithm, self.local.solver
        method, needs = type(algorithm).__name__, algorithm.needs
        virtual = algorithm.virtual_steps(algorithm.init_server(self.initial))
        if algorithm.tolerates_stale and virtual is not None:
            raise ParameterError(
                f"{method}: tolerates_stale is True, but must be False for a method with virtual "
                "steps, which the clients of late replies would get twice"
            )
        if not algorithm.accepts_partial and not self.sampler.takes_everybody:
            yield (
                f"{method} needs all clients in every round, but the sampler is "
                f"{type(self.sampler).__name__}; use FullParticipation"
            )
        if not algorithm.accepts_regularizer and not self.problem.regularizer.is_zero:
            yield (
                f"{method} has no proximal server step, but the problem's regularizer is "
                f"{type(self.problem.regularizer).__name__}; use "
                f"{names_of('algorithm', lambda kind: kind.accepts_regularizer)}"
            )
        if not needs.local_solve:
            return
        if solver is None:
            yield (
                f"{method} needs a local solver, but solver is None; choose one, such as "
                "SGD(lr=0.1)"
            )
        elif needs.mean_gradient and not solver.averages_gradients:
            yield (
                f"{method} averages the gradients of its local steps, but "
                f"{type(solver).__name__} has none to average; use "
                f"{names_of('solver', lambda kind: kind.averages_gradients)}"
                + f", or {algorithm.without_mean_gradient}"
                * bool(algorithm.without_mean_gradient)
            )
        elif needs.step_sum and not solver.sums_steps:
            yield (
                f"{method} must know the size of every local step, but {type(solver).__name__} "
                f"does not tell; use {names_of('solver', lambda kind: kind.sums_steps)}"
            )
