"""Callbacks: observers of a run.

Diagnostics, certificates, trackers, progress bars and user functions are callbacks.  A measuring
callback adds entries to the records; the others do not change a run.

    begin     before the first round: reject the run, or open resources
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
    """A run that begins or is resumed, as a callback sees it."""

    config: Tree
    """Its configuration."""
    job: Job
    sampler: Sampler
    engine: EngineChoice | None
    """None in a deployment, where the sites run the clients."""
    store: ClientStateStore
    """The clients' states; empty in a deployment, where the sites store them."""
    state: RunState
    """State before the next round."""
    directory: Path | None
    """The run directory; None for a run that writes none."""

    @property
    def is_fresh(self) -> bool:
        """Whether no round was run yet."""
        return "callbacks" not in self.state.components


@role("callback")
class Callback:
    """Base class of callbacks, which observe a run; all methods are optional.

    The value that `begin` returns is passed to the other methods as `live`, so that a callback can
    be a frozen dataclass of options and hold an open file or a connection.

    Example:
        >>> import torch, fedadmm as fa
        >>> class PrintModel(fa.Callback):
        ...     def round(self, report, live):
        ...         print(report.record["round"], report.state.server.theta)
        >>> clients = [fa.Quadratic(torch.eye(1), torch.tensor([b])) for b in (6.0, 3.0, 0.0)]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> work = dict(solver=fa.ExactSolver(), callbacks=[PrintModel()])
        >>> _ = fa.simulate(fa.FedAvg(), problem, 2, **work)
        1 tensor([3.])
        2 tensor([3.])
    """

    name: ClassVar[str]
    """Name in configurations."""

    def begin(self, run: Run) -> Any:
        """Called before the first round: reject the run by an exception, or open resources.

        Args:
            run: the run, before its next round.

        Returns:
            The argument `live` of the other methods.
        """

    def measure(self, report: RoundReport, live: Any, note: Any) -> tuple[Any, dict[str, Any]]:
        """Called after a round, including an initial one; adds entries to its record.

        A callback that defines this method must be part of the run from the first round on.

        Args:
            report: state and record of the round.
            live: what `begin` returned.
            note: state of the callback after the last round, of plain values, which is part of
                every checkpoint; None in the first round.

        Returns:
            The next note, and the entries.
        """
        raise NotImplementedError

    def round(self, report: RoundReport, live: Any) -> None:
        """Called after a round with its complete record; Ctrl-C is deferred until it returns."""

    def end(self, summary: Mapping[str, Any], live: Any) -> None:
        """Called after the last round, an interruption or a failure, which `summary["code"]` is."""

    @property
    def measures(self) -> bool:
        """Whether the callback adds entries to the records; a resumed run cannot change it."""
        return type(self).measure is not Callback.measure


class FunctionCallback(Callback):
    """Calls a function with the report of every round."""

    def __init__(self, function: Callable[[RoundReport], Any]) -> None:
        self._function = function

    def round(self, report: RoundReport, live: Any) -> None:
        self._function(report)


Given = Callback | Callable[[RoundReport], Any]
"""A callback, or a function of a round's report."""


def as_callbacks(given: Iterable[Given]) -> tuple[Callback, ...]:
    """Return callbacks; a function of a report becomes one that does not measure."""
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
"""Maps ending and result (None after a failure) to the summary for callbacks."""


class Callbacks:
    """The callbacks of a run as a context manager, which calls `end` of those that have begun."""

    def __init__(self, callbacks: Sequence[Callback], summarise: Summarise) -> None:
        self._callbacks = callbacks
        self._summarise = summarise
        self._ended: tuple[Ending, Any] | None = None
        self.attached: list[Attached] = []

    def begin(self, run: Run) -> None:
        """Call `begin` of all callbacks, in order."""
        for callback in self._callbacks:
            self.attached.append(Attached(callback, callback.begin(run)))

    def round(self, report: RoundReport) -> None:
        """Call `round` of all callbacks."""
        for callback, live in self.attached:
            callback.round(report, live)

    def ended(self, ending: Ending, result: Any) -> None:
        """Store how the run ended, for `end`."""
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
            with ExitStack() as last:  # calls all of them, even if one fails
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
    """Add the entries of a callback, whose names must be new."""
    for name in found:
        if name in entries:
            raise ParameterError(
                f"callbacks: got the entry {name!r} of {source}, expected a name that no other "
                f"callback uses: not {', '.join(sorted(entries))}."
            )
    entries |= found
