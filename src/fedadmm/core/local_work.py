"""What a client does in a round: which solver, for how long, and where it starts.

Where local training starts is no part of a method's algebra: with exact solves it changes nothing,
with a few epochs it decides much.  So a method says which problem its clients solve, and the local
work where they start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedadmm.core.parts import NotNegative, Part, checked, part
from fedadmm.core.protocols import AnyAlgorithm, LocalProblem, LocalSolver, Start, StoppingRule

if TYPE_CHECKING:
    from fedadmm.core.setup import Setup

STARTS: tuple[Start, ...] = ("own", "current", "global")


@part("start", "relaxed")
class Relaxed:
    """FedInit's start theta + beta (theta - w_i), w_i the client's model of its last round.

    A client that has had no round yet starts at theta.  beta = 0 is "global".  (Sun, Shen, Tao:
    Understanding How Consistency Works in Federated Learning via Stage-wise Relaxed
    Initialization, NeurIPS 2023.)
    """

    beta: NotNegative = 0.1


@checked
class LocalWork(Part):
    """The local work of every client.

    Args:
        solver: how local problems are solved; every method but FedSGD needs one.
        stop: when a local solve ends; None takes the method's own rule, or one epoch.
        start: local training starts at the "global" model, at the client's "own", at its own
            except in its first round ("current"), or beyond the global one (`Relaxed`); None takes
            the method's own, which is "global" unless a paper's algorithm says otherwise.
    """

    solver: LocalSolver | None = None
    stop: StoppingRule | None = None
    start: Start | Relaxed | None = None

    def refuses(self, setup: Setup) -> Iterator[str]:
        """A start at the client's own model where the method keeps none; what its parts refuse."""
        method = setup.algorithm
        state = method.init_client(setup.initial)
        if self.start != "global" and method.local_params(state) is None:
            yield (
                f"{type(method).__name__} keeps no model of a client between rounds, but "
                f"local.start is {self.start!r}; use 'global'"
            )
        for one in (self.solver, self.stop):
            if one is not None:
                yield from one.refuses(setup)

    def problem(
        self, algorithm: AnyAlgorithm, cast: Any, state: Any, first: Tensor
    ) -> LocalProblem:
        """A client's local problem (or that of a stack) with its start.

        `first`, (1,) or (K, 1), is whether it is the client's first round.
        """
        problem = algorithm.local_problem(cast, state)
        if self.start == "global":
            return problem
        start = algorithm.local_params(state)
        assert start is not None, "`refuses` says so"
        if isinstance(self.start, Relaxed):
            start = problem.start + self.start.beta * (problem.start - start)
        if self.start != "own":
            start = torch.where(first, problem.start, start)
        return problem._replace(start=start)
