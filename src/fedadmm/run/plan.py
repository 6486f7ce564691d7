"""What a run is made of: its state, its schedule, a report per round, and why it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch import Tensor

from fedadmm.core.missed import Missed
from fedadmm.core.outputs import AnyOutput, LastIterate
from fedadmm.core.protocols import ClientInfo, EngineState, Known
from fedadmm.run.best import Best, Judge
from fedadmm.run.evaluation import Evaluation, Target
from fedadmm.run.record import Record

if TYPE_CHECKING:
    from fedadmm.run.callbacks import Attached
    from fedadmm.run.noise import Spending


class Noised(NamedTuple):
    """The steps with noise that a client has made."""

    steps: int = 0
    per_epoch: int = 1
    """The steps of an epoch: a row is in each of them with probability one over this."""
    told: int = 0
    """What the client itself said last, where it counts."""


class RunState(NamedTuple):
    """All that a run needs to go on, besides its clients' records."""

    round: int
    """The index of the next round, which is how many are done; -1 before an initial round."""
    server: Any
    buffers: Tensor | None
    first_loss: float | None = None
    """The first loss that was measured, which divergence is judged by."""
    first_norm: float | None = None
    """The norm of the model before or after the first step that moved it, whichever is larger;
    divergence is judged by it as well."""
    engine: EngineState | None = None
    """The clock and the work in flight of an engine that has them."""
    notes: dict[str, Any] | None = None
    """What callbacks that measure remember, as plain values by name."""
    known: Known | None = None
    """What a sampler that looks back may know of the clients; None for others."""
    output: Any = None
    """What the output remembers, as tensors."""
    missed: Missed | None = None
    """What absent clients have missed, for a method that moves them along; None for others."""
    clip_bound: float | None = None
    """The norm that an adaptive clip cuts the next uploads to; None for others."""
    noised: Mapping[int, Noised] | None = None
    """The noised steps of every client that made some, for a solver with noise; None for others."""
    best: Best | None = None
    """The best model so far; None before the first measurement."""


Code = Literal[
    "completed",
    "target",
    "tolerance",
    "patience",
    "budget",
    "diverged",
    "interrupted",
    "running",
    "failed",
]


class Ending(NamedTuple):
    """Why a run ended: one word for programs, one sentence for people."""

    code: Code
    sentence: str
    measured: Mapping[str, float] | None = None
    """What met the target or the tolerance, by name; None for other endings."""


class RoundReport(NamedTuple):
    """What callbacks get after every round."""

    state: RunState
    record: Record
    infos: Sequence[ClientInfo]
    ending: Ending | None


class Schedule(NamedTuple):
    """How long a run goes and what is looked at on the way."""

    rounds: int
    evaluation: Evaluation
    target: Target | None = None
    tolerance: float | None = None
    callbacks: Sequence[Attached] = ()
    output: AnyOutput = LastIterate()
    spending: Spending | None = None
    judge: Judge | None = None
    """Says which model is the best; None where others measure it after the loop has."""
