"""Random federations of quadratics, known both to numpy and to fedadmm, and ways to run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import fedadmm as fa
from fedadmm.core import trees
from fedadmm.run.engines import ENGINES, EngineChoice, default_engine
from fedadmm.run.state import RoundReport

Array = NDArray[np.float64]
ROUNDS = 50

PARTIAL_SAMPLERS = {
    "uniform": fa.UniformSampling(2),
    "bernoulli": fa.BernoulliSampling(0.4),
    "weighted": fa.WeightedSampling((1.0, 2.0, 3.0, 2.0, 1.0), 2),
    "blocks": fa.NonOverlappingSampling(3),
    "doubly-uniform": fa.DoublyUniformSampling(),
    "cyclic": fa.CyclicSampling(2),
}
SAMPLERS = {"full": fa.FullParticipation(), **PARTIAL_SAMPLERS}
WEIGHTS = (1.0, 3.0, 0.5, 2.0, 1.5)


class Federation(NamedTuple):
    """f_i(x) = x'A_i x/2 - b_i'x with weights a_i that add up to one, and a start vector."""

    A: Array
    b: Array
    a: Array
    start: Array
    problem: fa.Problem

    @property
    def clients(self) -> int:
        return len(self.b)

    @property
    def initial(self) -> Tensor:
        return torch.from_numpy(self.start.copy())

    @property
    def optimum(self) -> Array:
        """The minimiser without g."""
        return np.linalg.solve(np.tensordot(self.a, self.A, 1), self.a @ self.b)

    def gradient(self, client: int, point: Array) -> Array:
        return self.A[client] @ point - self.b[client]

    def prox(self, client: int, point: Array, step: float) -> Array:
        """argmin f_i(x) + ||x - point||^2 / (2 step)."""
        identity = np.eye(len(point))
        return np.linalg.solve(self.A[client] + identity / step, self.b[client] + point / step)


def federation(
    seed: int,
    clients: int = 5,
    dimension: int = 4,
    weights: Sequence[float] | None = None,
    regularizer: Any = None,
) -> Federation:
    """Heterogeneous strongly convex quadratics: every client has other axes and another optimum."""
    draws = np.random.default_rng(seed)
    spread = draws.uniform(0.5, 3.0, (clients, dimension))
    axes = np.linalg.qr(draws.normal(size=(clients, dimension, dimension)))[0]
    A = np.einsum("kij,kj,klj->kil", axes, spread, axes)
    A = (A + A.transpose(0, 2, 1)) / 2
    b = draws.normal(scale=2.0, size=(clients, dimension))
    a = np.ones(clients) if weights is None else np.asarray(weights, dtype=np.float64)
    problem = fa.Problem(
        [fa.Quadratic(torch.from_numpy(A[i]), torch.from_numpy(b[i])) for i in range(clients)],
        regularizer if regularizer is not None else fa.regularizers.Zero(),
        weights,
    )
    return Federation(A, b, a / a.sum(), draws.normal(size=dimension), problem)


def run(algorithm: Any, given: Federation, rounds: int = ROUNDS, **options: Any) -> fa.Result:
    """Exact local solves, the trajectory kept, nothing evaluated."""
    settings = {
        "solver": fa.ExactSolver(),
        "initial": given.initial,
        "keep_trajectory": True,
        "evaluate": False,
    }
    return fa.simulate(algorithm, given.problem, rounds, **(settings | options))


class _ArrivedError(Exception):
    pass


def distance(
    algorithm: Any, given: Federation, aim: Tensor, rounds: int, near: float = 1e-6, **options: Any
) -> float:
    """How far from a point a run ends, which ends early where it is nearer than `near`."""
    found = torch.inf

    def look(report: RoundReport) -> None:
        nonlocal found
        found = float((algorithm.global_params(report.state.server) - aim).norm())
        if found < near:
            raise _ArrivedError

    with suppress(_ArrivedError):
        run(algorithm, given, rounds, keep_trajectory=False, callbacks=[look], **options)
    return found


@dataclass(frozen=True)
class Chosen(EngineChoice):
    """An engine that a test made."""

    make: Callable[[Any, Any], Any]
    is_asynchronous: bool = False

    def start(self, job: Any, store: Any) -> Any:
        return self.make(job, store)


class Snapshot(NamedTuple):
    """The whole state after one round: the server's and that of all clients, seen or not."""

    server: Any
    clients: list[Any]
    theta: Tensor
    seen: frozenset[int]
    record: dict[str, Any]


def snapshots(
    algorithm: Any, given: Federation, rounds: int = ROUNDS, **options: Any
) -> list[Snapshot]:
    """The state after every round, read through the store that the engine is given."""
    stores: list[Any] = []
    taken: list[Snapshot] = []

    choice = options.pop("engine", None) or ENGINES[default_engine(algorithm.requirements)]()

    def spied(job: Any, store: Any) -> Any:
        stores.append(store)
        return choice.start(job, store)

    def observe(report: RoundReport) -> None:
        (store,) = stores
        fresh = algorithm.init_client(given.initial)
        records = [store.get(client) for client in range(given.clients)]
        states = [fresh if record is None else record.state for record in records]
        server = trees.clone(report.state.server)
        taken.append(
            Snapshot(
                server,
                [trees.clone(state) for state in states],
                algorithm.global_params(server),
                frozenset(store.clients()),
                report.record,
            )
        )

    run(
        algorithm,
        given,
        rounds,
        engine=Chosen(spied, choice.is_asynchronous),
        callbacks=[observe],
        **options,
    )
    return taken


def stacked(vectors: Sequence[Tensor]) -> Array:
    """Trajectories and lists of vectors as one numpy array."""
    return torch.stack([vector.double() for vector in vectors]).numpy()


def weighted_mean(a: Array, vectors: Sequence[Tensor]) -> Array:
    """sum_i a_i vector_i."""
    return a @ stacked(vectors)


def assert_same(first: Sequence[Tensor] | Array, second: Sequence[Tensor] | Array) -> None:
    """Equal to 1e-10 in every entry of every round."""
    left, right = (x if isinstance(x, np.ndarray) else stacked(x) for x in (first, second))
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-10)
