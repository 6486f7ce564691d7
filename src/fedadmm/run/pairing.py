"""Refuses combinations that make no sense, before round 0, in one sentence.

What does not fit is known by the part that it does not fit: `Part.refuses`.
"""

from __future__ import annotations

from torch import Tensor

from fedadmm.core.errors import PairingError, ParameterError
from fedadmm.core.local_work import LocalSolver
from fedadmm.core.parts import Part
from fedadmm.core.problem import Problem
from fedadmm.core.sampling import Sampler
from fedadmm.core.setup import Setup
from fedadmm.core.stopping import StoppingRule
from fedadmm.run.client import Job
from fedadmm.run.engines.choice import EngineChoice

_ASKED = 200
"""Of more clients than these, this many evenly spaced ones tell how much a client works."""


def check(
    job: Job,
    sampler: Sampler,
    rounds: int,
    engine: EngineChoice | None = None,
    *,
    asynchronous: bool = False,
) -> None:
    """Refuse a run whose parts do not fit each other.

    Without an engine, as on a network, `asynchronous` says whether there are rounds.
    """
    setup = Setup(
        *(job.algorithm, job.problem, job.local, sampler, job.uploads, job.aggregate),
        *(job.initial, job.seed, rounds),
        engine.is_asynchronous if engine is not None else asynchronous,
    )
    parts: list[Part] = [sampler, job.algorithm, job.problem.regularizer, job.local, job.problem]
    parts += [] if engine is None else [engine]
    parts += [*job.uploads.stages, job.aggregate]
    for part in parts:
        for reason in part.refuses(setup):
            raise PairingError(reason)


def local_length(problem: Problem, solver: LocalSolver | None, stop: StoppingRule) -> float:
    """The mean over the clients of learning rate * steps in a round, as far as it can be foretold.

    A rule that may end a solve earlier counts as if it did not.
    """
    for part in (solver, stop):
        if part is not None:
            part.check_per_client(problem.num_clients)
    lengths = []
    for client in problem.evenly(_ASKED):
        size = problem.clients[client].num_samples
        rows = None if solver is None else solver.batch_size
        steps = stop.largest_budget(1 if rows is None else -(-size // rows), client)
        length = None if solver is None else solver.length(steps, client)
        if length is None:
            raise PairingError(
                "PerWork makes a penalty from the learning rate and the number of local steps, but "
                f"solver is {None if solver is None else type(solver).__name__}; use SGD, "
                "GradientDescent or AcceleratedGradient, or a number"
            )
        lengths.append(length)
    return sum(lengths) / len(lengths)


def check_initial(initial: object, num_parameters: int) -> None:
    """Refuse a start vector of the wrong kind, before anything is converted to its precision."""
    if not isinstance(initial, Tensor):
        raise ParameterError(
            f"simulate: initial is a {type(initial).__name__}, but must be a torch.Tensor"
        )
    if tuple(initial.shape) != (num_parameters,):
        raise ParameterError(
            f"simulate: initial has shape {tuple(initial.shape)}, but must be ({num_parameters},)"
        )
    if not initial.is_floating_point() or not bool(initial.isfinite().all()):
        raise ParameterError("simulate: initial must be a vector of finite floating-point numbers")
