"""A tiny run that can be interrupted and resumed, with everything compared bit for bit."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedadmm as fa
from fedadmm.core.trees import named_tensors
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.run.state import RoundReport
from fedadmm.run.stores import DiskStore, params_sha256
from support.records import untimed

CLIENTS = 8
Record = dict[str, Any]


def problem(dtype: torch.dtype = torch.float64) -> fa.Problem:
    """Logistic regressions on random rows."""
    draws = torch.Generator().manual_seed(0)
    clients = []
    for _ in range(CLIENTS):
        features = torch.randn(12, 6, generator=draws, dtype=dtype)
        targets = (torch.rand(12, generator=draws) > 0.5).to(dtype)
        clients.append(fa.LogisticRegression(features, targets, 0.1))
    return fa.Problem(clients, initial=torch.zeros(6, dtype=dtype))


def run(rounds: int, **options: Any) -> fa.Result:
    """FedADMM with three of eight clients a round, unless the options say otherwise."""
    algorithm = options.pop("algorithm", fa.FedADMM(rho=0.5))
    chosen = options.pop("problem", None) or problem()
    defaults: dict[str, Any] = {
        "sampler": fa.UniformSampling(3),
        "solver": fa.SGD(lr=0.1, batch_size=4),
        "seed": 3,
    }
    return fa.simulate(algorithm, chosen, rounds, **(defaults | options))


def fingerprints(result: fa.Result) -> dict[str, str]:
    """Digests of everything that a run leaves behind."""
    digests = {"params": params_sha256(result.params)}
    for name, tensor in named_tensors(result.server):
        digests[f"server.{name}"] = params_sha256(tensor)
    for client, state in result.clients.items():
        for name, tensor in named_tensors(state):
            digests[f"{client}.{name}"] = params_sha256(tensor)
    return digests


def make_store(kind: str, directory: Path) -> DiskStore | None:
    """The store of a run in `directory`: in memory (None) or among its checkpoints."""
    return None if kind == "memory" else DiskStore(directory / "checkpoint" / "clients")


def stopping_after(number: int) -> Callable[[RoundReport], None]:
    """An observer that presses Ctrl-C as soon as the next round's report comes."""

    def observe(report: RoundReport) -> None:
        if report.record["round"] > number:
            raise KeyboardInterrupt

    return observe


def run_in_directory(
    directory: Path, rounds: int, kind: str, every: int, hold: bool = False
) -> None:
    """What a program around `simulate` does: metrics a line a round, cut back before a resume.

    With `hold` it waits in its last round: whoever is to kill it cannot come too late.
    """
    checkpoints = Checkpoints(directory / "checkpoint", every)
    metrics = directory / "metrics.jsonl"
    done = checkpoints.latest_round() or 0
    lines = metrics.read_text().splitlines()[:done] if metrics.exists() else []
    metrics.write_text("".join(line + "\n" for line in lines))
    with metrics.open("a") as file:

        def note(report: RoundReport) -> None:
            file.write(json.dumps(report.record) + "\n")
            file.flush()
            if hold and report.record["round"] == rounds:
                time.sleep(3600)

        store = make_store(kind, directory)
        result = run(rounds, store=store, checkpoints=checkpoints, resume=True, callbacks=[note])
    (directory / "digests.json").write_text(json.dumps(fingerprints(result)))


def interrupted(
    directory: Path, after: int, rounds: int = 8, kind: str = "memory", **o: Any
) -> Any:
    """A run that Ctrl-C ends after a round; a function that resumes it."""
    every = o.pop("every", 1)

    def go(**more: Any) -> fa.Result:
        checkpoints = Checkpoints(directory / "checkpoint", every)
        options = {"store": make_store(kind, directory), "checkpoints": checkpoints} | o | more
        return run(options.pop("rounds", rounds), **options)

    with pytest.raises(KeyboardInterrupt):
        go(callbacks=[stopping_after(after)])
    return lambda **more: go(resume=True, **more)


def assert_continued(result: fa.Result, reference: fa.Result, done: int) -> None:
    missing = [record for record in reference.history if record["round"] > done]
    assert untimed(result.history) == untimed(missing)
    assert fingerprints(result) == fingerprints(reference)
    assert (result.code, result.status) == (reference.code, reference.status)


def contents(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file()
    }
