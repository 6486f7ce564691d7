"""The loop that a careful person would write: one process, all cores, nothing wasted."""

from __future__ import annotations

import time

import torch
from common import arranged, model, reached, report, rows, specification, train


def main() -> None:
    """Run the workload as federated averaging."""
    spec = specification()
    small = spec.model.startswith("mlp")
    torch.set_num_threads(1 if small else spec.cores)  # threads hinder small models
    inputs, targets = rows(spec)
    module = arranged(model(spec), spec)
    parameters = list(module.parameters())
    theta = [p.detach().clone() for p in parameters]
    draws = torch.Generator().manual_seed(spec.seed)
    seconds = []
    for _ in range(spec.warm_up + spec.rounds):
        began = time.perf_counter()
        total = [torch.zeros_like(p) for p in theta]
        for client in torch.randperm(spec.clients, generator=draws)[: spec.cohort].tolist():
            with torch.no_grad():
                for parameter, value in zip(parameters, theta, strict=True):
                    parameter.copy_(value)
            optimizer = torch.optim.SGD(parameters, lr=spec.lr)
            train(module, optimizer, inputs[client], targets[client], spec)
            with torch.no_grad():
                for part, parameter in zip(total, parameters, strict=True):
                    part.add_(parameter, alpha=1 / spec.cohort)
        theta = total
        seconds.append(time.perf_counter() - began)
        with torch.no_grad():
            for parameter, value in zip(parameters, theta, strict=True):
                parameter.copy_(value)
        if reached(module, spec):
            break
    report(seconds[spec.warm_up :])


main()
