"""What happens after a round: evaluation, callbacks of the user, and the reasons to end a run.

Each of them is a `RoundCallback` with a state of its own in `RunState.components`.  The first one
in the list that returns an `Ending` ends the run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedadmm.core.errors import ParameterError, StateError
from fedadmm.core.messages import ClientInfo, ClientStateStore, Engine
from fedadmm.core.outputs import AnyOutput, Iterate, LastIterate
from fedadmm.core.parts import name_of
from fedadmm.run import callbacks
from fedadmm.run.callbacks import Attached
from fedadmm.run.client import Job
from fedadmm.run.components import noised_steps
from fedadmm.run.evaluation import Evaluation, Target
from fedadmm.run.metrics import Best, ModelSelector
from fedadmm.run.privacy import Privacy
from fedadmm.run.record import Record, Stopwatch, numbers, value
from fedadmm.run.state import Ending, RunState

BEST, CALLBACKS, DIVERGENCE = "best", "callbacks", "divergence"
EXPLOSION = 1e6
"""A run has diverged when the loss or ||theta|| exceeds this multiple of its first value plus one.

Runs that converge stay far below: while the steps do not grow, the norm grows by one of them per
round."""
_ADVICE = "try a smaller learning rate or server step, or a larger penalty"


class RunPlan(NamedTuple):
    """How long a run lasts, what is measured, and what ends it."""

    rounds: int
    evaluation: Evaluation
    target: Target | None = None
    tolerance: float | None = None
    callbacks: Sequence[Attached] = ()
    output: AnyOutput = LastIterate()
    privacy: Privacy | None = None
    selector: ModelSelector | None = None
    """Selects the best model; None if the caller does."""
    watch: Stopwatch | None = None
    """Measures the time of the phases of a round."""


class CompletedRound(NamedTuple):
    """A round after the server update."""

    job: Job
    store: ClientStateStore
    engine: Engine
    before: RunState
    state: RunState
    record: Record
    infos: Sequence[ClientInfo]
    iterate: Iterate
    """The models that the method offers."""
    model: Iterate
    """The output model."""
    extra_models: dict[str, Iterate]
    """Models that are evaluated in addition, by the suffix of their metrics."""


class RoundCallback(ABC):
    """Called after every round; may write to the record and end the run."""

    key: ClassVar[str] = ""
    """Name of its state in `RunState.components`; empty if it has none."""
    phase: ClassVar[str] = "callbacks"
    """Phase of the round that its time counts for."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan

    def begin(self, state: RunState) -> Any:
        """Return its state at the beginning of a run, or reject a run that cannot continue."""
        return state.components.get(self.key)

    def is_due(self, round_number: int) -> bool:
        """Return whether it is called after this round."""
        return True

    @abstractmethod
    def after_round(self, done: CompletedRound, own: Any) -> tuple[Any, Ending | None]:
        """Return its next state, and the ending if the run ends."""

    def check_measured(  # noqa: B027 - most callbacks wait for nothing
        self, record: Record, state: RunState
    ) -> None:
        """Reject a run that waits for a metric which is not measured."""


class Evaluate(RoundCallback):
    """Evaluates the output model."""

    phase = "evaluation"

    def is_due(self, round_number: int) -> bool:
        return self.plan.evaluation.due(round_number, self.plan.rounds)

    def after_round(self, done: CompletedRound, own: Any) -> tuple[Any, Ending | None]:
        measure = partial(self.plan.evaluation.measure, done.job, done.store, engine=done.engine)
        measured = measure(done.model.params, done.model.buffers)
        for suffix, model in done.extra_models.items():
            for name, found in measure(model.params, model.buffers).metrics.items():
                measured.metrics[f"{name}_{suffix}"] = found
        done.record["metrics"] = measured.metrics
        if measured.clients:
            done.record["clients"] = measured.clients
        return own, None


class UserCallbacks(RoundCallback):
    """Calls `Callback.measure` of every callback of the experiment."""

    key = CALLBACKS

    def begin(self, state: RunState) -> dict[str, Any]:
        measuring = [one for one, _ in self.plan.callbacks if one.measures]
        notes: dict[str, Any] | None = state.components.get(self.key)
        if notes is None:
            return {name_of(type(one)): None for one in measuring}
        for one in measuring:
            if name_of(type(one)) not in notes:
                raise StateError(
                    f"the checkpoint of round {state.round} holds no state of the callback "
                    f"{name_of(type(one))}, but it must measure from the first round on"
                )
        return notes

    def after_round(self, done: CompletedRound, own: Any) -> tuple[Any, Ending | None]:
        return callbacks.measured(self.plan.callbacks, own, done.state, done.record, done.infos)


class FirstValues(NamedTuple):
    """First values of a run, which later ones are compared with."""

    loss: float | None = None
    norm: float | None = None
    """Larger norm of the models before and after the first step that changed the model."""


class Divergence(RoundCallback):
    """Ends a run whose loss or model norm has exploded."""

    key = DIVERGENCE

    def begin(self, state: RunState) -> FirstValues:
        return FirstValues(*(state.components.get(self.key) or ()))

    def after_round(self, done: CompletedRound, own: Any) -> tuple[Any, Ending | None]:
        record, params = done.record, done.iterate.params
        ending = None if done.state.round == 0 else self._exploded(done, own)
        if own.loss is None:
            own = own._replace(loss=record["metrics"].get("loss"))
        if own.norm is None:
            before = done.job.algorithm.global_params(done.before.server)
            own = own._replace(norm=_first_norm(before, params))
        return own, ending

    def _exploded(self, done: CompletedRound, own: FirstValues) -> Ending | None:
        metrics, number = done.record["metrics"], done.state.round
        loss, size = metrics.get("loss", 0.0), model_norm(done.iterate.params)
        if not (_exploded(loss, own.loss) or _exploded(size, own.norm)):
            return None
        worst = max(done.infos, key=lambda info: info.drift, default=None)
        client = f"; client {worst.client} moved furthest from it" if worst is not None else ""
        found = f"the loss of the global model is {loss:g} and its norm {size:g}"
        if "loss" not in metrics:
            found = f"the norm of the global model is {size:g}"
        return Ending("diverged", f"diverged in round {number}: {found}{client}; {_ADVICE}")


def _exploded(value: float, first: float | None) -> bool:
    return not math.isfinite(value) or (first is not None and value > EXPLOSION * (1 + abs(first)))


def model_norm(params: Tensor) -> float:
    """Return ||params||, also where half precision cannot represent it."""
    wide = torch.promote_types(params.dtype, torch.float32)
    return float(torch.linalg.vector_norm(params, dtype=wide))


def _first_norm(before: Tensor, after: Tensor) -> float | None:
    """Return the reference norm once a step has changed the model."""
    return None if torch.equal(before, after) else max(model_norm(before), model_norm(after))


class TargetReached(RoundCallback):
    """Ends a run that has reached its target or its tolerance."""

    def after_round(self, done: CompletedRound, own: Any) -> tuple[Any, Ending | None]:
        if done.state.round == 0:
            return own, None
        return own, reached(partial(value, done.record), done.state.round, self.plan)

    def check_measured(self, record: Record, state: RunState) -> None:
        target = self.plan.target
        ends = target is not None and target.end_run
        waited = [("target", one) for one in target.metrics] if target is not None and ends else []
        waited += [] if self.plan.tolerance is None else [("tolerance", "gradient_mapping")]
        for name, metric in waited:
            if value(record, metric) is None:
                raise ParameterError(
                    f"{name}: got {metric!r}, expected a metric that is measured: "
                    f"{', '.join(sorted(numbers(record)))}."
                )


def reached(measured: Callable[[str], float | None], number: int, plan: RunPlan) -> Ending | None:
    """Return the ending if the measured values meet the target or the tolerance."""
    if (target := plan.target) is not None and target.end_run:
        found = {name: measured(name) for name in target.metrics}
        met = {name: one for name, one in found.items() if one is not None}
        if len(met) == len(found) and all(map(target.reached, met.values())):
            shown = f"{target.metric} {met[target.metric]:.4g}"
            return Ending("target", f"{shown} reached the target in round {number}", met)
    mapping = measured("gradient_mapping")
    if plan.tolerance is not None and mapping is not None and mapping <= plan.tolerance:
        sentence = f"gradient mapping {mapping:.3g} met the tolerance in round {number}"
        return Ending("tolerance", sentence, {"gradient_mapping": mapping})
    return None


class PrivacyBudget(RoundCallback):
    """Ends a run before the round that would exceed its privacy budget."""

    def begin(self, state: RunState) -> None:
        privacy, steps = self.plan.privacy, noised_steps(state.components)
        if privacy is None or state.round >= self.plan.rounds:
            return
        if not privacy.affords_round(state.round, steps):
            raise StateError(
                f"the run has consumed epsilon {privacy.epsilon(state.round, steps):.4g} in "
                f"{state.round} rounds; another round would exceed its budget of "
                f"{privacy.budget:g}"
            )

    def after_round(self, done: CompletedRound, own: Any) -> tuple[Any, Ending | None]:
        privacy, number = self.plan.privacy, done.state.round
        if privacy is None or not 0 < number < self.plan.rounds:
            return own, None
        steps = noised_steps(done.state.components)
        if privacy.affords_round(number, steps):
            return own, None
        return own, Ending(
            "budget",
            f"consumed epsilon {privacy.epsilon(number, steps):.4g} in {number} rounds; another "
            f"round would exceed the budget of {privacy.budget:g}",
        )


class RoundLimit(RoundCallback):
    """Ends a run after its last round."""

    def after_round(self, done: CompletedRound, own: Any) -> tuple[Any, Ending | None]:
        if done.state.round < max(1, self.plan.rounds):
            return own, None
        return own, Ending("completed", f"completed all {self.plan.rounds} rounds")


class BestModel(RoundCallback):
    """Keeps the best model, and ends a run whose patience is exhausted."""

    key = BEST

    def after_round(self, done: CompletedRound, own: Any) -> tuple[Any, Ending | None]:
        selector = self.plan.selector
        assert selector is not None
        best: Best | None = selector.update(own, done.record, done.model)
        if done.state.round == 0 or best is None or not selector.is_exhausted(best):
            return best, None
        return best, Ending("patience", selector.sentence(best))

    def check_measured(self, record: Record, state: RunState) -> None:
        selector = self.plan.selector
        assert selector is not None
        if selector.patience is not None and state.components.get(BEST) is None:
            raise ParameterError(
                f"patience: got {selector.patience}, expected None while no metric is measured by "
                "which models can be compared."
            )


def round_callbacks(plan: RunPlan) -> list[RoundCallback]:
    """Return the callbacks of a run in the order in which they are called."""
    kinds: list[type[RoundCallback]] = [Evaluate, UserCallbacks, Divergence, TargetReached]
    kinds += [] if plan.privacy is None else [PrivacyBudget]
    kinds += [RoundLimit]
    kinds += [] if plan.selector is None else [BestModel]
    return [kind(plan) for kind in kinds]


def resumed_ending(ending: Ending | None, state: RunState, plan: RunPlan) -> Ending | None:
    """Return the ending of a run that is resumed, unless its plan lets it continue.

    More rounds, another target or tolerance, and more patience do.
    """
    code, privacy = ending and ending.code, plan.privacy
    if code == "diverged":
        return ending
    steps = noised_steps(state.components)
    if code == "budget" and privacy is not None and not privacy.affords_round(state.round, steps):
        return ending
    if ending is not None and code in ("target", "tolerance"):
        found = ending.measured
        met = ending if found is None else reached(found.get, state.round, plan)
        if met is not None:
            return met
    selector, best = plan.selector, state.components.get(BEST)
    if state.round < plan.rounds and best is not None and selector is not None:
        return Ending("patience", selector.sentence(best)) if selector.is_exhausted(best) else None
    return None


def not_finite(infos: Sequence[ClientInfo], number: int) -> Ending:
    """Return the ending of a run in which a client's result is not finite."""
    when = f"round {number}" if number else "the initial round"
    client = next(info.client for info in infos if not info.finite)
    return Ending(
        "diverged",
        f"diverged in {when}: client {client} returned a vector with NaN or infinite entries",
    )
