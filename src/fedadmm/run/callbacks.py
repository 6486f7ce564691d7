"""Callbacks: what looks at a run while it goes on.

Diagnostics, certificates, trackers, progress bars and a user's own functions are callbacks.  One
that measures adds entries to the records; the others only look.

    begin     before the first round: refuse the run, or open what is needed
    measure   after a round, before it is decided whether the run ends: entries for its record
    round     after a round, when its record is complete
    end       after the last round, an interruption or a failure
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple

from fedadmm.core.config_tree import Tree
from fedadmm.core.errors import ParameterError
from fedadmm.core.messages import ClientInfo, ClientStateStore
from fedadmm.core.parts import name_of, role
from fedadmm.core.sampling import Sampler
from fedadmm.core.signals import interrupts_deferred
from fedadmm.core.validation import check
from fedadmm.run.client import Job
from fedadmm.run.engines.choice import EngineChoice
from fedadmm.run.record import Record
from fedadmm.run.state import Ending, RoundReport, RunState


class Run(NamedTuple):
    """What a callback may know of a run that begins or is resumed."""

    config: Tree
    """The tables that describe it."""
    job: Job
    sampler: Sampler
    engine: EngineChoice | None
    """None in a deployment, where the sites do the work."""
    store: ClientStateStore
    """The clients' states; empty in a deployment, where the sites keep them."""
    state: RunState
    """Before the next round."""
    directory: Path | None
    """The run directory; None for a run that writes none."""

    @property
    def is_fresh(self) -> bool:
        """Whether no round was run yet."""
        return "callbacks" not in self.state.components


@role("callback")
class Callback:
    """Looks at a run: a frozen dataclass of options.

    What `begin` returns is the argument `live` of the other methods, so that a callback can hold
    an open file or a connection although its options never change.
    """

    name: ClassVar[str]
    """The name in configurations."""

    def begin(self, run: Run) -> Any:
        """Refuse the run, or open what the other methods need."""

    def measure(self, report: RoundReport, live: Any, note: Any) -> tuple[Any, dict[str, Any]]:
        """After a round, an initial one too: the next note, and entries for the round's record.

        A note holds plain values and is part of every checkpoint; it is None in the first round.
        A callback that defines this method must be there from the first round on.
        """
        raise NotImplementedError

    def round(self, report: RoundReport, live: Any) -> None:
        """After a round, when its record is complete; Ctrl-C waits until it returns."""

    def end(self, summary: Mapping[str, Any], live: Any) -> None:
        """After the last round, an interruption or a failure: `code` says which."""

    @property
    def measures(self) -> bool:
        """Whether it adds to the records; a resumed run cannot change such a callback."""
        return type(self).measure is not Callback.measure


class FunctionCallback(Callback):
    """Calls a function with the report of every round."""

    def __init__(self, function: Callable[[RoundReport], Any]) -> None:
        self._function = function

    def round(self, report: RoundReport, live: Any) -> None:
        self._function(report)


Given = Callback | Callable[[RoundReport], Any]
"""What people may give: a callback, or a function of a round's report."""


def as_callbacks(given: Iterable[Given]) -> tuple[Callback, ...]:
    """Callbacks, with a function of a report as one that only looks."""
    made: list[Any] = list(given)
    for index, one in enumerate(made):
        if callable(one) and not isinstance(one, Callback | type):
            made[index] = FunctionCallback(one)
        else:
            check("simulate", f"callbacks[{index}]", one, Callback)
    return tuple(made)


class Attached(NamedTuple):
    """A callback and what its `begin` returned."""

    callback: Callback
    live: Any = None


Summarise = Callable[[Ending, Any], Mapping[str, Any]]
"""(ending, result or None) -> the summary that callbacks get at the end."""


class Callbacks:
    """The callbacks of one run, as a context: on leaving it, all that have begun end."""

    def __init__(self, callbacks: Sequence[Callback], summarise: Summarise) -> None:
        self._callbacks = callbacks
        self._summarise = summarise
        self._ended: tuple[Ending, Any] | None = None
        self.attached: list[Attached] = []

    def begin(self, run: Run) -> None:
        """Begin all of them, in order."""
        for callback in self._callbacks:
            self.attached.append(Attached(callback, callback.begin(run)))

    def round(self, report: RoundReport) -> None:
        """A round is complete."""
        for callback, live in self.attached:
            callback.round(report, live)

    def ended(self, ending: Ending, result: Any) -> None:
        """The run has ended by itself."""
        self._ended = ending, result

    def __enter__(self) -> Callbacks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        interrupted = isinstance(error, KeyboardInterrupt)
        with interrupts_deferred() if interrupted else nullcontext():
            ending, result = self._ended or (_broken_off(error), None)
            summary = self._summarise(ending, result)
            with ExitStack() as last:  # runs all of them, even if one fails
                for callback, live in reversed(self.attached):
                    last.callback(callback.end, summary, live)


def _broken_off(error: BaseException | None) -> Ending:
    if isinstance(error, KeyboardInterrupt):
        return Ending("interrupted", "interrupted")
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return Ending("failed", f"failed: {reason}")


def measured(
    attached: Sequence[Attached],
    notes: Mapping[str, Any],
    state: RunState,
    record: Record,
    infos: Sequence[ClientInfo],
) -> tuple[dict[str, Any], None]:
    """Call `measure` of every callback, add its entries to the record, and return the notes."""
    notes = dict(notes)
    for callback, live in attached:
        if not callback.measures:
            continue
        name, began = name_of(type(callback)), time.perf_counter()
        report = RoundReport(state, record, infos, None)
        notes[name], found = callback.measure(report, live, notes.get(name))
        if found:
            short = name.rpartition(":")[2]
            record["clock"][f"{short}_seconds"] = time.perf_counter() - began
            _add(record.setdefault("callbacks", {}), found, short)
    return notes, None


def _add(entries: dict[str, Any], found: Mapping[str, Any], source: str) -> None:
    """Add what a callback found; none may take the place of what another one did."""
    for name in found:
        if name in entries:
            raise ParameterError(
                f"simulate: the callback {source} reports {name!r}, which another one does "
                f"already; taken are {', '.join(sorted(entries))}"
            )
    entries |= found
