"""Infer a client's gradients from its updates.

A method is a public pure function from (broadcast, client state, local result) to (client state,
message), and the message is affine in the local result, entry by entry:

    message(result) = offset + slope * result      =>      result = (message - offset) / slope

Two calls of `client_update` give offset and slope, a third moves the server's copy of the client
state, dual included. The local problem is known, too, so that the result reveals gradients: plain
SGD steps are affine in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import fedadmm as fa
from fedadmm.core import trees
from fedadmm.core.contracts import AnyAlgorithm, LocalNeeds, LocalProblem, LocalResult
from fedadmm.core.messages import ClientInfo, ClientRecords, Download, Engine, Upload
from fedadmm.run.client import Job
from fedadmm.run.engines import EngineChoice

POINTS = 3
"""At most this many models represent those at which a local solve evaluated gradients."""


class Observed(NamedTuple):
    """One round of the attacked client, as the server sees it."""

    broadcast: Any
    message: Any
    steps: int
    """Local steps; the server knows the number of samples and the stopping rule."""


class Inferred(NamedTuple):
    """What the server knows after a message."""

    start: Tensor
    end: Tensor
    """The local model after the solve; the start where the message is a gradient."""
    gradient: Tensor
    """The mean of the gradients of f_i that the client used."""
    points: tuple[Tensor, ...]
    """Models at which these gradients were approximately evaluated."""
    state: Any
    """The client state after the round."""


@dataclass
class Transcript:
    """Everything that the server receives of client 0 in a run."""

    rounds: list[Observed] = field(default_factory=list)
    job: Job | None = None


@dataclass(frozen=True)
class Recorded(EngineChoice):
    """The sequential engine, with a transcript of the messages of client 0."""

    transcript: Transcript
    name = "recorded"

    def start(self, job: Job, store: ClientRecords) -> Engine:
        self.transcript.job = job
        return _RecordingEngine(fa.engines.Sequential().start(job, store), self.transcript)


class _RecordingEngine(Engine):
    def __init__(self, inner: Engine, transcript: Transcript) -> None:
        self._inner, self._transcript = inner, transcript

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        for reply in self._inner.run_clients(ids, download, round_index):
            client, upload, info = reply  # type: ignore[misc]
            if client == 0:
                broadcast, message = trees.clone((download.broadcast, upload.message))
                self._transcript.rounds.append(Observed(broadcast, message, info.solve.steps))
            yield client, upload, info


def observe(
    algorithm: AnyAlgorithm,
    problem: fa.Problem,
    solver: fa.SGD,
    steps: int,
    rounds: int = 1,
    upload: Sequence[Any] = (),
    seed: int = 0,
) -> Transcript:
    """Run some rounds with full participation and record every message of client 0."""
    transcript = Transcript()
    fa.simulate(
        algorithm,
        problem,
        rounds,
        solver=solver,
        stop=fa.Steps(steps),
        start="global",
        pipeline=list(upload),
        engine=Recorded(transcript),
        evaluate=False,
        seed=seed,
    )
    return transcript


def infer(transcript: Transcript, lr: float) -> Inferred:
    """Return what the server knows after the last recorded round, in double precision."""
    job = transcript.job
    assert job is not None
    state = job.algorithm.init_client(_double(job.initial))
    for one in transcript.rounds:
        cast, message = _double(one.broadcast), _double(one.message)
        problem, needs = job.algorithm.local_problem(cast, state), job.algorithm.requirements.local
        result = invert_message(job.algorithm, cast, state, message, problem.start, needs)
        gradient, points = _gradient(problem, result, one.steps, lr)
        state, _ = job.algorithm.client_update(cast, state, result)
        found = Inferred(problem.start, result.params, gradient, points, state)
    return found


def invert_message(
    algorithm: AnyAlgorithm, cast: Any, state: Any, message: Any, start: Tensor, needs: LocalNeeds
) -> LocalResult:
    """Return the local result that produced a message.

    Every unknown vector is read off a field of the message that depends on it and on no other.

    Raises:
        CompatibilityError: no field of the message determines one of the vectors.
    """
    unknown = {"params": needs.local_solve, "start_gradient": needs.start_gradient}
    names = [
        n for n, needed in (unknown | {"mean_gradient": needs.mean_gradient}).items() if needed
    ]
    zero = torch.zeros_like(start)
    blank = LocalResult(start)._replace(**dict.fromkeys(names, zero))

    def sent(**values: Tensor) -> dict[str, Tensor]:
        made = algorithm.client_update(cast, state, blank._replace(**values))[1]  # type: ignore[arg-type]
        return {name: v for name, v in trees.named_tensors(made) if v.shape == zero.shape}

    offsets, arrived = sent(), dict(trees.named_tensors(message))
    slopes = {
        name: {key: moved - offsets[key] for key, moved in sent(**{name: zero + 1}).items()}
        for name in names
    }
    found: dict[str, Any] = {}
    for name in names:
        for key, slope in slopes[name].items():
            others = any(bool(slopes[other][key].any()) for other in names if other != name)
            if not others and bool((slope != 0).all()):
                found[name] = (arrived[key] - offsets[key]) / slope
                break
        else:
            raise fa.errors.CompatibilityError(
                f"algorithm: got {type(algorithm).__name__}, expected a method whose messages are "
                f"affine in {name}."
            )
    return blank._replace(**found)


def _gradient(
    problem: LocalProblem, result: LocalResult, steps: int, lr: float
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The mean gradient that the client used, and models at which it was evaluated.

    With s = linear + weight (w - centre) a step is w <- w - lr (grad + s). After m steps with equal
    gradients w_m = q^m w_0 + (w_rest - lr grad) (1 + q + ... + q^{m-1}), q = 1 - lr weight, where
    w_rest = lr (weight centre - linear).
    """
    if result.start_gradient is not None:
        return result.start_gradient, (problem.start,)
    count = max(1, min(steps, POINTS))
    shares = [(place + 0.5) / count - 0.5 / max(1, steps) for place in range(count)]
    points = tuple(problem.start + share * (result.params - problem.start) for share in shares)
    if result.mean_gradient is not None:
        return result.mean_gradient, points
    weight = float(problem.weight)
    q, drift = 1.0 - lr * weight, torch.zeros_like(problem.start)
    if problem.centre is not None:
        drift = drift + weight * problem.centre
    if problem.linear is not None:
        drift = drift - problem.linear
    geometric = sum(q**step for step in range(steps))
    moved = (result.params - q**steps * problem.start) / (lr * geometric)
    return drift - moved, points


def _double(tree: Any) -> Any:
    return trees.map_tensors(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, tree)


def attacked(problem: fa.Problem, client: int, samples: int, seed: int = 0) -> fa.Problem:
    """Return a problem of three clients; the first has some samples of the attacked client."""
    whole: Any = problem.clients[client]
    rng = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(whole.num_samples, generator=rng)[:samples]
    inputs, targets = whole.inputs[chosen], whole.targets[chosen]
    target = replace(whole, module=whole.flat, inputs=inputs, targets=targets)
    others = [problem.clients[index] for index in range(problem.num_clients) if index != client]
    return fa.Problem([target, *others[:2]], initial=problem.initial)
