"""`simulate`: one call from parts to a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.errors import check_choice, check_count, check_kind, check_positive
from fedadmm.core.files import locked
from fedadmm.core.outputs import AnyOutput, Iterate, LastIterate, Output
from fedadmm.core.problem import Problem
from fedadmm.core.protocols import (
    Algorithm,
    AnyAlgorithm,
    ClientStateStore,
    Evaluator,
    LocalSolver,
    Sampler,
    StoppingRule,
)
from fedadmm.core.sampling import FullParticipation
from fedadmm.core.stopping import Epochs
from fedadmm.core.uploads import Uploads, UploadStage
from fedadmm.run import endings, pairing
from fedadmm.run.best import Best, Judge
from fedadmm.run.engines import ENGINES, EngineChoice, Job, default_engine
from fedadmm.run.engines.threads import Threads, chosen_threads, torch_threads
from fedadmm.run.evaluation import Evaluation, Target
from fedadmm.run.loop import offered, run
from fedadmm.run.noise import hidden
from fedadmm.run.plan import Code, Ending, Instrument, RoundReport, RunState, Schedule
from fedadmm.run.record import Record
from fedadmm.run.releases import check_uploads
from fedadmm.run.resuming import Journal, Start, interrupts_deferred
from fedadmm.run.state import Checkpoints, DiskStore, MemoryStore
from fedadmm.run.state.records import StoredStates

Observer = Callable[[RoundReport], None]

_PATIENCE = 1.0
"""Seconds that a run waits for another one to leave its folders."""


class Result(NamedTuple):
    """What a run leaves behind; nothing in it is shared with anything else."""

    params: Tensor
    """The vector that is handed out after the last round; theta unless `output` says otherwise."""
    buffers: Tensor | None
    """The averaged BatchNorm statistics that belong to it; None when there are none."""
    trajectory: list[Tensor]
    """That vector after every round run now, when `keep_trajectory` was asked for."""
    history: list[Record]
    """One record for every round run now: a resumed run has only the new ones.

    An initial round with everybody, which some methods begin with, is round 0.
    """
    status: str
    """Why it ended, a sentence."""
    code: Code
    """The same in a word: completed, target, tolerance, patience, budget or diverged."""
    server: Any
    """The server's state; `algorithm.global_params` of it is theta."""
    clients: Mapping[int, Any]
    """The state of every client that took part, read when it is asked for."""
    threads: int
    """How many threads torch used in this process."""
    algorithm: AnyAlgorithm
    """The method as it ran: with numbers for what depends on the clients' local work."""
    best: Best | None = None
    """The best model of any round, by the target's metric or else the first usual one measured."""


def simulate(
    algorithm: AnyAlgorithm,
    problem: Problem,
    rounds: int,
    *,
    sampler: Sampler | None = None,
    solver: LocalSolver | None = None,
    stop: StoppingRule | None = None,
    seed: int = 0,
    initial: Tensor | None = None,
    keep_trajectory: bool = False,
    engine: str | EngineChoice | None = None,
    evaluate: Evaluation | Evaluator | bool = True,
    target: Target | None = None,
    tolerance: float | None = None,
    patience: int | None = None,
    observers: Iterable[Observer] = (),
    store: ClientStateStore | None = None,
    checkpoints: Checkpoints | None = None,
    resume: bool = False,
    fingerprint: Mapping[str, Any] | None = None,
    threads: Threads = "auto",
    output: AnyOutput | None = None,
    upload: Sequence[UploadStage] = (),
) -> Result:
    """Run a federated method on a problem in this process.

    Args:
        algorithm: the method with its hyper-parameters.
        problem: the clients' objectives and what they share.
        rounds: how many rounds at most.
        sampler: who takes part; everybody by default.
        solver: how local problems are solved; every method but FedSGD needs one.
        stop: when a local solve ends; the method's own rule, or else one epoch.
        seed: the same seed gives the same run, whatever the engine.
        initial: the start vector, which also fixes the precision; the problem's own by default.
        keep_trajectory: keep the vector that is handed out after every round.
        engine: a name from `fedadmm.run.engines.ENGINES`, or one of its choices with options; by
            default sequential, and virtual-time for methods without rounds.
        evaluate: an `Evaluation`, a function of the vector handed out that returns metrics
            (measured besides the default ones), True for the default, False for nothing.
        target: end as soon as a metric meets it.
        tolerance: end as soon as the norm of the gradient mapping is at most this.
        patience: end after so many measurements in a row without a better model, by the target's
            metric, or else by the first usual one that is measured.
        observers: called with a `RoundReport` after every round.
        store: where client state is kept between rounds; by default in memory, and with the ray
            engine on disk.
        checkpoints: where and how often to save the run, so that it can be resumed; while it goes
            on, another run in that folder, or in that of the store, is refused.
        resume: go on from the newest good checkpoint; from round 0 when there is none.
        fingerprint: plain values that describe the run; a checkpoint with others is refused.
        threads: how many threads torch uses in this process during the run, or "auto": one where a
            gradient is small, and else as many as torch was given.  Engines with processes of
            their own give one to each.
        output: which model is handed out, that is evaluated, recorded and returned; by default the
            last iterate.
        upload: what happens to a client's message before the sum, in this order: clip, compress
            (select, then code), noise.
    """
    check_count("simulate", "rounds", rounds)
    check_count("simulate", "seed", seed, low=0)
    check_kind("simulate", "algorithm", algorithm, Algorithm)
    check_kind("simulate", "problem", problem, Problem)
    for name, part, role in (
        ("sampler", sampler, Sampler),
        ("solver", solver, LocalSolver),
        ("stop", stop, StoppingRule),
        ("output", output, Output),
        ("engine", None if isinstance(engine, str) else engine, EngineChoice),
    ):
        if part is not None:
            check_kind("simulate", name, part, role)
    for stage in upload:
        check_kind("simulate", "upload", stage, UploadStage)
    if tolerance is not None:
        check_positive("simulate", "tolerance", tolerance)
    if patience is not None:
        check_count("simulate", "patience", patience)
    if isinstance(engine, str):
        check_choice("simulate", "engine", engine, tuple(ENGINES))
    chosen = sampler if sampler is not None else FullParticipation()
    job = make_job(algorithm, problem, solver, stop, seed, initial)
    job = job._replace(asks_losses=chosen.asks_losses, uploads=Uploads.of(upload))
    evaluation = _evaluation(evaluate)
    pairing.check(job, chosen, rounds)
    evaluation.check(job)
    chosen_engine = engine if engine is not None else default_engine(algorithm)
    choice = ENGINES[chosen_engine]() if isinstance(chosen_engine, str) else chosen_engine
    pairing.check_engine(algorithm, choice)
    check_uploads(job, chosen, asynchronous=choice.is_asynchronous)
    job, spending = hidden(job, chosen)
    with torch_threads(chosen_threads(job, threads)), torch.no_grad(), ExitStack() as held:
        tools = _instruments(job, chosen, choice, evaluation)
        if checkpoints is not None:
            held.enter_context(locked(checkpoints.directory, _PATIENCE))
        kept = store if store is not None else _default_store(choice, checkpoints, resume)
        if isinstance(kept, DiskStore) and not (checkpoints and checkpoints.shares(kept.directory)):
            held.enter_context(locked(kept.directory, _PATIENCE))
        handed = output if output is not None else LastIterate()
        journal = Journal(job, kept, checkpoints, fingerprint, handed)
        start = journal.begin(resume)
        judge = Judge(target, patience)
        schedule = Schedule(rounds, evaluation, target, tolerance, tools, handed, spending, judge)
        try:
            running = choice.start(job, kept)
            try:
                journal.attach(running, start)
                reports = run(job, chosen, running, kept, schedule, start.state)
                watchers = [*observers, journal.completed]
                return _collect(job, kept, start, schedule, reports, watchers, keep_trajectory)
            finally:
                running.close()
        except KeyboardInterrupt:
            journal.interrupted()
            raise


def make_job(
    algorithm: AnyAlgorithm,
    problem: Problem,
    solver: LocalSolver | None,
    stop: StoppingRule | None,
    seed: int,
    initial: Tensor | None,
) -> Job:
    """Fill in defaults and put the whole problem into the precision of the initial vector."""
    start = initial if initial is not None else problem.start(seed)
    pairing.check_initial(start, problem.num_parameters)
    start = start.detach().clone()
    rule = stop if stop is not None else algorithm.default_stop()
    converted = problem.to(start.dtype, start.device)
    flat = converted.clients[0].flat
    buffers = flat.initial_buffers() if flat is not None and problem.buffers is not None else None
    rule = rule or Epochs(1)
    fitted = algorithm.fitted(lambda: pairing.local_length(converted, solver, rule))
    return Job(fitted, converted, solver, rule, seed, start, buffers)


def _evaluation(evaluate: Evaluation | Evaluator | bool) -> Evaluation:
    if isinstance(evaluate, Evaluation):
        return evaluate
    if isinstance(evaluate, bool):
        return Evaluation(objective=evaluate, test=evaluate)
    return Evaluation(extra=evaluate)


def _instruments(
    job: Job, sampler: Sampler, choice: EngineChoice, evaluation: Evaluation
) -> list[Instrument]:
    """What is asked for besides the metrics of the global model."""
    tools: list[Instrument] = []
    if evaluation.certificate != "none":
        from fedadmm.theory.certificates import certify

        tools.append(certify(evaluation.certificate, job, sampler, choice))
    if evaluation.diagnose:
        from fedadmm.run.diagnostics import Diagnostics

        look = (evaluation.diagnose, evaluation.diagnosed_clients, evaluation.duality)
        tools.append(Diagnostics(job, *look))
    return tools


def _default_store(
    choice: EngineChoice, checkpoints: Checkpoints | None, resume: bool
) -> ClientStateStore:
    """In memory; on disk when the engine's clients are elsewhere, and where a resume finds it."""
    if not choice.needs_disk:
        return MemoryStore()
    if checkpoints is None:
        return DiskStore.temporary()
    store = DiskStore(checkpoints.directory / "clients")
    if not resume:
        store.clear()
    return store


def _handed_out(job: Job, schedule: Schedule, state: RunState) -> Iterate:
    return schedule.output.model(state.output, offered(job.algorithm, state))


def _collect(
    job: Job,
    store: ClientStateStore,
    start: Start,
    schedule: Schedule,
    reports: Iterator[RoundReport],
    observers: list[Observer],
    keep_trajectory: bool,
) -> Result:
    history: list[Record] = []
    trajectory: list[Tensor] = []
    state, ending = start.state, endings.taken_up(start.ending, start.state, schedule)
    if ending is None:
        ending = Ending("completed", f"completed all {schedule.rounds} rounds")
        for report in reports:
            state, ending = report.state, report.ending or ending
            history.append(report.record)
            if keep_trajectory:
                trajectory.append(_handed_out(job, schedule, state).params.clone())
            with interrupts_deferred():
                for observer in observers:
                    observer(report)
    model = trees.clone(_handed_out(job, schedule, state))
    return Result(
        params=model.params,
        buffers=model.buffers,
        trajectory=trajectory,
        history=history,
        status=ending.sentence,
        code=ending.code,
        server=trees.clone(state.server),
        clients=StoredStates(store),
        threads=torch.get_num_threads(),
        algorithm=job.algorithm,
        best=trees.clone(state.best),
    )
