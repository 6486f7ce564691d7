"""A comparison is fair by construction, and its table follows from its runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedadmm.core.errors import ConfigError, DataError
from fedadmm.study import config as configs
from fedadmm.study.compare import compare, plan
from fedadmm.study.run_dir import RunDir
from fedadmm.study.spec import folder_names
from support.commands import SMALL

TREE: dict[str, Any] = SMALL | {
    "seeds": [0, 1],
    "target": {"metric": "loss", "value": -1e9, "at_least": False, "end_run": False},
    "methods": [
        {"label": "plain", "algorithm": {"name": "fedavg"}},
        {"algorithm": {"name": "fedadmm"}},
        {"label": "FedADMM 2", "algorithm": {"rho": 2.0}, "local": {"solver": {"lr": 0.01}}},
    ],
}
SEARCH = {"values": [0.01, 0.05], "seeds": [77, 78], "rounds": 2, "extend": 0}


def participation(directory: Path) -> list[list[int]]:
    return [record["cohort"]["clients"] for record in RunDir(directory).records()]


@pytest.mark.parametrize("processes", [1, 2])
def test_methods_meet_the_same_participation_and_keep_their_own_tables(
    tmp_path: Path, processes: int
) -> None:
    result = compare(plan(TREE), tmp_path, processes=processes).document
    assert [run["directory"] for run in result["runs"]] == [
        f"runs/{label}-seed{seed}" for label in ("plain", "fedadmm", "fedadmm-2") for seed in (0, 1)
    ]
    for seed in (0, 1):
        first, *others = (
            participation(tmp_path / run["directory"])
            for run in result["runs"]
            if run["seed"] == seed
        )
        assert all(other == first for other in others)
    assert json.loads((tmp_path / "results.json").read_text())["table"][0]["label"] == "plain"
    config = (tmp_path / "runs/fedadmm-2-seed0/config.toml").read_text()
    assert "rho = 2.0" in config
    assert "lr = 0.01" in config


def test_every_method_gets_the_same_search_on_its_own_seed(tmp_path: Path) -> None:
    search = compare(plan(TREE | {"search": SEARCH}), tmp_path).document["search"]
    assert [(row["label"], row["seed"], row["value"]) for row in search["tried"]] == [
        (label, seed, {"local.solver.lr": value})
        for label in ("plain", "fedadmm", "FedADMM 2")
        for seed in (77, 78)
        for value in (0.01, 0.05)
    ]
    summaries = [RunDir(folder).summary() for folder in (tmp_path / "search").iterdir()]
    assert {(one["seed"], one["rounds"]) for one in summaries} == {(77, 2), (78, 2)}
    for label, chosen in search["chosen"].items():
        losses: dict[float, float] = {}
        for row in search["tried"]:
            if row["label"] == label:
                value = row["value"]["local.solver.lr"]
                losses[value] = losses.get(value, 0.0) + row["best"]
        assert chosen["value"] == {"local.solver.lr": min(losses, key=lambda lr: losses[lr])}
        config = (tmp_path / f"runs/{folder_names([label])[label]}-seed1/config.toml").read_text()
        assert f"lr = {chosen['value']['local.solver.lr']}" in config


def test_labels_and_values_that_would_make_the_same_folder_have_runs_of_their_own(
    tmp_path: Path,
) -> None:
    """`+`, Greek letters and signs do not stand in a folder's name."""
    methods = [
        {"label": "FedADMM"},
        {"label": "FedADMM+", "algorithm": {"rho": 5.0}},
        {"label": "ρ FedADMM", "algorithm": {"rho": 9.0}},
    ]
    search = SEARCH | {"key": "regularizer.low", "values": [-1.0, 1.0]}
    tree = TREE | {"methods": methods, "seeds": [0], "search": search}
    tree |= {"regularizer": {"name": "box", "low": -1.0, "high": 2.0}}
    for resume in (False, True):
        result = compare(plan(tree), tmp_path, resume=resume).document
        folders = [RunDir(tmp_path / run["directory"]) for run in result["runs"]]
        assert [run.config()["algorithm"]["rho"] for run in folders] == [1.0, 5.0, 9.0]
        tried = [RunDir(path).config() for path in (tmp_path / "search").iterdir()]
        found = {(one["algorithm"]["rho"], one["regularizer"]["low"]) for one in tried}
        assert found == {(rho, low) for rho in (1.0, 5.0, 9.0) for low in (-1.0, 1.0)}
    assert result["runs"][0]["directory"] == "runs/fedadmm-seed0"


def test_the_reported_seeds_are_not_searched_on() -> None:
    with pytest.raises(ConfigError, match=r"search\.seeds: got \[1, 77\]"):
        plan(TREE | {"search": SEARCH | {"seeds": [1, 77]}})


def test_algorithms_are_picked_by_name_or_label_or_added() -> None:
    labels = [cell.label for cell in plan(TREE, ["plain", "feddr", "FedADMM 2"]).cells]
    assert labels == ["plain", "feddr", "FedADMM 2"]
    with pytest.raises(ConfigError, match="--algorithms names 'fedadm'; did you mean fedadmm"):
        plan(TREE, ["fedadm"])


def test_a_mistake_in_a_method_names_the_method() -> None:
    wrong = {"label": "mine", "algorithm": {"name": "fedadmm", "rh0": 1}}
    with pytest.raises(ConfigError, match=r"methods \(mine\): algorithm.rh0 is not a key"):
        plan(TREE | {"methods": [wrong]})
    with pytest.raises(ConfigError, match=r"methods\[0\].labl is not a key of methods\[0\]; did y"):
        plan(TREE | {"methods": [{"labl": "x"}]})
    with pytest.raises(ConfigError, match="label: got 'fedadmm' twice"):
        plan(TREE | {"methods": [{}, {}]})


def test_a_complete_plan_is_the_same_plan() -> None:
    first = plan(TREE | {"search": SEARCH})
    second = plan(first.plan)
    assert second == first


def test_finished_runs_are_kept_when_a_comparison_goes_on(tmp_path: Path) -> None:
    compare(plan(TREE, ["plain"]), tmp_path)
    stamp = (tmp_path / "runs/plain-seed0/metrics.jsonl").stat().st_mtime_ns
    with pytest.raises(ConfigError, match="already holds a comparison; add --resume"):
        compare(plan(TREE), tmp_path)
    result = compare(plan(TREE), tmp_path, resume=True).document
    assert (tmp_path / "runs/plain-seed0/metrics.jsonl").stat().st_mtime_ns == stamp
    assert len(result["runs"]) == 6


def test_a_comparison_rejected_before_its_first_run_leaves_no_folder(tmp_path: Path) -> None:
    digits = {"name": "digits", "clients": 2, "model": "cnn2"}  # reads 32×32×3 images only
    wrong = plan({"problem": digits, "rounds": 1, "seeds": [0], "methods": [{"label": "a"}]})
    with pytest.raises(DataError):
        compare(wrong, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    compare(plan(TREE), tmp_path / "out")
    again = plan(TREE | {"rounds": 7})
    with pytest.raises(ConfigError):  # runs that were completed are kept
        compare(again, tmp_path / "out")
    assert (tmp_path / "out/runs/plain-seed0/metrics.jsonl").is_file()


@pytest.mark.parametrize("preset", configs.presets())
def test_every_preset_is_a_fair_plan(preset: str) -> None:
    ready = plan(configs.read(preset))
    assert plan(ready.plan).cells == ready.cells
    shared = ("problem", "sampler", "regularizer", "evaluate", "rounds")
    for method in ready.cells:
        assert {key: method.run.tree[key] for key in shared} == {
            key: ready.cells[0].run.tree[key] for key in shared
        }


def rhos(settings: list[tuple[str, Any]], **changes: Any) -> dict[str, Any]:
    """The penalty of every method of the comparison that has one."""
    methods = plan(TREE | changes, settings=settings).cells
    return {m.label: m.run.algorithm.rho for m in methods if hasattr(m.run.algorithm, "rho")}


def test_what_is_set_reaches_every_method_that_has_the_key() -> None:
    assert rhos([]) == {"fedadmm": 1.0, "FedADMM 2": 2.0}
    given = plan(TREE, settings=[("algorithm.rho", 7.0), ("local.solver.lr", 0.5), ("rounds", 2)])
    assert [getattr(one.run.algorithm, "rho", None) for one in given.cells] == [None, 7.0, 7.0]
    assert [one.run.local.solver.lr for one in given.cells] == [0.5] * 3
    assert [one.run.rounds for one in given.cells] == [2] * 3
    assert given.reached == [
        "algorithm.rho = 7.0 for fedadmm; FedADMM 2; not for plain",
        "local.solver.lr = 0.5 for plain; fedadmm; FedADMM 2",
    ]
    picked = plan(TREE, ["fedprox", "fedavg"], [("algorithm.rho", 7.0)])
    assert [one.run.tree["algorithm"].get("rho") for one in picked.cells] == [7.0, None]


def test_another_solver_is_set_before_its_keys() -> None:
    settings = [
        ("local.solver.name", "sgd"),
        ("local.solver.batch_size", 5),
        ("local.solver.lr", 0.25),
    ]
    solvers = [one.run.tree["local"]["solver"] for one in plan(TREE, settings=settings).cells]
    assert [(one["name"], one["batch_size"], one["lr"]) for one in solvers] == [
        ("sgd", 5, 0.25)
    ] * 3


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "algorithm.roh",
            r"algorithm.roh is set to 7, but is not a key of fedavg, fedadmm; did you",
        ),
        (
            "algorithm.roh.start",
            r"algorithm.roh.start is set to 7, but is not a key of fedavg, fed",
        ),
        ("algorithm.steps", r"algorithm.steps is .* of fedavg, fedadmm; .*found in .*stop.steps"),
        ("algorithm.eta", r"not a key of fedavg, fedadmm; .*found in .*feddr, "),
        ("engine.address", r"engine.address is .* not a key of auto; .*found in ray"),
        ("algorithm.name", r"algorithm.name is set to 7, but every method compared brings its own"),
        ("engine.name", r"engine.name is set to 7, but every method compared brings its own"),
    ],
)
def test_what_reaches_no_method_is_refused(key: str, message: str) -> None:
    tree = TREE | {"methods": TREE["methods"][:2]}
    chosen = ["fedbuff"] if key == "engine.name" else []
    with pytest.raises(ConfigError, match=message):
        plan(tree, chosen, [(key, 7)])


def test_what_the_search_chooses_cannot_be_set() -> None:
    with pytest.raises(
        ConfigError, match=r"local.solver.lr is set to 3.0, but the search chooses it"
    ):
        plan(TREE | {"search": SEARCH}, settings=[("local.solver.lr", 3.0)])
    assert rhos([("algorithm.rho", 7.0)], search=SEARCH) == {"fedadmm": 7.0, "FedADMM 2": 7.0}


def test_a_method_without_rounds_keeps_its_engine_and_a_name_reaches_who_has_none() -> None:
    both = plan(TREE, ["fedavg", "fedbuff"], [("engine.name", "auto")])
    assert [one.run.name("engine") for one in both.cells] == ["auto", "virtual-time"]
    tree = TREE | {"methods": [{"label": "one"}, {"algorithm": {"name": "fedavg"}}]}
    named = plan(tree, settings=[("algorithm.rho", 3.0), ("algorithm.name", "fedprox")])
    assert [one.run.tree["algorithm"]["name"] for one in named.cells] == ["fedprox", "fedavg"]
    assert named.cells[0].run.algorithm.rho == 3.0


def test_a_seed_that_is_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"seeds is \[0, 1, 0\], but must not hold 0 twice"):
        plan(TREE, settings=[("seeds", [0, 1, 0])])


def test_the_grid_of_a_search_grows_until_the_optimum_is_inside(tmp_path: Path) -> None:
    """On identical clients the loss after a few steps is smallest for a rate far above the grid."""
    problem = {"name": "quadratics", "clients": 2, "dimension": 3, "conditioning": 1.0}
    tree = SMALL | {"problem": problem, "algorithm": {"name": "fedsgd"}, "rounds": 4}
    tree |= {"search": {"key": "algorithm.lr", "values": [0.05, 0.1], "seeds": [7], "extend": 9}}
    tree |= {"sampler": {"name": "full"}, "methods": [], "seeds": [0]}
    search = compare(plan(tree), tmp_path).document["search"]
    ((label, grid),) = search["grid"].items()
    # FedSGD contracts the loss by (1 - lr)^2 per round: best near 1, and equally good nowhere else.
    assert grid["algorithm.lr"] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
    assert search["chosen"][label]["value"] == {"algorithm.lr": 0.8}
    assert search["interior"][label] == {"algorithm.lr": True}
    again = compare(plan(configs.read(str(tmp_path / "study.toml"))), tmp_path, resume=True)
    assert again.document["search"] == search


def test_validation_samples_decide_a_search_and_test_samples_are_only_reported(
    tmp_path: Path,
) -> None:
    problem = {"name": "digits", "clients": 5, "partition": "shards", "max_train": 300}
    tree = SMALL | {"problem": problem, "seeds": [0], "rounds": 3}
    tree |= {"target": {"metric": "test_accuracy", "value": 0.5}}
    tree |= {"search": {"values": [0.05, 0.1, 0.2], "seeds": [7], "extend": 0}}
    tested = compare(plan(tree, ["fedavg"]), tmp_path / "a").document["search"]
    assert tested["samples"] == "test"
    tree["problem"] = problem | {"validation": 0.2}
    found = compare(plan(tree, ["fedavg"]), tmp_path / "b")
    search = found.document["search"]
    assert search["samples"] == "validation"
    assert {row["metric"] for row in search["tried"]} == {"validation_accuracy"}
    assert found.results.metric == "test_accuracy"
    for folder in (tmp_path / "b/search").iterdir():
        assert RunDir(folder).config()["target"]["metric"] == "validation_accuracy"


def test_every_method_is_compared_with_the_named_reference_or_the_best_other() -> None:
    with pytest.raises(ConfigError, match="reference: got 'nobody'"):
        plan(TREE, settings=[("reference", "nobody")])
    assert plan(TREE, settings=[("reference", "fedavg")]).about == {"compared_with": "plain"}
    assert plan(TREE).about == {}
