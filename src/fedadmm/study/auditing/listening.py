"""A run as its server hears one client: the real loop, with somebody who writes along."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedadmm.core.errors import PairingError
from fedadmm.core.objectives.model import ModelObjective
from fedadmm.core.problem import Lazy, Problem
from fedadmm.core.protocols import ClientInfo, Download, Known, Objective, Sampler, Upload
from fedadmm.core.rng import Dice, Key, derive, generator
from fedadmm.core.uploads.pipeline import noised
from fedadmm.run import pairing
from fedadmm.run.client import Job
from fedadmm.run.engines.sequential import SequentialEngine
from fedadmm.run.evaluation import Evaluation
from fedadmm.run.loop import initial_state
from fedadmm.run.loop import run as run_loop
from fedadmm.run.plan import Schedule
from fedadmm.run.stores import MemoryStore
from fedadmm.study.auditing.inference import Heard


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
class _Attending(Sampler):
    """The sampler of a run, whose audited client always takes part, and in the last round alone."""

    others: Sampler
    client: int
    last: int

    def sample(
        self, seed: Key, round_index: int, clients: int, known: Known | None = None
    ) -> Sequence[int]:
        if round_index == self.last:
            return [self.client]
        chosen = self.others.sample(seed, round_index, clients, known or {})
        return sorted({*chosen, self.client})


class _Listening(SequentialEngine):
    """Writes down what goes to and fro between the server and one client."""

    def __init__(self, job: Job, client: int) -> None:
        super().__init__(job, MemoryStore())
        self._client = client
        self.heard: list[Heard] = []

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        for client, upload, info in super().run_clients(ids, download, round_index):
            if client == self._client and info.finite:
                self.heard.append(Heard(round_index, download, upload.message, info.solve.steps))
            yield client, upload, info


def overhear(job: Job, sampler: Sampler, client: int, before: int = 0) -> list[Heard]:
    """What the server has of a client after `before` rounds and the one that is audited.

    Noise of the upload is not on what the server hears, and the model is trained without it.
    """
    pairing.check(job, sampler, before + 1)
    job = job._replace(uploads=job.uploads._replace(noise=None))
    engine = _Listening(job, client)
    schedule = Schedule(before + 1, Evaluation(objective=False, test=False))
    attending = _Attending(sampler, client, before)
    with torch.no_grad():
        reports = list(
            run_loop(job, attending, engine, MemoryStore(), schedule, initial_state(job))
        )
    if not engine.heard or engine.heard[-1].round_index != before:
        ending = reports[-1].ending
        why = "it was not heard of" if ending is None else ending.sentence
        raise PairingError(f"audit: client {client} has no upload in round {before + 1}: {why}")
    return engine.heard


def from_the_sum(job: Job, client: int, heard: list[Heard]) -> list[Heard]:
    """What somebody has of the client who sees only sums with noise, and knows all other uploads.

    That is the strongest observer that the noise is meant for: it takes everybody else's part out
    of a sum, and what remains is a_i times the message, and the noise.
    """
    uploads, problem = job.uploads, job.problem
    assert uploads.clip is not None
    largest = max(problem.weight(index) for index in range(problem.num_clients))
    seen = []
    for one in heard:
        bound = (
            uploads.clip.norm if one.download.clip_bound is None else float(one.download.clip_bound)
        )
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
