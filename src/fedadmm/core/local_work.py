"""What a client does in a round: which solver, for how long, and where it starts.

Where local training starts is no part of a method's algebra: with exact solves it changes nothing,
with a few epochs it decides much.  So a method says which problem its clients solve, and the local
work where they start.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedadmm.core.errors import PairingError
from fedadmm.core.parts import checked
from fedadmm.core.protocols import AnyAlgorithm, LocalProblem, LocalSolver, Start, StoppingRule

STARTS: tuple[Start, ...] = ("own", "current", "global")


@checked
class LocalWork:
    """The local work of every client.

    Args:
        solver: how local problems are solved; every method but FedSGD needs one.
        stop: when a local solve ends; None takes the method's own rule, or one epoch.
        start: local training starts at the client's "own" model, at the "global" one, or at the
            own model except in the client's first round ("current"); None takes the method's own.
    """

    solver: LocalSolver | None = None
    stop: StoppingRule | None = None
    start: Start | None = None

    def check(self, algorithm: AnyAlgorithm, state: Any) -> None:
        """Refuse a start that needs a model of the client's own where the method keeps none."""
        if self.start != "global" and algorithm.local_params(state) is None:
            raise PairingError(
                f"{type(algorithm).__name__} keeps no model of a client between rounds, but "
                f"local.start is {self.start!r}; use 'global'"
            )

    def problem(
        self, algorithm: AnyAlgorithm, cast: Any, state: Any, first: Tensor
    ) -> LocalProblem:
        """A client's local problem (or that of a stack) with its start.

        `first`, (1,) or (K, 1), is whether it is the client's first round.
        """
        problem = algorithm.local_problem(cast, state)
        if self.start == "global":
            return problem
        own = algorithm.local_params(state)
        assert own is not None, "`check` refuses it"
        if self.start == "current":
            own = torch.where(first, problem.start, own)
        return problem._replace(start=own)
