import math
from fractions import Fraction as Q

import pytest
from hypothesis import assume, given, strategies as st

from fedadmm.core.errors import ParameterError
from fedadmm.core.stopping import ProxAccuracy
from fedadmm.theory import (
    feddr_alpha_max,
    feddr_best_steps,
    feddr_bound,
    feddr_constants,
    feddr_eta_max,
    feddr_prox_start_excess,
)
from support.rejections import naming

smoothness = st.floats(1e-3, 1e3)
relaxation = st.floats(0.05, 1.7)
slack = st.floats(0.0, 10.0)
fraction = st.floats(0.01, 0.98)


def test_general_constants_give_corollary_3_1() -> None:
    # eta = 1/(3L), alpha = 1, p = 1/n, exact: N = 2 - 4/3 - 2/9 = 4/9 and
    # beta = (1/n)(4/9) 3L/2 * 9/10 = 3L/(5n), C1 = 2 (16/9) 9 L² 5n/(3L) = 160 L n/3.
    for L, n in ((1.0, 10), (4.0, 3), (0.2, 100)):
        constants = feddr_constants(L, 1 / (3 * L), 1.0, 1 / n)
        assert constants.beta == pytest.approx(float(Q(3, 5)) * L / n)
        assert pytest.approx(float(Q(160, 3)) * L * n) == constants.C1
    assert feddr_bound(3.0, 1 / 9, 1.0, 0.1, 99, 2.0) == pytest.approx(32.0)  # 160*30/300 * 2


def test_constants_by_hand() -> None:
    # L = 1, eta = alpha = p = 1/2, gamma1 = gamma2 = 1, and half of the largest gamma4, where
    # 2 - 3/4 - 1/2 - 5 gamma4 = 0: gamma4 = 3/40
    # N = 2 - 3/4 - 1/2 - 3/8 = 3/8
    # beta = (1/2)(1/2)(3/8) / (2 (1/2) 2 (5/4)) = 3/80
    # rho1 = (9/4)/(1/4) [2 + 40/3 + (3/8)/(2 * 5/4)] = 9 (2 + 40/3 + 3/20)
    # rho2 = rho1 + (1/2)(9/4)/(8 * 3/40 * 1/2) = rho1 + 15/4
    # C1 = 2 (9/4) 2/((1/4)(3/80)) = 960, Q = (9/4) 2/(1/4) = 18
    constants = feddr_constants(1.0, 0.5, 0.5, 0.5, slack=1.0)
    rho1 = 9 * (2 + Q(40, 3) + Q(3, 20))
    rho2 = rho1 + Q(15, 4)
    expected = (Q(3, 80), rho1, rho2, 960, rho1 * 960 + 18, rho2 * 960)
    assert constants == pytest.approx([float(value) for value in expected], rel=1e-12)


def test_bound_with_errors_by_hand() -> None:
    # The bound takes the best slack of a ladder, here gamma1 = gamma2 = 3/10 and 3/13 of the
    # largest gamma4, (3/4)/(4 * 5/4) = 3/20: gamma4 = 9/260 and N = 3/4 - 5 * 9/260 = 15/26.
    beta = Q(1, 4) * Q(15, 26) / (Q(13, 10) * Q(5, 4))
    c1 = 2 * Q(9, 4) * Q(13, 10) / (Q(1, 4) * beta)
    rho1 = 9 * (2 + Q(260, 9) + Q(15, 26) / Q(3, 4))
    rho2 = rho1 + Q(9, 8) / Q(36, 260)
    mapping = Q(9, 4) * Q(13, 10) / Q(3, 40)
    errors = (rho1 * c1 + mapping + rho2 * c1) * Q(1, 10)
    start = (rho1 * c1 + mapping / Q(1, 2)) * Q(1, 9) * 3
    setting = (1.0, 0.5, 0.5, 0.5, 9)
    only_errors = feddr_bound(*setting, 0.0, error_sum=0.1)
    only_start = feddr_bound(*setting, 0.0, start_gradient=3.0)
    everything = feddr_bound(*setting, 2.0, error_sum=0.1, start_gradient=3.0)
    assert only_errors == pytest.approx(float(errors) / 10, rel=1e-12)
    assert only_start == pytest.approx(float(start) / 10, rel=1e-12)
    assert everything == pytest.approx(float(2 * c1 + errors + start) / 10, rel=1e-12)


def test_constants_without_slack_do_not_bound_errors() -> None:
    constants = feddr_constants(1.0, 0.25, 1.0, 0.5)
    assert math.isinf(constants.rho1)
    assert math.isinf(constants.C3)


@given(smoothness, relaxation)
def test_eta_and_alpha_limits_are_inverse(L: float, alpha: float) -> None:
    eta = feddr_eta_max(L, alpha)
    assert feddr_alpha_max(L, eta) == pytest.approx(alpha, rel=1e-9)
    x = eta * L  # where N vanishes
    assert 2 - alpha * (1 + x) - 2 * x**2 == pytest.approx(0.0, abs=1e-12)


@given(smoothness, relaxation, slack, fraction)
def test_beta_is_positive_inside_and_vanishes_at_the_limit(
    L: float, alpha: float, slack: float, part: float
) -> None:
    limit = feddr_eta_max(L, alpha)
    assert feddr_constants(L, part * limit, alpha, slack=slack).beta > 0
    near = feddr_constants(L, limit * (1 - 1e-7), alpha, slack=slack).beta
    assert near < 1e-4 * L * (1 + 1 / (limit * L))


@given(smoothness, relaxation, fraction, st.floats(0.1, 10.0))
def test_constants_scale_with_the_problem(
    L: float, alpha: float, part: float, scale: float
) -> None:
    # f -> s f with eta -> eta/s leaves the iterates alone: ||G||² gains s², gap gains s.
    eta = part * feddr_eta_max(L, alpha)
    one = feddr_constants(L, eta, alpha, 0.3)
    other = feddr_constants(scale * L, eta / scale, alpha, 0.3)
    assert pytest.approx(scale * one.C1, rel=1e-9) == other.C1
    assert other.beta == pytest.approx(scale * one.beta, rel=1e-9)


@given(smoothness, relaxation, fraction, st.floats(0.05, 1.0), st.integers(1, 10**6))
def test_bound_is_monotone(L: float, alpha: float, part: float, p: float, rounds: int) -> None:
    eta = part * feddr_eta_max(L, alpha)

    def value(p_hat: float, count: int, error: float = 0.0, start: float = 0.0) -> float:
        return feddr_bound(L, eta, alpha, p_hat, count, 1.0, error_sum=error, start_gradient=start)

    base = value(p, rounds)
    assert value(p, rounds + 1) < base
    assert value(p / 2, rounds) == pytest.approx(2 * base)
    assert base < value(p, rounds, 0.1) < value(p, rounds, 0.2)
    assert base < value(p, rounds, 0.0, 0.1) < value(p, rounds, 0.0, 0.2)


@given(relaxation, st.floats(0.01, 0.9))
def test_best_steps_are_no_worse_than_any_other(alpha: float, x: float) -> None:
    assume(x < 1 - alpha / 2 - 1e-6)
    eta, best_alpha = feddr_best_steps(1.0)
    best = feddr_constants(1.0, eta, best_alpha).C1
    assert best <= feddr_constants(1.0, x, alpha).C1 * (1 + 1e-12)
    assert best == pytest.approx(37.774, abs=1e-3)  # 4 (1+x)(1+x²)/(x (1-x)²) at x = 0.25308
    assert 3 * eta**3 + 3 * eta**2 + 3 * eta == pytest.approx(1.0)
    assert feddr_best_steps(4.0) == pytest.approx((eta / 4, best_alpha))


def test_prox_start_excess_covers_quadratics() -> None:
    # f = (a/2)(x - b)²: x_i = (x0 + eta a b)/(1 + eta a); V^0 at x0 minus f(x0), by its definition.
    eta, L, x0 = 0.3, 1.0, 2.0
    for a in (-1.0, -0.4, 0.2, 1.0):
        for b in (-3.0, 0.0, 5.0):
            x = (x0 + eta * a * b) / (1 + eta * a)
            gradient = a * (x - b)
            value = a / 2 * (x - b) ** 2 + gradient * (x0 - x) + (x0 - x) ** 2 / (2 * eta)
            excess = value - a / 2 * (x0 - b) ** 2
            assert excess <= feddr_prox_start_excess(L, eta, (a * (x0 - b)) ** 2) + 1e-12
    assert feddr_prox_start_excess(1.0, 0.5, 3.0) == pytest.approx(0.5 * 3 / 0.25)


def test_accuracies_sum_to_less_than_the_budget() -> None:
    squares = [ProxAccuracy(8.0).epsilon(k - 1) ** 2 for k in range(10_000)]
    assert squares[0] == pytest.approx(4.0)
    assert squares[1] == pytest.approx(1.0)
    assert sum(squares) == pytest.approx(4.0 * math.pi**2 / 6, abs=1e-3)
    assert sum(squares) < 8.0


def test_domain_errors_name_the_condition() -> None:
    with pytest.raises(ParameterError, match=naming("feddr_constants eta 0.5 0.25 alpha")):
        feddr_constants(2.0, 0.5, 1.0)
    with pytest.raises(ParameterError, match=r"alpha: got 2.0, expected > 0 and < 2"):
        feddr_eta_max(1.0, 2.0)
    with pytest.raises(ParameterError, match=r"eta: got 0.6, expected > 0 and < 0.5"):
        feddr_alpha_max(2.0, 0.6)
    with pytest.raises(ParameterError, match=r"eta: got 0.5, expected > 0 and < 0.5"):
        feddr_prox_start_excess(2.0, 0.5, 1.0)
    with pytest.raises(ParameterError, match=r"p_hat: got 1.5"):
        feddr_constants(1.0, 0.1, 1.0, 1.5)
