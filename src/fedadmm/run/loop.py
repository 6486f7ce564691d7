"""The only training loop.

    sampler -> who takes part           algorithm.broadcast -> what they get
    engine.run_clients -> their uploads, streamed into one weighted sum
    algorithm.server_update -> one step; then what is handed out is evaluated and recorded

Everything random is derived from (seed, purpose, round, client), so a run is the pair of its
state and its round number: it can be resumed anywhere.
"""

from __future__ import annotations

import itertools
import math
import reprlib
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.errors import ParameterError, StateError
from fedadmm.core.missed import Missed
from fedadmm.core.outputs import AnyOutput, Iterate, LastIterate
from fedadmm.core.protocols import (
    AnyAlgorithm,
    ClientInfo,
    ClientStateStore,
    Download,
    Engine,
    EngineState,
    Known,
    Received,
    Sampler,
    Seen,
    Upload,
)
from fedadmm.core.uploads import AdaptiveClip
from fedadmm.core.uploads.pipeline import noised, round_dice
from fedadmm.run.client import Expected, Job, bound_tensor, message_template, this_round
from fedadmm.run.evaluation import Evaluation, Target
from fedadmm.run.record import Record, cohort, numbers, value, work
from fedadmm.run.replies import Replies

EXPLOSION = 1e6
"""A loss this many times its first value (plus one) counts as exploded."""


class RunState(NamedTuple):
    """All that a run needs to go on, besides its clients' records."""

    round: int
    """The index of the next round, which is how many are done; -1 before an initial round."""
    server: Any
    buffers: Tensor | None
    first_loss: float | None = None
    """The first loss that was measured, which divergence is judged by."""
    engine: EngineState | None = None
    """The clock and the work in flight of an engine that has them."""
    notes: dict[str, Any] | None = None
    """What the instruments remember, as plain values by name."""
    known: Known | None = None
    """What a sampler that looks back may know of the clients; None for others."""
    output: Any = None
    """What the output remembers, as tensors."""
    missed: Missed | None = None
    """What absent clients have missed, for a method that moves them along; None for others."""
    bound: float | None = None
    """The norm that an adaptive clip cuts the next uploads to; None for others."""


Code = Literal[
    "completed",
    "target",
    "tolerance",
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


class RoundReport(NamedTuple):
    """What observers get after every round."""

    state: RunState
    record: Record
    infos: Sequence[ClientInfo]
    ending: Ending | None


class Instrument(Protocol):
    """Looks at the whole state between rounds, and remembers plain values of its own."""

    @property
    def name(self) -> str:
        """Under which its note is kept."""

    def begin(self, state: RunState, store: ClientStateStore) -> Any:
        """The note before the first round."""

    def look(
        self, report: RoundReport, store: ClientStateStore, note: Any
    ) -> tuple[Any, dict[str, Any]]:
        """After a round, an initial one too: the new note, and what its record shall say."""


class Spending(Protocol):
    """What a run with noise has spent of its privacy."""

    @property
    def delta(self) -> float:
        """The delta of (epsilon, delta)."""

    @property
    def budget(self) -> float | None:
        """The epsilon that may be spent."""

    @property
    def affordable(self) -> int | None:
        """How many rounds the budget lasts; None without one."""

    def epsilon(self, rounds: int) -> float:
        """What has been spent after so many rounds."""


class Schedule(NamedTuple):
    """How long a run goes and what is looked at on the way."""

    rounds: int
    evaluation: Evaluation
    target: Target | None = None
    tolerance: float | None = None
    instruments: Sequence[Instrument] = ()
    output: AnyOutput = LastIterate()
    spending: Spending | None = None


def offered(algorithm: AnyAlgorithm, state: RunState) -> Iterate:
    """What a method offers to be handed out."""
    mean = algorithm.participants_mean(state.server)
    return Iterate(algorithm.global_params(state.server), state.buffers, mean)


def initial_state(job: Job) -> RunState:
    """The state before the first round, whose index is -1 for methods that start with everyone."""
    shared = job.initial_buffers if job.problem.buffers == "average" else None
    server = job.algorithm.init_server(job.initial)
    total = job.algorithm.virtual_steps(server)
    missed = None if total is None else Missed.nothing(total)
    first = -1 if job.algorithm.starts_with_everyone else 0
    return RunState(first, server, shared, missed=missed, bound=job.uploads.first_bound)


def run(
    job: Job,
    sampler: Sampler,
    engine: Engine,
    store: ClientStateStore,
    schedule: Schedule,
    state: RunState,
) -> Iterator[RoundReport]:
    """Yield a report after every round; the last one carries the ending."""
    state = _with_memory(sampler, state)
    output = schedule.output
    if state.engine is not None:
        engine.restore(state.engine)
    if state.notes is None:
        notes = {tool.name: tool.begin(state, store) for tool in schedule.instruments}
        state = state._replace(notes=notes, output=output.begin(offered(job.algorithm, state)))
    for tool in schedule.instruments:
        if tool.name not in (state.notes or {}):
            raise StateError(
                f"the checkpoint of round {state.round} knows nothing of the {tool.name}, but it "
                "must be measured from the first round on"
            )
    _check_budget(schedule, state)
    first = state.round
    ids = _cohort(sampler, job, state.round, state.known)
    while state.round < schedule.rounds:
        upcoming = None
        if not sampler.looks_back and state.round + 1 < schedule.rounds:
            upcoming = _cohort(sampler, job, state.round + 1, None)
            if state.round > first:  # no thread yet while engines may still start processes
                store.prefetch(_newcomers(upcoming, ids))
        following, record, infos = run_round(job, ids, engine, state)
        if schedule.spending is not None:
            record["privacy"] = _spent(schedule.spending, job, state)
        following = _remembered(following, state.round, ids, infos)
        if (ending := _broken(infos, following.round)) is not None:
            yield RoundReport(state, record, infos, ending)
            return
        iterate = offered(job.algorithm, following)
        if following.round == 0:  # an initial round leads to where the others start
            note = output.begin(iterate)
        else:
            note = output.look(state.output, iterate, following.round, job.seed)
        following = following._replace(output=note)
        if schedule.evaluation.due(following.round, schedule.rounds):
            began = time.perf_counter()
            handed = output.model(note, iterate)
            measured = schedule.evaluation.measure(job, store, handed.params, handed.buffers)
            for suffix, model in output.beside(note, iterate).items():
                other = schedule.evaluation.measure(job, store, model.params, model.buffers)
                measured |= {f"{name}_{suffix}": found for name, found in other.items()}
            record["metrics"] = measured
            record["clock"]["evaluation_seconds"] = time.perf_counter() - began
        following = _instrumented(following, record, infos, store, schedule)
        ending = _ending(following.round, record, infos, schedule, state.first_loss)
        if state.first_loss is None:
            following = following._replace(first_loss=record["metrics"].get("loss"))
        state = following
        yield RoundReport(state, record, infos, ending)
        if ending is not None:
            return
        if "evaluation_seconds" in record["clock"]:  # observers were first: they say it better
            _check_measured(record, schedule)
        ids = _cohort(sampler, job, state.round, state.known) if upcoming is None else upcoming


def _check_budget(schedule: Schedule, state: RunState) -> None:
    spending = schedule.spending
    if spending is None or spending.affordable is None or state.round < spending.affordable:
        return
    raise StateError(
        f"the run has spent epsilon {spending.epsilon(state.round):.4g} in {state.round} rounds, "
        f"but its budget is {spending.budget:g}, which another round would exceed"
    )


def _spent(spending: Spending, job: Job, before: RunState) -> dict[str, Any]:
    """What the record of a round says about privacy."""
    clip = job.uploads.clip
    assert clip is not None, "noise without a clip; the pairing refuses it"
    return {
        "epsilon": spending.epsilon(before.round + 1),
        "delta": spending.delta,
        "clip": clip.norm if before.bound is None else before.bound,
    }


def _with_memory(sampler: Sampler, state: RunState) -> RunState:
    """The state with a memory exactly when the sampler looks back."""
    if not sampler.looks_back:
        return state._replace(known=None)
    if state.known is None and state.notes is not None:
        raise StateError(
            f"the checkpoint of round {state.round} does not say who took part in which round, but "
            f"{type(sampler).__name__} looks back; start again from round 0"
        )
    return state._replace(known=state.known or {})


def _cohort(sampler: Sampler, job: Job, index: int, known: Known | None) -> Sequence[int]:
    """Who takes part: in an initial round all, else whom a sampler says, maybe somebody's own."""
    clients = job.problem.num_clients
    if index < 0:
        return range(clients)
    ids = sampler.sample(job.seed, index, clients, known)
    if isinstance(ids, range) and ids == range(clients):
        return ids
    rising = all(a < b for a, b in itertools.pairwise(ids))
    if not rising or (len(ids) > 0 and not 0 <= ids[0] <= ids[-1] < clients):
        shown = reprlib.repr(list(ids))
        raise ParameterError(
            f"{type(sampler).__name__}: sample is {shown} in round {index}, but must be ids from 0 "
            f"to {clients - 1}, sorted, without repetition"
        )
    return ids


def _remembered(
    state: RunState, index: int, asked: Sequence[int], infos: Sequence[ClientInfo]
) -> RunState:
    """The state after a round that asked some clients and heard some of them, or others."""
    if state.known is None:
        return state
    known = dict(state.known)
    for client in asked:
        known[client] = known.get(client, Seen(index))._replace(asked=index)
    for info in infos:
        before = known.get(info.client, Seen(index))
        known[info.client] = Seen(before.asked, index, info.drift, info.loss)
    return state._replace(known=known)


def _instrumented(
    state: RunState,
    record: Record,
    infos: Sequence[ClientInfo],
    store: ClientStateStore,
    schedule: Schedule,
) -> RunState:
    """Let every instrument look; what it found goes into the record, notes into the state."""
    notes = dict(state.notes or {})
    for tool in schedule.instruments:
        report, began = RoundReport(state, record, infos, None), time.perf_counter()
        notes[tool.name], found = tool.look(report, store, notes.get(tool.name))
        if found:
            record["clock"][f"{tool.name}_seconds"] = time.perf_counter() - began
            _add(record.setdefault("instruments", {}), found, tool.name)
    return state._replace(notes=notes)


def _add(instruments: dict[str, Any], found: dict[str, Any], source: str) -> None:
    """Add what an instrument found; none may take the place of what another one did."""
    for name in found:
        if name in instruments:
            raise ParameterError(
                f"simulate: the {source} reports {name!r}, which another instrument does already; "
                f"taken are {', '.join(sorted(instruments))}"
            )
    instruments |= found


def _broken(infos: Sequence[ClientInfo], number: int) -> Ending | None:
    """The ending when a client's result is not finite."""
    when = f"round {number}" if number else "the initial round"
    for info in infos:
        if not info.finite:
            sentence = (
                f"diverged in {when}: client {info.client} returned a vector with NaN or infinite "
                "entries"
            )
            return Ending("diverged", sentence)
    return None


def _newcomers(upcoming: Sequence[int], ids: Sequence[int]) -> list[int]:
    """Who takes part next but not now: the records of the others are about to change."""
    current = set(ids)
    return [client for client in upcoming if client not in current]


def run_round(
    job: Job, ids: Sequence[int], engine: Engine, state: RunState
) -> tuple[RunState, Record, list[ClientInfo]]:
    """One round: broadcast, stream the weighted sum of the replies, one server step."""
    began = time.perf_counter()
    algorithm, problem, round_index = job.algorithm, job.problem, state.round
    cast = algorithm.broadcast(state.server, this_round(job, round_index))
    download = Download(cast, state.buffers, state.missed, bound_tensor(state.bound))
    arrived = partial(algorithm.arrived, state.server) if engine.is_asynchronous else None
    replies = Replies(problem, arrived)
    finite = all(map(replies.add, engine.run_clients(ids, download, round_index)))
    infos = sorted(replies.infos, key=lambda info: info.client)
    server, buffers, total = state.server, state.buffers, replies.total
    received = Received(len(infos), replies.weight, problem.num_clients, round_index)
    if job.expected is not None and finite:
        total, received = _hidden(job, total, infos, state, cast)
    if total is not None and finite:
        server = algorithm.server_update(server, total.message, received, problem.regularizer)
        buffers = replies.averaged_buffers(buffers, engine.is_asynchronous)
    seconds = time.perf_counter() - began
    following = state._replace(round=state.round + 1, server=server, buffers=buffers)
    following = following._replace(bound=_next_bound(job, state.bound, total, received))
    following = following._replace(missed=_missed(job, following, engine, infos, round_index))
    move = _distance(algorithm.global_params(server), algorithm.global_params(state.server))
    each = trees.num_bytes(download) + (state.missed.bytes_each if state.missed else 0)
    record: Record = {
        "round": following.round,
        "cohort": cohort(infos),
        "work": work(infos, job, replies.weight, move),
        "traffic": {"bytes_up": replies.bytes_up, "bytes_down": each * engine.broadcasts(ids)},
        "clock": {"seconds": seconds} | engine.extras(),
        "metrics": {},
    }
    return following._replace(engine=engine.snapshot()), record, infos


def _hidden(
    job: Job, total: Upload | None, infos: Sequence[ClientInfo], state: RunState, cast: Any
) -> tuple[Upload, Received]:
    """The sum with its noise, and the replies that were expected: who came is not to be seen.

    A round without anybody has noise like any other.
    """
    expected, uploads, index = job.expected, job.uploads, state.round
    assert expected is not None
    assert uploads.clip is not None
    everybody = Expected(job.problem.num_clients, 1.0, expected.largest)
    whom = expected if index >= 0 else everybody
    if total is None:
        within = None if state.bound is None else job.initial.new_zeros(1)
        total = Upload(trees.scaled(message_template(job, cast), 0.0), None, within)
    clients = [info.client for info in infos]
    dice = round_dice(job.seed, index, clients, expected.deployed)
    change = expected.largest * (uploads.clip.norm if state.bound is None else state.bound)
    deviation = uploads.vector_noise(whom.replies) * change
    message = noised(job.algorithm, total.message, deviation, dice)
    total = total._replace(message=message)
    if total.within is not None:
        spread = uploads.count_noise(whom.replies) * expected.largest
        total = total._replace(within=total.within + spread * dice.normal(total.within, "count"))
    count = max(1, round(whom.replies))
    return total, Received(count, whom.weight, job.problem.num_clients, index)


def _next_bound(
    job: Job, bound: float | None, total: Upload | None, received: Received
) -> float | None:
    """An adaptive clip's bound after a round."""
    clip = job.uploads.clip
    if bound is None or total is None or total.within is None:
        return bound
    assert isinstance(clip, AdaptiveClip)
    share = float(total.within) / received.weight + 0.5
    return bound * math.exp(-clip.lr * (min(1.0, max(0.0, share)) - clip.quantile))


def _missed(
    job: Job, state: RunState, engine: Engine, infos: Sequence[ClientInfo], index: int
) -> Missed | None:
    """What absent clients have missed after a step that folded these replies."""
    total = job.algorithm.virtual_steps(state.server)
    if total is None:
        return None
    assert state.missed is not None, "a state without what was missed; `initial_state` makes it"
    begun = {info.client: index if info.begun is None else info.begun for info in infos}
    return state.missed.after(index, total, begun, engine.steps_in_work())


def _distance(a: Tensor, b: Tensor) -> float:
    return float(torch.linalg.vector_norm(a - b))


def _check_measured(record: Record, schedule: Schedule) -> None:
    """Refuse an early end that waits for something nobody measures."""
    target = schedule.target
    waited = [] if target is None else [("target", one) for one in target.metrics]
    waited += [] if schedule.tolerance is None else [("tolerance", "gradient_mapping")]
    for name, metric in waited:
        if value(record, metric) is None:
            raise ParameterError(
                f"simulate: {name} waits for {metric!r}, which is not measured; "
                f"there are {', '.join(sorted(numbers(record)))}"
            )


def _ending(
    number: int,
    record: Record,
    infos: Sequence[ClientInfo],
    schedule: Schedule,
    first_loss: float | None,
) -> Ending | None:
    if number == 0:
        return None
    loss = record["metrics"].get("loss", 0.0)
    exploded = first_loss is not None and loss > EXPLOSION * (1 + abs(first_loss))
    if not math.isfinite(loss) or exploded:
        worst = max(infos, key=lambda info: info.drift, default=None)
        client = f"; client {worst.client} moved furthest from it" if worst is not None else ""
        return Ending(
            "diverged",
            f"diverged in round {number}: the loss of the global model is {loss:g}{client}",
        )
    if (target := schedule.target) is not None:
        found = {name: value(record, name) for name in target.metrics}
        if all(map(target.reached, found.values())):
            shown = f"{target.metric} {found[target.metric]:.4g}"
            return Ending("target", f"{shown} reached the target in round {number}")
    mapping = record["metrics"].get("gradient_mapping", math.inf)
    if schedule.tolerance is not None and mapping <= schedule.tolerance:
        return Ending(
            "tolerance", f"gradient mapping {mapping:.3g} met the tolerance in round {number}"
        )
    spending = schedule.spending
    if spending is not None and number == spending.affordable and number < schedule.rounds:
        return Ending(
            "budget",
            f"spent epsilon {spending.epsilon(number):.4g} in {number} rounds; another one would "
            f"exceed the budget of {spending.budget:g}",
        )
    if number >= schedule.rounds:
        return Ending("completed", f"completed all {schedule.rounds} rounds")
    return None
