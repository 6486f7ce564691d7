"""Compare six methods on the full CIFAR-10 with 100 clients.

    OMP_NUM_THREADS=1 FEDADMM_DATA=DIR python -m studies.cifar10 [SETTING ...]

Results are written to `results/` as they come; a finished search or run is not run again.
`--table` prints what is there.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fedadmm as fa
from fedadmm.data.problems import load
from fedadmm.study.search import search
from fedadmm.study.statistics import interval, restricted_mean
from studies.cifar10.networks import resnet8
from studies.protocol import (
    LAST,
    MEAN,
    METHODS,
    OUTPUTS,
    TWO_OUTPUTS,
    finite,
    on_validation,
    read,
    rounds_to,
    write,
)

RESULTS = Path(__file__).with_name("results")
CLIENTS, STEPS, BATCH = 100, 10, 10
RATES = (0.04, 0.1, 0.25)
SEEDS = (0, 1, 2)
CURVE_SAMPLES = 2_000
"""Test samples of the learning curve; the last `FINAL` evaluations use all 10,000."""
FINAL = 2
TARGET = 0.35
"""Accuracy to which rounds are counted on the learning curve."""
OURS = "aligned ADMM"
BYTES = ("bytes_up", "bytes_down")


@dataclass(frozen=True)
class Setting:
    """A partition, a network and a participation rate, with what is run there."""

    partition: str
    model: str
    participants: int
    rounds: int
    every: int
    search_rounds: int
    search_seeds: tuple[int, ...]

    @property
    def title(self) -> str:
        """What is run, in words."""
        split = {"dirichlet": "Dirichlet 0.3", "shards": "Two shards"}[self.partition]
        model = {"cnn2": "CNN 2", "resnet8": "ResNet-8"}[self.model]
        return f"{split}, {model}, {self.participants} % of the clients, {self.rounds} rounds"


SETTINGS = {
    "dirichlet-cnn2-10": Setting("dirichlet", "cnn2", 10, 32, 4, 15, (1000, 1001, 1002)),
    "dirichlet-cnn2-50": Setting("dirichlet", "cnn2", 50, 14, 1, 4, (1000, 1001, 1002)),
    "shards-cnn2-10": Setting("shards", "cnn2", 10, 32, 4, 15, (1000, 1001, 1002)),
    "dirichlet-resnet8-10": Setting("dirichlet", "resnet8", 10, 32, 4, 15, (1000,)),
}


def problem_of(setting: Setting, seed: int) -> fa.Problem:
    """The clients of one seed: it decides partition, initial model, sampling and batches."""
    options: dict[str, Any] = {"partition": setting.partition, "partition_seed": seed}
    if setting.partition == "dirichlet":
        options |= {"dirichlet_alpha": 0.3, "min_size": 20}
    model = resnet8 if setting.model == "resnet8" else setting.model
    return load("cifar10", clients=CLIENTS, model=model, validation=0.1, **options)


def run(
    setting: Setting, problem: fa.Problem, method: str, lr: float, seed: int, **changes: Any
) -> fa.Result:
    """Simulate one method; `changes` replace fields of the experiment."""
    fields = {
        "solver": fa.SGD(lr=lr, batch_size=BATCH),
        "stop": fa.Steps(STEPS),
        "sampler": fa.UniformSampling(setting.participants),
        "engine": fa.engines.Sequential(),
        "threads": 1,
        "seed": seed,
        **changes,
    }
    rounds = fields.pop("rounds", setting.rounds)
    return fa.simulate(METHODS[method](lr * STEPS), problem, rounds, **fields)


def choose(setting: Setting, method: str) -> dict[str, Any]:
    """Search the learning rate, and the output where there are two, on validation samples."""
    found: dict[tuple[float, int], dict[str, float]] = {}

    def evaluate(values: dict[str, Any], seed: int) -> float:
        key = (values["lr"], seed)
        if key not in found:
            result = run(
                setting,
                on_validation(problem_of(setting, seed)),
                method,
                values["lr"],
                seed,
                rounds=setting.search_rounds,
                output=fa.outputs.TwoOutputs(LAST, MEAN)
                if method in TWO_OUTPUTS
                else fa.outputs.LastIterate(),
                evaluate=fa.Evaluation(every=setting.search_rounds, objective=False),
            )
            metrics = result.history[-1]["metrics"]
            found[key] = {
                LAST: finite(metrics.get("test_accuracy", 0.0)),
                MEAN: finite(metrics.get("test_accuracy_participants_mean", 0.0)),
            }
            print(f"  search {method} {key} {found[key]}", flush=True)
        return found[key][values["output"]]

    grid = {"lr": RATES, "output": (LAST, MEAN) if method in TWO_OUTPUTS else (LAST,)}
    return search(grid, evaluate, setting.search_seeds, keep=0.5).as_dict()


def measure(setting: Setting, method: str, chosen: dict[str, Any], seed: int) -> dict[str, Any]:
    """One reported run: the curve, the final accuracy on all test samples, bytes and passes."""
    problem = problem_of(setting, seed)
    full: Any = problem.test.sets[0]  # type: ignore[union-attr]
    few = replace(full, inputs=full.inputs[:CURVE_SAMPLES], targets=full.targets[:CURVE_SAMPLES])
    began = time.process_time()
    result = run(
        setting,
        replace(problem, test=few, client_tests=None),
        method,
        chosen["lr"],
        seed,
        output=OUTPUTS[chosen["output"]](),
        evaluate=fa.Evaluation(every=setting.every, objective=False),
        keep_trajectory=True,
    )
    curve = [
        (record["round"], round(finite(record["metrics"]["test_accuracy"]), 4))
        for record in result.history
        if "test_accuracy" in record["metrics"]
    ]
    rounds = [record["round"] for record in result.history]
    models = dict(zip(rounds, result.trajectory, strict=True))
    final = [full(models[number])["test_accuracy"] for number, _ in curve[-FINAL:]]
    return {
        "curve": curve,
        "code": result.code,
        "final": [finite(value) for value in final],
        "accuracy": round(sum(map(finite, final)) / len(final), 5),
        "bytes_up": sum(record["traffic"]["bytes_up"] for record in result.history),
        "bytes_down": sum(record["traffic"]["bytes_down"] for record in result.history),
        "passes": round(sum(record["work"]["passes"] for record in result.history), 3),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def complete(name: str) -> None:
    """Run what is missing of a setting: all searches first, then seed by seed."""
    setting = SETTINGS[name]
    path = RESULTS / f"{name}.json"
    results = {"search": {}, "runs": {}} | read(path) | {"setting": vars(setting)}
    for method in METHODS:
        if method not in results["search"]:
            results["search"][method] = choose(setting, method)
            write(path, results)
            print(name, method, results["search"][method]["chosen"], flush=True)
    for seed in SEEDS:
        for method in METHODS:
            runs = results["runs"].setdefault(method, {})
            if str(seed) not in runs:
                runs[str(seed)] = measure(
                    setting, method, results["search"][method]["chosen"], seed
                )
                write(path, results)
                print(name, seed, method, runs[str(seed)]["accuracy"], flush=True)


def table(name: str) -> str:
    """The reported runs as a Markdown table, with 95 % t intervals over the seeds."""
    setting, results = SETTINGS[name], read(RESULTS / f"{name}.json")
    known = results.get("runs", {})
    columns = (
        f"method | learning rate | test accuracy | {OURS} minus it | "
        f"rounds to {100 * TARGET:.0f} % | MB up | MB down | local passes"
    )
    lines = [f"| {columns} |", "|---" * 8 + "|"]
    for method in METHODS:
        runs = [*known.get(method, {}).values()]
        if not runs:
            continue
        rounds = [rounds_to(one["curve"], TARGET) for one in runs]
        reached = sum(one is not None for one in rounds)
        gaps = [
            run["accuracy"] - one["accuracy"]
            for run, one in zip(known.get(OURS, {}).values(), runs, strict=False)
        ]
        chosen = results["search"][method]["chosen"]
        cells = [
            f"{method}, participants' mean" if chosen["output"] == MEAN else method,
            f"{chosen['lr']:g}",
            f"{_mean([one['accuracy'] for one in runs])} %",
            "" if method == OURS else _mean(gaps),
            f"{restricted_mean(rounds, setting.rounds):.1f} ({reached} of {len(runs)})",
            *(f"{statistics.fmean(one[key] for one in runs) / 1e6:.0f}" for key in BYTES),
            f"{statistics.fmean(one['passes'] for one in runs):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(shares: list[float]) -> str:
    """The mean in per cent, with half of its 95 % interval if there are several."""
    points = [100 * share for share in shares]
    width = f" ± {interval(points):.1f}" if len(points) > 1 else ""
    return f"{statistics.fmean(points):.1f}{width}" if points else ""


def main() -> None:
    """Complete the named settings, in this order, or print their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", default=[*SETTINGS], metavar="SETTING")
    parser.add_argument("--table", action="store_true")
    chosen = parser.parse_args()
    for name in chosen.settings:
        if chosen.table:
            print(f"{SETTINGS[name].title}\n\n{table(name)}\n")
        else:
            complete(name)


if __name__ == "__main__":
    main()
