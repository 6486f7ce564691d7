"""Simulation of a federated run in one process: `simulate` and its `Result`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.atomic_files import locked
from fedadmm.core.capabilities import fit_penalties, prox_step
from fedadmm.core.compatibility import incompatibilities
from fedadmm.core.contracts import AnyAlgorithm
from fedadmm.core.errors import CompatibilityError, ConfigError, ParameterError
from fedadmm.core.local_work import LocalSolver
from fedadmm.core.messages import ClientStateStore
from fedadmm.core.parts import Part
from fedadmm.core.pipeline import UpdatePipeline
from fedadmm.core.problem import Problem, ProblemSource
from fedadmm.core.sampling import Sampler
from fedadmm.core.schedules import PerWork, at
from fedadmm.core.setup import Setup
from fedadmm.core.signals import interrupts_deferred
from fedadmm.core.solvers.adam import Adam
from fedadmm.core.stopping import StoppingRule
from fedadmm.run.callbacks import Callbacks, Run, Summarise
from fedadmm.run.checkpoint import Checkpoints, MemoryCheckpoints
from fedadmm.run.client import Job, LocalModelReader
from fedadmm.run.engines.choice import EngineChoice, chosen_threads, torch_threads
from fedadmm.run.experiment import (
    Experiment,
    ExperimentFields,
    ResolvedExperiment,
    experiment_from_keywords,
)
from fedadmm.run.loop import output_model, run
from fedadmm.run.metrics import Best, ModelSelector
from fedadmm.run.penalty_advice import advice_on_penalty
from fedadmm.run.privacy import attach_privacy
from fedadmm.run.process_memory import memory_for
from fedadmm.run.record import Record, Stopwatch
from fedadmm.run.resume import Begun, Journal
from fedadmm.run.round_callbacks import BEST, RunPlan, resumed_ending
from fedadmm.run.state import Code, Ending, RoundReport
from fedadmm.run.stores import DiskStore, MemoryStore
from fedadmm.run.stores.records import StoredStates

_MEASURED_CLIENTS = 200
"""Largest number of clients whose local work is measured; they are evenly spaced."""
_GRADIENT_CLIENTS = 20
"""The same for clients whose gradient is computed."""
_LOCK_SECONDS = 1.0
"""Time that a run waits for another one to release its folders."""


class Result(NamedTuple):
    """Result of a run: models, records and final states, which share no memory with the run.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> result = fa.simulate(fa.FedAvg(), problem, 20, solver=fa.ExactSolver())
        >>> result.params, result.history[-1]["round"], result.code
        (tensor([3.]), 20, 'completed')
    """

    params: Tensor
    """The output model after the last round; theta for the default output."""
    buffers: Tensor | None
    """The averaged BatchNorm statistics of the output model; None without averaged statistics."""
    trajectory: list[Tensor]
    """The output model after every round of this call, if `keep_trajectory` is set."""
    history: list[Record]
    """One record per round of this call: a resumed run has only the new ones.

    An initial round with all clients, with which some methods begin, is round 0.
    """
    status: str
    """Why the run ended, as a sentence."""
    code: Code
    """Why the run ended: completed, target, tolerance, patience, budget or diverged."""
    server: Any
    """The server's state; `algorithm.global_params` of it is theta."""
    clients: StoredStates
    """The states of all clients that have participated, which are read on access."""
    threads: int
    """Number of torch's threads in this process."""
    algorithm: AnyAlgorithm
    """The method, with `PerWork` replaced by a number."""
    own_models: LocalModelReader
    """Reads the local or personalised model of a client."""
    best: Best | None = None
    """The best model of any round, by the target's metric or else the first default metric."""

    def personal(self, client: int) -> Tensor:
        """Return a client's personalised model, or its local model, after the last round."""
        return self.own_models.get(client, self.clients.record(client), self.params)


def simulate(
    experiment: Experiment | AnyAlgorithm | None = None,
    problem: ProblemSource | Problem | None = None,
    rounds: int | None = None,
    *,
    initial: Tensor | None = None,
    keep_trajectory: bool = False,
    store: ClientStateStore | None = None,
    checkpoints: Checkpoints | MemoryCheckpoints | None = None,
    resume: bool = False,
    fingerprint: Mapping[str, Any] | None = None,
    directory: Path | None = None,
    summarise: Summarise | None = None,
    **fields: Unpack[ExperimentFields],
) -> Result:
    """Run an experiment in this process.

    `simulate(method, problem, rounds, solver=…, stop=…, sampler=…)` describes the experiment by
    keywords, which are listed in `ExperimentFields`.

    Args:
        experiment: an experiment, or the method of one.
        problem: with a method, the clients' objectives and what they share; with an experiment,
            its problem if it is already loaded.
        rounds: with a method, the largest number of rounds.
        initial: initial model, which also determines the precision; the problem's by default.
        keep_trajectory: whether to keep the output model of every round.
        store: store of the client states between rounds, in place of the experiment's.
        checkpoints: where and how often to save the run, so that it can be resumed.  Another run
            that uses the same folder at the same time is rejected.
        resume: whether to continue from the newest valid checkpoint; without one the run starts at
            round 0.
        fingerprint: plain values that describe the run; a checkpoint with other values is rejected.
        directory: folder that trackers write to.
        summarise: function of the ending and the result (None after a failure) that returns the
            summary for callbacks, in place of code and status.
        fields: with a method, the other fields of the experiment.

    Returns:
        The output model, one record per round, and the final states.

    Raises:
        CompatibilityError: two components do not fit each other.
        ParameterError: a value is not allowed.

    Example:
        >>> import torch, fedadmm as fa
        >>> targets = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 3.0])]
        >>> clients = [fa.Quadratic(torch.eye(2), target) for target in targets]
        >>> problem = fa.Problem(clients, initial=torch.zeros(2))
        >>> result = fa.simulate(fa.FedADMM(rho=1.0), problem, 20, solver=fa.ExactSolver())
        >>> result.params
        tensor([0.5000, 1.5000])
    """
    if not isinstance(experiment, Experiment):
        method = fields.pop("algorithm", experiment)
        experiment = experiment_from_keywords(method, problem, rounds, **fields)  # type: ignore[arg-type,misc]
    elif rounds is not None or fields or not isinstance(problem, Problem | None):
        raise ParameterError(
            "simulate: an experiment has all its fields already; change them by "
            "dataclasses.replace(experiment, …)"
        )
    chosen = experiment.resolve()
    choice, sampler, evaluation = chosen.engine, chosen.sampler, chosen.evaluate
    with ExitStack() as held:
        callbacks = held.enter_context(Callbacks(chosen.callbacks, summarise or _summary))
        loaded = chosen.load_problem(problem if isinstance(problem, Problem) else None)
        start_vector = initial if initial is not None else first_vector(chosen, loaded)
        job = make_job(chosen, loaded, start_vector)
        check_pairing(job, sampler, chosen.rounds, choice)
        evaluation.check(job)
        job, privacy = attach_privacy(job, sampler)
        held.enter_context(torch_threads(chosen_threads(job, chosen.threads)))
        held.enter_context(torch.no_grad())
        held.enter_context(memory_for(start_vector))
        if isinstance(checkpoints, Checkpoints):
            held.enter_context(locked(checkpoints.directory, _LOCK_SECONDS))
        kept = store if store is not None else _default_store(chosen, checkpoints, resume)
        if isinstance(kept, DiskStore) and not (checkpoints and checkpoints.shares(kept.directory)):
            held.enter_context(locked(kept.directory, _LOCK_SECONDS))
        plan = RunPlan(
            chosen.rounds,
            evaluation,
            chosen.target,
            chosen.tolerance,
            callbacks.attached,
            chosen.output,
            privacy,
            ModelSelector(chosen.target, chosen.patience),
            watch := Stopwatch(),
        )
        journal = Journal(job, kept, checkpoints, fingerprint, plan)
        begun = journal.begin(resume)
        callbacks.begin(Run(chosen.tree, job, sampler, choice, kept, begun.state, directory))
        try:
            running = choice.start(job, kept if choice.needs_disk else _TimedRecords(kept, watch))
            try:
                reports = run(job, sampler, running, kept, plan, begun.state)
                after = (
                    watch.around("callbacks", callbacks.round),
                    watch.around("checkpoint", journal.completed),
                )
                result = _collect(job, kept, begun, plan, reports, after, keep_trajectory)
            finally:
                running.close()
        except KeyboardInterrupt:
            journal.interrupted()
            raise
        callbacks.ended(Ending(result.code, result.status), result)
    return result


class _TimedRecords:
    """Client records with measured times of reading and writing."""

    def __init__(self, store: ClientStateStore, watch: Stopwatch) -> None:
        self._store = store
        self.get = watch.around("state", store.get)
        self.commit = watch.around("state", store.commit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _summary(ending: Ending, result: Result | None) -> dict[str, Any]:
    """Return the default summary for callbacks."""
    return {"code": ending.code, "status": ending.sentence}


def first_vector(chosen: Experiment, problem: Problem) -> Tensor:
    """Return the problem's initial vector in the chosen precision, on the chosen device."""
    vector = problem.start(chosen.seed)
    dtype = vector.dtype if chosen.precision is None else getattr(torch, chosen.precision)
    try:
        return vector.to(chosen.device or vector.device, dtype)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device is {chosen.device!r}, but cannot be used ({reason})") from None


def make_job(run: ResolvedExperiment, problem: Problem, initial: Tensor) -> Job:
    """Return the components that concern the clients of a run.

    The problem is converted to the precision and device of the initial vector, and penalties are
    fitted to the local work.
    """
    check_initial(initial, problem.num_parameters)
    start, solver, rule = initial.detach().clone(), run.local.solver, run.local.stop
    assert rule is not None, "a resolved experiment has a stopping rule"
    converted = problem.to(start.dtype, start.device)
    flat = converted.clients[0].flat
    buffers = flat.initial_buffers() if flat is not None and problem.buffers is not None else None
    method = fit_penalties(run.algorithm, lambda: local_length(converted, solver, rule, start))
    pipeline = UpdatePipeline.of(run.pipeline)
    aggregator = run.aggregator.fitted(pipeline)
    return Job(method, converted, run.local, run.seed, start, buffers, pipeline, aggregator)


def _default_store(
    chosen: Experiment, checkpoints: Checkpoints | MemoryCheckpoints | None, resume: bool
) -> ClientStateStore:
    """Return the store of the experiment; on disk it is next to the checkpoints."""
    if chosen.store.name == "memory":
        return MemoryStore()
    primal = None if chosen.store.primal == "same" else getattr(torch, chosen.store.primal)
    options: dict[str, Any] = {"primal_dtype": primal, "cache_bytes": chosen.store.cache_bytes}
    if checkpoints is None or checkpoints.directory is None:
        return DiskStore.temporary(**options)
    store = DiskStore(checkpoints.directory / "clients", **options)
    if not resume:
        store.clear()
    return store


def _collect(
    job: Job,
    store: ClientStateStore,
    begun: Begun,
    plan: RunPlan,
    reports: Iterator[RoundReport],
    after: Sequence[Callable[[RoundReport], None]],
    keep_trajectory: bool,
) -> Result:
    history: list[Record] = []
    trajectory: list[Tensor] = []
    state, ending = begun.state, resumed_ending(begun.ending, begun.state, plan)
    if ending is None:
        ending = Ending("completed", f"completed all {plan.rounds} rounds")
        for report in reports:
            state, ending = report.state, report.ending or ending
            history.append(report.record)
            if keep_trajectory:
                model = output_model(job.algorithm, plan.output, state)
                trajectory.append(model.params.clone())
            with interrupts_deferred():
                for step in after:
                    step(report)
    model = trees.clone(output_model(job.algorithm, plan.output, state))
    return Result(
        params=model.params,
        buffers=model.buffers,
        trajectory=trajectory,
        history=history,
        status=_with_advice(ending.sentence, history),
        code=ending.code,
        server=trees.clone(state.server),
        clients=StoredStates(store),
        threads=torch.get_num_threads(),
        algorithm=job.algorithm,
        own_models=LocalModelReader(job.algorithm, job.local.personal),
        best=trees.clone(state.components.get(BEST)),
    )


def _with_advice(sentence: str, history: Sequence[Record]) -> str:
    """Return why a run ended, followed by advice on its penalty if there is any."""
    advice = advice_on_penalty(history)
    return sentence if advice is None else f"{sentence}; {advice}"


def check_pairing(
    job: Job,
    sampler: Sampler,
    rounds: int,
    engine: EngineChoice | None = None,
    *,
    asynchronous: bool = False,
) -> None:
    """Reject a run whose components are incompatible.

    Args:
        job: the components that concern the clients.
        sampler: selects the participants.
        rounds: number of rounds.
        engine: runs the clients; None in a deployment.
        asynchronous: in a deployment, whether updates are aggregated on arrival.

    Raises:
        CompatibilityError: two components do not fit each other.
    """
    stale = asynchronous
    if engine is not None:
        asynchronous = engine.is_asynchronous
        stale = asynchronous and engine.expected_delay(job.problem.num_clients) != 0
    setup = Setup(
        *(job.algorithm, job.problem, job.local, sampler, job.pipeline, job.aggregator),
        *(job.initial, job.seed, rounds, asynchronous, stale),
    )
    # A regularizer for vectors of another length raises here.
    job.problem.regularizer.prox(job.initial, prox_step(job.algorithm))
    components: list[Part] = [sampler, job.algorithm, job.local, *job.local.components]
    components += [job.problem, *([] if engine is None else [engine])]
    components += [*job.pipeline.stages, job.aggregator]
    for message in incompatibilities(setup, components):
        raise CompatibilityError(message)


def local_length(
    problem: Problem,
    solver: LocalSolver | None,
    stop: StoppingRule,
    initial: Tensor | None = None,
) -> float:
    """Return the mean over the clients of learning rate times local steps in a round.

    A stopping rule that may end a solve earlier counts as if it did not.

    Args:
        problem: the clients.
        solver: solver of their local problems.
        stop: its stopping rule.
        initial: initial model, from whose gradients the error suggests a penalty.

    Raises:
        CompatibilityError: the steps of the solver are not a learning rate times a gradient.
    """
    for part in (solver, stop):
        if part is not None:
            part.check_per_client(problem.num_clients)
    clients = list(problem.evenly(_MEASURED_CLIENTS))
    if solver is not None and solver.length(1, clients[0]) is None:
        raise _without_length(solver, _suggested_penalty(problem, solver, stop, initial))
    lengths = [
        client_length(problem.clients[client].num_samples, solver, stop, client)
        for client in clients
    ]
    return sum(lengths) / len(lengths)


def client_length(
    samples: int, solver: LocalSolver | None, stop: StoppingRule | None, client: int
) -> float:
    """Return learning rate times local steps of one client in a round."""
    length = None
    if solver is not None:
        length = solver.length(_local_steps(samples, solver, stop, client), client)
    if length is None:
        raise _without_length(solver)
    return length


def _local_steps(samples: int, solver: LocalSolver, stop: StoppingRule | None, client: int) -> int:
    """Return the largest number of local steps of one client in a round."""
    assert stop is not None, "a resolved experiment has a stopping rule"
    size = solver.batch_size
    return stop.largest_budget(1 if size is None else -(-samples // size), client)


def _suggested_penalty(
    problem: Problem, solver: LocalSolver, stop: StoppingRule, initial: Tensor | None
) -> float | None:
    """Return a first penalty for Adam, whose steps are about lr in every entry; None for others.

    Such a step is a gradient step with the rate lr / |entry of the gradient|.  The size of an entry
    is its root mean square at the initial model.
    """
    if initial is None or not isinstance(solver, Adam):
        return None
    lengths, squares = [], []
    for client in problem.evenly(_GRADIENT_CLIENTS):
        objective = problem.clients[client]
        steps = _local_steps(objective.num_samples, solver, stop, client)
        lengths.append(at(solver.lr, 0, client) * steps)
        squares.append(float(objective.gradient(initial).square().mean()))
    size = math.sqrt(sum(squares) / len(squares))
    return PerWork().pull * size * len(lengths) / sum(lengths)


def _without_length(solver: LocalSolver | None, suggested: float | None = None) -> Exception:
    """Return the error for a penalty per work with a solver whose steps are not lr * gradient."""
    name = None if solver is None else type(solver).__name__
    advice = "Use SGD, GradientDescent or AcceleratedGradient, or a number such as rho=0.1."
    if suggested is not None:
        advice = (
            f"Start from rho={suggested:.2g}, which is {PerWork().pull:g} * (root mean square of a "
            "gradient's entries at the initial model) / (learning rate * steps), and try a third "
            "and three times of it: the steps of this solver do not shrink with the gradient."
        )
    return CompatibilityError(
        f"solver: got {name}, expected a solver whose steps are a learning rate times a gradient, "
        f"from which PerWork makes a penalty. {advice}"
    )


def check_initial(initial: object, num_parameters: int) -> None:
    """Reject an invalid initial vector before the problem is converted to its precision."""
    if not isinstance(initial, Tensor):
        raise ParameterError(
            f"simulate: initial: got a {type(initial).__name__}, expected a torch.Tensor"
        )
    if tuple(initial.shape) != (num_parameters,):
        raise ParameterError(
            f"simulate: initial has shape {tuple(initial.shape)}, expected ({num_parameters},)"
        )
    if not initial.is_floating_point() or not bool(initial.isfinite().all()):
        raise ParameterError("simulate: initial must be a vector of finite floating-point numbers")
