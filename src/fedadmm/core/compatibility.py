"""Whether the components of a run fit each other, from what they declare.

A component lists the `Feature`s that it requires of the rest of the run (`Part.requires`).
`incompatibilities` compares these lists with the run and produces the messages.  What a declaration
cannot express, a component checks by itself in `Part.check_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from fedadmm.core import trees
from fedadmm.core.capabilities import AbsentClientAlignment, LocalModels
from fedadmm.core.errors import FedADMMError, ParameterError
from fedadmm.core.parts import Part, names_of

if TYPE_CHECKING:
    from fedadmm.core.contracts import Requirements
    from fedadmm.core.setup import Setup


class _Feature(NamedTuple):
    """One property of a run that a component may require."""

    field: str
    """Field of the experiment that provides it."""
    needed: str
    """What is needed, as it is completed by "requires …"."""
    provided: Callable[[Setup], bool]
    got: Callable[[Setup], str]
    """What the run has instead."""
    advice: Callable[[], str] = lambda: ""


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _methods(fits: Callable[[Requirements], bool]) -> str:
    """Names of the methods whose requirements, with their default options, fit."""
    return names_of("algorithm", lambda kind: fits(default_requirements(kind)))


def default_requirements(kind: Any) -> Requirements:
    """Return the requirements of a method with its default options."""
    try:
        declared: Requirements = kind().requirements
    except (TypeError, FedADMMError):  # it has no defaults, so that no message suggests it
        from fedadmm.core.contracts import Requirements

        return Requirements()
    return declared


class Feature(Enum):
    """What a component may require of the other components of a run."""

    ROUNDS = _Feature(
        "engine",
        "synchronous rounds",
        lambda run: not run.asynchronous,
        lambda run: "updates that are aggregated on arrival",
        lambda: "use an engine with rounds, such as VirtualTime(mode='sync')",
    )
    ASYNCHRONY = _Feature(
        "engine",
        "an engine that aggregates every update on arrival",
        lambda run: run.asynchronous,
        lambda run: "synchronous rounds",
        lambda: "use VirtualTime(mode='async'), or a method with rounds",
    )
    FULL_PARTICIPATION = _Feature(
        "sampler",
        "all clients in every round",
        lambda run: run.sampler.full_participation and not run.asynchronous,
        lambda run: _kind(run.sampler) if not run.asynchronous else "an asynchronous engine",
        lambda: "use FullParticipation and an engine with rounds",
    )
    PARTICIPATION_PROBABILITIES = _Feature(
        "sampler",
        "a fixed participation probability of every client",
        lambda run: run.sampler.probabilities(run.problem.num_clients) is not None,
        lambda run: _kind(run.sampler),
        lambda: (
            "use BernoulliSampling with fixed probabilities, UniformSampling or FullParticipation"
        ),
    )
    ZERO_REGULARIZER = _Feature(
        "regularizer",
        "g = 0",
        lambda run: run.problem.regularizer.is_zero,
        lambda run: _kind(run.problem.regularizer),
        lambda: f"methods that minimise f + g are {_methods(lambda needs: needs.regularizer)}",
    )
    SOLVER = _Feature(
        "solver",
        "a local solver",
        lambda run: run.local.solver is not None,
        lambda run: "None",
        lambda: "choose one, such as SGD(lr=0.1)",
    )
    MEAN_GRADIENT = _Feature(
        "solver",
        "the mean gradient of the local steps",
        lambda run: run.local.solver is not None and run.local.solver.averages_gradients,
        lambda run: _kind(run.local.solver),
        lambda: f"use {names_of('solver', lambda kind: kind.averages_gradients)}",
    )
    STEP_SUM = _Feature(
        "solver",
        "the size of every local step",
        lambda run: run.local.solver is not None and run.local.solver.sums_steps,
        lambda run: _kind(run.local.solver),
        lambda: f"use {names_of('solver', lambda kind: kind.sums_steps)}",
    )
    LOCAL_SOLVE = _Feature(
        "algorithm",
        "local steps in every round",
        lambda run: run.algorithm.requirements.local_in(-1).local_solve,
        lambda run: _kind(run.algorithm),
        lambda: "use FedAvg or another method that solves a local problem",
    )
    LOCAL_MODELS = _Feature(
        "algorithm",
        "a method that keeps a local model of every client",
        lambda run: isinstance(run.algorithm, LocalModels),
        lambda run: _kind(run.algorithm),
        lambda: "use local.start='global'",
    )
    GLOBAL_MODEL = _Feature(
        "algorithm",
        "the global model in every broadcast",
        lambda run: run.algorithm.requirements.broadcasts_theta,
        lambda run: _kind(run.algorithm),
    )
    STATELESS_CLIENTS = _Feature(
        "algorithm",
        "a method whose clients keep no state",
        lambda run: not trees.tensors(run.algorithm.init_client(run.initial)),
        lambda run: _kind(run.algorithm),
        lambda: "client states match the server's only if all messages are summed; use Sum",
    )
    NO_STALE_UPDATES = _Feature(
        "engine",
        "updates that are computed from the current model",
        lambda run: not run.stale,
        lambda run: "updates that may be stale, each of which would move the whole model",
        lambda: (
            "use FedADMM with step='tracking', FedDR, "
            f"{_methods(lambda needs: needs.asynchronous)}, or an engine with rounds"
        ),
    )
    VECTOR_MESSAGES = _Feature(
        "algorithm",
        "messages that contain nothing but increments and deltas",
        lambda run: not run.sent_as_it_is,
        lambda run: f"{_kind(run.algorithm)}, which also sends {', '.join(run.sent_as_it_is)}",
        lambda: "use a method, or options of it, that sends only vectors",
    )
    NO_NOISE = _Feature(
        "pipeline",
        "an aggregate without noise",
        lambda run: run.pipeline.noise is None,
        lambda run: "GaussianNoise",
    )
    NO_COMPRESSION = _Feature(
        "pipeline",
        "uncompressed vectors",
        lambda run: not run.pipeline.compresses,
        lambda run: "a pipeline that compresses",
        lambda: "leave out TopK, RandomK, Quantise and BFloat16",
    )
    CLIPPING = _Feature(
        "pipeline",
        "a bound on the norm of every update",
        lambda run: run.pipeline.clip is not None,
        lambda run: "a pipeline without clipping",
        lambda: "put Clip or AdaptiveClip first",
    )
    NO_AVERAGED_BUFFERS = _Feature(
        "problem.buffers",
        "a model whose buffers are not averaged",
        lambda run: run.problem.buffers != "average",
        lambda run: "'average'",
        lambda: "use buffers='keep-local' or a model without buffers",
    )
    STOP_WITHOUT_GRADIENTS = _Feature(
        "stop",
        "a stopping rule that does not evaluate gradients",
        lambda run: run.local.stop is None or not run.local.stop.needs_gradient,
        lambda run: _kind(run.local.stop),
        lambda: f"use {names_of('stop', lambda kind: not kind.needs_gradient)}",
    )
    STOPPING_RULE_DECIDES = _Feature(
        "algorithm",
        "a number of local steps that the stopping rule determines",
        lambda run: run.first_problem.steps is None,
        lambda run: _kind(run.algorithm),
    )
    SMOOTH_LOCAL_PROBLEM = _Feature(
        "algorithm",
        "a smooth local problem",
        lambda run: run.algorithm.requirements.local.local_prox == "none",
        lambda run: f"{_kind(run.algorithm)}, which applies the prox of g in its local steps",
        lambda: f"use {names_of('stop', lambda kind: not kind.needs_gradient)}",
    )
    SUMMABLE_UPDATES = _Feature(
        "aggregator",
        "an aggregator for which partial sums are enough",
        lambda run: run.aggregator.needs == "sum" and not run.aggregator.is_secure,
        lambda run: _kind(run.aggregator),
        lambda: "use the engine Sequential, Vectorised or Workers",
    )


def method_features(requirements: Requirements) -> Iterator[Feature]:
    """Yield the features that a method requires, from its declaration."""
    local = requirements.local
    checks = (
        (requirements.asynchronous, Feature.ASYNCHRONY),
        (requirements.full_participation, Feature.FULL_PARTICIPATION),
        (not requirements.stale_updates, Feature.NO_STALE_UPDATES),
        (not requirements.regularizer, Feature.ZERO_REGULARIZER),
        (local.local_solve, Feature.SOLVER),
        (local.local_solve and local.mean_gradient, Feature.MEAN_GRADIENT),
        (local.local_solve and local.step_sum, Feature.STEP_SUM),
    )
    yield from (feature for needed, feature in checks if needed)


def incompatibilities(run: Setup, components: Iterable[Part]) -> Iterator[str]:
    """Yield a message for every requirement of a component that the run does not meet."""
    algorithm = run.algorithm
    if algorithm.requirements.stale_updates and isinstance(algorithm, AbsentClientAlignment):
        raise ParameterError(
            f"{_kind(algorithm)}.requirements.stale_updates: got True, expected False for a method "
            "that aligns absent clients: their stale updates would contain a virtual step twice."
        )
    for component in components:
        own = component is algorithm
        for feature in method_features(algorithm.requirements) if own else component.requires(run):
            if not feature.value.provided(run):
                yield _message(_kind(component), feature.value, run)
        yield from component.check_run(run)


def _message(component: str, feature: _Feature, run: Setup) -> str:
    advice = feature.advice()
    message = f"{feature.field}: got {feature.got(run)}, expected {feature.needed} for {component}."
    return f"{message} {advice[0].upper()}{advice[1:]}." if advice else message
