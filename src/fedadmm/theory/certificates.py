"""A run that carries its theorem: what the theorem bounds, measured, beside the bound.

A certificate needs a problem whose smoothness L and infimum F* are known, a method and a setting
that a theorem covers, and local solves whose accuracy is known.  After K rounds the record holds

    certificate_measured   the mean over the run so far of ||G_eta(xbar)||², or of V/n (Gong)
    certificate_bound      the theorem's right-hand side for K rounds

The theorems bound expectations; one run stays below because the bounds are far from tight.
Measuring takes a gradient of every client in every round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fedadmm.algorithms import FedADMM, FedDR, FedDRII
from fedadmm.core.capabilities import AbsentClientAlignment, prox_step
from fedadmm.core.contracts import AnyAlgorithm
from fedadmm.core.errors import CompatibilityError, ParameterError
from fedadmm.core.messages import ClientStateStore
from fedadmm.core.parts import part
from fedadmm.core.sampling import Sampler
from fedadmm.core.solvers import ExactSolver
from fedadmm.run.callbacks import Callback, Run
from fedadmm.run.client import Job
from fedadmm.run.diagnostics import has_gongs_measure, look_at, optimality_measure
from fedadmm.run.engines.choice import EngineChoice
from fedadmm.run.engines.virtual_time import VirtualTime
from fedadmm.run.record import Record
from fedadmm.run.state import RoundReport
from fedadmm.theory import (
    async_certificate,
    async_feddr_bound,
    feddr_bound,
    feddr_constants,
    feddr_prox_start_excess,
    gong_bound,
    gong_constants,
    gong_rho_min,
)
from fedadmm.theory.assumptions import arrival_law, local_errors

Theorem = Literal["auto", "feddr", "wang", "gong", "async-feddr"]


class Start(NamedTuple):
    """What the bounds need to know of the problem at the start."""

    L: float
    gap: float
    """F(x0) - F*."""
    gradients: float
    """G0 = (1/n) sum ||grad f_i(x0)||²."""
    clients: int


class Note(NamedTuple):
    """What a certificate remembers between rounds."""

    total: float
    """The sum of the measure over all states so far."""
    missed: bool
    """Whether a local solve missed its accuracy, so that there is no bound any more."""


@part("callback", "certificate")
class Certificate(Callback):
    """Record in every round the quantity that a convergence theorem bounds, and the bound.

    Args:
        theorem: The theorem; "auto" for the one whose assumptions hold for the run.

    Raises:
        CompatibilityError: No theorem covers the run; raised when it begins.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> facts = fa.Facts(smoothness=3.0, infimum=-4.0)
        >>> problem = fa.Problem(clients, initial=torch.zeros(1), facts=facts)
        >>> work = dict(solver=fa.ExactSolver(), callbacks=[fa.Certificate()])
        >>> found = fa.simulate(fa.FedDR(eta=0.1), problem, 10, **work).history[-1]["callbacks"]
        >>> found["certificate_measured"] <= found["certificate_bound"]
        True
    """

    theorem: Theorem = "auto"

    def begin(self, run: Run) -> _Watched:
        """Refuse a run that the theorem does not cover; measure where it starts."""
        assert run.engine is not None, "deployments refuse callbacks that measure"
        covered = certify(self.theorem, run.job, run.sampler, run.engine)
        start = covered.measure(run.state.server, run.store) if run.is_fresh else math.nan
        return _Watched(covered, run.store, Note(start, False))

    def measure(
        self, report: RoundReport, live: _Watched, note: Any
    ) -> tuple[Note, dict[str, Any]]:
        before = live.first if note is None else Note(*note)
        return live.covered.after(report, live.store, before)


@dataclass(frozen=True)
class Covered:
    """A run that a theorem covers: what it bounds, and by how much."""

    theorem: str
    job: Job
    measure: Callable[[Any, ClientStateStore], float]
    bound: Callable[[int, Record], float]
    """(rounds, record) -> the right-hand side."""
    counts_last: bool
    """Whether the mean runs over the state after the last round too, or only before each."""

    def after(
        self, report: RoundReport, store: ClientStateStore, before: Note
    ) -> tuple[Note, dict[str, Any]]:
        """The next note, and the measured mean beside its bound."""
        rounds = report.state.round
        now = self.measure(report.state.server, store)
        stop = self.job.stop  # a solve that ends at its cap misses its accuracy
        cap = stop.sentence(False) if stop.needs_gradient else None
        missed = before.missed or any(info.solve.status == cap for info in report.infos)
        if rounds == 0:  # an initial round leads to the state that the theorem starts from
            return Note(now, missed), {}
        mean = before.total / rounds
        if self.counts_last:
            mean = (before.total + now) / (rounds + 1)
        bound = math.nan if missed else self._bound(rounds, report.record)
        entries = {"certificate_measured": mean, "certificate_bound": bound}
        return Note(before.total + now, missed), entries

    def _bound(self, rounds: int, record: Record) -> float:
        """The bound, or NaN when the delays have left the theorem's range."""
        try:
            return self.bound(rounds, record)
        except ParameterError:
            return math.nan


class _Watched(NamedTuple):
    """A covered run, its clients' states, and the note before its first round."""

    covered: Covered
    store: ClientStateStore
    first: Note


def certify(theorem: Theorem, job: Job, sampler: Sampler, engine: EngineChoice) -> Covered:
    """Return the bound of a theorem for a run; a CompatibilityError names an unmet condition."""
    start = _start(job)
    chosen = _choose(theorem, job, engine, start.L)
    if chosen == "async-feddr":
        return _asynchronous(job, sampler, engine, start)
    p_hat = _least_probability(job, sampler, engine)
    return _gong(job, start, p_hat) if chosen == "gong" else _feddr(job, start, p_hat, chosen)


def _refuse(reason: str) -> CompatibilityError:
    return CompatibilityError(f"certificate: {reason}")


def _start(job: Job) -> Start:
    problem, facts = job.problem, job.problem.facts
    if facts.smoothness is None or facts.infimum is None:
        missing = "smoothness L" if facts.smoothness is None else "infimum F*"
        raise _refuse(f"needs a problem whose {missing} is known, but {problem.name} has none")
    if problem.weights is not None:
        raise _refuse("the theorems are about equal weights, but the problem has its own")
    value = float(problem.value(job.initial) + problem.regularizer.value(job.initial))
    squares = [
        float(client.evaluation_gradient(job.initial).square().sum()) for client in problem.clients
    ]
    if not math.isfinite(value):
        raise _refuse("needs a start in the domain of g, but F is infinite there")
    gap = max(0.0, value - facts.infimum)
    return Start(facts.smoothness, gap, sum(squares) / len(squares), problem.num_clients)


def _choose(theorem: Theorem, job: Job, engine: EngineChoice, L: float) -> str:
    method = job.algorithm
    if isinstance(method, AbsentClientAlignment):
        raise _refuse(
            f"the theorems are about absent clients that keep what they have, but those of this "
            f"{type(method).__name__} move along; use FedADMM or FedDR"
        )
    asynchronous = engine.is_asynchronous
    allowed: tuple[str, ...] = ()
    if isinstance(method, FedADMM) and not asynchronous:
        plain = method.bias is None and method.members == "all"
        if not isinstance(method.rho, float | int) or not plain:
            raise _refuse(
                "FedADMM's theorems need FedADMM itself with a constant rho, step='tracking' and "
                "members='all'"
            )
        allowed = ("gong", "wang") if method.rho > gong_rho_min(L) else ("wang", "gong")
    elif isinstance(method, FedDR | FedDRII):
        allowed = ("async-feddr",) if asynchronous else ("feddr",)
    if not allowed:
        where = " without rounds" if asynchronous else ""
        raise _refuse(f"there is no theorem about {type(method).__name__}{where}")
    if theorem != "auto" and theorem not in allowed:
        raise _refuse(f"theorem is {theorem!r}, but for this run must be {' or '.join(allowed)}")
    return allowed[0] if theorem == "auto" else theorem


def _least_probability(job: Job, sampler: Sampler, engine: EngineChoice) -> float:
    probabilities = sampler.probabilities(job.problem.num_clients)
    if not sampler.is_random or probabilities is None:
        reason = "has no probabilities that stay" if sampler.is_random else "is not random"
        raise _refuse(
            f"{type(sampler).__name__} {reason}, but the theorems are about random clients"
        )
    if isinstance(engine, VirtualTime):
        sure = engine.availability == 1.0 and engine.dropout == 0.0 and engine.deadline is None
        if not sure:
            raise _refuse("needs a clock without absences, losses and deadlines")
    return float(min(probabilities))


def _mapping(job: Job, step: float) -> Callable[[Any, ClientStateStore], float]:
    """||G_step(xbar)||²."""

    def measure(server: Any, store: ClientStateStore) -> float:
        params = job.algorithm.global_params(server)
        return float(job.problem.gradient_mapping(params, step).square().sum())

    return measure


def relaxation(method: AnyAlgorithm) -> float:
    """Return alpha of the Douglas-Rachford step that the method makes; 1 is no relaxation."""
    return method.alpha if isinstance(method, FedDR) else 1.0


def _starts_at_a_prox(job: Job) -> bool:
    """Whether x0 = prox_{step g}(x0), so that the first model is a prox as all others are."""
    moved = job.problem.regularizer.prox(job.initial, prox_step(job.algorithm))
    return bool((moved == job.initial).all())


def _after_initial_round(start: Start, job: Job, eta: float, epsilon: float = 0.0) -> float:
    """The gap once everybody has x_i = prox(v_i), which a gradient at x0 gives without moving."""
    if not job.algorithm.requirements.local_in(-1).local_solve:
        return start.gap
    return start.gap + feddr_prox_start_excess(start.L, eta, start.gradients, epsilon=epsilon)


def _feddr(job: Job, start: Start, p_hat: float, theorem: str) -> Covered:
    eta = prox_step(job.algorithm)
    alpha = relaxation(job.algorithm)
    gap, gradients = start.gap, start.gradients
    feddr_constants(start.L, eta, alpha, p_hat)  # refuses what the theorem does not cover
    errors = local_errors(job, 1 / eta, p_hat)
    mapping = 0.0
    if job.algorithm.requirements.initial_round is not None:
        gap, gradients = _after_initial_round(start, job, eta, errors.initial), 0.0
    elif not _starts_at_a_prox(job):
        mapping = float(job.problem.gradient_mapping(job.initial, eta).square().sum())

    def bound(rounds: int, record: Record) -> float:
        return feddr_bound(
            start.L,
            eta,
            alpha,
            p_hat,
            rounds,
            gap,
            error_sum=errors.total(rounds),
            start_gradient=gradients,
            start_mapping=mapping,
        )

    return Covered(theorem, job, _mapping(job, eta), bound, counts_last=True)


def _asynchronous(job: Job, sampler: Sampler, engine: EngineChoice, start: Start) -> Covered:
    if not isinstance(job.solver, ExactSolver):
        raise _refuse("the asynchronous theorem needs exact local solves; use ExactSolver")
    law = arrival_law(job, sampler, engine)
    eta, alpha = prox_step(job.algorithm), relaxation(job.algorithm)
    gap, gradients, n = start.gap, start.gradients, start.clients
    # Refuses what the theorem does not cover, whatever the delays.
    tau, T, p_hat = law(None)
    async_certificate(n, tau, T, p_hat, start.L, alpha, eta)
    if job.algorithm.requirements.initial_round is not None:
        gap, gradients = _after_initial_round(start, job, eta), 0.0
    elif not _starts_at_a_prox(job):
        raise _refuse(
            "the asynchronous theorem with a regularizer needs init='prox': the first model x0 is "
            "not the prox of the server's mean, and stale models are paid for by such steps"
        )

    def bound(rounds: int, record: Record) -> float:
        setting = (n, *law(record), start.L, alpha, eta)
        return async_feddr_bound(*setting, rounds, gap, start_gradient=gradients)

    return Covered("async-feddr", job, _mapping(job, eta), bound, counts_last=True)


def _gong(job: Job, start: Start, p_hat: float) -> Covered:
    rho = 1 / prox_step(job.algorithm)
    gong_constants(start.L, rho, p_hat)  # refuses what the theorem does not cover
    if not has_gongs_measure(job.problem):
        raise _refuse("Gong's theorem is about g = 0, but the problem has a regularizer")
    errors = local_errors(job, rho, p_hat)

    def bound(rounds: int, record: Record) -> float:
        return gong_bound(
            start.L,
            rho,
            p_hat,
            rounds,
            start.gap,
            epsilon_max=errors.gradient,
            start_gradient=0.0
            if job.algorithm.requirements.initial_round is not None
            else start.gradients,
        )

    def measure(server: Any, store: ClientStateStore) -> float:
        looks = (look_at(job, store, client) for client in range(start.clients))
        return optimality_measure(looks, job.algorithm.global_params(server))

    return Covered("gong", job, measure, bound, counts_last=False)
