"""The configuration of one run: TOML in, every default visible, TOML out.

tree      plain tables as tomllib gives them, possibly incomplete
RunConfig a complete, checked configuration; `build` makes the parts that `simulate` takes
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from fedadmm import problems
from fedadmm.algorithms import REGISTRY
from fedadmm.engines import EngineChoice, default_engine
from fedadmm.evaluation import Evaluation, Target
from fedadmm.problem import Problem
from fedadmm.protocols import AnyAlgorithm, LocalSolver, Sampler, StoppingRule
from fedadmm.stopping import Epochs
from fedadmm.study.messages import refusal
from fedadmm.study.parts import Part, table_of, union_of
from fedadmm.study.registry import defaults

Tree = dict[str, Any]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]

TABLES = ("problem", "regularizer", "algorithm", "solver", "stop", "sampler", "engine")
"""The tables that name a part, one a family."""


class Table(BaseModel):
    """A table without a name: plain keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class EvaluateTable(Table):
    """What is measured between rounds."""

    every: Count = Field(default=1, description="rounds between two measurements")
    target: Literal["global", "local"] = Field(
        default="global", description="whose model is measured"
    )
    objective: bool | None = Field(
        default=None,
        description="f, F and the gradient mapping over all clients; by problem when absent",
    )
    test: bool = Field(default=True, description="the problem's held-out rows")
    certificate: Literal["none", "auto", "feddr", "wang", "gong", "async-feddr"] = Field(
        default="none", description="what a theorem bounds, beside its bound, in every round"
    )
    diagnose: Natural = Field(
        default=0, description="rounds between two looks at the clients' states; 0 for none"
    )
    diagnosed_clients: Natural = Field(
        default=5, description="how many clients a look takes in; 0 for everybody"
    )


class TargetTable(Table):
    """The value of a metric that rounds are counted to."""

    metric: str = Field(description="a metric of the rounds, such as test_accuracy")
    value: float
    at_least: bool = Field(default=True, description="false for losses, which should fall")
    end_run: bool = Field(default=True, description="end the run as soon as the target is met")

    def build(self) -> Target:
        """The target as the loop takes it."""
        return Target(self.metric, self.value, self.at_least)


class CheckpointTable(Table):
    """What is kept to resume from."""

    every: Natural = Field(default=10, description="rounds between two checkpoints; 0 writes none")


class StoreTable(Table):
    """Where the clients' states are kept between rounds."""

    name: Literal["memory", "disk"] | None = Field(
        default=None, description="memory when absent, or disk where the engine needs it"
    )
    cache_bytes: Natural = Field(default=2**30, description="disk: how much stays in memory")
    primal: Literal["same", "bfloat16", "float16"] = Field(
        default="same", description="disk: the precision of the clients' own models"
    )


class RunConfig(BaseModel):
    """One run.  The tables' models are made from the parts by `run_model`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    rounds: Count = Field(default=100, description="how many rounds at most")
    seed: Natural = Field(default=0, description="the same seed gives the same run on every engine")
    precision: Literal["float32", "float64", "bfloat16"] = "float32"
    device: str = Field(default="cpu", description="where the model lives: cpu, cuda, cuda:1 …")
    tolerance: Annotated[float, Field(gt=0)] | Literal["none"] = Field(
        default="none", description="end when the gradient mapping is at most this"
    )
    trackers: list[str] = Field(
        default=[], description="tensorboard, mlflow, or your own as package.module:name"
    )
    problem: Part
    regularizer: Part
    algorithm: Part
    solver: Part
    stop: Part | None = None
    sampler: Part
    engine: Part
    evaluate: EvaluateTable = EvaluateTable()
    target: TargetTable | None = None
    store: StoreTable = StoreTable()
    checkpoint: CheckpointTable = CheckpointTable()

    @model_validator(mode="before")
    @classmethod
    def _usual_parts(cls, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        usual = {key: {"name": name} for key, name in _USUAL.items()}
        method = REGISTRY.get(_name(tree.get("algorithm")))
        if method is not None:
            usual["engine"] = {"name": default_engine(method)}
        return {key: _named(tree.get(key, part), part) for key, part in usual.items()} | {
            key: value for key, value in tree.items() if key not in usual
        }

    def tree(self) -> Tree:
        """Plain tables that TOML can hold and `resolve` takes back."""
        return self.model_dump(mode="json", exclude_none=True)


def _name(table: Any) -> str:
    return str(table.get("name")) if isinstance(table, dict) else ""


def _named(table: Any, usual: dict[str, str]) -> Any:
    return usual | table if isinstance(table, dict) else table


_USUAL = {
    "problem": "digits",
    "regularizer": "zero",
    "algorithm": "fedadmm",
    "solver": "sgd",
    "sampler": "full",
    "engine": "sequential",
}
"""The parts that tables without a name, and tables left out, stand for.  Methods without rounds
have an engine of their own."""


@cache
def run_model() -> type[RunConfig]:
    """`RunConfig` with every family's parts in place."""
    tables: dict[str, Any] = {key: (union_of(key), ...) for key in TABLES}
    tables["stop"] = (union_of("stop") | None, None)
    return create_model("RunConfig", __base__=RunConfig, __doc__="One run.", **tables)


def resolve(tree: Mapping[str, Any], where: str = "") -> RunConfig:
    """A complete configuration; a ConfigError names the key, the value and what is allowed.

    `where` says which of several configurations is meant.
    """
    try:
        config = run_model().model_validate(dict(tree))
    except ValidationError as error:
        raise refusal(run_model(), error, where) from None
    return _completed(config)


def _completed(config: RunConfig) -> RunConfig:
    """Fill in what depends on other keys: the stopping rule, what is measured, the store."""
    updates: dict[str, Any] = {}
    if config.stop is None:
        rule = config.algorithm.build().default_stop() or Epochs(1)
        updates["stop"] = table_of("stop", rule)
    if config.evaluate.objective is None:
        measured = defaults()["objective"].get(config.problem.name, True)
        updates["evaluate"] = config.evaluate.model_dump() | {"objective": measured}
    if config.store.name is None:
        on_disk = getattr(config.engine.made_from, "needs_disk", False)
        updates["store"] = config.store.model_dump() | {"name": "disk" if on_disk else "memory"}
    return run_model().model_validate(config.tree() | updates) if updates else config


class Built(NamedTuple):
    """The parts of a run, as `simulate` takes them."""

    problem: Problem
    algorithm: AnyAlgorithm
    solver: LocalSolver
    stop: StoppingRule
    sampler: Sampler
    engine: EngineChoice
    evaluation: Evaluation
    target: Target | None


def build(config: RunConfig, problem: Problem | None = None) -> Built:
    """Make every part; loading the problem may read files, unless it is handed over."""
    assert config.stop is not None
    measured = config.evaluate.model_dump()
    return Built(
        problem=problem or load_problem(config),
        algorithm=config.algorithm.build(),
        solver=config.solver.build(),
        stop=config.stop.build(),
        sampler=config.sampler.build(),
        engine=config.engine.build(),
        evaluation=Evaluation(**measured),
        target=config.target.build() if config.target is not None else None,
    )


def load_problem(config: RunConfig) -> Problem:
    """The problem with its regulariser."""
    return problems.load(
        config.problem.name, regularizer=config.regularizer.build(), **config.problem.arguments()
    )
