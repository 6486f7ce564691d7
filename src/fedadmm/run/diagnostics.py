"""Diagnostics of primal-dual runs: distance from optimality, and warnings of divergence.

With L = sum_i a_i [f_i(w_i) + <y_i, w_i - theta> + (penalty/2) ||w_i - theta||²] + g(theta), a
stationary point is where  grad f_i(w_i) + y_i = 0,  w_i = theta  and  sum_i a_i y_i lies in the
subdifferential of g at theta.  A measurement contains

    stationarity   root mean square of ||grad f_i(w_i) + y_i||
    consensus      root mean square of ||w_i - theta||
    dual_sum       ||theta - prox_g(theta + sum_i a_i y_i)||              all clients only
    kkt_residual   the root of the sum of their squares
    dual_norm      the mean of ||y_i||, and dual_norm_max the largest
    lagrangian     L above                                                all clients only
    mean_drift     the distance of the server's mean from that of what clients sent of their
                   w_i + y_i/penalty: zero, or what noise has added up to;  all clients only
    gong_v         V/n of Gong et al. (7), `optimality_measure`; all clients, g = 0, equal weights
    dual_value     D(y) of Wang et al. (8), see `duality`                    on request, all clients
    duality_gap    F(theta) - D(y), which bounds F(theta) - F*            on request, all clients

A measurement of some clients costs one pass over their data, and omits sums over all clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm.core.capabilities import (
    AbsentClientAlignment,
    PrimalDualStates,
    TrackedMean,
    prox_step,
)
from fedadmm.core.contracts import PrimalDual
from fedadmm.core.errors import CompatibilityError, ParameterError
from fedadmm.core.messages import ClientStateStore
from fedadmm.core.objectives import Objective
from fedadmm.core.objectives.closed_form import QuadraticObjective
from fedadmm.core.parts import Count, Natural, part
from fedadmm.core.problem import Problem
from fedadmm.core.regularizers import Zero
from fedadmm.core.rng import derive, numpy_generator
from fedadmm.run.callbacks import Callback, Run
from fedadmm.run.client import Job, client_record
from fedadmm.run.engines.choice import torch_threads
from fedadmm.run.state import RoundReport

GROWTH = 10.0
"""A KKT residual this many times its smallest so far is a warning."""
ROUNDING = 1e-6
"""A Lagrangian that rises by less, relatively, has not risen."""
LOST_MEAN = 1e-3
"""A drift of the server's mean by more, relative to the model, is a warning."""


class Look(NamedTuple):
    """State of one client in a measurement."""

    client: int
    weight: float
    own: PrimalDual
    gradient: Tensor
    unsent: Tensor | float = 0.0
    """Accumulated compression error of w_i + y_i/penalty."""


def look_at(job: Job, store: ClientStateStore, client: int) -> Look:
    """Return the client's current model, dual and gradient."""
    record = client_record(job, store, client)
    assert isinstance(job.algorithm, PrimalDualStates)
    own = job.algorithm.primal_dual(record.state)
    gradient = job.problem.clients[client].evaluation_gradient(own.w).clone()
    unsent = record.error_feedback[0] if record.error_feedback else 0.0
    return Look(client, job.problem.weight(client), own, gradient, unsent)


def has_gongs_measure(problem: Problem) -> bool:
    """Whether (7) is defined: it is about sum_i f_i without g and without weights."""
    return problem.weights is None and isinstance(problem.regularizer, Zero)


def optimality_measure(looks: Iterable[Look], theta: Tensor) -> float:
    """Return V/n of Gong et al. (7) from all clients; it requires neither L nor F*.

    V = ||grad_theta L||² + sum_i ||grad_{w_i} L||² + ||w_i - theta||², with the Lagrangian
    L = sum_i f_i(w_i) + <y_i, w_i - theta> + (penalty/2) ||w_i - theta||².  It is zero exactly at
    a stationary point where all agree.
    """
    count, total, pull = 0, 0.0, torch.zeros_like(theta)
    for look in looks:
        apart = look.own.w - theta
        own_pull = look.own.y + look.own.penalty * apart
        total += float((look.gradient + own_pull).square().sum() + apart.square().sum())
        pull += own_pull
        count += 1
    return (total + float(pull.square().sum())) / count


@part("callback", "diagnostics")
class Diagnostics(Callback):
    """Measure the distance of the clients' models and duals to a stationary point.

    Args:
        every: Rounds between two measurements.  Default 10.
        clients: Number of clients, drawn for every measurement; 0 for all clients, which adds
            quantities that are sums over all.  Default 5.
        duality: Whether to measure the dual value and the duality gap, which requires clients=0 and
            quadratic losses.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> work = dict(solver=fa.ExactSolver(), callbacks=[fa.Diagnostics(every=20, clients=0)])
        >>> found = fa.simulate(fa.FedADMM(rho=1.0), problem, 20, **work).history[-1]["callbacks"]
        >>> round(found["consensus"], 2), round(found["dual_sum"], 2)
        (0.0, 0.0)
    """

    every: Count = 10
    clients: Natural = 5
    duality: bool = False

    def __post_init__(self) -> None:
        if self.duality and self.clients != 0:
            raise ParameterError(
                f"Diagnostics: duality is True, but clients is {self.clients}, and must be 0: it "
                "needs all clients"
            )

    def begin(self, run: Run) -> _Examiner:
        return _Examiner(run.job, run.store, self)

    def measure(
        self, report: RoundReport, live: _Examiner, note: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        note = note or {"lagrangian": None, "kkt": None, "warned": []}
        if report.state.round == 0 or report.state.round % self.every:
            return note, {}
        with torch_threads(1):  # single clients are small work, and their order is fixed
            return live.measured(report, note)


@dataclass(frozen=True)
class _Examiner:
    """Measures the clients of one run."""

    job: Job
    store: ClientStateStore
    asked: Diagnostics

    def __post_init__(self) -> None:
        if self.asked.duality:
            check_conjugate(self.job.problem.clients[0])
        method = self.job.algorithm
        if isinstance(method, AbsentClientAlignment):
            raise CompatibilityError(
                "diagnostics are about the models and duals that clients keep, but those of this "
                f"{type(method).__name__} move along while they are absent, which only its server "
                "knows; use FedADMM, FedADMMInSa or FedDR"
            )
        if not isinstance(method, PrimalDualStates):
            raise CompatibilityError(
                f"diagnostics are about duals, but {type(method).__name__} keeps none; "
                "use FedADMM, FedADMMIn, FedADMMInSa, FedDR, FedDRII or FedPD"
            )

    def measured(
        self, report: RoundReport, note: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the next note, and the entries of a measurement."""
        theta = self.job.algorithm.global_params(report.state.server)
        chosen = self._chosen(report.state.round)
        looks = [look_at(self.job, self.store, client) for client in chosen]
        entries = _residuals(looks, theta)
        if len(looks) == self.job.problem.num_clients:
            entries |= self._sums(looks, theta, report.state.server)
        parts = [
            entries[key] for key in ("stationarity", "consensus", "dual_sum") if key in entries
        ]
        entries["kkt_residual"] = math.hypot(*parts)
        all_seen = len(self.store.clients()) == self.job.problem.num_clients
        exact = self.job.pipeline.noise is None  # noise is meant to move the server's mean
        following, found = _warnings(entries, note, theta, all_seen, exact)
        if found:
            cause = self._cause(looks, theta, report)
            entries["warnings"] = [f"round {report.state.round}: {what}; {cause}" for what in found]
        return following, entries

    def _chosen(self, round_number: int) -> Sequence[int]:
        count = self.job.problem.num_clients
        asked = self.asked.clients
        if not 0 < asked < count:
            return range(count)
        draws = numpy_generator(derive(self.job.seed, "diagnostics", round_number))
        return sorted(int(i) for i in draws.choice(count, asked, replace=False))

    def _sums(self, looks: Sequence[Look], theta: Tensor, server: Any) -> dict[str, Any]:
        """Return the quantities that are sums over all clients."""
        duals, means = torch.zeros_like(theta), torch.zeros_like(theta)
        lagrangian = float(self.job.problem.regularizer.value(theta))
        for look in looks:
            w, y, penalty = look.own
            apart = w - theta
            duals.add_(y, alpha=look.weight)
            means.add_(w + y / penalty - look.unsent, alpha=look.weight)
            value = self.job.problem.clients[look.client].value(w) + y @ apart
            lagrangian += look.weight * float(value + penalty / 2 * apart.square().sum())
        moved = self.job.problem.regularizer.prox(theta + duals, 1.0)
        sums = {"dual_sum": _norm(theta - moved), "lagrangian": lagrangian}
        if has_gongs_measure(self.job.problem):
            sums["gong_v"] = optimality_measure(looks, theta)
        if self.asked.duality:
            prices = [look.own.y for look in looks]
            found = duality(self.job.problem, theta, prices, prox_step(self.job.algorithm))
            sums |= {"dual_value": found.dual, "duality_gap": found.gap}
        method = self.job.algorithm
        tracked = method.tracked_mean(server) if isinstance(method, TrackedMean) else None
        return sums if tracked is None else sums | {"mean_drift": _norm(tracked - means)}

    def _cause(self, looks: Sequence[Look], theta: Tensor, report: RoundReport) -> str:
        """Return the most likely cause, from the curvature along the clients' models."""
        index = report.state.round - 1
        share = sum(self.job.problem.weight(info.client) for info in report.infos)
        method = self.job.algorithm
        step = method.numeric_step(index) if isinstance(method, TrackedMean) else None
        if step is not None and step > share:
            return (
                f"likely cause: step {step:g} is more than the share {share:.3g} of the clients "
                "that replied, so that the server leaves their mean; use 'tracking'"
            )
        look, curvature = self._steepest(looks, theta)
        penalty = float(look.own.penalty)
        rate = self.job.solver.rate_of(look.client, index) if self.job.solver else None
        if rate is not None and rate > 2 / (curvature + penalty):
            return (
                f"likely cause: the learning rate {rate:g} is above 2/(L + rho) = "
                f"{2 / (curvature + penalty):.3g} at client {look.client}; lower it"
            )
        if penalty <= 2 * curvature:
            return (
                f"likely cause: the penalty {penalty:.3g} is small for the curvature "
                f"{curvature:.3g} at client {look.client} (theorems need more than twice it); "
                "raise rho, or lower eta"
            )
        return "likely cause: local solves are too inexact; give them more epochs"

    def _steepest(self, looks: Sequence[Look], theta: Tensor) -> tuple[Look, float]:
        """Return the largest curvature between theta and the clients' models, or L if known."""
        found = [(_curvature(self.job, look, theta), place) for place, look in enumerate(looks)]
        curvature, place = max(found)
        known = self.job.problem.facts.smoothness
        return looks[place], curvature if known is None else max(known, curvature)


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))


def _residuals(looks: Sequence[Look], theta: Tensor) -> dict[str, Any]:
    total = sum(look.weight for look in looks)
    slopes = sum(look.weight * _norm(look.gradient + look.own.y) ** 2 for look in looks)
    apart = sum(look.weight * _norm(look.own.w - theta) ** 2 for look in looks)
    duals = [_norm(look.own.y) for look in looks]
    return {
        "stationarity": math.sqrt(slopes / total),
        "consensus": math.sqrt(apart / total),
        "dual_norm": sum(duals) / len(duals),
        "dual_norm_max": max(duals),
    }


def _warnings(
    entries: dict[str, Any], note: dict[str, Any], theta: Tensor, all_seen: bool, exact: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return new warnings, each kind once per run, and the next note."""
    warned, found = list(note["warned"]), []

    def warn(kind: str, sentence: str) -> None:
        if kind not in warned:
            warned.append(kind)
            found.append(sentence)

    kkt, least = entries["kkt_residual"], note["kkt"]
    if not math.isfinite(kkt) or (least is not None and kkt > GROWTH * least):
        warn(
            "kkt", f"the KKT residual {kkt:.3g} is {GROWTH:g} times its smallest, {least or 0:.3g}"
        )
    value, before = entries.get("lagrangian"), note["lagrangian"]
    # A client's first dual step may raise the Lagrangian under any condition.
    known = value is not None and before is not None and all_seen
    if known and value > before + ROUNDING * (1 + abs(before)):
        warn("lagrangian", f"the augmented Lagrangian rose from {before:.6g} to {value:.6g}")
    drift = entries.get("mean_drift", 0.0)
    if exact and drift > LOST_MEAN * (1 + _norm(theta)):
        warn("mean", f"the server is {drift:.3g} away from the mean of its clients")
    smallest = kkt if least is None else min(least, kkt)
    following = {"lagrangian": value if all_seen else None, "kkt": smallest, "warned": warned}
    return following, found


def _curvature(job: Job, look: Look, theta: Tensor) -> float:
    """||grad f_i(w + h d) - grad f_i(w)|| / h along d from theta to w: at most L."""
    way = look.own.w - theta
    length = _norm(way)
    if length == 0.0:
        way, length = look.gradient, _norm(look.gradient)
    if length == 0.0 or not math.isfinite(length):
        return 0.0
    root: float = float(torch.finfo(way.dtype).eps) ** (1 / 3)
    step = root * max(1.0, _norm(look.own.w)) / length
    moved = job.problem.clients[look.client].evaluation_gradient(look.own.w + step * way)
    return _norm(moved - look.gradient) / (step * length)


class Duality(NamedTuple):
    """A primal and a dual value, between which F* lies when both are finite."""

    primal: float
    """F(theta)."""
    dual: float
    """D(y); minus infinity when a client's loss is unbounded below along its dual."""

    @property
    def gap(self) -> float:
        """F(theta) - D(y), an upper bound on F(theta) - F*."""
        return self.primal - self.dual


def check_conjugate(objective: Objective) -> None:
    """Reject an objective without a closed-form conjugate."""
    if not isinstance(objective, QuadraticObjective):
        raise CompatibilityError(
            "duality: the dual value needs losses with a known conjugate, but the clients' are "
            f"{type(objective).__name__}; use Quadratic or LeastSquares"
        )


def duality(problem: Problem, theta: Tensor, duals: Sequence[Tensor], step: float) -> Duality:
    """The primal value at `theta` and the dual value at `duals`, made feasible.

    With duals y_i scaled as in the augmented Lagrangian, sum_i a_i [f_i(w_i) + <y_i, w_i - theta>]
    + g(theta), the dual value of Wang et al., (8) and (9), is

        D(y) = - sum_i a_i f_i*(-y_i) - g*(sum_i a_i y_i)  <=  F*,

    with equality at the duals of a solution when F is convex.  ((9) is printed with g*(sum_i z_i):
    there a factor 1/n is missing, and the dual value at the solution would be minus infinity for
    an l1 norm.)  It is minus infinity unless sum_i a_i y_i lies in the domain of g*, which without
    g is {0}: the duals of a run reach it in the limit only.  Their mean is moved, for all clients
    alike, to the subgradient s of g at t = prox_{step g}(theta + step sum_i a_i y_i), where
    g*(s) = <s, t> - g(t) needs no conjugate.  At a solution nothing moves.

    Args:
        problem: clients that are quadratic: one eigendecomposition each.
        theta: a point in the domain of g.
        duals: y_i of every client.
        step: that of the prox which finds the subgradient of g; any is valid.
    """
    regularizer = problem.regularizer
    mean = torch.zeros_like(theta)
    for client, dual in enumerate(duals):
        mean.add_(dual, alpha=problem.weight(client))
    nearby = regularizer.prox(theta + step * mean, step)
    subgradient = (theta - nearby) / step + mean
    primal = float(problem.value(theta) + regularizer.value(theta))
    dual_value = float(regularizer.value(nearby) - subgradient @ nearby)
    for client, dual in enumerate(duals):
        objective = problem.clients[client]
        check_conjugate(objective)
        dual_value += problem.weight(client) * _least(objective, dual + subgradient - mean)
    return Duality(primal, dual_value)


def _least(objective: Objective, linear: Tensor) -> float:
    """min_w f(w) + <linear, w> = -f*(-linear), in double precision."""
    assert isinstance(objective, QuadraticObjective)
    curvatures, axes = torch.linalg.eigh(objective.hessian().double())
    slopes = axes.T @ (objective.offset() - linear).double()
    rounding = len(slopes) * torch.finfo(linear.dtype).eps
    flat = curvatures.abs() <= rounding * float(curvatures.abs().max())
    falling = slopes[flat].abs() > rounding * float(slopes.abs().max())
    if bool((curvatures[~flat] < 0).any()) or bool(falling.any()):
        return -math.inf
    constant = float(objective.value(torch.zeros_like(linear)))
    return constant - float((slopes[~flat].square() / curvatures[~flat]).sum()) / 2
