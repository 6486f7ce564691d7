"""A configuration is complete, goes to TOML and back, and is refused in one sentence."""

from __future__ import annotations

import dataclasses
import json
import tomllib

import pytest

import fedadmm as fa
from fedadmm.core.config_tree import part_from, to_config
from fedadmm.core.errors import ConfigError
from fedadmm.core.parts import FAMILIES
from fedadmm.core.schedules import Geometric, Piecewise
from fedadmm.study import config as configs
from fedadmm.study.compare import schema
from fedadmm.study.config import resolve
from support.commands import SMALL

configs.register()
PARTS = [(family, name) for family, parts in FAMILIES.items() for name in parts]


@pytest.mark.parametrize(("family", "name"), PARTS, ids=lambda value: str(value))
def test_a_part_comes_back_from_its_table(family: str, name: str) -> None:
    """The table has exactly the fields of the class, every default written out."""
    kind = FAMILIES[family][name]
    own = [field for field in dataclasses.fields(kind) if field.init]
    usual = {"values": {0: 1.0}, "rounds": ((0,),), "costs": (1.0,), "path": "x", "target": "x"}
    needed = {
        field.name: usual.get(field.name, 1)
        for field in own
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    try:
        made = kind(**needed)
    except fa.errors.ParameterError:
        pytest.skip("its rules between fields need more than one value")
    table = to_config(made)
    in_tables = {field.name for field in own if field.metadata.get("in_tables", True)}
    assert set(table) == in_tables | {"name"}
    assert part_from(family, tomllib.loads(configs.write(table)), family) == made


@pytest.mark.parametrize("preset", configs.presets())
def test_a_resolved_configuration_survives_toml(preset: str) -> None:
    run = resolve(configs.run_only(configs.read(preset)))
    again = resolve(tomllib.loads(configs.write(run.tree)))
    assert again == run
    assert "stop" in run.tree["local"]
    assert isinstance(run.tree["evaluate"]["objective"], bool)


def test_a_table_is_a_constructor_call() -> None:
    tree = SMALL | {
        "algorithm": {
            "name": "fedadmm-printed",
            "rho": {"name": "piecewise", "values": {"0": 0.5, "10": 1.0}},
            "step": {"name": "geometric", "factor": 0.8, "floor": 0.1},
        },
        "regularizer": {"name": "elastic-net", "l1": 0.1, "l2": 0.2},
        "sampler": {"name": "trace", "rounds": [[0, 1], [2, 3]], "repeat": True},
        "local": {
            "solver": {"name": "sgd", "lr": {"name": "geometric", "factor": 0.9}},
            "personal": {"name": "ditto", "weight": 0.3},
        },
    }
    built = resolve(tree)
    assert built.algorithm == fa.algorithms.FedADMMPrinted(
        Piecewise({0: 0.5, 10: 1.0}), Geometric(factor=0.8, floor=0.1)
    )
    assert built.local.personal == fa.Ditto(0.3)
    assert built.regularizer == fa.regularizers.ElasticNet(0.1, 0.2)
    assert built.sampler == fa.TraceSampling(((0, 1), (2, 3)), repeat=True)
    assert built.local.solver == fa.SGD(Geometric(factor=0.9))
    assert resolve(tomllib.loads(configs.write(built.tree))) == built


def test_a_list_is_one_value_per_client() -> None:
    tree = SMALL | {
        "local": {
            "solver": {"name": "sgd", "lr": [0.1, 1, 0.3]},
            "stop": {"name": "epochs", "epochs": [1, 5, 0.5]},
        },
    }
    config = resolve(tree)
    assert config.local.solver == fa.SGD((0.1, 1, 0.3))
    assert config.local.stop == fa.Epochs((1, 5, 0.5))
    coins = {"name": "bernoulli", "probability": [0.5, {"name": "geometric", "floor": 0.1}, 1]}
    sampler = resolve(SMALL | {"sampler": coins}).sampler
    assert sampler == fa.BernoulliSampling((0.5, Geometric(floor=0.1), 1))
    assert resolve(tomllib.loads(configs.write(config.tree))) == config


def test_the_stopping_rule_is_the_methods_own_unless_the_file_says() -> None:
    tree = {key: value for key, value in SMALL.items() if key != "local"}
    insa = resolve(tree | {"algorithm": {"name": "fedadmm-insa"}})
    assert insa.local.stop == fa.stopping.InSaCriterion()
    assert resolve(tree).local.stop == fa.Epochs(1)


@pytest.mark.parametrize(("name", "start"), [("fedadmm-printed", "own"), ("fedadmm", "global")])
def test_the_start_is_the_methods_usual_one_unless_the_file_says(name: str, start: str) -> None:
    tree = SMALL | {"algorithm": {"name": name}}
    assert resolve(tree).local.start == resolve(tree).tree["local"]["start"] == start
    assert resolve(tree | {"local": {"start": "current"}}).local.start == "current"
    with pytest.raises(ConfigError, match=r"local.start: got 'here', expected"):
        resolve(tree | {"local": {"start": "here"}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"algorithm": {"name": "fedadmm", "rh0": 1}},
            "algorithm.rh0 is not a key of fedadmm; did you mean rho? "
            "(allowed: rho, step, members, dual)",
        ),
        (
            {"sampler": {"name": "unifrom"}},
            "sampler.name is 'unifrom', which is not known; did you mean uniform? (allowed: full, "
            "uniform, bernoulli, weighted, non-overlapping, doubly-uniform, cyclic, trace)",
        ),
        (
            {"algorithm": {"name": "fedadmm", "rho": "x"}},
            "algorithm.rho: got 'x', expected > 0 and finite, or a schedule: piecewise, per-work",
        ),
        (
            {"algorithm": {"name": "fedadmm", "rho": -1}},
            "algorithm.rho: got -1.0, expected > 0 and finite",
        ),
        (
            {"algorithm": {"name": "fedadmm", "rho": {"name": "geometrik"}}},
            "algorithm.rho.name is 'geometrik', which is not known; did you mean geometric?",
        ),
        (
            {"algorithm": {"name": "fedadmm", "rho": {"name": "geometric", "factr": 1.0}}},
            "algorithm.rho.factr is not a key of geometric; did you mean factor?",
        ),
        (
            {"algorithm": {"name": "fedadmm", "rho": {"name": "piecewise", "values": {"1": 2.0}}}},
            "algorithm.rho.values: got change points [1], expected one at 0.",
        ),
        ({"sampler": {"name": "uniform"}}, "sampler.size: got nothing, expected > 0 and <= 1"),
        (
            {"sampler": {"name": "uniform", "size": 1.5}},
            "sampler.size: got 1.5, expected > 0 and <= 1",
        ),
        (
            {"sampler": {"name": "uniform", "size": True}},
            "sampler.size: got True, expected > 0 and <= 1",
        ),
        ({"rounds": 0}, "rounds: got 0, expected a whole number of at least 1"),
        ({"rounds": "ten"}, "rounds: got 'ten', expected a whole number"),
        ({"roundz": 3}, "roundz is not a key of the configuration; did you mean rounds?"),
        ({"target": {"metric": "loss"}}, "target.value: got nothing, expected a number"),
        ({"target": 3}, "target: got 3, expected a table"),
        (
            {"evaluate": {"objective": 3}},
            "evaluate.objective: got 3, expected True or False, or None",
        ),
        ({"precision": "float16"}, "precision: got 'float16', expected one of 'float32', 'float"),
        ({"callbacks": [1]}, "callbacks[0]: got 1, expected a table whose name is one of"),
        (
            {"sampler": {"name": "trace", "rounds": [[1, "a"]]}},
            "sampler.rounds[0][1]: got 'a', expected a whole number",
        ),
        (
            {"problem": {"name": "digits", "partition": "shard"}},
            "problem.partition: got 'shard', expected one of 'iid', 'shards'",
        ),
        (
            {"local": {"solver": {"name": "sgd", "batch_size": "all"}}},
            "local.solver.batch_size: got 'all', expected a whole number of at least 1, or None",
        ),
        (
            {"local": {"stop": {"name": "epochs", "epochs": [1, "a"]}}},
            "local.stop.epochs[1]: got 'a', expected > 0 and finite",
        ),
        (
            {"local": {"solver": {"name": "sgd", "lr": [0.1, -1.0]}}},
            "local.solver.lr[1]: got -1.0, expected > 0 and finite",
        ),
    ],
)
def test_a_refusal_names_key_value_and_what_is_allowed(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        resolve(SMALL | change)
    assert str(refusal.value).startswith(message)


def test_the_schema_knows_every_part() -> None:
    text = json.dumps(schema())
    for name in (name for parts in FAMILIES.values() for name in parts):
        assert f'"const": "{name}"' in text


@pytest.mark.parametrize(
    ("table", "key", "range_"),
    [
        ("algorithm-fedadmm", "rho", {"exclusiveMinimum": 0}),
        ("sampler-uniform", "size", {"minimum": 1}),
        ("sampler-uniform", "size", {"exclusiveMinimum": 0, "maximum": 1}),
        ("problem-digits", "clients", {"minimum": 1}),
        ("problem-digits", "validation", {"minimum": 0, "exclusiveMaximum": 1}),
        ("problem-heart-disease", "test_fraction", {"exclusiveMinimum": 0, "exclusiveMaximum": 1}),
        ("problem-quadratics", "conditioning", {"minimum": 1}),
    ],
)
def test_the_json_schema_says_the_ranges(table: str, key: str, range_: dict[str, float]) -> None:
    definition = schema()["$defs"][table]
    told = definition["properties"][key]
    choices = told.get("anyOf") or told.get("oneOf") or [told]
    words = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    ranges = [{w: n for w, n in one.items() if w in words} for one in choices]
    assert range_ in ranges


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"clients": 0}, "problem.clients: got 0, expected a whole number of at least 1"),
        ({"validation": 1.0}, "problem.validation: got 1.0, expected >= 0 and < 1"),
        ({"weights": "size"}, "problem.weights: got 'size', expected one of 'uniform', 'samples'"),
    ],
)
def test_a_problem_refuses_in_the_words_of_its_annotation(table: dict, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve({"problem": {"name": "digits"} | table})
    assert str(refused.value) == words


def test_the_split_of_clients_follows_the_seed_unless_it_is_fixed() -> None:
    digits = {"name": "digits", "clients": 4, "partition": "dirichlet", "max_train": 200}

    def sizes(seed: int, **options: int) -> list[int]:
        problem = resolve({"seed": seed, "problem": digits | options}).load_problem()
        return [client.num_samples for client in problem.clients]

    assert sizes(0) != sizes(1)
    assert sizes(0, partition_seed=3) == sizes(1, partition_seed=3) == sizes(3)
