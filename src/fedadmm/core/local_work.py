"""What a client does in a round: which solver, for how long, and where it starts."""

from __future__ import annotations

from typing import Literal

from fedadmm.core.parts import checked
from fedadmm.core.protocols import LocalSolver, StoppingRule

Start = Literal["own", "current", "global"]


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
