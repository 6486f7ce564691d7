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
)
from fedadmm.run.client import Job, this_round
from fedadmm.run.evaluation import Evaluation, Target
from fedadmm.run.replies import Replies

EXPLOSION = 1e6
"""A loss this many times its first value (plus one) counts as exploded."""

Record = dict[str, Any]


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


Code = Literal["completed", "target", "tolerance", "diverged", "interrupted", "running", "failed"]


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

    def look(self, report: RoundReport, store: ClientStateStore, note: Any) -> tuple[Any, Record]:
        """After a round, an initial one too: the new note, and entries for its record."""


class Schedule(NamedTuple):
    """How long a run goes and what is looked at on the way."""

    rounds: int
    evaluation: Evaluation
    target: Target | None = None
    tolerance: float | None = None
    instruments: Sequence[Instrument] = ()
    output: AnyOutput = LastIterate()


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
    return RunState(first, server, shared, missed=missed)


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
    first = state.round
    ids = _cohort(sampler, job, state.round, state.known)
    while state.round < schedule.rounds:
        upcoming = None
        if not sampler.looks_back and state.round + 1 < schedule.rounds:
            upcoming = _cohort(sampler, job, state.round + 1, None)
            if state.round > first:  # no thread yet while engines may still start processes
                store.prefetch(_newcomers(upcoming, ids))
        following, record, infos = run_round(job, ids, engine, state)
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
                measured |= {f"{name}_{suffix}": value for name, value in other.items()}
            record["evaluation_seconds"] = time.perf_counter() - began
            _add(record, measured, "the evaluation")
        following = _instrumented(following, record, infos, store, schedule)
        ending = _ending(following.round, record, infos, schedule, state.first_loss)
        if state.first_loss is None:
            following = following._replace(first_loss=record.get("loss"))
        state = following
        yield RoundReport(state, record, infos, ending)
        if ending is not None:
            return
        if "evaluation_seconds" in record:  # observers know better what to say, and were first
            _check_measured(record, schedule)
        ids = _cohort(sampler, job, state.round, state.known) if upcoming is None else upcoming


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
    """Let every instrument look; entries go into the record, notes into the state."""
    notes = dict(state.notes or {})
    for tool in schedule.instruments:
        report = RoundReport(state, record, infos, None)
        notes[tool.name], entries = tool.look(report, store, notes.get(tool.name))
        _add(record, entries, f"the {tool.name}")
    return state._replace(notes=notes)


def _add(record: Record, entries: Record, source: str) -> None:
    """Add what was measured; nothing may take the place of what is there already."""
    for name in entries:
        if name in record:
            raise ParameterError(
                f"simulate: {source} reports {name!r}, but a round's record has an entry of that "
                f"name already; taken are {', '.join(sorted(record))}"
            )
    record |= entries


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
    download = Download(cast, state.buffers, state.missed)
    arrived = partial(algorithm.arrived, state.server) if engine.is_asynchronous else None
    replies = Replies(problem, arrived)
    finite = all(map(replies.add, engine.run_clients(ids, download, round_index)))
    infos = sorted(replies.infos, key=lambda info: info.client)
    server, buffers = state.server, state.buffers
    if replies.total is not None and finite:
        total = replies.total
        received = Received(len(infos), replies.weight, problem.num_clients, round_index)
        server = algorithm.server_update(server, total.message, received, problem.regularizer)
        buffers = replies.averaged_buffers(buffers, engine.is_asynchronous)
    seconds = time.perf_counter() - began
    following = state._replace(round=state.round + 1, server=server, buffers=buffers)
    following = following._replace(missed=_missed(job, following, engine, infos, round_index))
    move = _distance(algorithm.global_params(server), algorithm.global_params(state.server))
    record = _record(following.round, infos, replies.weight, job, move)
    each = trees.num_bytes(download) + (state.missed.bytes_each if state.missed else 0)
    down = each * engine.broadcasts(ids)
    record |= {"bytes_up": replies.bytes_up, "bytes_down": down, "seconds": seconds}
    record |= engine.extras()
    return following._replace(engine=engine.snapshot()), record, infos


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


def _record(
    number: int, infos: Sequence[ClientInfo], weight: float, job: Job, move: float
) -> Record:
    """What is known about a round without evaluating anything."""
    penalties = torch.tensor([info.weight for info in infos] or [0.0], dtype=torch.float64)
    shares = [job.problem.weight(info.client) for info in infos]
    drift = sum(a * info.drift**2 for a, info in zip(shares, infos, strict=True))
    return {
        "round": number,
        "participants": len(infos),
        "clients": [info.client for info in infos],
        "primal_residual": math.sqrt(drift / weight) if weight else 0.0,
        "dual_residual": float(penalties.mean()) * move,
        "epochs": sum(info.solve.epochs for info in infos) / max(len(infos), 1),
        "passes": sum(info.solve.passes for info in infos) / max(len(infos), 1),
        "steps": sum(info.solve.steps for info in infos),
        "penalty_mean": float(penalties.mean()),
        "penalty_min": float(penalties.min()),
        "penalty_max": float(penalties.max()),
        "penalty_quartiles": [float(q) for q in penalties.quantile(_QUARTILES)],
    }


_QUARTILES = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)


def _check_measured(record: Record, schedule: Schedule) -> None:
    """Refuse an early end that waits for something nobody measures."""
    target = schedule.target
    waited = [] if target is None else [("target", one) for one in (target.metric, *target.also)]
    waited += [] if schedule.tolerance is None else [("tolerance", "gradient_mapping")]
    for name, metric in waited:
        if metric not in record:
            numbers = (key for key, value in record.items() if isinstance(value, (int, float)))
            raise ParameterError(
                f"simulate: {name} waits for {metric!r}, which is not measured; "
                f"there are {', '.join(sorted(numbers))}"
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
    loss = record.get("loss", 0.0)
    exploded = first_loss is not None and loss > EXPLOSION * (1 + abs(first_loss))
    if not math.isfinite(loss) or exploded:
        worst = max(infos, key=lambda info: info.drift, default=None)
        client = f"; client {worst.client} moved furthest from it" if worst is not None else ""
        return Ending(
            "diverged",
            f"diverged in round {number}: the loss of the global model is {loss:g}{client}",
        )
    if schedule.target is not None and schedule.target.ends(record):
        metric = schedule.target.metric
        return Ending(
            "target", f"{metric} {record[metric]:.4g} reached the target in round {number}"
        )
    mapping = record.get("gradient_mapping", math.inf)
    if schedule.tolerance is not None and mapping <= schedule.tolerance:
        return Ending(
            "tolerance", f"gradient mapping {mapping:.3g} met the tolerance in round {number}"
        )
    if number >= schedule.rounds:
        return Ending("completed", f"completed all {schedule.rounds} rounds")
    return None
