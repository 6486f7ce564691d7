"""What a run's uploads must fit to, and what its noise hides; refused before round 0 otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedadmm.core import trees
from fedadmm.core.errors import PairingError, ParameterError
from fedadmm.core.protocols import Sampler
from fedadmm.core.sampling import BernoulliSampling
from fedadmm.core.uploads import GaussianNoise
from fedadmm.core.uploads.pipeline import vectors_of
from fedadmm.run.client import Expected, Job, message_template, this_round

if TYPE_CHECKING:
    from fedadmm.theory.privacy import Accountant


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
                "members='all', or aligned"
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


def hidden(job: Job, sampler: Sampler, *, deployed: bool = False) -> tuple[Job, Accountant | None]:
    """The job with what its noise counts with, and the accountant; None without noise."""
    noise = job.uploads.noise
    if noise is None:
        return job, None
    from fedadmm.theory.privacy import Accountant

    clients = job.problem.num_clients
    chances = sampler.probabilities(clients)
    assert chances is not None, "`check_uploads` refuses these"
    weights = [job.problem.weight(client) for client in range(clients)]
    weight = sum(p * a for p, a in zip(chances.tolist(), weights, strict=True))
    expected = Expected(float(chances.sum()), weight, max(weights), deployed)
    job.uploads.vector_noise(expected.replies)  # refuses a count with too little noise
    poisson = isinstance(sampler, BernoulliSampling)
    accountant = Accountant(
        noise.multiplier,
        noise.delta,
        float(chances.max()) if poisson else 1.0,
        job.algorithm.starts_with_everyone,
        noise.budget,
    )
    accountant.check()
    return job._replace(expected=expected), accountant
