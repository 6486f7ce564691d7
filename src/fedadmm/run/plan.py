"""What a run is made of: its state, its schedule, a report per round, and why it ended.

`pack_state` and `unpack_state` are how a checkpoint holds a state, a simulation's and a server's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedadmm.core import messages, trees
from fedadmm.core.codec import Packed, pack, unpack
from fedadmm.core.errors import ANOTHER_VERSION, StateError
from fedadmm.core.messages import ClientInfo, Download, EngineState, Missed
from fedadmm.core.outputs import AnyOutput, Iterate, LastIterate
from fedadmm.run.evaluation import Evaluation, Target
from fedadmm.run.metrics import Best, Judge
from fedadmm.run.record import Record, Stopwatch

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


_BEST = Best("", 0.0, 0, 0, None, Iterate(torch.empty(0)))
"""The form of what is read back; the values come from the checkpoint."""


def pack_state(state: RunState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a state by name, and the rest as JSON can hold it."""
    missed, engine = state.missed, state.engine or EngineState({}, {})
    packed = pack(_tree(state, tuple(engine.downloads.values())))
    values = {
        "plain": packed.plain,
        "notes": state.notes,
        "noised": _rows(state.noised),
        "missed": None if missed is None else missed.rows(),
        "engine": None if state.engine is None else engine.values,
        "downloads": list(engine.downloads),
    }
    return packed.tensors | ({} if missed is None else missed.tensors()), values


def unpack_state(
    template: RunState, cast: Any, tensors: Mapping[str, Tensor], values: Mapping[str, Any]
) -> RunState:
    """The inverse, for a run that begins with `template` and broadcasts `cast`.

    A checkpoint of another method, or of another output, is refused.
    """
    device = trees.tensors(template.server)[0].device
    packed = Packed({name: tensor.to(device) for name, tensor in tensors.items()}, values["plain"])
    number, steps = packed.plain["round"], values["downloads"]
    needed = sorted(name for name, _ in trees.named_tensors(template.output, "output"))
    held = sorted(name for name in tensors if name.partition(".")[0] == "output")
    if needed != held:
        raise StateError(
            f"the checkpoint of round {number} holds {', '.join(held) or 'nothing'} of its output, "
            f"but this run's output needs {', '.join(needed) or 'nothing'}, made from the first "
            "round on; resume with the output that it began with"
        )
    for name, _ in trees.named_tensors(template.server, "server"):
        if name not in tensors:
            raise StateError(
                f"the checkpoint of round {number} holds {', '.join(sorted(tensors))}, but this "
                f"method needs {name}; {ANOTHER_VERSION}"
            )
    best = _BEST if "best.round" in packed.plain else None
    tree = _tree(template, (Download(cast),) * len(steps))._replace(best=best)
    state: Any = unpack(tree, packed)
    noised, missed, engine = values["noised"], None, None
    if template.missed is not None:
        missed = messages.restored(template.missed, values["missed"], tensors, device)
    if values["engine"] is not None:
        engine = EngineState(values["engine"], dict(zip(steps, state.engine, strict=True)))
    read: RunState = state._replace(
        engine=engine,
        notes=values["notes"],
        noised=None if noised is None else {client: Noised(*made) for client, *made in noised},
        missed=missed,
    )
    return read


def _tree(state: RunState, downloads: tuple[Download, ...]) -> Any:
    """What of a state is a tree of tensors and plain values."""
    others: dict[str, Any] = dict.fromkeys(("notes", "missed", "noised"))
    return state._replace(**others, engine=downloads)  # type: ignore[arg-type]


def _rows(known: Mapping[int, Iterable[Any]] | None) -> list[list[Any]] | None:
    """What is known of each client, a row each."""
    return None if known is None else [[client, *seen] for client, seen in known.items()]


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
    watch: Stopwatch | None = None
    """Who else counts the time of a round."""
