"""Many clients at once in this process, for models so small that Python would be the work."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedadmm import trees
from fedadmm.engines.choice import EngineChoice
from fedadmm.engines.job import Job, client_key, client_record, global_vector
from fedadmm.engines.stacked import StackedObjective, Stacker, refusal, solve_stack
from fedadmm.engines.stacked.stacking import as_sgd
from fedadmm.engines.threads import torch_threads
from fedadmm.errors import PairingError, check_count
from fedadmm.protocols import (
    ClientInfo,
    ClientRecord,
    ClientStateStore,
    Download,
    Engine,
    LocalProblem,
    LocalResult,
    SolveContext,
    SolveInfo,
    Upload,
    norm,
)

STACK_BYTES = 32 * 2**20
"""How much one vector a client may take in a stack: a solve works on about six of them."""


@dataclass(frozen=True)
class Vectorised(EngineChoice):
    """The choice of the vectorised engine.

    Args:
        stack: how many clients run at once; by default as many as fit.
        threads: how many threads torch uses meanwhile.
    """

    name: ClassVar[str] = "vectorised"

    stack: int | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        if self.stack is not None:
            check_count(self, "stack", self.stack)
        check_count(self, "threads", self.threads)

    @property
    def keeps_to_one_core(self) -> bool:
        """With a single thread."""
        return self.threads == 1

    def __call__(self, job: Job, store: ClientStateStore) -> Engine:
        """Start the engine, or refuse a job whose clients cannot be stacked."""
        reason = refusal(job)
        if reason is not None:
            raise PairingError(f"Vectorised: {reason}")
        return VectorisedEngine(job, store, self.stack, self.threads)


class _Stack(NamedTuple):
    """Some clients of a round, in order of falling size."""

    clients: list[int]
    state: object
    objective: StackedObjective


class VectorisedEngine:
    """Runs clients in stacks; every stack is as many clients as `stack` says or memory allows."""

    def __init__(
        self, job: Job, store: ClientStateStore, stack: int | None = None, threads: int = 1
    ) -> None:
        self._job = job
        self._threads = threads
        self._store = store
        self._stacker = Stacker(job)
        vector = job.initial.numel() * job.initial.element_size()
        self._size = stack if stack is not None else max(1, STACK_BYTES // vector)

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        """Each client's upload, in the order of `ids`."""
        parts = math.ceil(len(ids) / self._size)
        with torch_threads(self._threads):
            for part in range(parts):  # equal ones: a small rest would cost as much as a full one
                chosen = ids[part * len(ids) // parts : (part + 1) * len(ids) // parts]
                yield from self._run_stack(list(chosen), download, round_index)

    def close(self) -> None:
        """Nothing to give back."""

    def _gather(self, ids: list[int]) -> _Stack:
        objectives = [self._job.problem.clients[client] for client in ids]
        order = sorted(range(len(ids)), key=lambda index: -objectives[index].num_samples)
        clients = [ids[index] for index in order]
        state = trees.stack(
            [client_record(self._job, self._store, client).state for client in clients]
        )
        return _Stack(
            clients, state, self._stacker.join(clients, [objectives[index] for index in order])
        )

    def _run_stack(
        self, ids: list[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        algorithm = self._job.algorithm
        stack = self._gather(ids)
        problem = algorithm.local_problem(download.cast, stack.state)
        result, solves = self._solve(stack, problem, download, round_index)
        state, message = algorithm.client_update(download.cast, stack.state, result)
        infos = _describe(stack.clients, problem, result, solves, global_vector(download))
        position = {client: index for index, client in enumerate(stack.clients)}
        for client in ids:
            index = position[client]
            if infos[index].finite:
                own = trees.clone(trees.select(state, index))  # a view would keep the whole stack
                self._store.commit(client, ClientRecord(own), round_index)
            yield client, Upload(trees.select(message, index)), infos[index]

    def _solve(
        self, stack: _Stack, problem: LocalProblem, download: Download, round_index: int
    ) -> tuple[LocalResult, list[SolveInfo]]:
        job, count = self._job, len(stack.clients)
        needs = job.algorithm.needs
        if not needs.local_solve:
            start = problem.start.expand(count, -1)
            info = SolveInfo(0, 1.0, "one gradient", float("nan"))
            return LocalResult(start, stack.objective.gradient(start)), [info] * count
        solver = as_sgd(job.solver)
        assert solver is not None
        keys = [client_key(job, round_index, client) for client in stack.clients]
        context = SolveContext(round_index, needs, global_vector(download))
        return solve_stack(stack.objective, problem, job.stop, keys, context, solver)


def _describe(
    clients: Sequence[int],
    problem: LocalProblem,
    result: LocalResult,
    solves: Sequence[SolveInfo],
    theta: Tensor | None,
) -> list[ClientInfo]:
    """What observers may know about each client's round."""
    anchor = problem.start if theta is None else theta
    weights = torch.as_tensor(problem.weight, dtype=result.params.dtype).reshape(-1)
    columns = zip(
        clients,
        solves,
        weights.expand(len(clients)).tolist(),
        norm(result.params - problem.start).reshape(-1).tolist(),
        norm(result.params - anchor).reshape(-1).tolist(),
        _finite_rows(result),
        strict=True,
    )
    return [ClientInfo(*column) for column in columns]


def _finite_rows(result: LocalResult) -> list[bool]:
    """Which clients' vectors hold neither a NaN nor an infinity."""
    leaves = [leaf for leaf in trees.tensors(result) if leaf.numel() > 0]
    bounds = [bound for leaf in leaves for bound in torch.aminmax(leaf, dim=-1)]
    finite: list[bool] = torch.isfinite(torch.stack(bounds)).all(dim=0).tolist()
    return finite
