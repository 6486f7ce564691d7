"""Run and comparison directories made from real runs, in the layout that reports read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import tomli_w

import fedadmm
from fedadmm.core.contracts import AnyAlgorithm
from fedadmm.core.problem import Problem
from fedadmm.run.simulate import Result

TARGET = {"metric": "test_accuracy", "value": 0.4}
SOLVER = fedadmm.SGD(lr=0.1, batch_size=16)


def write_run(
    directory: Path, result: Result, algorithm: AnyAlgorithm, label: str, seed: int, problem: str
) -> None:
    """One run directory, as a finished run leaves it."""
    directory.mkdir(parents=True)
    lines = [json.dumps(record) for record in result.history]
    (directory / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    config: dict[str, Any] = {
        "seed": seed,
        "rounds": len(result.history),
        "problem": {"name": problem, "clients": 20},
        "algorithm": {"name": algorithm.name, **_plain(vars(algorithm))},
        "local": {"solver": {"name": "sgd", "lr": 0.1, "batch_size": 16}},
    }
    (directory / "config.toml").write_text(tomli_w.dumps(config))
    summary = {
        "status": result.status,
        "code": result.code,
        "rounds": len(result.history),
        "final": result.history[-1]["metrics"],
        "rounds_to_target": next(
            (
                r["round"]
                for r in result.history
                if r["metrics"].get("test_accuracy", 0) >= TARGET["value"]
            ),
            None,
        ),
        "target": TARGET,
        "bytes_up": sum(r["traffic"]["bytes_up"] for r in result.history),
        "bytes_down": sum(r["traffic"]["bytes_down"] for r in result.history),
        "seconds": sum(r["clock"]["seconds"] for r in result.history),
        "params_sha256": hashlib.sha256(result.params.numpy().tobytes()).hexdigest(),
        "algorithm": algorithm.name,
        "method": algorithm.title,
        "label": label,
        "seed": seed,
        "fedadmm_version": fedadmm.__version__,
        "created": "2025-01-01T00:00:00Z",
    }
    (directory / "summary.json").write_text(json.dumps(summary))


def write_partition(directory: Path, problem: Problem) -> None:
    """`partition.json` of a problem that was made from labelled rows."""
    counts = problem.data.label_counts().T.tolist()
    sizes = [sum(row) for row in counts]
    document = {"labels": list(range(len(counts[0]))), "counts": counts, "sizes": sizes}
    (directory / "partition.json").write_text(json.dumps(document))


def write_comparison(
    directory: Path, problem: Problem, methods: dict[str, AnyAlgorithm], seeds: range, rounds: int
) -> Path:
    """A comparison directory with every method and seed; labels that end in "!" diverge."""
    rows = []
    for label, algorithm in methods.items():
        for seed in seeds:
            wild = label.endswith("!") and seed == seeds[-1]
            needs = algorithm.requirements
            result = fedadmm.simulate(
                algorithm,
                problem,
                rounds,
                solver=fedadmm.SGD(lr=40.0, batch_size=16) if wild else SOLVER,
                sampler=None if needs.full_participation else fedadmm.UniformSampling(0.3),
                stop=fedadmm.UniformEpochs(3) if needs.default_stop is None else None,
                seed=seed,
            )
            name = f"runs/{label}-seed{seed}"
            write_run(directory / name, result, algorithm, label, seed, problem.name)
            rows.append(
                {"label": label, "setting": "", "set": {}, "seed": seed, "directory": name}
                | {"target": TARGET}
            )
    write_partition(directory, problem)
    document = {"kind": "comparison", "problem": problem.name, "target": TARGET, "search": None}
    document |= {"runs": rows, "table": []}
    (directory / "results.json").write_text(json.dumps(document))
    return directory


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if isinstance(value, int | float | str)}
