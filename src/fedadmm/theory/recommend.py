"""From what is known of a problem to the ranges of the theorems and a setting to start from.

Two kinds of rows. A theorem's row gives the interval in which its guarantee holds and the value in
it that makes the bound smallest. A row of a method with "(practice)" leaves the theorem on purpose
and says what is lost.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt, Le

from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import (
    Count,
    Natural,
    NotNegative,
    Positive,
    Share,
    checked,
    checked_arguments,
)
from fedadmm.core.schedules import PerWork
from fedadmm.core.validation import check
from fedadmm.theory.async_feddr import AsyncConstants, async_alpha_bar, async_certificate
from fedadmm.theory.bounds import minimiser
from fedadmm.theory.feddr import feddr_alpha_max, feddr_best_steps, feddr_constants, feddr_eta_max
from fedadmm.theory.gong import gong_best_rho, gong_constants, gong_rho_min


@checked_arguments
def noise_floor(
    L: float, rho: float, convexity: float, learning_rate: float, noise: NotNegative
) -> float:
    """Where E||grad L_i||² of local SGD levels off at the latest.

        learning_rate (L + rho)² noise / (convexity + rho)

    On an M-smooth and mu-strongly convex problem, SGD with a learning rate lr <= 1/M and gradient
    variance v brings E[f - f*] down to lr M v/(2 mu), and ||grad||² <= 2M (f - f*).

    Args:
        L: Lipschitz constant of the loss's gradient.
        rho: penalty.
        convexity: strong convexity of the loss, -L if it is not convex.
        learning_rate: at most 1/(L + rho).
        noise: E||batch gradient - gradient||².
    """
    smooth, strong = L + rho, convexity + rho
    check("noise_floor", "convexity + rho", strong, Positive)
    check("noise_floor", "learning_rate", learning_rate, Annotated[float, Gt(0), Le(1.0 / smooth)])
    return learning_rate * smooth**2 * noise / strong


@checked_arguments
def insa_sigma_bound(beta: Positive, c: Positive) -> float:
    """The upper limit of sigma_i, itself excluded: sqrt(2) / (sqrt(2) + sqrt(beta/c)).

    The criterion is ||e_i(u_i^{k+1})|| <= sigma_i ||e_i(u_i^k)|| with e_i the gradient of the
    augmented Lagrangian of client i (Song, Wang and Zuazua 2024, slide "FedADMM-In: inexactness
    criterion"). Convergence is
    stated for full participation and losses that are c-strongly convex.

    Args:
        beta: penalty of the client.
        c: strong convexity constant of the client's loss.
    """
    return math.sqrt(2.0) / (math.sqrt(2.0) + math.sqrt(beta / c))


@checked
class Situation:
    """What is known, or has been estimated, of a problem.

    Attributes:
        L: Lipschitz constant of the clients' gradients.
        probabilities: each client's probability of taking part in a round; for an asynchronous run
            their ratios are those of being the next to reply.
        L_spread: how far L may lie above the estimate; the theorems get L + L_spread.
        batch_noise: E||grad of a batch - full gradient||² on one client; 0 for full batches.
        strong_convexity: None when the losses are not convex, 0 when they are, above 0 when they
            are strongly so.
        local_steps: local steps a client makes in a round.
        accuracy: the wanted mean of ||G||² or V/n.
        tau: the largest delay of an asynchronous run, in server steps; None leaves its rows out.
        window: T of the asynchronous theorem; 0 when every client may be the next at any time.
    """

    L: Positive
    probabilities: tuple[Share, ...]
    L_spread: NotNegative = 0.0
    batch_noise: NotNegative = 0.0
    strong_convexity: NotNegative | None = None
    local_steps: Count = 10
    accuracy: Positive = 1e-3
    tau: Natural | None = None
    window: Natural = 0

    def __post_init__(self) -> None:
        if not self.probabilities:
            raise ParameterError("Situation: probabilities is empty, but there must be a client")
        if self.strong_convexity is not None:
            check(
                self, "strong_convexity", self.strong_convexity, Annotated[float, Ge(0), Le(self.L)]
            )

    @property
    def safe_smoothness(self) -> float:
        """L with its spread: what the theorems are given."""
        return self.L + self.L_spread

    @property
    def p_hat(self) -> float:
        """The smallest probability of taking part."""
        return min(self.probabilities)


class Advice(NamedTuple):
    """One recommended value with the interval in which the guarantee holds (its ends excluded)."""

    method: str
    parameter: str
    low: float
    high: float
    recommended: float
    note: str


def recommend(situation: Situation) -> tuple[Advice, ...]:
    """The allowed range and a recommended value of every parameter, each with a sentence."""
    return (
        *_gong_rows(situation),
        *_wang_rows(situation),
        *_feddr_rows(situation),
        *_async_rows(situation),
        *_convex_rows(situation),
        *_insa_rows(situation),
        *_practice_rows(situation),
        *_per_work_rows(situation),
    )


def _learning_rate_row(
    situation: Situation, method: str, rho: float, epsilon: float | None = None
) -> Advice:
    """The local learning rate for a penalty; small enough for `epsilon` when batches are noisy."""
    L = situation.safe_smoothness
    high = 2.0 / (L + rho)  # above, gradient steps on a local problem grow
    rate = high / 2.0
    note = "1/(L + rho): a full-batch step lowers the local problem; above 2/(L + rho) steps grow."
    if epsilon is not None and situation.batch_noise > 0.0:
        convexity = -L if situation.strong_convexity is None else situation.strong_convexity
        floor = noise_floor(L, rho, convexity, rate, situation.batch_noise)
        if floor > epsilon:
            rate *= epsilon / floor
            note = (
                f"At 1/(L + rho) batch noise may leave E||grad||² at {floor:.2g}; this rate brings "
                f"it to the local accuracy {epsilon:.2g}. Larger batches allow a larger rate."
            )
    return Advice(method, "learning_rate", 0.0, high, rate, note)


def _gong_rows(situation: Situation) -> list[Advice]:
    method, L, p_hat = "FedADMM (Gong, Theorem 1)", situation.safe_smoothness, situation.p_hat
    rho = gong_best_rho(L)
    c1, c2, c3 = gong_constants(L, rho, p_hat)
    epsilon = situation.accuracy / (2.0 * c3)
    rho_note = (
        f"The mean of V/n falls as {c2 / c1:.3g} gap / rounds without convexity, for any data and "
        f"any sampling with p_i >= {p_hat:.3g}; this rho makes the factor smallest."
    )
    epsilon_note = (
        f"Local solves with ||grad||² <= epsilon leave a floor of c3 epsilon, c3 = {c3:.3g}: half "
        "of the wanted accuracy."
    )
    return [
        Advice(method, "rho", gong_rho_min(L), math.inf, rho, rho_note),
        Advice(method, "epsilon", 0.0, situation.accuracy / c3, epsilon, epsilon_note),
        _learning_rate_row(situation, method, rho, epsilon),
    ]


def _wang_rows(situation: Situation) -> list[Advice]:
    method, L = "FedADMM (Wang, Theorem 2)", situation.safe_smoothness
    step = minimiser(lambda eta: feddr_constants(L, eta, 1.0).C1, 1e-3 / L, (0.5 - 1e-6) / L)
    factor = feddr_constants(L, step, 1.0, situation.p_hat).C1
    note = (
        f"With accurate local solves the mean of ||G||² falls as {factor:.3g} gap / rounds, also "
        "with a regulariser; this rho makes the factor smallest."
    )
    return [
        Advice(method, "rho", 1.0 / feddr_eta_max(L), math.inf, 1.0 / step, note),
        _learning_rate_row(situation, method, 1.0 / step),
    ]


def _feddr_rows(situation: Situation) -> list[Advice]:
    method, L = "FedDR (Theorem 3.1)", situation.safe_smoothness
    eta, alpha = feddr_best_steps(L)
    factor = feddr_constants(L, eta, alpha, situation.p_hat).C1
    eta_note = (
        f"With alpha as recommended the mean of ||G||² falls as {factor:.3g} gap / rounds; the two "
        "together make the factor smallest."
    )
    alpha_note = (
        "The theorem ties the steps together: eta L < 1 - alpha/2. alpha = 2 (FedSplit) is never "
        "covered without convexity."
    )
    budget_note = (
        "In round k = 0, 1, … solve to the distance sqrt(M/2)/(k + 2) from the exact prox: the "
        "errors then add a constant to the sum over rounds, not a floor."
    )
    return [
        Advice(method, "eta", 0.0, feddr_eta_max(L, alpha), eta, eta_note),
        Advice(method, "alpha", 0.0, feddr_alpha_max(L, eta), alpha, alpha_note),
        Advice(method, "accuracy_budget", 0.0, math.inf, situation.accuracy, budget_note),
        _learning_rate_row(situation, method, 1.0 / eta),
    ]


def _async_rows(situation: Situation) -> list[Advice]:
    if situation.tau is None:
        return []
    method, n = "asyncFedDR (after Theorem 4.1)", len(situation.probabilities)
    alpha, eta, certificate = _best_async_steps(situation, situation.tau)
    alpha_note = (
        f"For delays up to {situation.tau} steps among {n} clients; longer delays allow less."
    )
    eta_note = (
        f"The mean of ||G||² falls as {certificate.C_hat:.3g} gap / steps, by the bound of "
        "async_certificate (the printed constants do not hold for every schedule)."
    )
    return [
        Advice(method, "alpha", 0.0, certificate.alpha_bar, alpha, alpha_note),
        Advice(method, "eta", 0.0, certificate.eta_bar, eta, eta_note),
        _learning_rate_row(situation, method, 1.0 / eta),
    ]


def _best_async_steps(situation: Situation, tau: int) -> tuple[float, float, AsyncConstants]:
    """The alpha and eta where C_hat is smallest: a search over eta inside one over alpha."""
    L, n = situation.safe_smoothness, len(situation.probabilities)
    chance = situation.p_hat / sum(situation.probabilities)

    def certificate(alpha: float, eta: float) -> AsyncConstants:
        return async_certificate(n, tau, situation.window, chance, L, alpha, eta)

    def best_eta(alpha: float) -> float:
        limit = certificate(alpha, 1e-12 / L).eta_bar
        return minimiser(lambda eta: certificate(alpha, eta).C_hat, 1e-3 * limit, 0.999 * limit)

    limit = async_alpha_bar(n, tau)
    alpha = minimiser(lambda a: certificate(a, best_eta(a)).C_hat, 1e-3 * limit, 0.999 * limit)
    eta = best_eta(alpha)
    return alpha, eta, certificate(alpha, eta)


def _convex_rows(situation: Situation) -> list[Advice]:
    convexity = situation.strong_convexity
    if convexity is None:
        return []
    method = "FedADMM, FedDR (convex losses)"
    if convexity == 0.0:
        rho, rate = situation.safe_smoothness, "no rate comes with it"
    else:
        rho = math.sqrt(convexity * situation.safe_smoothness)
        rate = "sqrt(mu L) balances the ends of the spectrum, the usual choice for a linear rate"
    note = (
        "Convex losses with accurate solves: Douglas-Rachford splitting reaches a minimiser for "
        f"every rho > 0 and 0 < alpha < 2, almost surely with random clients; {rate}."
    )
    return [
        Advice(method, "rho", 0.0, math.inf, rho, note),
        _learning_rate_row(situation, method, rho),
    ]


def _insa_rows(situation: Situation) -> list[Advice]:
    convexity = situation.strong_convexity
    if not convexity:
        return []
    beta = math.sqrt(convexity * situation.safe_smoothness)
    limit = insa_sigma_bound(beta, convexity)
    note = f"For beta = {beta:.3g} and c = {convexity:.3g}: convergence to the minimiser"
    if situation.p_hat < 1.0:
        note += " is proved for full participation only, which is not the case here"
    return [Advice("FedADMM-In", "sigma", 0.0, limit, 0.9 * limit, note + ".")]


def _practice_rows(situation: Situation) -> list[Advice]:
    method, L = "FedADMM, FedDR (practice)", situation.L
    rho = L / situation.local_steps
    if situation.strong_convexity is None:
        lost = (
            "below L the local problem need not be convex, so that its solution, the descent of "
            "the Lagrangian and every bound are lost; watch the residuals."
        )
    else:
        lost = "the rates of the theorems are lost, convergence with accurate solves is not."
    rho_note = (
        "A rule of thumb: with steps of 1/L the pull towards the server just takes hold within "
        f"{situation.local_steps} local steps, where the theorems' rho hardly lets a client move. "
        f"What is lost: {lost}"
    )
    eta_note = "FedDR's step is 1/rho, and the same is lost."
    return [
        Advice(method, "rho", 0.0, 1.0 / feddr_eta_max(L), rho, rho_note),
        Advice(method, "eta", feddr_eta_max(L), math.inf, 1.0 / rho, eta_note),
        _learning_rate_row(situation, method, rho),
    ]


def _per_work_rows(situation: Situation) -> list[Advice]:
    """Where local work begins at the global model, the penalty is fitted to it."""
    if situation.tau is not None:
        return []
    method, pull, steps = "FedADMM, per work (practice)", PerWork().pull, situation.local_steps
    L = situation.safe_smoothness
    rho = pull * L / (steps - pull)  # with a rate of 1/(L + rho)
    note = (
        f"A penalty per work: {pull:g} / (learning rate * {steps} local steps), which brings a "
        "client back by about a fifth of its way in a round. The best of those tried with local "
        "work that begins at the global model (docs/participation.md): measured, not proven."
    )
    return [
        Advice(method, "rho", 0.0, 1.0 / feddr_eta_max(L), rho, note),
        _learning_rate_row(situation, method, rho),
    ]
