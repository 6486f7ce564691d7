"""The only training loop.

    sampler -> who takes part           algorithm.broadcast -> what they get
    engine.run_clients -> their uploads
    aggregate.fold -> one of them all: a weighted sum, streamed, unless the part asks for more
    algorithm.server_update -> one step; then the output model is evaluated and recorded

Everything random is derived from (seed, purpose, round, client), so a run is the pair of its
state and its round number: it can be resumed anywhere.
"""

from __future__ import annotations

import itertools
import operator
import reprlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.aggregation import Sum
from fedadmm.core.capabilities import ParticipantsMeanModel, StalenessWeighting
from fedadmm.core.errors import EngineError, ParameterError, StateError
from fedadmm.core.messages import (
    ClientInfo,
    ClientStateStore,
    Download,
    Engine,
    Partial,
    Upload,
    first_missed,
)
from fedadmm.core.outputs import Iterate
from fedadmm.core.parts import name_of
from fedadmm.core.protocols import AnyAlgorithm, Received
from fedadmm.core.sampling import Sampler
from fedadmm.run import callbacks, endings, noise
from fedadmm.run.client import Job, aligned, bound_tensor, this_round
from fedadmm.run.plan import RoundReport, RunState, Schedule
from fedadmm.run.record import Record, Stopwatch, cohort, work


def offered(algorithm: AnyAlgorithm, state: RunState) -> Iterate:
    """What a method offers as output model."""
    mean = None
    if isinstance(algorithm, ParticipantsMeanModel):
        mean = algorithm.participants_mean(state.server)
    return Iterate(algorithm.global_params(state.server), state.buffers, mean)


def initial_state(job: Job) -> RunState:
    """The state before the first round, whose index is -1 for methods that start with everyone."""
    shared = job.initial_buffers if job.problem.buffers == "average" else None
    server = job.algorithm.init_server(job.initial)
    missed = first_missed(job.algorithm, server)
    first = 0 if job.algorithm.requirements.initial_round is None else -1
    return RunState(first, server, shared, missed=missed, clip_bound=job.uploads.first_bound)


def run(
    job: Job,
    sampler: Sampler,
    engine: Engine,
    store: ClientStateStore,
    schedule: Schedule,
    state: RunState,
) -> Iterator[RoundReport]:
    """Yield a report after every round; the last one carries the ending."""
    output = schedule.output
    if state.engine is not None:
        engine.restore(state.engine)
    if state.notes is None:
        notes = {name_of(type(one)): None for one, _ in schedule.callbacks if one.measures}
        state = state._replace(notes=notes, output=output.begin(offered(job.algorithm, state)))
    for callback, _ in schedule.callbacks:
        if callback.measures and name_of(type(callback)) not in (state.notes or {}):
            raise StateError(
                f"the checkpoint of round {state.round} knows nothing of the callback "
                f"{name_of(type(callback))}, but it must measure from the first round on"
            )
    endings.check_budget(schedule, state)
    first, watch = state.round, schedule.watch or Stopwatch()
    watch.taken()
    with watch.on("sampling"):
        ids = _cohort(sampler, job, state.round)
    while state.round < schedule.rounds:
        upcoming = None
        if state.round + 1 < schedule.rounds:
            with watch.on("sampling"):
                upcoming = _cohort(sampler, job, state.round + 1)
            if state.round > first:  # no thread yet while engines may still start processes
                # The records of those who take part now are about to change.
                store.prefetch(sorted({*upcoming} - {*ids}))
        following, record, infos = run_round(job, ids, engine, state, watch)
        if schedule.spending is not None:
            following = noise.counted(following, job, infos)
            record["privacy"] = noise.spent(schedule.spending, state, following)
        if (ending := endings.broken(infos, following.round)) is not None:
            yield RoundReport(state, record, infos, ending)
            return
        iterate = offered(job.algorithm, following)
        if following.round == 0:  # an initial round leads to where the others start
            note = output.begin(iterate)
        else:
            note = output.look(state.output, iterate, following.round, job.seed)
        following = following._replace(output=note)
        handed = output.model(note, iterate)
        if schedule.evaluation.due(following.round, schedule.rounds):
            with watch.on("evaluation"):
                measure = partial(schedule.evaluation.measure, job, store, engine=engine)
                measured = measure(handed.params, handed.buffers)
                for suffix, model in output.beside(note, iterate).items():
                    other = measure(model.params, model.buffers)
                    for name, found in other.metrics.items():
                        measured.metrics[f"{name}_{suffix}"] = found
                record["metrics"] = measured.metrics
                if measured.clients:
                    record["clients"] = measured.clients
        with watch.on("callbacks"):
            following = callbacks.measured(schedule.callbacks, following, record, infos)
        if schedule.judge is not None:
            following = following._replace(best=schedule.judge.after(state.best, record, handed))
        ending = endings.decide(following, record, infos, schedule, iterate.params)
        if state.first_loss is None:
            following = following._replace(first_loss=record["metrics"].get("loss"))
        if state.first_norm is None:
            before = job.algorithm.global_params(state.server)
            following = following._replace(first_norm=endings.first_norm(before, iterate.params))
        state = following
        record["clock"] |= watch.taken()
        yield RoundReport(state, record, infos, ending)
        if ending is not None:
            return
        if "evaluation_seconds" in record["clock"]:  # callbacks were first: they say it better
            endings.check_measured(record, schedule, state)
        with watch.on("sampling"):
            ids = _cohort(sampler, job, state.round) if upcoming is None else upcoming


def _cohort(sampler: Sampler, job: Job, index: int) -> Sequence[int]:
    """Who takes part: in an initial round all, else whom a sampler says, maybe somebody's own."""
    clients = job.problem.num_clients
    if index < 0:
        return range(clients)
    chosen = sampler.sample(job.seed, index, clients)
    if isinstance(chosen, range) and chosen == range(clients):
        return chosen
    try:
        ids = [operator.index(one) for one in chosen]  # NumPy's whole numbers become Python's
        right = all(0 <= one < clients for one in ids)
    except TypeError:
        ids, right = [], False
    if not right or any(a >= b for a, b in itertools.pairwise(ids)):
        raise ParameterError(
            f"{type(sampler).__name__}: sample is {reprlib.repr(chosen)} in round {index}, but "
            f"must be ids from 0 to {clients - 1}, sorted, without repetition"
        )
    return ids


def run_round(
    job: Job, ids: Sequence[int], engine: Engine, state: RunState, watch: Stopwatch
) -> tuple[RunState, Record, list[ClientInfo]]:
    """One round: broadcast, fold the replies as they come, one server step."""
    began, outside = time.perf_counter(), watch.switch("broadcast")
    algorithm, problem, round_index = job.algorithm, job.problem, state.round
    cast = algorithm.broadcast(state.server, this_round(job, round_index))
    download = Download(cast, state.buffers, state.missed, bound_tensor(state.clip_bound))
    arrived = None
    if engine.is_asynchronous and isinstance(algorithm, StalenessWeighting):
        arrived = partial(algorithm.weight_update, state.server)
    sent = iter(engine.run_clients(ids, download, round_index))
    watch.switch("fold")
    next_reply = watch.around("local", partial(next, sent, None))
    replies = Replies(job, iter(next_reply, None), arrived)
    infos = sorted(replies.infos, key=lambda info: info.client)
    server, buffers, total = state.server, state.buffers, replies.total
    received = Received(len(infos), replies.weight, problem.num_clients, round_index)
    if job.expected is not None and replies.finite:
        total, received = noise.hidden_sum(job, total, infos, state, cast)
    if total is not None and replies.finite:
        server = algorithm.server_update(server, total.message, received, problem.regularizer)
        buffers = replies.averaged_buffers(buffers, engine.is_asynchronous)
    seconds = time.perf_counter() - began
    watch.switch(outside)
    missed = state.missed
    if missed is not None:
        steps = aligned(algorithm).virtual_steps(server)
        missed = missed.after(round_index, steps, [info.client for info in infos])
    bound = noise.next_bound(job, state.clip_bound, total, received)
    following = state._replace(
        round=state.round + 1, server=server, buffers=buffers, missed=missed, clip_bound=bound
    )
    way = algorithm.global_params(server) - algorithm.global_params(state.server)
    move = float(torch.linalg.vector_norm(way))
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


class Replies:
    """The replies of a round: their total, and what is known of those who sent them."""

    def __init__(
        self,
        job: Job,
        replies: Iterable[tuple[int, Upload, ClientInfo] | Partial],
        arrived: Callable[[Any], Any] | None,
    ) -> None:
        """`arrived` says what a message counts that is folded as it arrives; None with rounds."""
        self._job = job
        self._arrived = arrived
        self.weight = 0.0
        self.bytes_up = 0
        self.infos: list[ClientInfo] = []
        self.finite = True
        # What arrives of a deployed masked sum is summed already.
        fold = Sum().fold if job.deployed and job.aggregate.hides else job.aggregate.fold
        self.total = fold(self._taken(replies))
        if self.total is None and self.infos and self.finite:
            raise EngineError(
                f"{len(self.infos)} clients took part in a round, but "
                f"{type(job.aggregate).__name__} needs more; use a sampler that draws more, or a "
                "smaller minimum"
            )

    def _taken(
        self, replies: Iterable[tuple[int, Upload, ClientInfo] | Partial]
    ) -> Iterator[tuple[float, Upload]]:
        """Each reply, or sum of several, with its share; ends at the first that is not finite."""
        for reply in replies:
            if isinstance(reply, Partial):
                share, weight, upload, infos = 1.0, reply.weight, reply.total, reply.infos
                sent = reply.bytes_up
            else:
                client, upload, info = reply
                share = weight = self._job.problem.weight(client)
                infos = (info,)
                sent = self._job.aggregate.sent_bytes(upload) if info.finite else 0
            self.infos.extend(infos)
            self.finite = all(info.finite for info in infos)
            if not self.finite:
                return
            if self._arrived is not None:
                upload = upload._replace(message=self._arrived(upload.message))
            if self._job.aggregate.needs == "replies":
                upload = trees.clone(upload)  # engines may use its memory again for the next one
            self.weight += weight
            self.bytes_up += sent
            yield share, upload

    def averaged_buffers(self, before: Tensor | None, as_they_arrive: bool) -> Tensor | None:
        """The buffers after the step; those before it when none were sent.

        A round's participants represent all clients, so their mean replaces the old buffers.  A
        reply that arrives on its own represents its own client only: replacing everything by it
        would leave whatever came last.  It therefore takes its share a_S of the mean and the others
        keep theirs, B <- B + a_S (mean of the replies - B).  No client's past buffers are stored,
        so clients count in proportion to a_i times how often they reply.
        """
        if before is None or self.total is None or self.total.buffers is None:
            return before
        if as_they_arrive:
            return before * (1.0 - self.weight) + self.total.buffers
        return self.total.buffers / self.weight
