"""What stages and noise must fit to; refused before round 0 otherwise."""

from __future__ import annotations

from fedadmm.core import trees
from fedadmm.core.errors import PairingError, ParameterError
from fedadmm.core.protocols import Sampler
from fedadmm.core.uploads import GaussianNoise
from fedadmm.core.uploads.pipeline import vectors_of
from fedadmm.run.client import Job, first_problem, message_template, this_round


def check_uploads(job: Job, sampler: Sampler, *, asynchronous: bool) -> None:
    """Refuse stages that would bias the method's message, or noise that hides nothing."""
    uploads = job.uploads
    for stage in uploads.stages:
        stage.check(job.problem.num_parameters)
    if not uploads.stages:
        return
    cast = job.algorithm.broadcast(job.algorithm.init_server(job.initial), this_round(job, 0))
    message = message_template(job, cast)
    declared = vectors_of(job.algorithm, message)
    others = {n: leaf for n, leaf in trees.named_tensors(message) if n not in declared}
    method = type(job.algorithm).__name__
    for name, leaf in others.items():
        if leaf.numel() > 1 or not declared:
            raise PairingError(
                f"{method} sends {name} as a whole, not as a difference, so that the upload's "
                f"{uploads.stages[0].name} would bias it; use a method whose messages are moves or "
                "increments, such as FedAvg, FedDyn, FedDR, FedADMM with rho fixed and "
                "members='all', or AlignedADMM"
            )
    if uploads.noise is not None:
        _check_noise(job, uploads.noise, sampler, sorted(others), asynchronous)


def _check_noise(
    job: Job, noise: GaussianNoise, sampler: Sampler, others: list[str], asynchronous: bool
) -> None:
    method, clients = type(job.algorithm).__name__, job.problem.num_clients
    if job.uploads.clip is None:
        raise PairingError(
            "the upload has noise but no clip, so that one client could change the sum by more "
            "than any noise hides; put Clip or AdaptiveClip first"
        )
    if others:
        raise PairingError(
            f"{method} sends {', '.join(others)} beside its vectors, which no noise hides; use a "
            "method, or options of it, that sends vectors alone"
        )
    if asynchronous:
        raise PairingError(
            "noise hides a client among those of its round, but the engine folds every reply on "
            "its own; use an engine with rounds"
        )
    if job.problem.buffers == "average":
        raise PairingError(
            "the model's buffers are averaged without noise; use buffers='keep-local' or a model "
            "without them"
        )
    if sampler.looks_back or sampler.asks_losses:
        raise PairingError(
            f"{type(sampler).__name__} chooses by what clients replied, which no noise hides; use "
            "BernoulliSampling, UniformSampling or FullParticipation"
        )
    if sampler.probabilities(clients) is None:
        raise PairingError(
            f"noise needs to know how many replies to expect, which {type(sampler).__name__} does "
            "not tell; use BernoulliSampling with fixed probabilities, UniformSampling or "
            "FullParticipation"
        )
    if noise.delta >= 1 / clients:
        raise ParameterError(
            f"GaussianNoise: delta is {noise.delta:g}, but must be below one over the number of "
            f"clients, {1 / clients:.4g}: otherwise giving one client away would be allowed"
        )


def check_records(job: Job, sampler: Sampler) -> None:
    """Refuse a solver with noise beside what tells of rows and has none."""
    solver, needs = job.solver, job.algorithm.needs
    if solver is None or solver.noise is None:
        return
    method, name = type(job.algorithm).__name__, type(solver).__name__
    if needs.start_gradient or not needs.local_solve:
        raise PairingError(
            f"{method} takes the gradient over all of a client's rows, which {name} does not "
            "noise; use a method that sends where its local steps lead"
        )
    if job.stop.needs_gradient:
        raise PairingError(
            f"{type(job.stop).__name__} looks at gradients without the noise of {name}; use "
            "Epochs, UniformEpochs or Steps"
        )
    if first_problem(job).steps is not None:
        raise PairingError(
            f"{method} draws how many steps a round has, but noise is accounted for by those of "
            "the stopping rule; use another method"
        )
    if sampler.asks_losses:
        raise PairingError(
            f"{type(sampler).__name__} asks for losses, which {name} does not noise; use another "
            "sampler"
        )
    if job.uploads.noise is not None:
        raise PairingError(
            f"{name} hides the rows of clients and the upload's noise hides clients, but a run "
            "accounts for one of them; leave out the other"
        )
    if (reason := job.problem.clients[0].row_refusal(job.initial)) is not None:
        raise PairingError(f"{name}: {reason}")
    for client, objective in enumerate(job.problem.clients):
        if (rows := objective.num_samples) >= 1 / solver.noise.delta:
            raise ParameterError(
                f"{name}: delta is {solver.noise.delta:g}, but must be below one over the number "
                f"of rows of every client, {1 / rows:.4g} at client {client}: otherwise giving one "
                "row away would be allowed"
            )
