"""The training loop of simulations and deployments.

Everything random is derived from (seed, purpose, round, client), so that a run is determined by its
state and its round number and can be resumed anywhere.
"""

from __future__ import annotations

import itertools
import operator
import reprlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.aggregation import Sum
from fedadmm.core.capabilities import ParticipantsMeanModel, StalenessWeighting
from fedadmm.core.contracts import AnyAlgorithm, Cohort
from fedadmm.core.errors import EngineError, ParameterError
from fedadmm.core.messages import (
    ClientInfo,
    ClientStateStore,
    Download,
    Engine,
    PartialSum,
    Upload,
)
from fedadmm.core.outputs import AnyOutput, Iterate
from fedadmm.core.pipeline.postprocessors import Aggregate
from fedadmm.core.sampling import Sampler
from fedadmm.run.client import Job, this_round
from fedadmm.run.components import RoundComponent, RoundContext, round_components
from fedadmm.run.record import Record, Stopwatch, cohort_record, work_record
from fedadmm.run.round_callbacks import (
    CompletedRound,
    RoundCallback,
    RunPlan,
    not_finite,
    round_callbacks,
)
from fedadmm.run.state import Ending, RoundReport, RunState

OUTPUT = "output"
"""Key of the output's state in `RunState.components`."""


def offered_models(algorithm: AnyAlgorithm, state: RunState) -> Iterate:
    """Return the models that an output may choose from after a round."""
    mean = None
    if isinstance(algorithm, ParticipantsMeanModel):
        mean = algorithm.participants_mean(state.server)
    return Iterate(algorithm.global_params(state.server), state.buffers, mean)


def output_model(algorithm: AnyAlgorithm, output: AnyOutput, state: RunState) -> Iterate:
    """Return the output model of a run after a round."""
    return output.model(state.components.get(OUTPUT), offered_models(algorithm, state))


def initial_state(job: Job, plan: RunPlan) -> RunState:
    """Return the state before the first round; its index is -1 if an initial round precedes it."""
    buffers = job.initial_buffers if job.problem.buffers == "average" else None
    server = job.algorithm.init_server(job.initial)
    first = 0 if job.algorithm.requirements.initial_round is None else -1
    state = RunState(first, server, buffers)
    components = {one.key: one.initial(server) for one in round_components(job, plan.privacy)}
    components[OUTPUT] = plan.output.init_state(offered_models(job.algorithm, state))
    return state._replace(components=components)


def run(
    job: Job,
    sampler: Sampler,
    engine: Engine,
    store: ClientStateStore,
    plan: RunPlan,
    state: RunState,
) -> Iterator[RoundReport]:
    """Yield a report after every round; the last one contains the ending."""
    components, callbacks = round_components(job, plan.privacy), round_callbacks(plan)
    if state.engine is not None:
        engine.restore(state.engine)
    for callback in callbacks:
        own = callback.begin(state)
        state = state.with_component(callback.key, own) if callback.key else state
    first, watch = state.round, plan.watch or Stopwatch()
    watch.taken()
    with watch.on("sampling"):
        ids = sample_cohort(sampler, job, state.round)
    while state.round < plan.rounds:
        upcoming = None
        if state.round + 1 < plan.rounds:
            with watch.on("sampling"):
                upcoming = sample_cohort(sampler, job, state.round + 1)
            if state.round > first:  # no thread yet while engines may still start processes
                # The records of the current participants are about to change.
                store.prefetch(sorted({*upcoming} - {*ids}))
        done = run_round(job, components, ids, engine, state, watch)
        if not done.finite:
            failure = not_finite(done.infos, done.state.round)
            yield RoundReport(state, done.record, done.infos, failure)
            return
        following = _update_output(job, plan.output, state, done.state)
        following, ending = _call_back(
            callbacks, plan.output, job, store, engine, state, following, done, watch
        )
        state = following
        done.record["clock"] |= watch.taken()
        yield RoundReport(state, done.record, done.infos, ending)
        if ending is not None:
            return
        if "evaluation_seconds" in done.record["clock"]:
            # Only now, because the errors of callbacks that see the report are more specific.
            for callback in callbacks:
                callback.check_measured(done.record, state)
        with watch.on("sampling"):
            ids = sample_cohort(sampler, job, state.round) if upcoming is None else upcoming


def _update_output(job: Job, output: AnyOutput, before: RunState, after: RunState) -> RunState:
    """Return the state after a round with the output's next state."""
    iterate = offered_models(job.algorithm, after)
    if after.round == 0:  # an initial round produces the starting point of the others
        return after.with_component(OUTPUT, output.init_state(iterate))
    own = output.update(before.components.get(OUTPUT), iterate, after.round, job.seed)
    return after.with_component(OUTPUT, own)


def _call_back(
    callbacks: Sequence[RoundCallback],
    output: AnyOutput,
    job: Job,
    store: ClientStateStore,
    engine: Engine,
    before: RunState,
    after: RunState,
    done: RoundResult,
    watch: Stopwatch,
) -> tuple[RunState, Ending | None]:
    """Return the state after all callbacks of a round, and the first ending among theirs."""
    ending: Ending | None = None
    iterate, own = offered_models(job.algorithm, after), after.components.get(OUTPUT)
    model, extra = output.model(own, iterate), output.extra_models(own, iterate)
    for callback in callbacks:
        if not callback.is_due(after.round):
            continue
        context = CompletedRound(
            job, store, engine, before, after, done.record, done.infos, iterate, model, extra
        )
        with watch.on(callback.phase):
            own, proposed = callback.after_round(context, after.components.get(callback.key))
        after = after.with_component(callback.key, own) if callback.key else after
        ending = ending or proposed
    return after, ending


def sample_cohort(sampler: Sampler, job: Job, index: int) -> Sequence[int]:
    """Return the validated ids of a round's participants; all clients in an initial round."""
    clients = job.problem.num_clients
    if index < 0:
        return range(clients)
    chosen = sampler.sample(job.seed, index, clients)
    if isinstance(chosen, range) and chosen == range(clients):
        return chosen
    try:
        ids = [operator.index(one) for one in chosen]  # converts integers of NumPy
        right = all(0 <= one < clients for one in ids)
    except TypeError:
        ids, right = [], False
    if not right or any(a >= b for a, b in itertools.pairwise(ids)):
        raise ParameterError(
            f"{type(sampler).__name__}.sample: got {reprlib.repr(chosen)} in round {index}, "
            f"expected ids from 0 to {clients - 1}, sorted and without repetition."
        )
    return ids


class RoundResult(NamedTuple):
    """A round after its server update."""

    state: RunState
    record: Record
    infos: list[ClientInfo]
    finite: bool
    """Whether the results of all clients are finite; otherwise the state is void."""


def run_round(
    job: Job,
    components: Sequence[RoundComponent],
    ids: Sequence[int],
    engine: Engine,
    state: RunState,
    watch: Stopwatch,
) -> RoundResult:
    """Run one round with these participants."""
    began, outside = time.perf_counter(), watch.switch("broadcast")
    algorithm, problem, index = job.algorithm, job.problem, state.round
    own = dict(state.components)
    # 1. Broadcast.
    broadcast = algorithm.broadcast(state.server, this_round(job, index))
    download = Download(broadcast, state.buffers)
    for component in components:
        download = component.extend_download(download, own[component.key])
    # 2. Run the clients, and 3. aggregate their updates as they arrive.
    results = iter(engine.run_clients(ids, download, index))
    watch.switch("aggregation")
    next_result = watch.around("local", partial(next, results, None))
    updates = ClientUpdates(job, iter(next_result, None), _weighting(engine, algorithm, state))
    infos = sorted(updates.infos, key=lambda info: info.client)
    cohort = Cohort(len(infos), updates.weight, problem.num_clients, index)
    aggregate, round = Aggregate(updates.total, cohort), RoundContext(index, infos, broadcast)
    server, buffers = state.server, state.buffers
    if updates.finite:
        # 4. Post-process the aggregate.
        for component in components:
            aggregate, own[component.key] = component.on_aggregate(
                aggregate, own[component.key], round
            )
        # 5. Update the server.
        if aggregate.total is not None:
            message, cohort = aggregate.total.message, aggregate.cohort
            server = algorithm.server_update(server, message, cohort, problem.regularizer)
            buffers = updates.averaged_buffers(buffers, engine.is_asynchronous)
    seconds = time.perf_counter() - began
    watch.switch(outside)
    for component in components:
        own[component.key] = component.after_server_update(own[component.key], server, round)
    # 6. Record.
    following = RunState(index + 1, server, buffers, components=own)
    way = algorithm.global_params(server) - algorithm.global_params(state.server)
    move = float(torch.linalg.vector_norm(way))
    sent = trees.num_bytes(download) * engine.broadcasts(ids)
    record: Record = {
        "round": following.round,
        "cohort": cohort_record(infos),
        "work": work_record(infos, job, updates.weight, move),
        "traffic": {"bytes_up": updates.bytes_up, "bytes_down": sent},
        "clock": {"seconds": seconds} | engine.extras(),
        "metrics": {},
    }
    for component in components:
        record |= component.record(state, following)  # type: ignore[typeddict-item]
    return RoundResult(following._replace(engine=engine.snapshot()), record, infos, updates.finite)


def _weighting(
    engine: Engine, algorithm: AnyAlgorithm, state: RunState
) -> Callable[[Any], Any] | None:
    """Return what weights an update on arrival; None in synchronous rounds."""
    if engine.is_asynchronous and isinstance(algorithm, StalenessWeighting):
        return partial(algorithm.weight_update, state.server)
    return None


class ClientUpdates:
    """The updates of a round: their aggregate, and statistics of the clients that sent them."""

    def __init__(
        self,
        job: Job,
        updates: Iterable[tuple[int, Upload, ClientInfo] | PartialSum],
        weighting: Callable[[Any], Any] | None,
    ) -> None:
        """Aggregate updates as they arrive; `weighting` transforms each message on arrival."""
        self._job = job
        self._weighting = weighting
        self.weight = 0.0
        self.bytes_up = 0
        self.infos: list[ClientInfo] = []
        self.finite = True
        # In a deployment the masked sum is complete when it arrives.
        summed = job.deployed and job.aggregator.is_secure
        combine = Sum().aggregate if summed else job.aggregator.aggregate
        self.total = combine(self._received(updates))
        if self.total is None and self.infos and self.finite:
            raise EngineError(
                f"{type(job.aggregator).__name__}.minimum: got {len(self.infos)} participants in a "
                "round, expected more. Use a sampler that draws more, or a smaller minimum."
            )

    def _received(
        self, updates: Iterable[tuple[int, Upload, ClientInfo] | PartialSum]
    ) -> Iterator[tuple[float, Upload]]:
        """Yield each update, or partial sum, with its factor until one is not finite."""
        for update in updates:
            if isinstance(update, PartialSum):
                share, weight, upload, infos = 1.0, update.weight, update.total, update.infos
                sent = update.bytes_up
            else:
                client, upload, info = update
                share = weight = self._job.problem.weight(client)
                infos = (info,)
                sent = self._job.aggregator.sent_bytes(upload) if info.finite else 0
            self.infos.extend(infos)
            self.finite = all(info.finite for info in infos)
            if not self.finite:
                return
            if self._weighting is not None:
                upload = upload._replace(message=self._weighting(upload.message))
            if self._job.aggregator.needs == "updates":
                upload = trees.clone(upload)  # engines may reuse its memory for the next one
            self.weight += weight
            self.bytes_up += sent
            yield share, upload

    def averaged_buffers(self, before: Tensor | None, on_arrival: bool) -> Tensor | None:
        """Return the buffers after the server update; unchanged if the clients sent none.

        The participants of a synchronous round represent all clients, so that their mean replaces
        the old buffers.  A single update on arrival represents its own client only and gets its
        share a_S of the mean: B <- B + a_S (mean of the updates - B).  The past buffers of a client
        are not stored, so that clients count in proportion to a_i times their number of updates.
        """
        if before is None or self.total is None or self.total.buffers is None:
            return before
        if on_arrival:
            return before * (1.0 - self.weight) + self.total.buffers
        return self.total.buffers / self.weight
