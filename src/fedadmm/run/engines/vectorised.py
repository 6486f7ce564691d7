"""Vectorised engine: stacks of clients, for small models."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.capabilities import local_model
from fedadmm.core.contracts import LocalProblem, LocalResult, norm
from fedadmm.core.errors import CompatibilityError
from fedadmm.core.local_work import SolveContext, SolveInfo
from fedadmm.core.messages import ClientInfo, ClientRecord, ClientRecords, Download, Engine, Upload
from fedadmm.core.objectives.closed_form import LeastSquares, LogisticRegression, Quadratic
from fedadmm.core.objectives.losses import reason
from fedadmm.core.objectives.model import ModelObjective
from fedadmm.core.parts import Count, names_of, part
from fedadmm.core.problem import LazyClients
from fedadmm.core.rng import Key, derive
from fedadmm.core.solvers.sgd import IterativeSolver
from fedadmm.run.client import (
    ClientRound,
    Job,
    apply_pipeline,
    caught_up,
    client_key,
    global_vector,
    is_first,
)
from fedadmm.run.engines.choice import EngineChoice, client_work
from fedadmm.run.engines.stacked import (
    Batch,
    Core,
    NetworkCore,
    StackedObjective,
    StackedSamples,
    least_squares_core,
    logistic_core,
    module_core,
    quadratic_core,
)
from fedadmm.run.engines.worker_process import Piece, start_method
from fedadmm.run.engines.workers import Pool, needed_bytes, shared_evaluation, usable_cores

STACK_BYTES = 4 * 2**20
"""Bytes of one stacked vector: a solve works on about six of them, which then fit into a
core's share of the last-level cache (measured: 4 MiB takes half the time of 32 MiB for 100,000
parameters)."""
SHARED_WORK = 1e8
"""Multiplications (forwards) of a round from which worker processes pay for the exchange."""
FEWEST_STACKED = 4
"""A stack of fewer clients saves less than a second process does."""
STACK_TIMEOUT = 3600.0
"""Seconds that a stack may take before its process counts as stuck."""
KINDS = (Quadratic, LeastSquares, LogisticRegression, ModelObjective)
COMPARED = 200
"""Largest number of clients, evenly spaced, that are compared before the first round."""


@part("engine", "vectorised")
class Vectorised(EngineChoice):
    """The choice of the vectorised engine.

    Args:
        stack: how many clients run at once; by default as many as fit.
        workers: among how many processes the stacks of a round with much work are divided; by
            default one a core that this process may use.  Results do not depend on it.
    """

    stack: Count | None = None
    workers: Count | None = None

    def start(self, job: Job, store: ClientRecords) -> Engine:
        reason = stacking_obstacle(job)
        if reason is not None:
            raise CompatibilityError(f"Vectorised: {reason}")
        workers = usable_cores() if self.workers is None else self.workers
        if job.initial.device.type != "cpu" or start_method() != "fork":
            workers = 1  # tensors elsewhere cannot be forked, and a copied problem takes seconds
        return VectorisedEngine(job, store, self.stack, workers)

    def uses_one_core(self, threads: int | Literal["auto"]) -> bool:
        return threads == 1


class _Stack(NamedTuple):
    """Clients of a round, in order of decreasing size."""

    clients: list[int]
    state: object
    first: Tensor
    """Whether this is the client's first round, of shape (K, 1)."""
    objective: StackedObjective
    rests: list[tuple[Tensor, ...] | None]
    memory: tuple[Tensor, ...] | None


Kept = tuple[ClientRecord | None, ...]
"""The records of a stack's clients; None before a client's first round."""


class VectorisedEngine(Engine):
    """Engine that runs clients in stacks, of `stack` clients or as many as memory allows.

    Rounds with much work divide their stacks among `workers` processes.
    """

    def __init__(
        self, job: Job, store: ClientRecords, stack: int | None = None, workers: int = 1
    ) -> None:
        self._job = job
        self._store = store
        vector = job.initial.numel() * job.initial.element_size()
        self._size = stack if stack is not None else max(1, STACK_BYTES // vector)
        self._workers = workers
        self._work = client_work(job) if workers > 1 else 0.0
        self._stacker = Stacker(job)
        self._pool: Pool | None = None

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        shares = self._workers if len(ids) * self._work >= SHARED_WORK else 1
        stacks = self._stacks(ids, shares)
        rounds = self._shared if shares > 1 and len(stacks) > 1 else self._in_this_process
        for clients, done in zip(stacks, rounds(stacks, download, round_index), strict=True):
            for client, one in zip(clients, done, strict=True):
                if one.record is not None:  # a view would keep the whole stack
                    self._store.commit(client, trees.clone(one.record), round_index)
                yield client, one.upload, one.info

    def each(
        self, piece: Piece, shared: Any, numbers: Sequence[int], given: Callable[[int], Any]
    ) -> Iterator[Any] | None:
        if self._pool is None:  # the rounds are small, and so is an evaluation
            return None
        return shared_evaluation(self._pool, piece, shared, numbers, given)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.stop()

    def _stacks(self, ids: Sequence[int], shares: int) -> list[tuple[int, ...]]:
        """Divide a cohort into equal stacks; a small rest would cost as much as a full one."""
        if not ids:
            return []
        count = math.ceil(len(ids) / self._size)
        if shares > 1:  # as many for each process
            count = min(math.ceil(count / shares) * shares, math.ceil(len(ids) / FEWEST_STACKED))
        bounds = [index * len(ids) // max(count, 1) for index in range(count + 1)]
        return [tuple(ids[begin:end]) for begin, end in itertools.pairwise(bounds)]

    def _in_this_process(
        self, stacks: Sequence[tuple[int, ...]], download: Download, round_index: int
    ) -> Iterator[Iterator[ClientRound]]:
        for clients in stacks:
            kept = tuple(map(self._store.get, clients))
            yield stack_round(self._stacker, clients, kept, download, round_index)

    def _shared(
        self, stacks: Sequence[tuple[int, ...]], download: Download, round_index: int
    ) -> Iterator[tuple[ClientRound, ...]]:
        if self._pool is None:
            self._pool = Pool(self._job, self._workers, STACK_TIMEOUT, slots=2 * self._workers)
        shared = download._replace(missed=None)  # it is in the records that workers get
        largest = max(map(len, stacks))
        whole, kept, sent = needed_bytes(self._job, shared)
        self._pool.reserve(whole, kept * largest, sent * largest)

        def given(number: int) -> tuple[tuple[int, ...], Kept]:
            records = []
            for client in stacks[number]:
                record = self._store.get(client)
                if download.missed is not None:
                    record = caught_up(self._job, client, record, download)
                records.append(record)
            return stacks[number], tuple(records)

        return self._pool.each(_StackRound(round_index), shared, range(len(stacks)), given)


class _StackRound(NamedTuple):
    """Work of a process: the round of one stack."""

    round_index: int

    def __call__(self, job: Job, shared: Any, number: int, given: Any) -> tuple[ClientRound, ...]:
        clients, kept = given
        done = stack_round(Stacker(job), clients, kept, shared, self.round_index)
        return tuple(one._replace(encoded=None) for one in done)

    def named(self, number: int) -> str:
        return f"stack {number} failed in round {self.round_index}"


def stack_round(
    stacker: Stacker, ids: Sequence[int], kept: Kept, download: Download, round_index: int
) -> Iterator[ClientRound]:
    """Yield the rounds of a stack's clients in the order of `ids`, as views of the stack."""
    job, algorithm = stacker.job, stacker.job.algorithm
    stack = _gather(stacker, ids, kept, download)
    keys = [client_key(job, round_index, client) for client in stack.clients]
    problem = job.local.problem(algorithm, download.broadcast, stack.state, stack.first)
    result, solves = _solve(job, stack, problem, download, round_index, keys)
    state, message = algorithm.client_update(download.broadcast, stack.state, result)
    infos = _describe(stack.clients, problem, result, solves, global_vector(job, download))
    parts = (state, result.memory, message)
    states, memories, messages = (trees.unstack(part, len(ids)) for part in parts)
    position = {client: index for index, client in enumerate(stack.clients)}
    for client in ids:
        index = position[client]
        info, record = infos[index], None
        if info.finite:
            record = ClientRecord(states[index], None, stack.rests[index], memories[index])
        done = ClientRound(record, Upload(messages[index]), info)
        yield apply_pipeline(job, done, download, keys[index])


def _gather(stacker: Stacker, ids: Sequence[int], kept: Kept, download: Download) -> _Stack:
    job = stacker.job
    objectives = [job.problem.clients[client] for client in ids]
    order = sorted(range(len(ids)), key=lambda index: -objectives[index].num_samples)
    clients = [ids[index] for index in order]
    records = [kept[index] for index in order]
    first = [[is_first(record, download)] for record in records]
    found = [
        caught_up(job, client, record, download)
        for client, record in zip(clients, records, strict=True)
    ]
    state = trees.stack([record.state for record in found])
    joined = stacker.join(clients, [objectives[index] for index in order])
    starts = torch.tensor(first, device=job.initial.device)
    rests = [record.error_feedback for record in found]
    memories = [record.memory for record in found]
    memory = None if memories[0] is None else trees.stack(memories)
    return _Stack(clients, state, starts, joined, rests, memory)


def _solve(
    job: Job,
    stack: _Stack,
    problem: LocalProblem,
    download: Download,
    round_index: int,
    keys: list[Key],
) -> tuple[LocalResult, list[SolveInfo]]:
    count = len(stack.clients)
    needs = job.algorithm.requirements.local_in(round_index)
    start = problem.start.expand(count, -1)
    if not needs.local_solve:
        info = SolveInfo(0, 1.0, 1.0, "one gradient", float("nan"))
        gradient = stack.objective.gradient(start)
        return LocalResult(start.clone(), gradient, memory=stack.memory), [info] * count
    solver = job.solver
    assert isinstance(solver, IterativeSolver)
    own = local_model(job.algorithm, stack.state)
    theta = global_vector(job, download)
    g = job.problem.regularizer
    context = SolveContext(
        round_index, needs, theta, own, stack.clients, g, job.deployed, stack.memory
    )
    problem = problem._replace(start=start)
    if job.local.personal is None:
        return solver.descend(stack.objective, problem, job.stop, keys, context)

    def run(
        problem: LocalProblem, context: SolveContext, purpose: str
    ) -> tuple[LocalResult, list[SolveInfo]]:
        own = [derive(key, purpose) for key in keys] if purpose else keys
        return solver.descend(stack.objective, problem, job.stop, own, context)

    flat = job.problem.clients[stack.clients[0]].flat
    return job.local.personal.work(run, problem, context, flat)


def _describe(
    clients: Sequence[int],
    problem: LocalProblem,
    result: LocalResult,
    solves: Sequence[SolveInfo],
    theta: Tensor | None,
) -> list[ClientInfo]:
    """Return the statistics of each client's round."""
    anchor = problem.start if theta is None else theta
    weights = torch.as_tensor(problem.weight, dtype=result.params.dtype).reshape(-1)
    moves = norm(result.params - problem.start)
    drifts = moves if anchor is problem.start else norm(result.params - anchor)
    finite = [True] * len(clients)
    # A move is finite if the parameters are, and much smaller; if it overflows, they are looked at.
    if not trees.all_finite(result._replace(params=moves)):
        finite = [trees.all_finite(own) for own in trees.unstack(result, len(clients))]
    columns = zip(
        clients,
        solves,
        weights.expand(len(clients)).tolist(),
        moves.reshape(-1).tolist(),
        drifts.reshape(-1).tolist(),
        finite,
        strict=True,
    )
    return [ClientInfo(*column) for column in columns]


def stacking_obstacle(job: Job) -> str | None:
    """Return why the clients of a job cannot be stacked, or None if they can."""
    stacks = isinstance(job.solver, IterativeSolver) and job.solver.stacks
    if job.algorithm.requirements.local.local_solve and not stacks:
        names = names_of("solver", lambda kind: getattr(kind, "stacks", False))
        return f"the solver: got {type(job.solver).__name__}, expected {names}"
    client: Any = job.problem.clients[0]
    if type(client) not in KINDS:
        kinds = ", ".join(kind.__name__ for kind in KINDS)
        return f"the clients' objectives: got {type(client).__name__}, expected one of {kinds}"
    if not isinstance(job.problem.clients, LazyClients):  # these are drawn alike, at a cost
        for other in job.problem.evenly(COMPARED):
            if not _alike(client, job.problem.clients[other]):
                return _UNLIKE.format(other)
    if not isinstance(client, ModelObjective):
        return None
    if client.flat.buffers() is not None:
        return "the model has buffers, expected none (BatchNorm statistics do not stack)"
    if client.is_random:
        return "the model draws random numbers in training, but must not (dropout does not stack)"
    return _trial(client, job.initial)


def _trial(client: ModelObjective, initial: Tensor) -> str | None:
    """Return why torch.func cannot run the model, or its loss is no mean; None if it can."""
    core = _model_core(client)
    if isinstance(core, NetworkCore):
        return None
    samples = torch.arange(min(2, client.num_samples), device=initial.device)
    inputs, targets = client.prepared(client.inputs[samples]), client.targets[samples]
    batch = Batch(inputs.unsqueeze(0), targets.unsqueeze(0), 1.0 / len(samples))
    try:
        found = core(initial.unsqueeze(0), batch)[0]
    except Exception as error:  # whatever a user's module does under vmap
        return f"the model does not run under torch.func.vmap ({reason(error)})"
    expected = client.gradient(initial, samples)
    precision = torch.finfo(initial.dtype).eps ** 0.5
    scale = float(expected.abs().max())
    if not torch.allclose(found, expected, rtol=precision, atol=precision * scale):
        return "the loss of some samples is not the mean of the samples' losses, but must be"
    return None


def _model_core(client: ModelObjective) -> Core:
    network = client.flat.network(client.loss)
    if network is not None and network.stacks and network.accepts(client.inputs, client.targets):
        return NetworkCore(network, client.flat.slots)
    return module_core(client.flat, client.loss)


class Stacker:
    """Stacks clients' objectives, which must all be of the kind of the first."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._dtype = job.initial.dtype
        self._first: Any = job.problem.clients[0]
        self._core: Core = quadratic_core
        if isinstance(self._first, ModelObjective):
            self._core = _model_core(self._first)
        elif isinstance(self._first, LeastSquares | LogisticRegression):
            squares = isinstance(self._first, LeastSquares)
            self._core = least_squares_core if squares else logistic_core

    def join(self, clients: Sequence[int], objectives: Sequence[Any]) -> StackedObjective:
        """Return the stack of these clients' objectives, in the given order."""
        for client, objective in zip(clients, objectives, strict=True):
            if not _alike(self._first, objective):
                raise CompatibilityError(f"Vectorised: {_UNLIKE.format(client)}")
        if isinstance(self._first, ModelObjective):
            pairs = [(o.inputs, o.targets) for o in objectives]
            samples = StackedSamples.gather(pairs, self._dtype, self._first.prepared)
            return StackedObjective(self._core, samples)
        if isinstance(self._first, Quadratic):
            pairs = [(o.A.unsqueeze(0), o.b.unsqueeze(0)) for o in objectives]
            return StackedObjective(self._core, StackedSamples.gather(pairs, self._dtype))
        samples = StackedSamples.gather([(o.features, o.targets) for o in objectives], self._dtype)
        ridges = samples.column([o.ridge for o in objectives])
        return StackedObjective(self._core, samples, ridges if bool(ridges.any()) else None)


_UNLIKE = (
    "client {} has another kind of objective, module, loss or preparation than client 0, but all "
    "clients must share them"
)


def _alike(first: Any, other: Any) -> bool:
    """Return whether two clients can be in one stack."""
    if type(other) is not type(first) or not isinstance(first, ModelObjective):
        return type(other) is type(first)
    shared = other.flat is first.flat and other.loss == first.loss
    return shared and other.prepare == first.prepare
