"""The floor: as many SGD steps as bare tensors on all cores, with no federation at all.

Every core runs its share of the steps in a process of its own, on one thread, on batches that lie
ready.  Both layouts of convolutions are tried; the faster one counts.  Freed memory is kept, as in
the workers of the engine: fresh pages for every gradient would make it no floor.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from benchmarks.workloads import read_rows, read_specification
from fedadmm.data import models
from fedadmm.run.engines.worker_process import keep_freed_memory


def steps(spec: SimpleNamespace, layout: Any, count: int, begin: Any, done: Any) -> None:
    """One core's steps, as often as rounds are asked for."""
    keep_freed_memory()
    torch.set_num_threads(1)
    inputs, targets = (rows[: spec.samples] for rows in read_rows(spec))
    module: Any = models.build(spec.model)
    batches = torch.split(inputs, spec.batch_size)
    if layout is not None:
        module = module.to(memory_format=layout)
        batches = tuple(batch.contiguous(memory_format=layout) for batch in batches)
    labels = torch.split(targets, spec.batch_size)
    parameters = list(module.parameters())
    for _ in range(spec.warm_up + spec.rounds):
        begin.wait(600)
        for step in range(count):
            index = step % len(batches)
            loss = nn.functional.cross_entropy(module(batches[index]), labels[index])
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.add_(gradient, alpha=-spec.lr)
        done.wait(600)


def measure(spec: SimpleNamespace, layout: Any) -> list[float]:
    """Seconds for the steps of each round."""
    context = multiprocessing.get_context("spawn")
    begin, done = context.Barrier(spec.cores + 1), context.Barrier(spec.cores + 1)
    total = spec.cohort * spec.epochs * -(-spec.samples // spec.batch_size)
    count = -(-total // spec.cores)
    processes = [
        context.Process(target=steps, args=(spec, layout, count, begin, done), daemon=True)
        for _ in range(spec.cores)
    ]
    for process in processes:
        process.start()
    seconds = []
    for _ in range(spec.warm_up + spec.rounds):
        began = time.perf_counter()  # the others wait already; behind the barrier it may be late
        begin.wait(600)
        done.wait(600)
        seconds.append(time.perf_counter() - began)
    for process in processes:
        process.join(60)
    return seconds[spec.warm_up :]


def main() -> None:
    """Measure the layouts that the model has."""
    spec = read_specification()
    layouts = [torch.channels_last, None] if len(spec.shape) == 3 else [None]
    seconds = min((measure(spec, layout) for layout in layouts), key=sum)
    print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
