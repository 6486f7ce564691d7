"""Stateful components of a round: what they add to the broadcast and do with the aggregate.

A component owns one entry of `RunState.components`.  The loop calls all components in the same
places and knows none of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from fedadmm.core.aggregation import MaskedSum
from fedadmm.core.capabilities import AbsentClientAlignment
from fedadmm.core.catch_up import CatchUp, initial_catch_up
from fedadmm.core.messages import ClientInfo, Download
from fedadmm.core.pipeline import PipelineState, round_rng
from fedadmm.core.pipeline.postprocessors import Aggregate, AggregateContext, ExpectedCohort
from fedadmm.run.client import Job, message_template
from fedadmm.run.privacy import NoisedClients, Privacy, privacy_record
from fedadmm.run.state import RunState

CATCH_UP, PIPELINE, PRIVACY = "catch_up", "pipeline", "privacy"


class RoundContext(NamedTuple):
    """A round between aggregation and server update."""

    round_index: int
    infos: Sequence[ClientInfo]
    broadcast: Any
    """The broadcast of the round."""


class RoundComponent:
    """A component with a state of its own that is called in every round."""

    key: ClassVar[str]
    """Name of its state in `RunState.components`."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def initial(self, server: Any) -> Any:
        """Return its state before the first round."""
        return None

    def extend_download(self, download: Download, own: Any) -> Download:
        """Add to what the participants of a round receive."""
        return download

    def on_aggregate(
        self, aggregate: Aggregate, own: Any, round: RoundContext
    ) -> tuple[Aggregate, Any]:
        """Transform the aggregate of a round, and return its own next state."""
        return aggregate, own

    def after_server_update(self, own: Any, server: Any, round: RoundContext) -> Any:
        """Return its own state after the server update."""
        return own

    def record(self, before: RunState, after: RunState) -> dict[str, Any]:
        """Return entries for the record of a round."""
        return {}


class PipelineComponent(RoundComponent):
    """The server side of the update pipeline."""

    key = PIPELINE

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        noised = job.expected is not None
        weights = map(job.problem.weight, range(job.problem.num_clients if noised else 0))
        self._largest_weight = max(weights, default=1.0)

    def initial(self, server: Any) -> PipelineState:
        return self._job.pipeline.init_state()

    def extend_download(self, download: Download, own: PipelineState) -> Download:
        return download._replace(pipeline=self._job.pipeline.broadcast(own))

    def on_aggregate(
        self, aggregate: Aggregate, own: PipelineState, round: RoundContext
    ) -> tuple[Aggregate, PipelineState]:
        job, cohort = self._job, self._job.expected
        if cohort is not None and round.round_index < 0:
            cohort = ExpectedCohort(job.problem.num_clients, 1.0)
        scale = 1.0
        if isinstance(job.aggregator, MaskedSum):  # every client of the sum adds its share
            scale = job.aggregator.noise_share * math.sqrt(len(round.infos))
        clients = [info.client for info in round.infos]
        context = AggregateContext(
            job.algorithm,
            cohort,
            self._largest_weight,
            job.pipeline.clip_norm(own),
            job.pipeline.adapts_clip,
            scale,
            round_rng(job.seed, round.round_index, clients, job.deployed),
            partial(message_template, job, round.broadcast),
        )
        return job.pipeline.on_aggregate(aggregate, own, context)


class CatchUpComponent(RoundComponent):
    """Virtual steps of absent clients, for methods that align them."""

    key = CATCH_UP

    def initial(self, server: Any) -> CatchUp | None:
        return initial_catch_up(self._job.algorithm, server)

    def extend_download(self, download: Download, own: CatchUp) -> Download:
        return download._replace(missed=own)

    def after_server_update(self, own: CatchUp, server: Any, round: RoundContext) -> CatchUp:
        method = self._job.algorithm
        assert isinstance(method, AbsentClientAlignment)
        clients = [info.client for info in round.infos]
        return own.after_step(round.round_index, method.virtual_steps(server), clients)


class PrivacyComponent(RoundComponent):
    """Accounting of a run with noise; its state counts the noised steps of every client."""

    key = PRIVACY

    def __init__(self, job: Job, privacy: Privacy) -> None:
        super().__init__(job)
        self._privacy = privacy

    def initial(self, server: Any) -> NoisedClients:
        return {}

    def after_server_update(
        self, own: NoisedClients, server: Any, round: RoundContext
    ) -> NoisedClients:
        return self._privacy.count(own, round.infos)

    def record(self, before: RunState, after: RunState) -> dict[str, Any]:
        clip_norm = self._job.pipeline.clip_norm(before.components.get(PIPELINE, {}))
        steps = after.components[PRIVACY]
        return {"privacy": privacy_record(self._privacy, after.round, steps, clip_norm)}


def round_components(job: Job, privacy: Privacy | None = None) -> list[RoundComponent]:
    """Return the components of a run's rounds."""
    components: list[RoundComponent] = []
    if job.pipeline.stages:
        components.append(PipelineComponent(job))
    if isinstance(job.algorithm, AbsentClientAlignment):
        components.append(CatchUpComponent(job))
    if privacy is not None:
        components.append(PrivacyComponent(job, privacy))
    return components


def without_client(state: RunState, client: int) -> RunState:
    """Return a state as if a client had never participated, except in the server's own state."""
    catch_up = state.components.get(CATCH_UP)
    if catch_up is None:
        return state
    return state.with_component(CATCH_UP, catch_up.remove_client(client))


def noised_steps(components: Mapping[str, Any]) -> NoisedClients:
    """Return the noised steps of every client from the component states of a run."""
    steps: NoisedClients = components.get(PRIVACY) or {}
    return steps
