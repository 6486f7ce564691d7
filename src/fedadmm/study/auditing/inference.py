"""What a server can work out from one client's messages, whatever the method.

A client's round is made of pure functions that the server knows.  Its message is affine in the
local result, entry by entry, so that two calls of `client_update` invert it:

    message(result) = offset + slope * result      =>      result = (message - offset) / slope

The same function then moves the server's copy of the client's state.  As long as nothing is cut off
an upload, that copy is the client's own (w_i, y_i, v_i, c_i) after any number of rounds, dual
included.  The local problem being known too, the result gives the gradients of f_i away: gradient
steps are affine in them, and a solve to the end leaves grad f_i(w) = -linear - weight (w - centre).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.capabilities import local_model
from fedadmm.core.errors import PairingError
from fedadmm.core.local_work import LocalSolver, SolveContext
from fedadmm.core.messages import ClientInfo, ClientRecord, Download, Upload
from fedadmm.core.objectives import Objective
from fedadmm.core.objectives.model import ModelObjective
from fedadmm.core.pipeline import noised
from fedadmm.core.problem import Lazy, Problem
from fedadmm.core.protocols import AnyAlgorithm, LocalNeeds, LocalProblem, LocalResult
from fedadmm.core.rng import Dice, Key, derive, generator
from fedadmm.core.sampling import Sampler
from fedadmm.core.stopping import Epochs
from fedadmm.run.client import Job, caught_up, client_key, global_vector
from fedadmm.run.engines.choice import SequentialEngine
from fedadmm.run.evaluation import Evaluation
from fedadmm.run.loop import initial_state
from fedadmm.run.loop import run as run_loop
from fedadmm.run.plan import Schedule
from fedadmm.run.simulation import check_pairing
from fedadmm.run.stores import MemoryStore

POINTS = 3
"""At most this many models represent those that a local solve went through."""


class Observed(NamedTuple):
    """One round of a client, as far as the server takes part in it."""

    round_index: int
    download: Download
    message: Any
    """As it arrived."""
    steps: int
    """How many local steps the client made; the server knows its rows and the stopping rule."""


class Inferred(NamedTuple):
    """What the server knows after a message."""

    start: Tensor
    """Where the local solve began."""
    end: Tensor
    """Where it ended; the start, where the message is a gradient."""
    gradient: Tensor
    """The mean of the gradients of f_i that the client used."""
    points: tuple[Tensor, ...]
    """Where about these gradients were taken."""
    state: Any
    """The client's state after the round."""


class _Slope(Objective):
    """A linear function of slope `level` in every direction."""

    def __init__(self, parameters: int, rows: int, level: float) -> None:
        self._parameters, self._rows, self._level = parameters, rows, level

    @property
    def num_parameters(self) -> int:
        return self._parameters

    @property
    def num_samples(self) -> int:
        return self._rows

    def value(self, params: Tensor) -> Tensor:
        return self._level * params.sum()

    def gradient(self, params: Tensor, rows: Tensor | None = None) -> Tensor:
        return torch.full_like(params, self._level)

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Objective:
        return self


def infer(job: Job, client: int, observed: Sequence[Observed]) -> Inferred:
    """What the server knows of a client after all these rounds, in double precision."""
    assert observed, "no round of the client was observed"
    record = ClientRecord(job.algorithm.init_client(_double(job.initial)))
    for number, one in enumerate(observed):
        download = one.download._replace(cast=_double(one.download.cast))
        first = torch.tensor([number == 0 and download.missed is None])
        record = caught_up(job, client, record, download)
        found = _of_round(job, client, _double(record.state), first, download, one)
        record = ClientRecord(found.state)
    return found


def _of_round(
    job: Job, client: int, state: Any, first: Tensor, download: Download, one: Observed
) -> Inferred:
    algorithm, cast, message = job.algorithm, download.cast, _double(one.message)
    problem = job.local.problem(algorithm, cast, state, first)
    response, needs = None, algorithm.requirements.local_in(one.round_index)
    if needs.local_solve and job.solver is not None:
        response = _response(job, job.solver, client, problem, download, state, one)
    sums = None if response is None else response.step_sum
    known = LocalResult(problem.start, step_sum=sums)
    result = result_of(algorithm, cast, state, message, known, needs)
    gradient, points = _gradient(job, problem, result, response, one.steps)
    after, _ = algorithm.client_update(cast, state, result)
    return Inferred(problem.start, result.params, gradient, points, after)


def result_of(
    algorithm: AnyAlgorithm,
    cast: Any,
    state: Any,
    message: Any,
    known: LocalResult,
    needs: LocalNeeds,
) -> LocalResult:
    """The local result that a message tells of, beside what is known of it.

    Every unknown vector is read off a field of the message that depends on it and on no other.
    """
    zero = torch.zeros_like(known.params)
    unknown = {"params": needs.local_solve, "start_gradient": needs.start_gradient}
    names = [
        name
        for name, wanted in (unknown | {"mean_gradient": needs.mean_gradient}).items()
        if wanted
    ]
    blanks: dict[str, Any] = dict.fromkeys(names, zero)
    blank = known._replace(**blanks)

    def sent(**values: Any) -> dict[str, Tensor]:
        made = algorithm.client_update(cast, state, blank._replace(**values))[1]
        return {name: v for name, v in trees.named_tensors(made) if v.shape == zero.shape}

    offsets, arrived = sent(), dict(trees.named_tensors(message))
    slopes = {
        name: {field: moved - offsets[field] for field, moved in sent(**{name: zero + 1}).items()}
        for name in names
    }
    found: dict[str, Any] = {}
    for name in names:
        for field, slope in slopes[name].items():
            alone = not any(bool(slopes[other][field].any()) for other in names if other != name)
            if alone and bool((slope != 0).all()):
                found[name] = (arrived[field] - offsets[field]) / slope
                break
        else:
            raise PairingError(
                f"audit: {type(algorithm).__name__} sends no vector that its {name} can be read "
                "off, but an attack needs one; audit a method whose messages are affine in it"
            )
    return blank._replace(**found)


class _Response(NamedTuple):
    """What a local solve makes of gradients that are all the same."""

    resting: Tensor
    """Where it ends if they are zero."""
    moved: Tensor
    """How much further if they are one."""
    step_sum: Tensor | None


def _response(
    job: Job,
    solver: LocalSolver,
    client: int,
    problem: LocalProblem,
    download: Download,
    state: Any,
    one: Observed,
) -> _Response | None:
    """The client's own solver on two linear functions; None where it has no rate of its own.

    Noise of the solver is not known, and stays on what is inferred.
    """
    if solver.rate_of(client, one.round_index) is None:
        return None
    solver = solver.without_noise()
    needs = job.algorithm.requirements.local._replace(start_gradient=False, mean_gradient=False)
    context = SolveContext(
        one.round_index,
        needs,
        global_vector(job, download),
        local_model(job.algorithm, state),
        (client,),
        job.problem.regularizer,
    )
    rows, key = job.problem.clients[client].num_samples, client_key(job, one.round_index, client)
    task = problem._replace(steps=one.steps)
    resting, moved = (
        solver.solve(_Slope(problem.start.numel(), rows, level), task, Epochs(1), key, context)[0]
        for level in (0.0, 1.0)
    )
    return _Response(resting.params, moved.params - resting.params, resting.step_sum)


def _gradient(
    job: Job, problem: LocalProblem, result: LocalResult, response: _Response | None, steps: int
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The mean gradient that the client used, and where about it was taken."""
    if result.start_gradient is not None:
        return result.start_gradient, (problem.start,)
    path = _path(problem.start, result.params, steps)
    if result.mean_gradient is not None:
        return result.mean_gradient, path
    if response is not None:
        if steps == 0:
            raise PairingError("audit: the client made no local step, so that there is no gradient")
        return (result.params - response.resting) / response.moved, path
    if problem.centre is None or float(problem.weight) == 0.0:
        raise PairingError(
            f"audit: {type(job.solver).__name__} chooses its own steps and "
            f"{type(job.algorithm).__name__} has no penalty, so that no gradient follows from what "
            "is sent; use a solver with a learning rate, such as SGD"
        )
    pulled = problem.weight * (result.params - problem.centre)
    if problem.linear is not None:
        pulled = pulled + problem.linear
    return -pulled, (result.params,)


def _path(start: Tensor, end: Tensor, steps: int) -> tuple[Tensor, ...]:
    """The models at which the steps took their gradients, as if they lay on a line.

    Of many steps, some that lie evenly among them.
    """
    count = max(1, min(steps, POINTS))
    shares = ((place + 0.5) / count - 0.5 / max(1, steps) for place in range(count))
    return tuple(start + share * (end - start) for share in shares)


def _double(tree: Any) -> Any:
    return trees.map_tensors(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, tree)


def with_rows(problem: Problem, client: int, rows: int, seed: Key) -> Problem:
    """The problem in which a client has only some of its rows, drawn from the seed."""
    whole = problem.clients[client]
    assert isinstance(whole, ModelObjective)
    draws = generator(derive(seed, "audited rows", client))
    chosen = torch.randperm(whole.num_samples, generator=draws)[:rows]
    part = replace(
        whole, module=whole.flat, inputs=whole.inputs[chosen], targets=whole.targets[chosen]
    )

    def build(index: int) -> Objective:
        return part if index == client else problem.clients[index]

    return replace(problem, clients=Lazy(problem.num_clients, build))


@dataclass(frozen=True)
class _WithClient(Sampler):
    """The sampler of a run, whose audited client always takes part, and in the last round alone."""

    others: Sampler
    client: int
    last: int

    def sample(self, seed: Key, round_index: int, clients: int) -> Sequence[int]:
        if round_index == self.last:
            return [self.client]
        chosen = self.others.sample(seed, round_index, clients)
        return sorted({*chosen, self.client})


class _Recorder(SequentialEngine):
    """Records what the server and one client send to each other."""

    def __init__(self, job: Job, client: int) -> None:
        super().__init__(job, MemoryStore())
        self._client = client
        self.observed: list[Observed] = []

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        for client, upload, info in super().run_clients(ids, download, round_index):
            if client == self._client and info.finite:
                self.observed.append(
                    Observed(round_index, download, upload.message, info.solve.steps)
                )
            yield client, upload, info


def observe(job: Job, sampler: Sampler, client: int, before: int = 0) -> list[Observed]:
    """What the server has of a client after `before` rounds and the one that is audited.

    Noise of the upload is not on what the server hears, and the model is trained without it.
    """
    check_pairing(job, sampler, before + 1)
    job = job._replace(uploads=job.pipeline._replace(noise=None))
    engine = _Recorder(job, client)
    schedule = Schedule(before + 1, Evaluation(objective=False, test=False))
    sampler_with_client = _WithClient(sampler, client, before)
    with torch.no_grad():
        reports = list(
            run_loop(job, sampler_with_client, engine, MemoryStore(), schedule, initial_state(job))
        )
    if not engine.observed or engine.observed[-1].round_index != before:
        ending = reports[-1].ending
        why = "it did not reply" if ending is None else ending.sentence
        raise PairingError(f"audit: client {client} has no upload in round {before + 1}: {why}")
    return engine.observed


def from_the_sum(job: Job, client: int, observed: list[Observed]) -> list[Observed]:
    """The client's messages for an observer who sees only noised sums and knows all other uploads.

    That is the strongest observer that the noise is meant for: it subtracts all other clients from
    a sum, which leaves a_i times the message and the noise.
    """
    uploads, problem = job.pipeline, job.problem
    assert uploads.clip is not None
    largest = max(problem.weight(index) for index in range(problem.num_clients))
    seen = []
    for one in observed:
        bound = uploads.clip.norm if one.download.pipeline is None else float(one.download.pipeline)
        change = (
            uploads.vector_noise(problem.num_clients) * bound * largest / problem.weight(client)
        )
        dice = Dice(derive(job.seed, "noise", one.round_index, client))
        seen.append(one._replace(message=noised(job.algorithm, one.message, change, dice)))
    return seen


def prepared_rows(objective: Objective) -> tuple[Tensor, Tensor]:
    """A client's rows as its model takes them, and their targets."""
    assert isinstance(objective, ModelObjective)
    return objective.prepared(objective.inputs).detach(), objective.targets
