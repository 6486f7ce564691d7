"""What noise hides and spends: accounts, the noised sum, and the bound of an adaptive clip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from fedadmm.core import trees
from fedadmm.core.aggregation import MaskedSum
from fedadmm.core.errors import ParameterError
from fedadmm.core.messages import ClientInfo, Upload
from fedadmm.core.protocols import Received
from fedadmm.core.sampling import BernoulliSampling, Sampler
from fedadmm.core.solvers.private import RecordNoise
from fedadmm.core.stopping import StoppingRule
from fedadmm.core.uploads import noised, round_dice
from fedadmm.core.uploads.stages import AdaptiveClip
from fedadmm.run.client import Expected, Job, message_template
from fedadmm.run.plan import Noised, RunState

if TYPE_CHECKING:
    from fedadmm.core.privacy import Accountant


class HiddenClients:
    """What noise on the sums spends: every round costs every client the same."""

    hides: Literal["clients"] = "clients"

    def __init__(self, accountant: Accountant, first_clip: float) -> None:
        self.accountant, self.first_clip = accountant, first_clip
        self.delta, self.budget = accountant.delta, accountant.budget

    def clip(self, state: RunState) -> float:
        """The largest norm of an upload."""
        return self.first_clip if state.clip_bound is None else state.clip_bound

    def epsilon(self, state: RunState) -> float:
        """What the rounds so far have spent."""
        return self.accountant.epsilon(state.round)

    def lasts(self, state: RunState) -> bool:
        """Whether the budget allows another round."""
        most = self.accountant.affordable
        return most is None or state.round < most


class HiddenRecords:
    """What noised steps spend: every client its own, and the one that has spent most counts.

    A row belongs to one client, so that what others spend does not add to it.
    """

    hides: Literal["records"] = "records"

    def __init__(self, noise: RecordNoise, stop: StoppingRule, sites: int | None = None) -> None:
        self._noise = noise
        self._sites = sites
        self._stop = stop
        self._accountants: dict[int, Accountant] = {}
        self.delta, self.budget = noise.delta, noise.budget

    def clip(self, state: RunState) -> float:
        """The largest norm of a row's gradient."""
        return self._noise.clip

    def epsilon(self, state: RunState) -> float:
        """What the client has spent that has spent most."""
        most: dict[int, int] = {}
        for made in (state.noised or {}).values():
            most[made.per_epoch] = max(made.steps, most.get(made.per_epoch, 0))
        return max((self._of(k).epsilon(steps) for k, steps in most.items()), default=0.0)

    def lasts(self, state: RunState) -> bool:
        """Whether no client would exceed the budget by taking part once more.

        Sites keep to it themselves, so a deployed run goes on while half of them can: what a single
        one says ends no run.
        """
        counts = (state.noised or {}).items()
        out = sum(not self.allows(client, made.per_epoch, made.steps) for client, made in counts)
        return out == 0 if self._sites is None else 2 * out <= self._sites

    def allows(self, client: int, per_epoch: int, steps: int) -> bool:
        """Whether a client that has made this many steps may make those of another round."""
        most = self._of(per_epoch).affordable
        return most is None or steps + self._stop.largest_budget(per_epoch, client) <= most

    def check(self, client: int, per_epoch: int, steps: int = 0) -> None:
        """Refuse the steps of a round that would exceed the budget."""
        if self.allows(client, per_epoch, steps):
            return
        more, account = self._stop.largest_budget(per_epoch, client), self._of(per_epoch)
        raise ParameterError(
            f"DPSGD: budget is {self.budget:g}, but a round of client {client} has {more} steps, "
            f"after {steps} that it has made, and epsilon would be "
            f"{account.epsilon(steps + more):.4g} at delta {self.delta:g}; use a multiplier above "
            f"{account.multiplier:g}, or fewer rounds or steps"
        )

    def _of(self, per_epoch: int) -> Accountant:
        """The accountant of clients with this many steps in an epoch."""
        if per_epoch not in self._accountants:
            from fedadmm.core.privacy import Accountant

            noise, rate = self._noise, 1 / per_epoch
            account = Accountant(noise.multiplier, noise.delta, rate, budget=noise.budget)
            self._accountants[per_epoch] = account
        return self._accountants[per_epoch]


Spending = HiddenClients | HiddenRecords
"""What a run with noise has spent of its privacy."""


def steps_of_an_epoch(job: Job, client: int) -> int:
    """How many steps a client's solver makes in an epoch."""
    size = None if job.solver is None else job.solver.batch_size
    return 1 if size is None else -(-job.problem.clients[client].num_samples // size)


def hidden(job: Job, sampler: Sampler) -> tuple[Job, Spending | None]:
    """The job with what its noise counts with, and what it spends; None without noise."""
    steps = None if job.solver is None else job.solver.noise
    if steps is not None:
        sites = job.problem.num_clients if job.deployed else None
        records = HiddenRecords(steps, job.stop, sites)
        if not job.deployed and records.budget is not None:  # a server does not know its sites
            for client in range(job.problem.num_clients):
                records.check(client, steps_of_an_epoch(job, client))
        return job, records
    noise = job.uploads.noise
    if noise is None:
        return job, None
    from fedadmm.core.privacy import Accountant

    clients = job.problem.num_clients
    chances = sampler.probabilities(clients)
    assert chances is not None, "the noise refuses these"
    weights = [job.problem.weight(client) for client in range(clients)]
    weight = sum(p * a for p, a in zip(chances.tolist(), weights, strict=True))
    expected = Expected(float(chances.sum()), weight, max(weights))
    job.uploads.vector_noise(expected.replies)  # refuses a count with too little noise
    # Whoever adds up masked uploads knows whose they are: coins hide no client from it.
    poisson = isinstance(sampler, BernoulliSampling) and not job.aggregate.hides
    accountant = Accountant(
        noise.multiplier,
        noise.delta,
        float(chances.max()) if poisson else 1.0,
        job.algorithm.requirements.initial_round is not None,
        noise.budget,
    )
    accountant.check()
    assert job.uploads.clip is not None, "the noise refuses these"
    spending = HiddenClients(accountant, job.uploads.clip.norm)
    if job.deployed and job.aggregate.hides:
        return job, spending  # the sites add the noise
    return job._replace(expected=expected), spending


def counted(state: RunState, job: Job, infos: Sequence[ClientInfo]) -> RunState:
    """The state after these clients' noised steps, for a solver that makes some."""
    if job.solver is None or job.solver.noise is None:
        return state
    counts = dict(state.noised or {})
    for info in infos:
        before, (steps, epochs) = counts.get(info.client, Noised()), info.solve[:2]
        # A client that counts itself also counts what never arrived; one that lost its count
        # begins again.
        fresh = info.noised - before.told if info.noised >= before.told else info.noised
        per_epoch = max(1, round(steps / epochs)) if epochs > 0 else before.per_epoch
        made = before.steps + (fresh if info.noised else steps)
        counts[info.client] = Noised(made, per_epoch, info.noised)
    return state._replace(noised=counts)


def spent(spending: Spending, before: RunState, after: RunState) -> dict[str, Any]:
    """What the record of a round says about privacy."""
    return {
        "hides": spending.hides,
        "epsilon": spending.epsilon(after),
        "delta": spending.delta,
        "clip": spending.clip(before),
    }


def hidden_sum(
    job: Job, total: Upload | None, infos: Sequence[ClientInfo], state: RunState, cast: Any
) -> tuple[Upload, Received]:
    """The sum with its noise, and the replies that were expected: who came is not to be seen.

    A round without anybody has noise like any other.
    """
    expected, uploads, index = job.expected, job.uploads, state.round
    assert expected is not None
    assert uploads.clip is not None
    everybody = Expected(job.problem.num_clients, 1.0, expected.largest)
    whom = expected if index >= 0 else everybody
    if total is None:
        within = None if state.clip_bound is None else job.initial.new_zeros(1)
        total = Upload(trees.scaled(message_template(job, cast), 0.0), None, within)
    clients = [info.client for info in infos]
    dice = round_dice(job.seed, index, clients, job.deployed)
    change = expected.largest * (
        uploads.clip.norm if state.clip_bound is None else state.clip_bound
    )
    deviation = uploads.vector_noise(whom.replies) * change
    if isinstance(job.aggregate, MaskedSum):  # every client of the sum has added its share
        deviation *= job.aggregate.noise_share * math.sqrt(len(infos))
    message = noised(job.algorithm, total.message, deviation, dice)
    total = total._replace(message=message)
    if total.within is not None:
        spread = uploads.count_noise(whom.replies) * expected.largest
        total = total._replace(within=total.within + spread * dice.normal(total.within, "count"))
    count = max(1, round(whom.replies))
    return total, Received(count, whom.weight, job.problem.num_clients, index)


def next_bound(
    job: Job, bound: float | None, total: Upload | None, received: Received
) -> float | None:
    """An adaptive clip's bound after a round."""
    clip = job.uploads.clip
    if bound is None or total is None or total.within is None:
        return bound
    assert isinstance(clip, AdaptiveClip)
    share = float(total.within) / received.weight + 0.5
    return bound * math.exp(-clip.lr * (min(1.0, max(0.0, share)) - clip.quantile))
