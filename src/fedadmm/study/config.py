"""The configuration of one run: TOML in, checked and built once, TOML out.

tree       plain tables as tomllib gives them, possibly incomplete
RunConfig  the schema that a tree is checked against
Run        what everything else takes: the complete tables and the parts built from them
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from fedadmm.core.errors import ConfigError
from fedadmm.core.outputs import AnyOutput
from fedadmm.core.parts import is_stranger
from fedadmm.core.problem import Problem
from fedadmm.core.protocols import AnyAlgorithm, LocalSolver, Regularizer, Sampler, StoppingRule
from fedadmm.core.stopping import Epochs
from fedadmm.core.uploads import Uploads, UploadStage
from fedadmm.data import problems
from fedadmm.data.problems import NamedProblem
from fedadmm.run.engines import EngineChoice, default_engine
from fedadmm.run.evaluation import Evaluation, Target, Theorem
from fedadmm.study.messages import refusal
from fedadmm.study.parts import NOBODY, Part, table_of, union_of
from fedadmm.study.registry import ProblemOptions, Stranger, defaults, families, part_of, strangers

Tree = dict[str, Any]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]

TABLES = ("problem", "regularizer", "algorithm", "solver", "stop", "sampler", "engine", "output")
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
    train: bool = Field(
        default=False, description="train_accuracy: training rows of all clients got right"
    )
    clients: bool | None = Field(
        default=None,
        description="every client's own value, and worst, 10th percentile and spread; not when "
        "absent, so that runs of before keep their name",
    )
    certificate: Theorem = Field(
        default="none", description="what a theorem bounds, beside its bound, in every round"
    )
    diagnose: Natural = Field(
        default=0, description="rounds between two looks at the clients' states; 0 for none"
    )
    diagnosed_clients: Natural = Field(
        default=5, description="how many clients a look takes in; 0 for everybody"
    )
    duality: bool = Field(
        default=False, description="the duality gap in a look at everybody, for quadratic losses"
    )


class TargetTable(Table):
    """The value of a metric that rounds are counted to."""

    metric: str = Field(description="a metric of the rounds, such as test_accuracy")
    value: float
    at_least: bool = Field(default=True, description="false for losses, which should fall")
    end_run: bool = Field(default=True, description="end the run as soon as the target is met")
    also: list[str] = Field(
        default=[], description="metrics that must have the value too before the run ends"
    )

    def build(self) -> Target:
        """The target as the loop takes it."""
        return Target(self.metric, self.value, self.at_least, tuple(self.also), self.end_run)


class CheckpointTable(Table):
    """What is kept to resume from."""

    every: Natural = Field(
        default=10, description="rounds between two checkpoints; 0 writes one only on interruption"
    )


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
    threads: Count | Literal["auto"] = Field(
        default="auto",
        description="threads of torch in a process; auto takes one where a gradient is small, and "
        "else as many as torch was given",
    )
    tolerance: Annotated[float, Field(gt=0)] | Literal["none"] = Field(
        default="none", description="end when the gradient mapping is at most this"
    )
    patience: Count | None = Field(
        default=None,
        description="end after so many measurements in a row without a better model; never when "
        "absent",
    )
    trackers: list[str] = Field(
        default=[], description="tensorboard, mlflow, wandb, or your own as package.module:name"
    )
    problem: Part
    regularizer: Part
    algorithm: Part
    solver: Part
    stop: Part | None = None
    sampler: Part
    engine: Part
    output: Part
    upload: list[Part] = Field(
        default=[], description="what happens to a client's message before the sum, in this order"
    )
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
        name = _name(tree.get("algorithm"))
        if is_stranger(name) or name in families()["algorithm"]:
            usual["engine"] = {"name": default_engine(part_of("algorithm", name))}
        if "stop" in tree:  # left out it is the method's own; with keys alone it is the usual one
            usual["stop"] = {"name": "epochs"}
        complete = tree | {key: _named(tree.get(key, part), part) for key, part in usual.items()}
        problem = complete["problem"]
        if isinstance(problem, dict):  # a short form is written out, so that a run has one name
            complete["problem"] = problem | {"name": problems.canonical(problem["name"])}
        return complete


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
    "output": "last-iterate",
}
"""The parts that tables without a name, and tables left out, stand for.  Methods without rounds
have an engine of their own."""


@cache
def run_model(others: frozenset[Stranger] = NOBODY) -> type[RunConfig]:
    """`RunConfig` with every family's parts in place, and these that are not ours."""
    tables: dict[str, Any] = {key: (union_of(key, others), ...) for key in TABLES}
    tables["stop"] = (union_of("stop", others) | None, None)
    tables["upload"] = (list[union_of("upload", others)], RunConfig.model_fields["upload"])  # type: ignore[misc]
    return create_model("RunConfig", __base__=RunConfig, __doc__="One run.", **tables)


def check(tree: Mapping[str, Any], where: str = "") -> RunConfig:
    """The checked tables; a ConfigError names the key, the value and what is allowed.

    `where` says which of several configurations is meant.
    """
    model = run_model(strangers(tree))
    try:
        return model.model_validate(dict(tree))
    except ValidationError as error:
        raise refusal(model, error, where) from None


@dataclass(frozen=True)
class Run:
    """One run: its complete tables, and the parts that were built from them, once."""

    tree: Tree
    """Plain tables that TOML can hold and `resolve` takes back, every default written out."""
    rounds: int
    seed: int
    precision: str
    device: str
    threads: int | Literal["auto"]
    tolerance: float | None
    patience: int | None
    trackers: tuple[str, ...]
    problem: NamedProblem | ProblemOptions
    """The options of the problem, which `load_problem` makes."""
    regularizer: Regularizer
    algorithm: AnyAlgorithm
    solver: LocalSolver
    stop: StoppingRule
    sampler: Sampler
    engine: EngineChoice
    output: AnyOutput
    upload: tuple[UploadStage, ...]
    evaluation: Evaluation
    target: Target | None
    store: StoreTable
    checkpoint_every: int

    def name(self, family: str) -> str:
        """What the configuration calls the part of a family."""
        return str(self.tree[family]["name"])

    @property
    def label(self) -> str:
        """The method's name, without the module of one that is not ours."""
        return self.name("algorithm").rpartition(":")[2]

    def with_seed(self, seed: int) -> Run:
        """The same run from another seed; nothing has to be checked again."""
        return replace(self, seed=seed, tree=self.tree | {"seed": seed})

    def load_problem(self) -> Problem:
        """The problem with its regulariser; may read files."""
        if isinstance(self.problem, NamedProblem):
            return self.problem.make(problems.Extras(regularizer=self.regularizer))
        return replace(self.problem.load(), regularizer=self.regularizer)


_MOST = {("problem", "clients"): 1_000_000, ("engine", "workers"): 1024}
"""Beyond these a run would not fail but hang: nobody waits for that many."""


def _check_sizes(tree: Tree, where: str) -> None:
    """Refuse numbers that the precision or this machine cannot work with."""
    precision = tree["precision"]
    largest = math.sqrt(torch.finfo(getattr(torch, precision)).max)
    for family in TABLES:
        for key, value in tree.get(family, {}).items():
            most: float | None = _MOST.get((family, key))
            reason = ""
            if most is None and isinstance(value, float):
                most, reason = largest, f" in {precision}, so that products of two such numbers fit"
            if most is not None and isinstance(value, int | float) and abs(value) > most:
                raise ConfigError(
                    f"{where}{family}.{key} is {value}, but must be at most {most:.7g}{reason}"
                )


def resolve(tree: Mapping[str, Any], where: str = "") -> Run:
    """The run that a configuration describes: checked once, built once, every default filled in."""
    config = check(tree, where)
    algorithm = config.algorithm.build()
    engine = config.engine.build()
    upload = tuple(stage.build() for stage in config.upload)
    Uploads.of(upload)
    complete = config.model_dump(mode="json", exclude_none=True)
    if config.stop is not None:
        stop = config.stop.build()
    else:
        stop = algorithm.default_stop() or Epochs(1)
        complete["stop"] = table_of("stop", stop)
    evaluate, store = config.evaluate, config.store
    if evaluate.objective is None:
        measured = defaults()["objective"].get(config.problem.name, True)
        evaluate = evaluate.model_copy(update={"objective": measured})
        complete["evaluate"] = evaluate.model_dump(exclude_none=True)
    if store.name is None:
        store = store.model_copy(update={"name": "disk" if engine.needs_disk else "memory"})
        complete["store"] = store.model_dump()
    _check_sizes(complete, where)
    return Run(
        tree=complete,
        rounds=config.rounds,
        seed=config.seed,
        precision=config.precision,
        device=config.device,
        threads=config.threads,
        tolerance=None if isinstance(config.tolerance, str) else config.tolerance,
        patience=config.patience,
        trackers=tuple(config.trackers),
        problem=config.problem.build(),
        regularizer=config.regularizer.build(),
        algorithm=algorithm,
        solver=config.solver.build(),
        stop=stop,
        sampler=config.sampler.build(),
        engine=engine,
        output=config.output.build(),
        upload=upload,
        evaluation=Evaluation(**evaluate.model_dump(exclude_none=True)),
        target=config.target.build() if config.target is not None else None,
        store=store,
        checkpoint_every=config.checkpoint.every,
    )
