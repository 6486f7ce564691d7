"""Checks for implementations of federated methods: do they have the properties they should have?

`check_algorithm` takes an `Algorithm` of this package, or a plain function around a program of any
other framework.  It runs the method on small quadratics whose minimiser is known in closed form.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedadmm.core import trees
from fedadmm.core.contracts import Algorithm, AnyAlgorithm, Cohort, LocalResult, Round
from fedadmm.core.objectives.closed_form import Quadratic
from fedadmm.core.problem import Problem
from fedadmm.core.regularizers import Zero
from fedadmm.core.sampling import FullParticipation, Sampler, TraceSampling
from fedadmm.core.solvers import GradientDescent
from fedadmm.core.stopping import Steps
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.run.simulate import Result, simulate

Array = NDArray[np.float64]
Gradient = Callable[[Array], Array]
Cohorts = Sequence[Sequence[int]]
Program = Callable[[Sequence[Gradient], Array, Cohorts], Array]
"""(one gradient per client, initial model, participants of every round) -> final global model."""
CLIENTS, DIMENSION, LR, STEPS = 5, 4, 0.1, 5


def _gradient(A: Array, b: Array, x: Array) -> Array:
    return A @ x - b


class PropertyError(AssertionError):
    """A method lacks a property that `check_algorithm` looks for.

    Attributes:
        name: the property, one of those that `check_algorithm` returns.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class _Quadratics(NamedTuple):
    """f_i(x) = x'A_i x/2 - b_i'x; no two clients share axes, curvatures or minimiser."""

    A: Array
    b: Array
    start: Array

    @classmethod
    def random(cls, seed: int) -> _Quadratics:
        rng = np.random.default_rng(seed)
        axes = np.linalg.qr(rng.normal(size=(CLIENTS, DIMENSION, DIMENSION)))[0]
        A = np.einsum("kij,kj,klj->kil", axes, rng.uniform(0.5, 3.0, (CLIENTS, DIMENSION)), axes)
        b = rng.normal(scale=2.0, size=(CLIENTS, DIMENSION))
        return cls((A + A.transpose(0, 2, 1)) / 2, b, rng.normal(size=DIMENSION))

    def reordered(self, order: Sequence[int]) -> _Quadratics:
        return _Quadratics(self.A[list(order)], self.b[list(order)], self.start)

    @property
    def gradients(self) -> list[Gradient]:
        return [partial(_gradient, A, b) for A, b in zip(self.A, self.b, strict=True)]

    def distance(self, point: Array) -> float:
        """Distance to the minimiser of the mean, relative to the distance of the start."""
        optimum = np.linalg.solve(self.A.mean(0), self.b.mean(0))
        return float(np.linalg.norm(point - optimum) / np.linalg.norm(self.start - optimum))


def check_algorithm(
    method: AnyAlgorithm | Program, *, rounds: int = 1000, tolerance: float = 1e-3, seed: int = 0
) -> list[str]:
    """Check that a method converges to the optimum and keeps the rules of a federated run.

    Both kinds of method are checked for the *fixed point*: on quadratics whose clients disagree,
    the global model must converge to the minimiser of their mean, with all clients and with three
    of five per round.  An `Algorithm` that declares a `bias` is not checked for it.  And the result
    must not depend on the *names of clients*.

    An `Algorithm` is also checked for *pure functions* (no argument is modified), *repetition*
    (the same seed gives the same run), *engines* (one client at a time or all as one stack of
    tensors), *empty rounds* (a round without participants changes nothing) and *resume* (a run
    continued from its checkpoint is bit for bit the uninterrupted one).

    Args:
        method: an algorithm; or a function that runs a program with the given gradients, initial
            model and participants, and returns the final global model.  A good setting for the
            local work is five gradient steps with a learning rate of 0.1.
        rounds: number of rounds in which it should converge; more for a slow hyper-parameter.
        tolerance: largest final distance to the optimum as a share of the initial one.
        seed: seed of the quadratics and participants.

    Returns:
        The names of the properties that were checked.

    Raises:
        PropertyError: if the method lacks a property; its `name` says which.

    Example:
        >>> import fedadmm as fa
        >>> from fedadmm.testing import check_algorithm
        >>> def fedavg(gradients, theta, cohorts):
        ...     for cohort in cohorts:
        ...         models = [theta.copy() for _ in cohort]
        ...         for w, i in zip(models, cohort):
        ...             for _ in range(5):
        ...                 w -= 0.1 * gradients[i](w)
        ...         theta = sum(models) / len(models)
        ...     return theta
        >>> check_algorithm(fedavg)
        Traceback (most recent call last):
        fedadmm.testing.PropertyError: fixed point: ...
        >>> "fixed point" in check_algorithm(fa.Scaffold())
        True
    """
    given, rng = _Quadratics.random(seed), np.random.default_rng(seed)
    everybody = [list(range(CLIENTS))] * rounds
    some = [sorted(rng.choice(CLIENTS, 3, replace=False).tolist()) for _ in range(rounds)]
    full_only = isinstance(method, Algorithm) and method.requirements.full_participation
    done = []

    def final(cohorts: Cohorts, quadratics: _Quadratics = given) -> Array:
        if isinstance(method, Algorithm):
            return _run(method, quadratics, cohorts).params.numpy()
        return np.asarray(method(quadratics.gradients, quadratics.start.copy(), cohorts))

    if not (isinstance(method, Algorithm) and method.bias):
        done.append("fixed point")
        for cohorts in [everybody] if full_only else [everybody, some]:
            distance = given.distance(final(cohorts))
            if not distance <= tolerance:
                raise PropertyError(
                    done[-1],
                    f"with {len(cohorts[0])} of {CLIENTS} clients per round the model is "
                    f"{distance:.3g} of the initial distance from the optimum after {rounds} "
                    f"rounds, expected at most {tolerance:g}.",
                )
    if not (isinstance(method, Algorithm) and method.requirements.asynchronous):
        done.append("names of clients")
        order = [3, 0, 4, 1, 2]  # the new client i is the old client order[i]
        cohorts = everybody[:8] if full_only else [*some[:8], everybody[0]]
        renamed = [[order.index(i) for i in cohort] for cohort in cohorts]
        gap = np.abs(final(cohorts) - final(renamed, given.reordered(order))).max()
        if not gap <= 1e-9:
            raise PropertyError(done[-1], f"two numberings of the clients differ by {gap:.3g}.")
    if isinstance(method, Algorithm):
        done += _check_run(method, given, everybody[:6] if full_only else some[:6])
    return done


def _run(algorithm: AnyAlgorithm, given: _Quadratics, cohorts: Cohorts, **options: Any) -> Result:
    pairs = zip(given.A, given.b, strict=True)
    clients = [Quadratic(torch.tensor(A), torch.tensor(b)) for A, b in pairs]
    full = all(len(cohort) == CLIENTS for cohort in cohorts)
    sampler: Sampler = FullParticipation() if full else TraceSampling(cohorts)
    settings: dict[str, Any] = {
        "sampler": sampler,
        "solver": GradientDescent(LR),
        "stop": Steps(STEPS),
        "initial": torch.tensor(given.start),
        "evaluate": False,
    }
    return simulate(algorithm, Problem(clients), len(cohorts), **(settings | options))


def _check_run(algorithm: AnyAlgorithm, given: _Quadratics, cohorts: Cohorts) -> list[str]:
    """Check the properties that need more of a method than its final model."""
    whole = _run(algorithm, given, cohorts, seed=1)
    expected = trees.clone((whole.params, whole.server))
    needs = algorithm.requirements

    def compare(name: str, other: Result, exact: bool = True) -> str:
        found = trees.tensors((other.params, other.server))
        for a, b in zip(trees.tensors(expected), found, strict=True):
            if torch.equal(a, b) if exact else torch.allclose(a, b, rtol=0, atol=1e-9):
                continue
            raise PropertyError(name, "two runs that should be equal differ.")
        return name

    method = whole.algorithm  # a penalty that is fitted to the local work is a number by now
    broadcast = method.broadcast(whole.server, Round(len(cohorts), 1))
    client = whole.clients[next(iter(whole.clients))]
    result = LocalResult.like(torch.ones(DIMENSION, dtype=torch.float64))
    before = trees.clone((whole.server, broadcast, client, result))
    method.local_problem(broadcast, client)
    _, message = method.client_update(broadcast, client, result)
    method.server_update(whole.server, message, Cohort(1, 0.2, CLIENTS, 0), Zero())
    now = trees.tensors((whole.server, broadcast, client, result))
    if not all(torch.equal(a, b) for a, b in zip(trees.tensors(before), now, strict=True)):
        raise PropertyError("pure functions", "a function modifies one of its arguments.")
    done = ["pure functions", compare("repetition", _run(algorithm, given, cohorts, seed=1))]
    if not needs.asynchronous:
        stacked = _run(algorithm, given, cohorts, seed=1, engine="vectorised")
        done.append(compare("engines", stacked, exact=False))
    if not (needs.full_participation or needs.asynchronous):
        gaps = [*cohorts[:3], [], *cohorts[3:]]
        ends = [_run(algorithm, given, trace).params for trace in (gaps[:3], gaps[:4])]
        done.append("empty rounds")
        if not torch.equal(*ends):
            raise PropertyError(done[-1], "a round without participants moves the model.")
    with tempfile.TemporaryDirectory() as folder:
        _run(algorithm, given, cohorts[:3], seed=1, checkpoints=Checkpoints(folder))
        kept = {"checkpoints": Checkpoints(folder), "resume": True}
        done.append(compare("resume", _run(algorithm, given, cohorts, seed=1, **kept)))
    return done
