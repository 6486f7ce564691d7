"""Differential privacy of a run: accounting of client-level and of example-level noise.

The Gaussian mechanism itself is `GaussianNoise` in the update pipeline (client-level DP) or the
local solver `DPSGD` (example-level DP).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedadmm.core.errors import ParameterError
from fedadmm.core.messages import ClientInfo
from fedadmm.core.pipeline.postprocessors import ExpectedCohort
from fedadmm.core.sampling import BernoulliSampling, Sampler
from fedadmm.core.solvers.private import RecordNoise
from fedadmm.core.stopping import StoppingRule
from fedadmm.run.client import Job

if TYPE_CHECKING:
    from fedadmm.core.privacy import Accountant


class NoisedSteps(NamedTuple):
    """Steps with noise that a client has made."""

    steps: int = 0
    per_epoch: int = 1
    """Steps of an epoch: each contains a sample with probability one over this number."""
    reported: int = 0
    """Last count of the client itself, if it counts its steps."""


NoisedClients = Mapping[int, NoisedSteps]
"""Steps with noise of every client that has made some."""


class ClientLevelDP:
    """Privacy budget of noise on the aggregate: every round costs every client the same."""

    level: Literal["clients"] = "clients"

    def __init__(self, accountant: Accountant) -> None:
        self.accountant = accountant
        self.delta, self.budget = accountant.delta, accountant.budget

    def clip_norm(self, in_pipeline: float) -> float:
        """Return the largest norm of an update in a round."""
        return in_pipeline

    def epsilon(self, rounds: int, steps: NoisedClients) -> float:
        """Return the epsilon that the rounds so far have consumed."""
        return self.accountant.epsilon(rounds)

    def affords_round(self, rounds: int, steps: NoisedClients) -> bool:
        """Return whether the budget suffices for another round."""
        most = self.accountant.affordable
        return most is None or rounds < most

    def count(self, steps: NoisedClients, infos: Sequence[ClientInfo]) -> NoisedClients:
        """Return the noised steps after a round; noise on the aggregate has none."""
        return steps


class ExampleLevelDP:
    """Privacy budget of noised local steps; the client that has consumed most decides.

    A sample belongs to one client, so that clients do not add to each other's epsilon.
    """

    level: Literal["records"] = "records"

    def __init__(self, noise: RecordNoise, stop: StoppingRule, sites: int | None = None) -> None:
        self._noise = noise
        self._sites = sites
        self._stop = stop
        self._accountants: dict[int, Accountant] = {}
        self.delta, self.budget = noise.delta, noise.budget

    def clip_norm(self, in_pipeline: float) -> float:
        """Return the largest norm of the gradient of a sample."""
        return self._noise.clip

    def epsilon(self, rounds: int, steps: NoisedClients) -> float:
        """Return the largest epsilon that a client has consumed."""
        most: dict[int, int] = {}
        for made in steps.values():
            most[made.per_epoch] = max(made.steps, most.get(made.per_epoch, 0))
        return max((self._accountant(k).epsilon(count) for k, count in most.items()), default=0.0)

    def affords_round(self, rounds: int, steps: NoisedClients) -> bool:
        """Return whether no client would exceed the budget in another round.

        Sites enforce their budgets themselves, so that a deployed run continues while half of them
        can participate: a single site cannot end a run.
        """
        counts = steps.items()
        out = sum(not self.allows(client, made.per_epoch, made.steps) for client, made in counts)
        return out == 0 if self._sites is None else 2 * out <= self._sites

    def allows(self, client: int, per_epoch: int, steps: int) -> bool:
        """Return whether a client that has made this many steps may make those of a round."""
        most = self._accountant(per_epoch).affordable
        return most is None or steps + self._stop.largest_budget(per_epoch, client) <= most

    def check(self, client: int, per_epoch: int, steps: int = 0) -> None:
        """Reject the steps of a round that would exceed the budget."""
        if self.allows(client, per_epoch, steps):
            return
        more, account = self._stop.largest_budget(per_epoch, client), self._accountant(per_epoch)
        raise ParameterError(
            f"DPSGD.budget: got {self.budget:g}, expected at least "
            f"{account.epsilon(steps + more):.4g} at delta {self.delta:g} for the {more} steps of "
            f"client {client} in a round, after {steps} earlier ones. Use a multiplier above "
            f"{account.multiplier:g}, or fewer rounds or steps."
        )

    def count(self, steps: NoisedClients, infos: Sequence[ClientInfo]) -> NoisedClients:
        """Return the noised steps after a round of these clients."""
        counts = dict(steps)
        for info in infos:
            before, (made, epochs) = counts.get(info.client, NoisedSteps()), info.solve[:2]
            # A client that counts its own steps includes those of lost updates.  A smaller count
            # than before means that the client has lost its state and begins again.
            reset = info.noised < before.reported
            fresh = info.noised if reset else info.noised - before.reported
            per_epoch = max(1, round(made / epochs)) if epochs > 0 else before.per_epoch
            total = before.steps + (fresh if info.noised else made)
            counts[info.client] = NoisedSteps(total, per_epoch, info.noised)
        return counts

    def _accountant(self, per_epoch: int) -> Accountant:
        """Return the accountant of clients with this many steps in an epoch."""
        if per_epoch not in self._accountants:
            from fedadmm.core.privacy import Accountant

            noise, rate = self._noise, 1 / per_epoch
            account = Accountant(noise.multiplier, noise.delta, rate, budget=noise.budget)
            self._accountants[per_epoch] = account
        return self._accountants[per_epoch]


Privacy = ClientLevelDP | ExampleLevelDP
"""Accounting of a run with noise."""


def steps_per_epoch(job: Job, client: int) -> int:
    """Return how many steps a client's solver makes in an epoch."""
    size = None if job.solver is None else job.solver.batch_size
    return 1 if size is None else -(-job.problem.clients[client].num_samples // size)


def attach_privacy(job: Job, sampler: Sampler) -> tuple[Job, Privacy | None]:
    """Return the job with its expected cohort, and the accounting of its noise.

    The second value is None for a run without noise.
    """
    steps = None if job.solver is None else job.solver.noise
    if steps is not None:
        sites = job.problem.num_clients if job.deployed else None
        examples = ExampleLevelDP(steps, job.stop, sites)
        if not job.deployed and examples.budget is not None:  # a server has no data of its sites
            for client in range(job.problem.num_clients):
                examples.check(client, steps_per_epoch(job, client))
        return job, examples
    noise = job.pipeline.noise
    if noise is None:
        return job, None
    from fedadmm.core.privacy import Accountant

    clients = job.problem.num_clients
    chances = sampler.probabilities(clients)
    assert chances is not None, "Feature.PARTICIPATION_PROBABILITIES is required"
    weights = [job.problem.weight(client) for client in range(clients)]
    weight = sum(p * a for p, a in zip(chances.tolist(), weights, strict=True))
    # Poisson sampling amplifies privacy, but not against a party that sums masked updates and
    # therefore knows the participants.
    poisson = isinstance(sampler, BernoulliSampling) and not job.aggregator.is_secure
    accountant = Accountant(
        noise.multiplier,
        noise.delta,
        float(chances.max()) if poisson else 1.0,
        job.algorithm.requirements.initial_round is not None,
        noise.budget,
    )
    accountant.check()
    privacy = ClientLevelDP(accountant)
    if job.deployed and job.aggregator.is_secure:
        return job, privacy  # the sites add the noise
    return job._replace(expected=ExpectedCohort(float(chances.sum()), weight)), privacy


def privacy_record(
    privacy: Privacy, rounds: int, steps: NoisedClients, clip_norm: float
) -> dict[str, Any]:
    """Return the entry of a round's record about privacy."""
    return {
        "hides": privacy.level,
        "epsilon": privacy.epsilon(rounds, steps),
        "delta": privacy.delta,
        "clip": privacy.clip_norm(clip_norm),
    }
