"""An experiment: the immutable description of a run.

It is what a configuration file parses to, what `simulate` takes, what a federation wraps, what a
study overrides, and what `config.toml` holds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, cast

from fedadmm.core.aggregation import Aggregator, Sum
from fedadmm.core.config_tree import Tree, to_config
from fedadmm.core.contracts import AnyAlgorithm, Regularizer, Start
from fedadmm.core.errors import ParameterError
from fedadmm.core.local_work import LocalSolver, LocalWork
from fedadmm.core.outputs import AnyOutput, LastIterate
from fedadmm.core.parts import Count, Natural, Positive, checked, name_of
from fedadmm.core.personalisation import Personalisation
from fedadmm.core.pipeline.postprocessors import Postprocessor
from fedadmm.core.problem import Evaluator, Problem, ProblemSource
from fedadmm.core.regularizers import Zero
from fedadmm.core.sampling import FullParticipation, Sampler
from fedadmm.core.stopping import Epochs, StoppingRule
from fedadmm.core.validation import allowed, shown
from fedadmm.run.callbacks import Callback, as_callbacks
from fedadmm.run.engines import ENGINES, EngineChoice, Sequential, default_engine
from fedadmm.run.evaluation import Evaluation, Target

if TYPE_CHECKING:
    from fedadmm.run.state import RoundReport

Precision = Literal["float32", "float64", "bfloat16"]
MAY_CHANGE = (
    *("rounds", "engine", "checkpoint", "device", "threads"),
    *("target", "tolerance", "patience"),
)
"""Fields that a resumed run may change, because the rounds so far do not depend on them.

So are callbacks that do not measure: see `Experiment.affecting`."""


@checked
class Storage:
    """Store of the clients' states between rounds.

    Args:
        name: "memory" or "disk"; None for memory, or disk if the engine needs it.
        cache_bytes: On disk: size of the cache in memory, in bytes.  Default 1 GiB.
        primal: On disk: precision in which local models are stored.
    """

    name: Literal["memory", "disk"] | None = None
    cache_bytes: Natural = 2**30
    primal: Literal["same", "bfloat16", "float16"] = "same"


@checked
class Checkpointing:
    """Checkpoints of a run.

    Args:
        every: Rounds between two checkpoints; 0 writes one only on interruption.  Default 10.
    """

    every: Natural = 10


@checked
class Experiment:
    """Description of one run: problem, method and all options.

    Args:
        problem: The clients' objectives, or options from which they are loaded.
        algorithm: The method with its hyper-parameters.
        rounds: Largest number of rounds.  Default 100.
        local: Local training: solver, stopping rule, initial point, personalisation.
        sampler: Selects the participants of a round; all clients by default.
        regularizer: g; None for that of the problem.
        pipeline: Postprocessors of the clients' updates, in this order: clipping, compression
            (selection, then coding), noise.
        aggregator: Combines the updates at the server; their weighted sum by default.
        output: Which model is evaluated, recorded and returned; the last iterate by default.
        evaluate: Which metrics are measured between rounds.
        target: Value of a metric; the rounds until it is reached are counted.
        tolerance: The run ends when the norm of the gradient mapping is at most this; None for no
            limit.
        patience: The run ends after this many successive evaluations without a better model, by the
            target's metric, or else by the first default metric that is measured; None for never.
        engine: Runs the clients; None for "auto", or "virtual-time" for methods without rounds.
        seed: Seed of the run; the same seed gives the same result on every engine.
        precision: Precision of the model; None for that of the initial vector.
        device: Device of the model: cpu, cuda, cuda:1 …; None for that of the initial vector.
        threads: Threads of torch in a process; "auto" for one if a gradient is small, and else
            torch's setting.  Engines with several processes use one thread in each.
        store: Store of the clients' states between rounds.
        checkpoint: How often checkpoints are written.
        callbacks: Observers of the run: diagnostics, a certificate, trackers.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))  # optimum 12 / 6
        >>> local = fa.LocalWork(solver=fa.ExactSolver())
        >>> experiment = fa.Experiment(problem, fa.FedADMM(rho=1.0), rounds=50, local=local)
        >>> round(fa.simulate(experiment.with_seed(1)).params.item(), 2)
        2.0
    """

    problem: ProblemSource | Problem
    algorithm: AnyAlgorithm
    rounds: Count = 100
    local: LocalWork = LocalWork()
    sampler: Sampler = FullParticipation()
    regularizer: Regularizer | None = None
    pipeline: Sequence[Postprocessor] = ()
    aggregator: Aggregator = Sum()
    output: AnyOutput = LastIterate()
    evaluate: Evaluation = Evaluation()
    target: Target | None = None
    tolerance: Positive | None = None
    patience: Count | None = None
    engine: EngineChoice | None = None
    seed: Natural = 0
    precision: Precision | None = None
    device: str | None = None
    threads: Count | Literal["auto"] = "auto"
    store: Storage = Storage()
    checkpoint: Checkpointing = Checkpointing()
    callbacks: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        names = [name_of(type(one)) for one in self.callbacks if one.measures]
        for name in names:
            if names.count(name) > 1:
                raise ParameterError(
                    f"Experiment.callbacks: got {name!r} twice, expected at most one of its kind."
                )

    @cached_property
    def tree(self) -> Tree:
        """The configuration of the experiment, as in a TOML file."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        if isinstance(self.problem, Problem):
            own["problem"] = {"name": self.problem.name}
        if self.target is None:
            del own["target"]
        own["callbacks"] = [one for one in self.callbacks if is_dataclass(one)]
        return {key: to_config(value) for key, value in own.items()}

    def name(self, field: str) -> str:
        """Return the name of a field's component in configurations."""
        return name_of(type(getattr(self, field)))

    @property
    def label(self) -> str:
        """Name of the method, without the module of an external one."""
        return self.name("algorithm").rpartition(":")[2]

    def affecting(self, *ignored: str) -> Tree:
        """Return the configuration without these fields, and without what never affects records."""
        skipped = {*ignored} - ({"engine"} if self.resolve().engine.affects_result else set())
        measuring = [to_config(one) for one in self.callbacks if one.measures]
        tree = self.tree | {"callbacks": measuring}
        return {key: value for key, value in tree.items() if key not in skipped}

    def with_seed(self, seed: int) -> Self:
        """Return the same experiment with another seed."""
        return replace(self, seed=seed)

    def resolve(self) -> ResolvedExperiment:
        """Return the experiment with every default that depends on another field filled in."""
        method, source = self.algorithm, self.problem
        needs, loaded = method.requirements, isinstance(source, Problem)
        engine = self.engine or ENGINES[default_engine(needs)]()
        evaluate, store = self.evaluate, self.store
        if evaluate.objective is None:
            cheap = not getattr(source, "costly_objective", False)
            evaluate = replace(evaluate, objective=cheap)
        if store.name is None:
            store = replace(store, name="disk" if engine.needs_disk else "memory")
        local = replace(
            self.local,
            stop=self.local.stop or needs.default_stop or Epochs(1),
            start=self.local.start or needs.default_start,
        )
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given |= {
            "local": local,
            "engine": engine,
            "evaluate": evaluate,
            "store": store,
            "regularizer": self.regularizer or (source.regularizer if loaded else Zero()),  # type: ignore[union-attr]
            "precision": self.precision or (None if loaded else "float32"),
            "device": self.device or (None if loaded else "cpu"),
        }
        return ResolvedExperiment(**given)

    def load_problem(self, loaded: Problem | None = None) -> Problem:
        """Return the problem with its regularizer; reads files unless it is loaded already."""
        source, chosen = loaded or self.problem, self.regularizer
        if isinstance(source, Problem):
            return source if chosen is None else replace(source, regularizer=chosen)
        if getattr(source, "partition_seed", 0) is None:
            source = replace(cast(Any, source), partition_seed=self.seed)
        if "regularizer" in inspect.signature(source.load).parameters:
            return source.load(regularizer=chosen)  # type: ignore[call-arg]
        return replace(source.load(), regularizer=chosen or Zero())


@checked
class ResolvedExperiment(Experiment):
    """An experiment whose defaults are filled in, as used by a run, its config and a federation."""

    engine: EngineChoice = Sequential()

    def resolve(self) -> ResolvedExperiment:
        return self


class ExperimentFields(TypedDict, total=False):
    """Keywords of `simulate`: the fields of `Experiment` and of its `LocalWork`."""

    algorithm: AnyAlgorithm
    solver: LocalSolver | None
    """Field of `LocalWork`."""
    stop: StoppingRule | None
    """Field of `LocalWork`."""
    start: Start | None
    """Field of `LocalWork`."""
    personal: Personalisation | None
    """Field of `LocalWork`."""
    local: LocalWork
    sampler: Sampler | None
    regularizer: Regularizer | None
    pipeline: Sequence[Postprocessor]
    aggregator: Aggregator
    output: AnyOutput | None
    evaluate: Evaluation | Evaluator | bool
    """True for the default metrics, False for none, or a function from the model to metrics."""
    target: Target | None
    tolerance: float | None
    patience: int | None
    engine: EngineChoice | str | None
    """An engine, or its name in configurations."""
    seed: int
    precision: Precision | None
    device: str | None
    threads: int | Literal["auto"]
    checkpoint: Checkpointing
    callbacks: Sequence[Callback | Callable[[RoundReport], Any]]
    """Callbacks, or functions of the report of a round."""


def experiment_from_keywords(
    algorithm: AnyAlgorithm,
    problem: ProblemSource | Problem,
    rounds: int,
    *,
    evaluate: Evaluation | Evaluator | bool = True,
    engine: str | EngineChoice | None = None,
    **given: Any,
) -> Experiment:
    """Return the experiment that the keywords of `simulate` describe."""
    work = {key: given.pop(key) for key in ("solver", "stop", "start", "personal") if key in given}
    if work:
        given["local"] = replace(given.get("local", LocalWork()), **work)
    if isinstance(engine, str):
        if engine not in ENGINES:
            choices = allowed(Literal[tuple(ENGINES)])
            raise ParameterError(f"Experiment.engine: got {shown(engine)}, expected {choices}.")
        engine = ENGINES[engine]()
    if isinstance(evaluate, bool):
        evaluate = Evaluation(objective=evaluate, test=evaluate)
    elif not isinstance(evaluate, Evaluation) and callable(evaluate):
        evaluate = Evaluation(extra=evaluate)
    given["callbacks"] = as_callbacks(given.get("callbacks", ()))
    for name in ("sampler", "output"):
        if name in given and given[name] is None:
            del given[name]
    return Experiment(problem, algorithm, rounds, evaluate=evaluate, engine=engine, **given)
