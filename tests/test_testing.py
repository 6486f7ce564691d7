"""`check_algorithm` accepts right methods and finds known mistakes of other programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.core.contracts import LocalProblem
from fedadmm.testing import PropertyError, check_algorithm
from support import programs
from support.programs import Work

WORK, ALPHA = Work(5, 0.1), 1.0


def feddyn(**mistake: Any) -> Any:
    """FedDyn as a program of another framework would run it, with or without a mistake."""

    def program(gradients: Any, start: Any, cohorts: Any) -> Any:
        solve = programs.held(lambda i, w: gradients[i](w), WORK, **mistake)
        return programs.feddyn(solve, start, cohorts, np.full(len(gradients), ALPHA))[-1]

    return program


def scaffold(sign: float = 1.0, **mistake: Any) -> Any:
    """SCAFFOLD in the same way; `sign=-1` adds c_i - c where c - c_i is right."""

    def program(gradients: Any, start: Any, cohorts: Any) -> Any:
        theta, c, own = start.copy(), np.zeros_like(start), np.zeros((len(gradients), len(start)))
        for cohort in cohorts:
            moves, changes = np.zeros_like(theta), np.zeros_like(theta)
            for i in cohort:
                w = theta.copy()
                for _ in range(WORK.steps):
                    w = w - WORK.lr * (gradients[i](w) + sign * (c - own[i]))
                change = (theta - w) / (WORK.steps * WORK.lr) - sign * c - (1 - sign) * own[i]
                moves, changes, own[i] = moves + w - theta, changes + change, own[i] + change
            theta, c = theta + moves / len(cohort), c + changes / len(gradients)
        return theta

    def mistaken(gradients: Any, start: Any, cohorts: Any) -> Any:
        gradient = lambda i, w: gradients[i](w)  # noqa: E731
        return programs.scaffold(gradient, start, cohorts, len(gradients), WORK, **mistake)[-1]

    return mistaken if mistake else program


def unit(w: Any, theta: Any) -> Any:
    """The gradient of the norm ||w - theta|| / 2, where the squared norm is right."""
    length = np.linalg.norm(w - theta)
    return (w - theta) / (2 * length) if length > 0 else np.zeros_like(w)


METHODS = [
    *(fa.FedADMM(1.0), fa.FedADMM(fa.PerWork(0.25)), fa.FedDR(1.0), fa.FedPD(1.0)),
    *(fa.Scaffold(), fa.FedDyn(1.0), fa.AlignedADMM(1.0), fa.AsyncFedDR(1.0), fa.FedAvg()),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.title)
def test_methods_of_the_package_pass(method: Any) -> None:
    done = check_algorithm(method)
    assert ("fixed point" in done) == (method.bias is None)
    assert {"pure functions", "repetition", "resume"} < set(done)
    assert ("empty rounds" in done) == (
        not (method.requirements.asynchronous or method.requirements.full_participation)
    )


@pytest.mark.parametrize("program", [feddyn(), scaffold()])
def test_right_programs_pass(program: Any) -> None:
    assert check_algorithm(program) == ["fixed point", "names of clients"]


WRONG = {
    "norm where the method has its square": feddyn(penalty=unit),
    "quadratic term missing": feddyn(penalty=lambda w, theta: -theta),
    "penalty without a gradient": feddyn(detached=True),
    "control variates not stored": scaffold(stores=False),
    "gradients not corrected": scaffold(corrects=False),
    "sign of the control variate": scaffold(sign=-1.0),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_programs_are_found(mistake: str) -> None:
    with np.errstate(all="ignore"), pytest.raises(PropertyError) as error:
        check_algorithm(WRONG[mistake])
    assert error.value.name == "fixed point"


def test_a_program_that_uses_client_numbers_is_found() -> None:
    right = scaffold()

    def program(gradients: Any, start: Any, cohorts: Any) -> Any:
        return right(gradients, start, cohorts) + 1e-6 * cohorts[-1][0]

    with pytest.raises(PropertyError) as error:
        check_algorithm(program)
    assert error.value.name == "names of clients"


@dataclass(frozen=True)
class WrongSign(fa.Scaffold):  # type: ignore[misc]
    """Adds c_i - c to the gradients."""

    def local_problem(self, broadcast: Any, client: Any) -> LocalProblem:
        return LocalProblem(start=broadcast.theta, linear=client.c_i - broadcast.c)


@dataclass(frozen=True)
class InPlace(fa.FedDyn):  # type: ignore[misc]
    """Overwrites the client's state."""

    def client_update(self, broadcast: Any, client: Any, result: Any) -> Any:
        state, message = super().client_update(broadcast, client, result)
        for old, new in zip(client, state, strict=True):
            old.copy_(new)
        return state, message


@dataclass(frozen=True)
class WholeStack(fa.FedADMM):  # type: ignore[misc]
    """Takes a norm over all clients of a stack where each client has its own."""

    def local_problem(self, broadcast: Any, client: Any) -> LocalProblem:
        problem = super().local_problem(broadcast, client)
        return problem._replace(weight=self.rho + torch.tanh(client.y.norm()))


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (WrongSign(), "fixed point"),
        (InPlace(1.0), "pure functions"),
        (WholeStack(1.0), "engines"),
    ],
)
def test_wrong_algorithms_are_found(method: Any, name: str) -> None:
    with pytest.raises(PropertyError) as error:
        check_algorithm(method)
    assert error.value.name == name
