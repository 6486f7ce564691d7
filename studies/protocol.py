"""What the studies share: methods, validation samples, and times to a target with censoring.

Hyper-parameters are chosen on validation samples, which no client trains on, and on seeds that are
not reported; test samples are used for reported numbers only.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import fedadmm as fa

PULL = 0.25
"""rho * learning rate * local steps of every method with a penalty (`fedadmm.PerWork`)."""
LAST, MEAN = "last-iterate", "participants-mean"
OUTPUTS = {LAST: fa.outputs.LastIterate, MEAN: fa.outputs.ParticipantsMean}

# FedDyn has no option for a penalty by local work: `length` is learning rate * local steps.
METHODS: dict[str, Callable[[float], Any]] = {
    "FedAvg": lambda length: fa.FedAvg(),
    "FedAvgM": lambda length: fa.FedAvgM(momentum=0.9),
    "SCAFFOLD": lambda length: fa.Scaffold(),
    "FedDyn": lambda length: fa.FedDyn(eta=length / PULL, members="seen"),
    "FedADMM": lambda length: fa.FedADMM(rho=fa.PerWork(PULL)),
    "aligned ADMM": lambda length: fa.AlignedADMM(rho=fa.PerWork(PULL)),
}
TWO_OUTPUTS = ("FedAvgM", "FedDyn", "aligned ADMM")
"""Methods whose server moves on from the participants' mean model.  Which of the two models is
reported is chosen on validation samples, like the learning rate."""


def on_validation(problem: fa.Problem) -> fa.Problem:
    """The same problem, with the clients' validation samples in place of the test samples."""
    samples = [problem.data.validation(client) for client in range(problem.num_clients)]
    inputs, targets = (torch.cat(parts) for parts in zip(*samples, strict=True))
    held_out: Any = problem.test.sets[0]  # type: ignore[union-attr]
    prepare = problem.data.samples.prepare
    evaluator = replace(held_out, inputs=inputs, targets=targets, prepare=prepare)
    return replace(problem, test=evaluator, client_tests=None)


def finite(value: float) -> float:
    """A metric, or zero after divergence."""
    return value if math.isfinite(value) else 0.0


def rounds_to(curve: Sequence[tuple[int, float]], target: float) -> int | None:
    """First evaluated round with at least the target, or None if the run never reached it."""
    return next((number for number, value in curve if value >= target), None)


def read(path: Path) -> dict[str, Any]:
    """The results in a file, or nothing if there is none yet."""
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, results: dict[str, Any]) -> None:
    """Replace a file of results atomically, so that an interrupted study can go on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    os.replace(partial, path)
