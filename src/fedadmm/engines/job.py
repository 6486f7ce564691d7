"""What every engine needs to know, and one client's round, written once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm import trees
from fedadmm.problem import Problem
from fedadmm.protocols import (
    AnyAlgorithm,
    ClientInfo,
    ClientRecord,
    ClientStateStore,
    Download,
    LocalProblem,
    LocalResult,
    LocalSolver,
    Objective,
    Round,
    SolveContext,
    SolveInfo,
    StoppingRule,
    Upload,
    norm,
)
from fedadmm.rng import Key, derive


class Job(NamedTuple):
    """The parts of a run that concern its clients."""

    algorithm: AnyAlgorithm
    problem: Problem
    solver: LocalSolver | None
    stop: StoppingRule
    seed: Key
    initial: Tensor
    initial_buffers: Tensor | None = None
    asks_losses: bool = False
    """Whether clients report f_i(theta), for a sampler that wants to know."""


def this_round(job: Job, round_index: int) -> Round:
    """The round as algorithms see it."""
    return Round(round_index, derive(job.seed, "broadcast", round_index))


def client_key(job: Job, round_index: int, client: int) -> Key:
    """The key of everything random that one client does in one round."""
    return derive(job.seed, "client", round_index, client)


def client_record(job: Job, store: ClientStateStore, client: int) -> ClientRecord:
    """The client's record, or the one it starts with."""
    record = store.get(client)
    if record is None:
        record = ClientRecord(job.algorithm.init_client(job.initial), job.initial_buffers)
    return record


def run_client(
    job: Job, store: ClientStateStore, client: int, download: Download, round_index: int
) -> tuple[Upload, ClientInfo]:
    """One client's round: state in, local problem, solve, state out, upload.

    A result that is not finite is reported and never committed.
    """
    record = client_record(job, store, client)
    objective = job.problem.clients[client]
    problem = job.algorithm.local_problem(download.cast, record.state)
    key = client_key(job, round_index, client)
    _load_buffers(job, objective, download, record)
    loss = reported_loss(job, objective, download, problem)
    with _seeded(objective, key):
        own = job.algorithm.local_params(record.state)
        needs, theta = job.algorithm.needs, global_vector(download)
        context = SolveContext(round_index, needs, theta, own, (client,))
        result, solve = _solve(job, objective, problem, key, context)
    state, message = job.algorithm.client_update(download.cast, record.state, result)
    buffers = _buffers(job, objective)
    finite = trees.all_finite(result)
    info = describe(client, problem, result, solve, global_vector(download), finite)
    info = info._replace(loss=loss)
    if finite:
        local = buffers if job.problem.buffers == "keep-local" else None
        store.commit(client, ClientRecord(state, local), round_index)
    return Upload(message, buffers if job.problem.buffers == "average" else None), info


def reported_loss(
    job: Job, objective: Objective, download: Download, problem: LocalProblem
) -> float:
    """f_i at theta, or at the start of the solve when theta was not sent; NaN if nobody asks."""
    if not job.asks_losses:
        return float("nan")
    theta = global_vector(download)
    return float(objective.value(problem.start if theta is None else theta))


def describe(
    client: int,
    problem: LocalProblem,
    result: LocalResult,
    solve: SolveInfo,
    theta: Tensor | None,
    finite: bool,
) -> ClientInfo:
    """What observers may know about a client's round."""
    anchor = problem.start if theta is None else theta
    move = float(norm(result.params - problem.start))
    drift = move if anchor is problem.start else float(norm(result.params - anchor))
    return ClientInfo(client, solve, float(problem.weight), move, drift, finite)


def global_vector(download: Download) -> Tensor | None:
    """Theta in the broadcast, or None when it is not sent (FedPD after a silent round)."""
    theta: Tensor | None = download.cast.theta
    return theta


def _solve(
    job: Job,
    objective: Objective,
    problem: LocalProblem,
    key: Key,
    context: SolveContext,
) -> tuple[LocalResult, SolveInfo]:
    if not context.needs.local_solve:
        gradient = objective.gradient(problem.start).clone()
        return LocalResult(problem.start, gradient), SolveInfo(
            0, 1.0, 1.0, "one gradient", float("nan")
        )
    assert job.solver is not None
    return job.solver.solve(objective, problem, job.stop, key, context)


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
