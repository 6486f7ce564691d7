"""What the recipes say is what they run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from fedadmm.core.config_tree import from_config, to_config
from fedadmm.core.errors import ConfigError
from fedadmm.study.recipes import Recipe, identifiers, load, plan, study_of
from fedadmm.study.reproduce import reproduce
from fedadmm.study.runner import RunEvent, RunStarted
from fedadmm.study.spec import Cell, Study

NAMED = {
    r"\blr ([\d.]+)": "local.solver.lr",
    r"\b(\d+) epochs\b": "local.stop.epochs",
    r"\bE = (\d+)": "local.stop.epochs",
    r"\beta ([\d.]+)": "algorithm.eta",
    r"\brho ([\d.]+)(?:, then ([\d.]+))?": "algorithm.rho",
    r"^FedProx \(([\d.]+)\)": "algorithm.rho",
    r"\bbeta = ([\d.]+)": "algorithm.beta",
    r"\bstep ([\d.]+)(?:, then ([\d.]+))?": "algorithm.step",
    r"\bstep (tracking)": "algorithm.step",
    r"\bstart (own|global)": "local.start",
    r"\bsynthetic\(([\d.]+),": "problem.alpha",
    r"\bsynthetic\([\d.]+, ([\d.]+)\)": "problem.beta",
}
"""What a title can name, and the key that must hold it."""
POPULATION = {
    r"^(?!.*by writer).*?\b([\d,]+) clients\b": "problem.clients",
    r"\b(\d+) of \d+ (?:users|writers)\b": "sampler.size",
}
"""The same, for what a smaller scale makes smaller; of writers there are as many as there are."""


def _values(found: re.Match[str]) -> list[float | str]:
    texts = [text.replace(",", "") for text in found.groups() if text is not None]
    return [float(text) if text[0].isdigit() else text for text in texts]


def _held(tree: dict[str, Any], key: str) -> list[Any]:
    """The value at a key; of a schedule all its values, in the order of the rounds."""
    value: Any = reduce(lambda table, step: table[step], key.split("."), tree)
    if not isinstance(value, dict):
        return [value]
    values: dict[str, Any] = value["values"]
    return [values[start] for start in sorted(values, key=int)]


def _named(cell: Cell, patterns: dict[str, str]) -> Iterator[tuple[str, str, list[float | str]]]:
    for title in (cell.about["setting_title"], cell.about["title"]):
        for pattern, key in patterns.items():
            found = re.search(pattern, title)
            if found is not None:
                yield pattern, key, _values(found)


@pytest.mark.parametrize("identifier", identifiers())
def test_a_row_runs_with_what_its_title_names(identifier: str) -> None:
    recipe = load(identifier)
    for scale, patterns in (("full", NAMED | POPULATION), ("quick", NAMED)):
        study = study_of(recipe, scale)
        for cell in study.cells:
            for _, key, values in _named(cell, patterns):
                assert _held(cell.run.tree, key) == values, f"{scale}: {cell.name}: {key}"
                assert all(key not in point for point in _points(study, cell.name)), cell.name


def test_titles_are_understood() -> None:
    # a pattern that matches nothing would let the test above pass for ever
    matched = {
        pattern
        for identifier in identifiers()
        for cell in study_of(load(identifier), "full").cells
        for pattern, _, _ in _named(cell, NAMED | POPULATION)
    }
    assert matched == {*NAMED, *POPULATION}


# Gong et al., Table III: the speed-ups over FedSGD that the paper prints in brackets
SPEEDUPS = {
    "FedADMM": [29.7, 7.6, 25.1, 20.7, 130.0, 75.7, 26.6, 22.4],
    "FedAvg": [15.6, 3.2, 3.3, 3.7, 39.0, 16.1, 7.8, 4.0],
    "FedProx": [10.2, None, 2.6, None, 27.9, 8.7, 5.8, 3.0],
    "SCAFFOLD": [11.0, 3.3, 3.3, 3.2, 32.5, 13.3, 5.0, None],
}


def test_table_three_prints_the_papers_speedups(tmp_path: Path) -> None:
    table = reproduce(plan("gong-table3", "full"), tmp_path, only_cached=True).document["table"]
    settings = list(dict.fromkeys(row["setting"] for row in table))
    for method, printed in SPEEDUPS.items():
        rows = {r["setting"]: r["paper_speedup"] for r in table if r["title"] == method}
        assert [rows[place] for place in settings] == pytest.approx(printed, abs=0.0501), method
    text = (tmp_path / "results.md").read_text().partition("## speedup")[2].partition("## ")[0]
    assert "| MNIST, 100 clients, IID | FedProx | 10.2× |" in text
    assert "| MNIST, 100 clients, two shards | FedProx |  |" in text


def _points(study: Study, name: str) -> list[dict[str, Any]]:
    """The points that are tried in a cell."""
    spaces = study.search.spaces if study.search is not None else []
    return [
        dict(zip(space.grid, values, strict=True))
        for space in spaces
        for place in space.places
        if place.name == name
        for values in itertools.product(*space.grid.values())
    ]


def test_table_three_tunes_what_the_paper_tunes() -> None:
    # "selected from the candidate set {0.01, 0.1, 0.2, 0.5}", for FedProx also rho from
    # {0.001, 0.01, 0.1, 1}; FedADMM keeps rho = 0.01; "averaged over five runs"
    todo = plan("gong-table3", "full")
    rates = [0.01, 0.1, 0.2, 0.5]
    assert todo.seeds == [0, 1, 2, 3, 4]
    assert _points(todo, "mnist-100-iid/fedsgd") == [{"algorithm.lr": lr} for lr in rates]
    assert _points(todo, "mnist-100-iid/fedprox") == [
        {"local.solver.lr": lr, "algorithm.rho": rho}
        for lr in rates
        for rho in (0.001, 0.01, 0.1, 1)
    ]
    for cell in todo.cells:
        if "fedadmm" in cell.name:
            assert _points(todo, cell.name) == [{"local.solver.lr": lr} for lr in rates]
            assert cell.run.algorithm.rho == 0.01
        if cell.name.endswith("/fedsgd"):  # the others' yardstick must have time to arrive
            assert cell.run.rounds == 600
    # three search seeds, half of the points (at least two) from one to the next
    assert todo.runs() == 8 * (8 * 5 + 7 * (4 + 2 + 2) + (16 + 8 + 4))


def test_figure_five_keeps_fedadmms_rate_and_tunes_the_others(tmp_path: Path) -> None:
    # "In FedADMM, we fix the local learning rates to 0.1 and rho = 0.01"
    todo = plan("gong-fig5", "smoke", patterns=["fmnist-iid/*"])
    found = reproduce(todo, tmp_path)
    chosen = {row["name"]: row["chosen"] for row in found.document["table"]}
    assert len(found.runs) == len(todo.cells)
    for cell, run in zip(todo.cells, found.runs, strict=True):
        rate = run.config["local"]["solver"]["lr"]
        if "fedadmm" in cell.name:
            assert (rate, run.config["algorithm"]["rho"]) == (0.1, 0.01)
            assert chosen[cell.name] is None
        else:
            assert chosen[cell.name] == {"local.solver.lr": 0.01}  # what the smoke scale tries
            assert rate == 0.01


@pytest.mark.parametrize("identifier", ["gong-fig3", "gong-fig4"])
def test_larger_populations_keep_what_a_hundred_clients_chose(
    identifier: str, tmp_path: Path
) -> None:
    # "We first tuned all algorithms for their best performance in the 100-client setting, and then
    # scale up system sizes with the hyperparameters fixed"
    events: list[RunEvent] = []
    todo = plan(identifier, "smoke", patterns=["fmnist-*-1000/fedavg"])
    assert todo.search is not None
    (space,) = todo.search.spaces
    space = space._replace(grid={"local.solver.lr": [1e-9, 0.3]})
    todo = todo._replace(search=todo.search._replace(spaces=[space], extend=0))
    found = reproduce(todo, tmp_path, watch=events.append)
    (row,), (run,) = found.document["table"], found.runs
    ((_, chosen),) = found.search["chosen"].items()
    assert row["chosen"] == chosen["value"]
    assert run.config["local"]["solver"]["lr"] == chosen["value"]["local.solver.lr"]
    labels = [event.label for event in events if isinstance(event, RunStarted)]
    place = todo.cells[0].name.replace("-1000/", "-100/")
    assert labels == [
        *(f"search {place} local.solver.lr={lr} seed 1000" for lr in (1e-9, 0.3)),
        f"{todo.cells[0].name} seed 0",
    ]


def test_names_that_a_recipe_does_not_hold_are_refused() -> None:
    tree = to_config(load("gong-fig3"))
    tree["settings"][1]["tuned_at"] = ["fmnist-iid-50"]
    with pytest.raises(ConfigError, match="fmnist-iid-200: tuned_at is 'fmnist-iid-50'"):
        from_config(Recipe, tree)
    tree = to_config(load("gong-fig3"))
    tree["methods"][0]["search"] = ["algorithm.rho"]
    with pytest.raises(ConfigError, match=r"'algorithm\.rho', which has no values"):
        from_config(Recipe, tree)
    tree = to_config(load("gong-fig3"))
    tree["search"]["budget"] = 3
    with pytest.raises(ConfigError, match=r"search tries \d points, but must try 3"):
        from_config(Recipe, tree)


@pytest.mark.parametrize("scale", ["quick", "full"])
def test_wangs_figures_plot_training_accuracy_on_femnist(scale: str) -> None:
    # "in terms of training accuracy and cross-entropy training loss of FEMNIST dataset" (figure 1),
    # "on FEMNIST dataset with different number of partial users" (figure 3)
    metrics = {c.setting: c.about["metric"] for c in study_of(load("wang-fig1"), scale).cells}
    assert metrics == {"accuracy": "train_accuracy", "loss": "loss"}
    others = study_of(load("wang-fig3"), scale).cells
    assert {cell.about["metric"] for cell in others} == {"train_accuracy"}
    for identifier, users in (("wang-fig1", 20), ("wang-fig3", 30)):
        for cell in study_of(load(identifier), scale).cells:
            assert (cell.run.name("problem"), cell.run.problem.clients) == ("femnist", users)
            assert (cell.run.evaluate.train, cell.run.evaluate.objective) == (True, True)


def test_the_panels_of_a_figure_share_their_runs(tmp_path: Path) -> None:
    table = reproduce(plan("wang-fig1", "smoke"), tmp_path).document["table"]
    assert len(table) == 4
    assert len(list((tmp_path / "cells").iterdir())) == 2
    measured = {row["name"]: row["final"]["mean"] for row in table}
    assert 0 <= measured["accuracy/feddr"] <= 1 < measured["loss/feddr"]
