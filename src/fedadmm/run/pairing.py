"""Refuses combinations that make no sense, before round 0, in one sentence."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from torch import Tensor

from fedadmm.core.errors import PairingError, ParameterError
from fedadmm.core.objectives.closed_form import QuadraticObjective
from fedadmm.core.objectives.model import ModelObjective
from fedadmm.core.problem import Problem
from fedadmm.core.protocols import AnyAlgorithm, LocalSolver, Progress, Sampler, StoppingRule
from fedadmm.core.regularizers import Zero
from fedadmm.core.sampling import FullParticipation
from fedadmm.core.schedules import check_one_each
from fedadmm.core.solvers import ExactSolver
from fedadmm.run.client import Job, first_problem
from fedadmm.run.engines.choice import EngineChoice
from fedadmm.run.releases import check_records


def check(job: Job, sampler: Sampler, rounds: int) -> None:
    """Refuse a run whose parts do not fit each other."""
    _check_sampler(sampler)
    sampler.check(job.problem.num_clients, rounds)
    _check_algorithm(job, sampler)
    job.local.check(job.algorithm, job.algorithm.init_client(job.initial))
    _check_lengths(job.problem, job.solver, job.stop)
    _check_solver(job)
    _check_stop(job)
    _check_buffers(job.problem)
    job.problem.clients[0].check()  # of clients that are made when they are asked for, one
    check_records(job, sampler)
    _check_last_batches(job)


def no_late_replies(algorithm: AnyAlgorithm) -> str:
    """Why a method is refused where replies arrive late, and what to take instead."""
    aligned, fixed = getattr(algorithm, "absent", ""), algorithm.fixed_step(0) is not None
    given = " with absent='aligned'" if aligned == "aligned" else " with a fixed step" * fixed
    return (
        f"{type(algorithm).__name__}{given} does not tolerate late replies (tolerates_stale is "
        "False): each moves the whole model, they pile up and the run explodes; use FedADMM with "
        "step='tracking' and absent='kept', FedDR, AsyncFedDR, FedAsync or FedBuff"
    )


def check_engine(algorithm: AnyAlgorithm, choice: EngineChoice, clients: int) -> None:
    """Refuse a method without rounds on an engine with rounds, and the other way round."""
    method, engine = type(algorithm).__name__, type(choice).__name__
    asynchronous = choice.is_asynchronous
    if algorithm.asynchronous and not asynchronous:
        raise PairingError(
            f"{method} folds every reply as it arrives, but the engine {engine} works in rounds; "
            "use VirtualTime(mode='async') or GivenDelays, or else a method with rounds"
        )
    if asynchronous and not algorithm.accepts_partial:
        raise PairingError(
            f"{method} needs all clients in every round, but {engine} folds replies without "
            "rounds; use an engine with rounds, such as VirtualTime(mode='sync')"
        )
    late = asynchronous and choice.expected_delay(clients) != 0
    if late and not algorithm.tolerates_stale:
        raise PairingError(
            f"{engine} folds replies as they arrive, but {no_late_replies(algorithm)}, or an "
            "engine with rounds, such as VirtualTime(mode='sync')"
        )


def _check_algorithm(job: Job, sampler: Sampler) -> None:
    method = type(job.algorithm).__name__
    if not job.algorithm.accepts_partial and not isinstance(sampler, FullParticipation):
        raise PairingError(
            f"{method} needs all clients in every round, but the sampler is "
            f"{type(sampler).__name__}; use FullParticipation"
        )
    if not job.algorithm.accepts_regularizer and not isinstance(job.problem.regularizer, Zero):
        raise PairingError(
            f"{method} has no proximal server step, but the problem's regularizer is "
            f"{type(job.problem.regularizer).__name__}; use FedADMM, AlignedADMM, FedADMMInSa, "
            "FedDR, FedDRII, FedMid or FedDualAvg"
        )
    job.problem.regularizer.prox(job.initial, job.algorithm.prox_step)  # refuses a wrong length


def _check_sampler(sampler: Sampler) -> None:
    """A sampler of one's own may have forgotten what it is called with."""
    signature = inspect.signature(sampler.sample)
    try:
        signature.bind(0, 0, 1, None)
    except TypeError:
        raise ParameterError(
            f"{type(sampler).__name__}: sample takes {signature}, but must take "
            "(seed, round_index, clients, known=None)"
        ) from None


def _check_lengths(problem: Problem, solver: LocalSolver | None, stop: StoppingRule) -> None:
    """A number per client is one for each of them."""
    for part in (solver, stop):
        for field in part.per_client if part is not None else ():
            check_one_each(part, field, getattr(part, field), problem.num_clients)


def _check_solver(job: Job) -> None:
    method, needs = type(job.algorithm).__name__, job.algorithm.needs
    if not needs.local_solve:
        return
    if job.solver is None:
        raise PairingError(
            f"{method} needs a local solver, but solver is None; choose one, such as SGD(lr=0.1)"
        )
    if needs.mean_gradient and not job.solver.averages_gradients:
        raise PairingError(
            f"{method} averages the gradients of its local steps, but "
            f"{type(job.solver).__name__} has none to average; use SGD, GradientDescent or "
            "AcceleratedGradient, or option=1"
        )
    if needs.step_sum and not job.solver.sums_steps:
        raise PairingError(
            f"{method} must know the size of every local step, but {type(job.solver).__name__} "
            "does not tell; use SGD or GradientDescent"
        )
    client = job.problem.clients[0]
    if isinstance(job.solver, ExactSolver) and not isinstance(client, QuadraticObjective):
        raise PairingError(
            f"ExactSolver needs quadratic objectives, but the clients' are "
            f"{type(client).__name__}; use SGD, GradientDescent, AcceleratedGradient or LBFGS"
        )


_ASKED, _COUNTED = 200, 10_000
"""Of more clients than these, so many evenly spaced ones tell how much a client works, and whether
it has a batch of one row."""


def _evenly(count: int, most: int) -> Iterator[int]:
    """All of so many clients, or `most` of them."""
    asked = min(count, most)
    return (index * count // asked for index in range(asked))


def local_length(problem: Problem, solver: LocalSolver | None, stop: StoppingRule) -> float:
    """The mean over the clients of learning rate * steps in a round, as far as it can be foretold.

    A rule that may end a solve earlier counts as if it did not.
    """
    _check_lengths(problem, solver, stop)
    lengths = []
    for client in _evenly(problem.num_clients, _ASKED):
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


def _check_stop(job: Job) -> None:
    if not job.algorithm.needs.local_solve or not job.stop.needs_gradient:
        return
    method, rule = type(job.algorithm).__name__, type(job.stop).__name__
    if job.stop.reference == "global" and not job.algorithm.always_sends_theta:
        raise PairingError(
            f"{rule} with reference='global' measures against theta, but {method} does not send it "
            "in every round; use reference='own'"
        )
    if job.algorithm.needs.local_prox != "none":
        raise PairingError(
            f"{rule} measures the gradient of a smooth local problem, but {method} takes the prox "
            "of g in its local steps; use Epochs, UniformEpochs or Steps"
        )
    # A rule that certifies an accuracy refuses a penalty that is too small for it.
    first = first_problem(job)
    if first.steps is not None:
        raise PairingError(
            f"{rule} ends a local solve by what it measures, but {method} says how many steps a "
            "round has; use Epochs, UniformEpochs or Steps, which it does not ask"
        )
    zero = job.initial.new_zeros(1)
    job.stop.reached(Progress(zero, zero, zero, first.weight, 0, (0,)))


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


def _check_buffers(problem: Problem) -> None:
    flat = problem.clients[0].flat
    if flat is not None and flat.buffers() is not None and problem.buffers is None:
        names = ", ".join(name for name, _ in flat.module.named_buffers())
        raise PairingError(
            f"the model has buffers ({names}), but the problem has no policy for them; choose "
            "buffers='keep-local' or buffers='average'"
        )


def _check_last_batches(job: Job) -> None:
    """A layer through which rows act on each other may refuse to train on one alone."""
    clients, first = job.problem.clients, job.problem.clients[0]
    steps = job.solver if job.algorithm.needs.local_solve else None
    size = None if steps is None else steps.batch_size
    if not isinstance(first, ModelObjective) or first.flat.mixes_rows is None:
        return
    if first.trains_on_one_row():
        return
    for number in _evenly(len(clients), _COUNTED):
        rows = clients[number].num_samples
        if (rows if size is None else rows % size or size) == 1:
            raise PairingError(
                f"batch_size is {size} and client {number} has {rows} rows, which leaves a batch "
                f"of one row, but {first.flat.mixes_rows} needs at least two to train on; choose "
                "another batch_size, or GroupNorm or LayerNorm"
            )
