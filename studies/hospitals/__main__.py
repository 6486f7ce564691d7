"""Compare shared, personalised and locally trained models of heart disease at four hospitals.

    OMP_NUM_THREADS=1 FEDADMM_DATA=DIR python -m studies.hospitals

Ten splits into training and test samples.  Within the training samples of a split the weight of a
penalty is chosen by the validation loss, five-fold cross-validated; `results.json` is replaced.
`--table` prints the tables of what is there.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedadmm as fa
from fedadmm.core.contracts import LocalProblem
from fedadmm.data.loaders.heart import HOSPITALS, heart
from fedadmm.data.problems import from_data
from fedadmm.study.search import search
from fedadmm.study.statistics import interval
from studies.protocol import read, write

RESULTS = Path(__file__).with_name("results.json")
SPLITS, FOLDS = tuple(range(10)), tuple(range(5))
ROUNDS, STEPS = 50, 20
SOLVER = fa.GradientDescent(lr=0.5)
WEIGHTS = (0.01, 0.03, 0.1)
SAMPLES: dict[str, int | None] = {"all samples": None, "60 samples per hospital": 60}
BASELINES = ("trained locally", "trained locally, L2")

Models = list[torch.Tensor]


def local(problem: fa.Problem, weight: float = 0.0) -> Models:
    """Train a model per hospital with as many steps as the federation, with or without L2."""
    origin = torch.zeros(problem.num_parameters)
    near = LocalProblem(start=origin, weight=weight, centre=origin)
    steps = fa.Steps(ROUNDS * STEPS)
    return [SOLVER.solve(client, near, steps, 0)[0].params for client in problem.clients]


def federated(problem: fa.Problem, personal: Any = None) -> Models:
    """Train by FedADMM with full participation, with or without personalised models."""
    result = fa.simulate(
        fa.FedADMM(rho=0.1),
        problem,
        ROUNDS,
        initial=torch.zeros(problem.num_parameters),
        solver=SOLVER,
        stop=fa.Steps(STEPS),
        personal=personal,
        evaluate=fa.Evaluation(every=ROUNDS, objective=False, test=False),
        threads=1,
    )
    if personal is None:
        return [result.params] * problem.num_clients
    return [result.personal(client) for client in range(problem.num_clients)]


METHODS: dict[str, tuple[bool, Callable[[fa.Problem, float], Models]]] = {
    BASELINES[0]: (False, lambda problem, weight: local(problem)),
    BASELINES[1]: (True, local),
    "shared FedADMM": (False, lambda problem, weight: federated(problem)),
    "Ditto": (True, lambda problem, weight: federated(problem, fa.Ditto(weight))),
    "local intercept": (
        False,
        lambda problem, weight: federated(problem, fa.PersonalLayers(["1.bias"])),
    ),
}
"""Whether there is a weight to search, and what trains one model per hospital."""


def limited(groups: np.ndarray, order: np.ndarray, most: int | None) -> np.ndarray:
    """The first `most` samples of each hospital in a random order."""
    if most is None:
        return np.sort(order)
    return np.sort(
        np.concatenate([order[groups[order] == one][:most] for one in np.unique(groups)])
    )


def folds(train: Any, seed: int) -> list[fa.Problem]:
    """Each fifth of every hospital's training samples in turn as test samples."""
    order = np.random.default_rng(seed).permutation(len(train))
    ranks = np.empty(len(train), int)
    for group in np.unique(train.groups):
        members = order[train.groups[order] == group]
        ranks[members] = np.arange(len(members)) % len(FOLDS)
    return [
        from_data(train.take(np.flatnonzero(ranks != k)), train.take(np.flatnonzero(ranks == k)))
        for k in FOLDS
    ]


def measured(problem: fa.Problem, models: Models) -> dict[str, list[float]]:
    """Accuracy and loss of each hospital's model on its own held-out samples."""
    assert problem.client_tests is not None
    found = [test(model) for test, model in zip(problem.client_tests, models, strict=True)]
    names = {"accuracy": "test_accuracy", "loss": "test_loss"}
    return {key: [round(one[name], 5) for one in found] for key, name in names.items()}


def choose(
    validated: Sequence[fa.Problem], make: Callable[[fa.Problem, float], Models]
) -> dict[str, Any]:
    """Search the weight by the mean validation loss over hospitals and folds."""

    def score(values: dict[str, Any], fold: int) -> float:
        part = validated[fold]
        return -statistics.fmean(measured(part, make(part, values["weight"]))["loss"])

    found = search({"weight": WEIGHTS}, score, FOLDS, max_extensions=6).as_dict()
    return {key: found[key] for key in ("chosen", "grid", "interior")}


def compare(most: int | None) -> dict[str, list[dict[str, Any]]]:
    """One entry per split and method."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
    for split in SPLITS:
        rows = heart(0.2, split)
        order = np.random.default_rng(split).permutation(len(rows.train))
        train = rows.train.take(limited(rows.train.groups, order, most))
        problem, validated = from_data(train, rows.test), folds(train, split)
        for name, (searched, make) in METHODS.items():
            entry = choose(validated, make) if searched else {}
            weight = entry.get("chosen", {}).get("weight", 0.0)
            results[name].append(entry | measured(problem, make(problem, weight)))
        print(split, {n: statistics.fmean(results[n][-1]["accuracy"]) for n in METHODS}, flush=True)
    return results


def cell(values: Sequence[float], scale: float, digits: int) -> str:
    """Mean and half of its 95 % interval."""
    scaled = [scale * value for value in values]
    text = f"{statistics.fmean(scaled):.{digits}f} ± {interval(scaled):.{digits}f}"
    return text.replace("-", "−")


def tables(results: dict[str, Any]) -> str:
    """Accuracy and loss by hospital, and the paired difference from local training."""
    lines = []
    for title in SAMPLES:
        methods = results[title]
        for metric, scale, digits in (("accuracy", 100.0, 1), ("loss", 1.0, 3)):
            lines += [
                f"\n{title}, {metric}\n",
                f"| | {' | '.join(HOSPITALS)} | mean | − local | − local, L2 |",
            ]
            lines.append("|---" * (len(HOSPITALS) + 4) + "|")
            for name in METHODS:
                splits = methods[name]
                sites = [[one[metric][site] for one in splits] for site in range(len(HOSPITALS))]
                means = [statistics.fmean(one[metric]) for one in splits]
                row = [cell(values, scale, digits) for values in (*sites, means)]
                for other in BASELINES:
                    theirs = [statistics.fmean(one[metric]) for one in methods[other]]
                    gaps = [mean - base for mean, base in zip(means, theirs, strict=True)]
                    row.append("" if name == other else cell(gaps, scale, digits))
                lines.append(f"| {name} | {' | '.join(row)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the study, or print its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    if not parser.parse_args().table:
        write(RESULTS, {title: compare(most) for title, most in SAMPLES.items()})
    print(tables(read(RESULTS)))


if __name__ == "__main__":
    main()
