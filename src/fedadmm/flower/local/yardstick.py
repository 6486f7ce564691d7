"""What a federation is worth: the same model on pooled rows, and at each site alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm.algorithms import FedAvg
from fedadmm.core.problem import Problem
from fedadmm.run.experiment import Experiment
from fedadmm.run.simulation import first_vector, simulate


class Row(NamedTuple):
    """One way of training and its accuracy on each site's own held-out rows."""

    how: str
    accuracies: list[float]

    @property
    def mean(self) -> float:
        """The mean over the sites."""
        return sum(self.accuracies) / len(self.accuracies)


def compare(config: Experiment, params: Tensor) -> tuple[list[str], list[Row]]:
    """The sites' names, and rows for the federation's model, pooled training and each site alone.

    Pooled and lonely models take the same number of epochs with the same solver.  This needs all
    sites' rows in one place, which only a demonstration has.
    """
    problem = config.load_problem()
    names: list[str] = problem.data.client_names()
    rows = [Row("federation", _accuracies(problem, params))]
    rows.append(Row("pooled", _accuracies(problem, _train(config, problem, _pooled(problem)))))
    for client, name in enumerate(names):
        alone = _train(config, problem, problem.clients[client])
        rows.append(Row(f"{name} alone", _accuracies(problem, alone)))
    return names, rows


def _accuracies(problem: Problem, params: Tensor) -> list[float]:
    assert problem.client_tests is not None
    return [float(dict(test(params))["test_accuracy"]) for test in problem.client_tests]


def _pooled(problem: Problem) -> Any:
    from dataclasses import replace

    first: Any = problem.clients[0]
    inputs = torch.cat([client.inputs for client in problem.clients])  # type: ignore[attr-defined]
    targets = torch.cat([client.targets for client in problem.clients])  # type: ignore[attr-defined]
    return replace(first, inputs=inputs, targets=targets)


def _train(config: Experiment, problem: Problem, objective: Any) -> Tensor:
    alone = Problem([objective], initial=problem.initial)
    return simulate(
        FedAvg(),
        alone,
        config.rounds,
        solver=config.local.solver,
        stop=config.local.stop,
        seed=config.seed,
        initial=first_vector(config, problem),
        evaluate=False,
    ).params
