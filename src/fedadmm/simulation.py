"""`simulate`: one call from parts to a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm import pairing, trees
from fedadmm.engines import ENGINES, EngineChoice, Job
from fedadmm.errors import check_choice, check_count, check_positive
from fedadmm.evaluation import Evaluation, Target
from fedadmm.problem import Problem
from fedadmm.protocols import (
    AnyAlgorithm,
    ClientStateStore,
    Engine,
    Evaluator,
    LocalSolver,
    Sampler,
    StoppingRule,
)
from fedadmm.round import Record, RoundReport, Schedule, initial_state, run
from fedadmm.sampling import FullParticipation
from fedadmm.state import MemoryStore
from fedadmm.stopping import Epochs

Observer = Callable[[RoundReport], None]


class Result(NamedTuple):
    """What a run leaves behind; nothing in it is shared with anything else."""

    params: Tensor
    """The broadcast global vector after the last round."""
    trajectory: list[Tensor]
    """That vector after every round, when `keep_trajectory` was asked for."""
    history: list[Record]
    """One record a round."""
    status: str
    """Why it ended, a sentence."""
    code: str
    """The same in a word: completed, target, tolerance or diverged."""
    server: Any
    """The server's state."""
    clients: dict[int, Any]
    """The state of every client that took part."""


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
    engine: str | EngineChoice = "sequential",
    evaluate: Evaluation | Evaluator | bool = True,
    target: Target | None = None,
    tolerance: float | None = None,
    observers: Iterable[Observer] = (),
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
        keep_trajectory: keep the global vector of every round.
        engine: a name from `fedadmm.engines.ENGINES`, or one of its choices with options.
        evaluate: an `Evaluation`, a function of the global vector that returns metrics (measured
            besides the default ones), True for the default, False for nothing.
        target: end as soon as a metric meets it.
        tolerance: end as soon as the norm of the gradient mapping is at most this.
        observers: called with a `RoundReport` after every round.
    """
    check_count("simulate", "rounds", rounds)
    if tolerance is not None:
        check_positive("simulate", "tolerance", tolerance)
    if isinstance(engine, str):
        check_choice("simulate", "engine", engine, tuple(ENGINES))
    job = make_job(algorithm, problem, solver, stop, seed, initial)
    evaluation = _evaluation(evaluate)
    chosen = sampler if sampler is not None else FullParticipation()
    pairing.check(job, chosen, rounds)
    evaluation.check(job)
    store = MemoryStore()
    choice = ENGINES[engine]() if isinstance(engine, str) else engine
    running = choice(job, store)
    schedule = Schedule(rounds, evaluation, target, tolerance)
    try:
        with torch.no_grad():
            return _collect(job, chosen, running, store, schedule, keep_trajectory, list(observers))
    finally:
        running.close()


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
    client: Any = converted.clients[0]
    flat = getattr(client, "flat", None)
    buffers = flat.buffers() if flat is not None and problem.buffers is not None else None
    return Job(algorithm, converted, solver, rule or Epochs(1), seed, start, buffers)


def _evaluation(evaluate: Evaluation | Evaluator | bool) -> Evaluation:
    if isinstance(evaluate, Evaluation):
        return evaluate
    if isinstance(evaluate, bool):
        return Evaluation(objective=evaluate, test=evaluate)
    return Evaluation(extra=evaluate)


def _collect(
    job: Job,
    sampler: Sampler,
    engine: Engine,
    store: ClientStateStore,
    schedule: Schedule,
    keep_trajectory: bool,
    observers: list[Observer],
) -> Result:
    history: list[Record] = []
    trajectory: list[Tensor] = []
    report: RoundReport | None = None
    for report in run(job, sampler, engine, store, schedule, initial_state(job)):
        history.append(report.record)
        if keep_trajectory:
            trajectory.append(job.algorithm.global_params(report.state.server).clone())
        for observer in observers:
            observer(report)
    assert report is not None
    assert report.ending is not None
    states = {}
    for client in store.clients():
        record = store.get(client)
        assert record is not None
        states[client] = trees.clone(record.state)
    return Result(
        params=job.algorithm.global_params(report.state.server).clone(),
        trajectory=trajectory,
        history=history,
        status=report.ending.sentence,
        code=report.ending.code,
        server=trees.clone(report.state.server),
        clients=states,
    )
