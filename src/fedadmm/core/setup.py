"""The components of a run together, so that their compatibility can be checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.contracts import AnyAlgorithm, LocalProblem, LocalResult, Round
from fedadmm.core.rng import Key, derive
from fedadmm.core.sampling import Sampler

if TYPE_CHECKING:
    from fedadmm.core.aggregation import Aggregator
    from fedadmm.core.local_work import LocalWork
    from fedadmm.core.pipeline import UpdatePipeline
    from fedadmm.core.problem import Problem


@dataclass(frozen=True)
class Setup:
    """The components of a run before its first round."""

    algorithm: AnyAlgorithm
    problem: Problem
    local: LocalWork
    sampler: Sampler
    pipeline: UpdatePipeline
    aggregator: Aggregator
    initial: Tensor
    seed: Key
    rounds: int
    asynchronous: bool
    """Whether updates are aggregated on arrival, without rounds."""
    stale: bool
    """Whether such updates may be computed from an older model."""

    @cached_property
    def first_broadcast(self) -> Any:
        """Broadcast of the first round."""
        server = self.algorithm.init_server(self.initial)
        return self.algorithm.broadcast(server, Round(0, derive(self.seed, "broadcast", 0)))

    @cached_property
    def first_problem(self) -> LocalProblem:
        """Local problem of a client's first round."""
        client = self.algorithm.init_client(self.initial)
        return self.algorithm.local_problem(self.first_broadcast, client)

    @cached_property
    def sent_as_it_is(self) -> dict[str, Tensor]:
        """Tensors of a message that are neither increments nor deltas, by name."""
        client, method = self.algorithm.init_client(self.initial), self.algorithm
        result = LocalResult.like(self.initial.new_zeros(self.initial.shape))
        message = method.client_update(self.first_broadcast, client, result)[1]
        declared = (*method.increments, *method.deltas)
        return {name: v for name, v in trees.named_tensors(message) if name not in declared}
