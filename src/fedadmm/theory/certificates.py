"""Callback that records the quantity bounded by a convergence theorem, and the bound.

A certificate requires a problem with known smoothness L and infimum F*, a method and a setting that
a theorem covers, and local solves of known accuracy.  After K rounds the record contains

    certificate_measured   the mean over the run so far of ||G_eta(xbar)||², or of V/n (Gong)
    certificate_bound      the theorem's right-hand side for K rounds

The theorems bound expectations; single runs are usually below the bounds, which are not tight.
Each measurement evaluates one gradient per client and round.
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
    """Quantities of the problem at the initial point that appear in the bounds."""

    L: float
    gap: float
    """F(x0) - F*."""
    gradients: float
    """G0 = (1/n) sum ||grad f_i(x0)||²."""
    clients: int


class Note(NamedTuple):
    """State of a certificate between rounds."""

    total: float
    """Sum of the measure over all server states so far."""
    missed: bool
    """Whether a local solve ended before reaching its accuracy, which invalidates the bound."""


@part("callback", "certificate")
class Certificate(Callback):
    """Record in each round the quantity that a convergence theorem bounds, and the bound.

    Args:
        theorem: The theorem; "auto" selects the one whose assumptions hold for the run.

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
        """Reject a run that the theorem does not cover, and measure its initial state."""
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
    """A run that a theorem covers, with the bounded quantity and the bound."""

    theorem: str
    job: Job
    measure: Callable[[Any, ClientStateStore], float]
    bound: Callable[[int, Record], float]
    """Function (rounds, record) -> right-hand side of the theorem."""
    counts_last: bool
    """Whether the mean includes the state after the last round; if not, only those before each."""

    def after(
        self, report: RoundReport, store: ClientStateStore, before: Note
    ) -> tuple[Note, dict[str, Any]]:
        """Return the state after a round, and the entries of its record."""
        rounds = report.state.round
        now = self.measure(report.state.server, store)
        stop = self.job.stop  # a solve that ends at its step limit may not reach its accuracy
        cap = stop.sentence(False) if stop.needs_gradient else None
        missed = before.missed or any(info.solve.status == cap for info in report.infos)
        if rounds == 0:  # the state after the initial round is the theorem's initial state
            return Note(now, missed), {}
        mean = before.total / rounds
        if self.counts_last:
            mean = (before.total + now) / (rounds + 1)
        bound = math.nan if missed else self._bound(rounds, report.record)
        entries = {"certificate_measured": mean, "certificate_bound": bound}
        return Note(before.total + now, missed), entries

    def _bound(self, rounds: int, record: Record) -> float:
        """Return the bound, or NaN if the observed delays violate the theorem's conditions."""
        try:
            return self.bound(rounds, record)
        except ParameterError:
            return math.nan


class _Watched(NamedTuple):
    """A covered run, its clients' states, and the certificate's state before the first round."""

    covered: Covered
    store: ClientStateStore
    first: Note


def certify(theorem: Theorem, job: Job, sampler: Sampler, engine: EngineChoice) -> Covered:
    """Return the quantity and the bound of a theorem for a run.

    Raises:
        CompatibilityError: The run does not meet a condition of the theorem, which is named.
    """
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
        raise _refuse(f"problem: got {problem.name} without {missing}, expected a known {missing}.")
    if problem.weights is not None:
        raise _refuse(
            "problem.weights: got unequal weights, expected 'uniform' as in the theorems."
        )
    value = float(problem.value(job.initial) + problem.regularizer.value(job.initial))
    squares = [
        float(client.evaluation_gradient(job.initial).square().sum()) for client in problem.clients
    ]
    if not math.isfinite(value):
        raise _refuse("initial: got a point where F is infinite, expected one in the domain of g.")
    gap = max(0.0, value - facts.infimum)
    return Start(facts.smoothness, gap, sum(squares) / len(squares), problem.num_clients)


def _choose(theorem: Theorem, job: Job, engine: EngineChoice, L: float) -> str:
    method = job.algorithm
    if isinstance(method, AbsentClientAlignment):
        raise _refuse(
            f"algorithm: got {type(method).__name__}, which changes the states of absent clients; "
            "expected FedADMM or FedDR, which keep them as in the theorems."
        )
    asynchronous = engine.is_asynchronous
    allowed: tuple[str, ...] = ()
    if isinstance(method, FedADMM) and not asynchronous:
        plain = method.bias is None and method.members == "all"
        if not isinstance(method.rho, float | int) or not plain:
            raise _refuse(
                f"algorithm: got {type(method).__name__} in a variant without a theorem, expected "
                "FedADMM with a constant rho, step='tracking' and members='all'."
            )
        allowed = ("gong", "wang") if method.rho > gong_rho_min(L) else ("wang", "gong")
    elif isinstance(method, FedDR | FedDRII):
        allowed = ("async-feddr",) if asynchronous else ("feddr",)
    if not allowed:
        where = " in an asynchronous run" if asynchronous else ""
        raise _refuse(
            f"algorithm: got {type(method).__name__}{where}, expected a method with a theorem."
        )
    if theorem != "auto" and theorem not in allowed:
        raise _refuse(f"theorem: got {theorem!r}, expected {' or '.join(allowed)} for this run.")
    return allowed[0] if theorem == "auto" else theorem


def _least_probability(job: Job, sampler: Sampler, engine: EngineChoice) -> float:
    probabilities = sampler.probabilities(job.problem.num_clients)
    if not sampler.is_random or probabilities is None:
        reason = "time-varying probabilities" if sampler.is_random else "a deterministic order"
        raise _refuse(
            f"sampler: got {type(sampler).__name__} with {reason}, expected random sampling with "
            "constant probabilities."
        )
    if isinstance(engine, VirtualTime):
        sure = engine.availability == 1.0 and engine.dropout == 0.0 and engine.deadline is None
        if not sure:
            raise _refuse("engine: got absences, dropout or a deadline, expected none of them.")
    return float(min(probabilities))


def _mapping(job: Job, step: float) -> Callable[[Any, ClientStateStore], float]:
    """Return the measure ||G_step(xbar)||², a function of server state and client states."""

    def measure(server: Any, store: ClientStateStore) -> float:
        params = job.algorithm.global_params(server)
        return float(job.problem.gradient_mapping(params, step).square().sum())

    return measure


def relaxation(method: AnyAlgorithm) -> float:
    """Return alpha of the method's Douglas-Rachford step; 1 means no relaxation."""
    return method.alpha if isinstance(method, FedDR) else 1.0


def _starts_at_a_prox(job: Job) -> bool:
    """Return whether x0 = prox_{step g}(x0), as for all later server models."""
    moved = job.problem.regularizer.prox(job.initial, prox_step(job.algorithm))
    return bool((moved == job.initial).all())


def _after_initial_round(start: Start, job: Job, eta: float, epsilon: float = 0.0) -> float:
    """Return the gap after the initial round, in which all clients compute x_i = prox(v_i).

    Methods that evaluate only a gradient at x0 in that round keep the gap at x0.
    """
    if not job.algorithm.requirements.local_in(-1).local_solve:
        return start.gap
    return start.gap + feddr_prox_start_excess(start.L, eta, start.gradients, epsilon=epsilon)


def _feddr(job: Job, start: Start, p_hat: float, theorem: str) -> Covered:
    eta = prox_step(job.algorithm)
    alpha = relaxation(job.algorithm)
    gap, gradients = start.gap, start.gradients
    feddr_constants(start.L, eta, alpha, p_hat)  # rejects settings outside the theorem
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
        raise _refuse(
            f"solver: got {type(job.solver).__name__}, expected ExactSolver, as the asynchronous "
            "theorem requires."
        )
    law = arrival_law(job, sampler, engine)
    eta, alpha = prox_step(job.algorithm), relaxation(job.algorithm)
    gap, gradients, n = start.gap, start.gradients, start.clients
    # Reject settings outside the theorem for every delay.
    tau, T, p_hat = law(None)
    async_certificate(n, tau, T, p_hat, start.L, alpha, eta)
    if job.algorithm.requirements.initial_round is not None:
        gap, gradients = _after_initial_round(start, job, eta), 0.0
    elif not _starts_at_a_prox(job):
        raise _refuse(
            "algorithm.init: got 'start' with a regularizer, expected 'prox', because the "
            "asynchronous theorem requires the initial model to be the prox of the server's mean."
        )

    def bound(rounds: int, record: Record) -> float:
        setting = (n, *law(record), start.L, alpha, eta)
        return async_feddr_bound(*setting, rounds, gap, start_gradient=gradients)

    return Covered("async-feddr", job, _mapping(job, eta), bound, counts_last=True)


def _gong(job: Job, start: Start, p_hat: float) -> Covered:
    rho = 1 / prox_step(job.algorithm)
    gong_constants(start.L, rho, p_hat)  # rejects settings outside the theorem
    if not has_gongs_measure(job.problem):
        raise _refuse("problem.regularizer: got a regularizer, expected none in Gong's theorem.")
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
