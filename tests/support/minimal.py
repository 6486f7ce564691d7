"""Parts that have the declared members and nothing else, and a run of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import fedadmm as fa
from fedadmm.core.contracts import (
    Algorithm,
    LocalProblem,
    LocalResult,
    Regularizer,
    Requirements,
)
from fedadmm.core.local_work import OUTSIDE_RUN, LocalSolver, SolveInfo
from fedadmm.core.objectives import Objective
from fedadmm.core.sampling import Sampler
from fedadmm.core.stopping import StoppingRule

CENTRES = (1.0, 3.0, 8.0)


@dataclass(frozen=True, eq=False)
class Distance(Objective):
    """(x - centre)² / 2 in one dimension."""

    centre: Tensor

    @property
    def num_parameters(self) -> int:
        return 1

    @property
    def num_samples(self) -> int:
        return 1

    def value(self, params: Tensor) -> Tensor:
        return (params - self.centre).square().sum() / 2

    def gradient(self, params: Tensor, rows: Tensor | None = None) -> Tensor:
        return params - self.centre

    def to(self, dtype: torch.dtype, device: Any = "cpu") -> Distance:
        return Distance(self.centre.to(device, dtype))


class Model(NamedTuple):
    """A broadcast and a server state without a field called theta."""

    x: Tensor


class Nothing(NamedTuple):
    """A client without memory."""


class Move(NamedTuple):
    move: Tensor


@dataclass(frozen=True)
class Plain(Algorithm[Model, Nothing, Model, Move]):
    """Every client moves; the server adds the mean of the moves."""

    def init_server(self, params):
        return Model(params)

    def init_client(self, params):
        return Nothing()

    def broadcast(self, server, round):
        return server

    def local_problem(self, cast, client):
        return LocalProblem(cast.x)

    def client_update(self, cast, client, result):
        return client, Move(result.params - cast.x)

    def server_update(self, server, total, received, regularizer):
        moved = server.x + total.move / received.weight
        return Model(regularizer.prox(moved, 1.0))

    def global_params(self, server):
        return server.x


@dataclass(frozen=True)
class Accepting(Plain):
    """The same with requirements of its own."""

    declared: Requirements

    @property
    def requirements(self):
        return self.declared


@dataclass(frozen=True)
class HalfWay(LocalSolver):
    """Goes half of the way to the minimiser, which the gradient tells."""

    def solve(self, objective, problem, stop, key, context=OUTSIDE_RUN):
        params = problem.start - objective.gradient(problem.start) / 2
        return LocalResult(params), SolveInfo(1, 1.0, 1.0, stop.sentence(False), float("nan"))


@dataclass(frozen=True)
class Once(StoppingRule):
    def budget(self, steps_per_epoch, key, client):
        return 1

    def sentence(self, reached):
        return "once"


@dataclass(frozen=True)
class Two(Sampler):
    """Everybody but one, in turn."""

    def sample(self, seed, round_index, clients) -> Sequence[int]:
        return [client for client in range(clients) if client != round_index % clients]


@dataclass(frozen=True)
class Nought(Regularizer):
    def value(self, params):
        return params.new_zeros(())

    def prox(self, params, step):
        return params


def problem() -> fa.Problem:
    centres = [torch.tensor([centre], dtype=torch.float64) for centre in CENTRES]
    return fa.Problem([Distance(centre) for centre in centres], Nought())


def run(engine: Any, rounds: int = 4, **declared: Any) -> fa.Result:
    start = torch.zeros(1, dtype=torch.float64)
    parts = {"solver": HalfWay(), "stop": Once(), "sampler": Two(), "initial": start}
    method = Accepting(Requirements(regularizer=True, **declared))
    return fa.simulate(method, problem(), rounds, engine=engine, keep_trajectory=True, **parts)


def expected(rounds: int) -> list[float]:
    x, path = 0.0, []
    for t in range(rounds):
        cohort = [centre for i, centre in enumerate(CENTRES) if i != t % 3]
        x += sum((centre - x) / 2 for centre in cohort) / 2
        path.append(x)
    return path
