"""A client's round, which is the same on every engine, and the job that describes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.aggregation import Aggregator, Sum
from fedadmm.core.capabilities import AbsentClientAlignment, local_model
from fedadmm.core.contracts import AnyAlgorithm, LocalProblem, LocalResult, Round, norm, theta_of
from fedadmm.core.errors import ParameterError
from fedadmm.core.local_work import LocalSolver, LocalWork, SolveContext, SolveInfo
from fedadmm.core.messages import ClientInfo, ClientRecord, ClientRecords, Download, Upload
from fedadmm.core.objectives import Objective
from fedadmm.core.personalisation import Personalisation
from fedadmm.core.pipeline import UpdatePipeline
from fedadmm.core.pipeline.postprocessors import ExpectedCohort
from fedadmm.core.problem import Problem
from fedadmm.core.rng import Key, derive
from fedadmm.core.stopping import StoppingRule


class Job(NamedTuple):
    """The components of a run that concern its clients."""

    algorithm: AnyAlgorithm
    problem: Problem
    local: LocalWork
    seed: Key
    initial: Tensor
    initial_buffers: Tensor | None = None
    pipeline: UpdatePipeline = UpdatePipeline()
    """Postprocessing of updates before the server update."""
    aggregator: Aggregator = Sum()
    """Combines the updates at the server."""
    expected: ExpectedCohort | None = None
    """The expected cohort, in place of the actual one, if the server adds noise."""
    deployed: bool = False
    """Whether noise must be drawn from the system's entropy instead of the seed."""

    @property
    def own_models(self) -> LocalModelReader:
        """Reader of local and personalised models."""
        return LocalModelReader(self.algorithm, self.local.personal)

    @property
    def solver(self) -> LocalSolver | None:
        """Solver of the local problems."""
        return self.local.solver

    @property
    def stop(self) -> StoppingRule:
        """Stopping rule of the local solves."""
        assert self.local.stop is not None
        return self.local.stop


def this_round(job: Job, round_index: int) -> Round:
    """Return index and key of a round."""
    return Round(round_index, derive(job.seed, "broadcast", round_index))


def client_key(job: Job, round_index: int, client: int) -> Key:
    """Return the random key of a client in a round."""
    return derive(job.seed, "client", round_index, client)


def client_record(job: Job, store: ClientRecords, client: int) -> ClientRecord:
    """Return the client's record, or the initial one."""
    record = store.get(client)
    return first_record(job) if record is None else record


def caught_up(
    job: Job, client: int, record: ClientRecord | None, download: Download
) -> ClientRecord:
    """Return a client's record at the beginning of a round, after the steps that it missed."""
    if record is None:
        record = first_record(job)
    if download.missed is None:
        return record
    return moved_along(job, record, download.missed.missed(client))


def is_first(record: ClientRecord | None, download: Download) -> bool:
    """Return whether this is a client's first round, without virtual steps before it."""
    return record is None and download.missed is None


def aligned(algorithm: AnyAlgorithm) -> AbsentClientAlignment[Any, Any, Any]:
    """Return the method as one that aligns absent clients."""
    assert isinstance(algorithm, AbsentClientAlignment), "only such a method has missed steps"
    return algorithm


def moved_along(job: Job, record: ClientRecord, missed: Tensor) -> ClientRecord:
    """Return a client's record after the virtual steps that it missed."""
    return record._replace(state=aligned(job.algorithm).catch_up(record.state, missed))


def first_record(job: Job) -> ClientRecord:
    """Return a client's record before its first round."""
    state = job.algorithm.init_client(job.initial)
    return ClientRecord(state, job.initial_buffers, memory=job.local.first_memory(job.initial))


class LocalModelReader(NamedTuple):
    """Reads a client's local or personalised model from its record."""

    algorithm: AnyAlgorithm
    personal: Personalisation | None

    def find(self, record: ClientRecord, theta: Tensor) -> Tensor | None:
        """Return the model, or None if neither the method nor the local work keeps one."""
        if self.personal is None or record.memory is None:
            return local_model(self.algorithm, record.state)
        return self.personal.own_model(record.memory[0], theta)

    def get(self, client: int, record: ClientRecord | None, theta: Tensor) -> Tensor:
        """Return the model; raise a ParameterError if there is none."""
        if record is None:
            raise ParameterError(f"client: got {client}, expected one that has participated.")
        own = self.find(record, theta)
        if own is None:
            raise ParameterError(
                f"algorithm: got {type(self.algorithm).__name__}, expected a method with local "
                f"models for the model of client {client}. Use FedADMM, FedDR or FedPD, or Ditto."
            )
        return own


class ClientRound(NamedTuple):
    """What one client's round leaves: what it keeps, what it sends, what is known of it."""

    record: ClientRecord | None
    """None when the result is not finite: the client then stays what it was."""
    upload: Upload
    info: ClientInfo
    encoded: Any = None
    """The message as it travels, where stages of the upload encode it."""


def run_client(
    job: Job, store: ClientRecords, client: int, download: Download, round_index: int
) -> tuple[Upload, ClientInfo]:
    """One client's round on the record that a store keeps."""
    done = client_round(job, client, store.get(client), download, round_index)
    if done.record is not None:
        store.commit(client, done.record, round_index)
    return done.upload, done.info


def client_round(
    job: Job, client: int, record: ClientRecord | None, download: Download, round_index: int
) -> ClientRound:
    """One client's round: record and download in, record and upload out.

    It does not know who keeps the record; a client without one starts afresh.
    """
    first = is_first(record, download)
    record = caught_up(job, client, record, download)
    objective = job.problem.clients[client]
    problem = job.local.problem(
        job.algorithm,
        download.broadcast,
        record.state,
        torch.tensor([first], device=job.initial.device),
    )
    key = client_key(job, round_index, client)
    _load_buffers(job, objective, download, record)
    with _seeded(objective, key):
        own = local_model(job.algorithm, record.state)
        needs = job.algorithm.requirements.local_in(round_index)
        theta = global_vector(job, download)
        g = job.problem.regularizer
        context = SolveContext(
            round_index, needs, theta, own, (client,), g, job.deployed, record.memory
        )
        result, solve = _solve(job, objective, problem, key, context)
    state, message = job.algorithm.client_update(download.broadcast, record.state, result)
    buffers = _buffers(job, objective)
    finite = trees.all_finite(result)
    info = describe(client, problem, result, solve, global_vector(job, download), finite)
    keeps = job.problem.buffers == "keep-local"
    kept = ClientRecord(
        state, buffers if keeps else None, record.error_feedback, trees.clone(result.memory)
    )
    upload = Upload(message, None if keeps else buffers)
    return apply_pipeline(job, ClientRound(kept if finite else None, upload, info), download, key)


def apply_pipeline(job: Job, done: ClientRound, download: Download, key: Key) -> ClientRound:
    """Return a client's round after the update pipeline; its record still has the old residual."""
    if done.record is None or not job.pipeline.changes_messages:
        return done
    fields = job.pipeline.residual_fields(job.algorithm)
    before = done.record.error_feedback
    residual = None if before is None else dict(zip(fields, before, strict=True))
    message = done.upload.message
    sent = job.pipeline.on_client(job.algorithm, message, residual, key, download.pipeline)
    size = trees.num_bytes(sent.encoded)
    upload = Upload(sent.message, done.upload.buffers, sent.statistics, size)
    kept = tuple(sent.residual[name] for name in fields) if fields else None
    return ClientRound(done.record._replace(error_feedback=kept), upload, done.info, sent.encoded)


def record_layout(job: Job) -> ClientRecord:
    """How a client's record looks after a round."""
    fields = job.pipeline.residual_fields(job.algorithm)
    rest = tuple(torch.zeros_like(job.initial) for _ in fields) if fields else None
    return trees.clone(first_record(job))._replace(error_feedback=rest)


def message_template(job: Job, broadcast: Any) -> Any:
    """How a message looks that answers this broadcast; its numbers mean nothing."""
    client = job.algorithm.init_client(job.initial)
    zero = torch.zeros_like(job.initial)
    return job.algorithm.client_update(broadcast, client, LocalResult.like(zero))[1]


def describe(
    client: int,
    problem: LocalProblem,
    result: LocalResult,
    solve: SolveInfo,
    theta: Tensor | None,
    finite: bool,
) -> ClientInfo:
    """What callbacks may know about a client's round."""
    anchor = problem.start if theta is None else theta
    measured = [norm(result.params - problem.start)]
    if anchor is not problem.start:
        measured.append(norm(result.params - anchor))
    weight = problem.weight
    if isinstance(weight, Tensor):
        measured.append(weight.reshape(1))
    numbers = torch.cat(measured).tolist()  # one read from a device
    weight = numbers.pop() if isinstance(weight, Tensor) else weight
    return ClientInfo(client, solve, float(weight), numbers[0], numbers[-1], finite)


def global_vector(job: Job, download: Download) -> Tensor | None:
    """Theta in the broadcast, or None when it is not sent (FedPD after a silent round)."""
    return theta_of(download.broadcast)


def _solve(
    job: Job, objective: Objective, problem: LocalProblem, key: Key, context: SolveContext
) -> tuple[LocalResult, SolveInfo]:
    if not context.needs.local_solve:
        gradient = objective.gradient(problem.start).clone()
        result = LocalResult(problem.start.clone(), gradient, memory=context.memory)
        return result, SolveInfo(0, 1.0, 1.0, "one gradient", float("nan"))
    solver = job.solver
    assert solver is not None
    if job.local.personal is None:
        return solver.solve(objective, problem, job.stop, key, context)

    def run(
        problem: LocalProblem, context: SolveContext, purpose: str
    ) -> tuple[LocalResult, list[SolveInfo]]:
        own = derive(key, purpose) if purpose else key
        result, info = solver.solve(objective, problem, job.stop, own, context)
        return result, [info]

    result, (info,) = job.local.personal.work(run, problem, context, objective.flat)
    return result, info


@contextmanager
def _seeded(objective: Objective, key: Key) -> Iterator[None]:
    """Dropout draws from torch's global generator; give it this client's key and put it back."""
    if not objective.is_random:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(key, "dropout"))
        yield


def _load_buffers(job: Job, objective: Any, download: Download, record: ClientRecord) -> None:
    if job.problem.buffers == "keep-local" and record.buffers is not None:
        objective.flat.load_buffers(record.buffers)
    elif job.problem.buffers == "average" and download.buffers is not None:
        objective.flat.load_buffers(download.buffers)


def _buffers(job: Job, objective: Any) -> Tensor | None:
    if job.problem.buffers is None:
        return None
    buffers: Tensor | None = objective.flat.buffers()
    return buffers
