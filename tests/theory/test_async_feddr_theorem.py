import math
from fractions import Fraction as Q

import pytest
from hypothesis import given, strategies as st

from fedadmm.core.errors import ParameterError
from fedadmm.theory import (
    async_alpha_bar,
    async_certificate,
    async_feddr_bound,
)
from support.printed import async_constants, async_eta_bar
from support.rejections import naming

clients = st.integers(1, 200)
delays = st.integers(0, 60)
smoothness = st.floats(1e-2, 1e2)
part = st.floats(0.02, 0.98)


def test_short_delays_by_hand() -> None:
    # n = 4, tau = 1 (2 <= 4), T = 2, p = 1/4, L = 1, alpha = 1/2, eta = 1/4, x² = 1/16
    descent = 2 * Q(1, 2) - Q(5, 2) * Q(1, 16) - Q(1, 8)
    rho = descent / (Q(1, 2) * Q(1, 4) * 4)
    assert rho == Q(23, 16)
    stale = 8 * Q(1, 4) * Q(17, 16) * (1 + 2 * 2 * 4 * Q(1, 4))
    waiting = 8 * 16 * (Q(17, 16) + 2 * Q(1, 4) * Q(1, 4))
    D = (stale + waiting) / (Q(1, 4) * Q(1, 4) * 16)
    assert Q(1301, 8) == D
    C_hat = 2 * Q(25, 16) * D / (4 * Q(1, 16) * rho)
    eta_bar = (math.sqrt(16 - 4 - 7 / 4) - 1 / 2) / (2 * 2.5)
    expected = (1.0, eta_bar, float(rho), float(D), float(C_hat))
    found = async_constants(4, 1, 2, 0.25, 1.0, 0.5, 0.25)
    assert found[:5] == pytest.approx(expected, rel=1e-12)


def test_long_delays_by_hand() -> None:
    # n = 4, tau = 2: 2 tau² - n = 4, c = 1/4, alpha_bar = 2/(9/4); numbers as above otherwise.
    # rho = (16 * 23/32 - (1/2)(17/16) 4) / ((1/2)(1/4) 64) = (11.5 - 2.125)/8
    result = async_constants(4, 2, 2, 0.25, 1.0, 0.5, 0.25)
    assert result.alpha_bar == pytest.approx(8 / 9)
    assert result.rho == pytest.approx(9.375 / 8)
    # sqrt(16 - 4 - (7 + 12/4 + 4/16)/4) = sqrt(9.4375)
    assert result.eta_bar == pytest.approx((math.sqrt(9.4375) - 0.5) / (2 * (2 + 5 / 8)))
    # D = [2 (17/16)(4 + 4) + 152] / 1
    assert pytest.approx(17 + 152) == result.D


def test_printed_eta_bar_would_allow_a_negative_rho() -> None:
    n, tau, alpha = 4, 2, 0.5
    c = (2 * tau**2 - n) / n**2
    printed = (math.sqrt(16 - 8 * alpha - (7 + 4 * c + 4 * c**2) * alpha**2) - alpha) / (
        2 * (2 + (1 + c) * alpha)
    )
    eta = 0.5 * (printed + async_eta_bar(n, tau, 1.0, alpha))
    assert eta < printed
    x = eta
    numerator = n**2 * (2 * (1 - alpha) - (2 + alpha) * x**2 - alpha * x)
    numerator -= alpha * (1 + x**2) * (2 * tau**2 - n)
    assert numerator < 0


@given(clients, delays, smoothness, part)
def test_rho_vanishes_at_eta_bar(n: int, tau: int, L: float, share: float) -> None:
    alpha = share * async_alpha_bar(n, tau)
    eta_bar = async_eta_bar(n, tau, L, alpha)
    inside = async_constants(n, tau, 1, 0.5, L, alpha, eta_bar / 2).rho
    near = async_constants(n, tau, 1, 0.5, L, alpha, eta_bar * (1 - 1e-7)).rho
    assert 0 < near < 1e-5 * inside


@given(clients, delays, smoothness, part, part, st.integers(1, 50))
def test_printed_constants_are_monotone(
    n: int, tau: int, L: float, share: float, step: float, T: int
) -> None:
    alpha = share * async_alpha_bar(n, tau + 1)
    eta = step * async_eta_bar(n, tau + 1, L, alpha)
    now = async_constants(n, tau, T, 0.5, L, alpha, eta)
    later = async_constants(n, tau + 1, T, 0.5, L, alpha, eta)
    assert min(now) > 0
    assert later.alpha_bar <= now.alpha_bar
    assert later.rho <= now.rho
    assert later.C_hat > now.C_hat
    assert async_constants(n, tau, T + 1, 0.5, L, alpha, eta).D > now.D
    assert async_constants(n, tau, T, 0.25, L, alpha, eta).C_hat > now.C_hat


def test_certificate_by_hand() -> None:
    # n = 4, tau = 2 (m = 4), T = 1, p = 1/4, L = 1, alpha = 1/2, eta = 1/4, s = 1/2
    A = 2 - Q(5, 8) - 3 * Q(1, 16) - Q(3, 4) * Q(17, 16)
    moves = Q(3, 2) * Q(25, 16)
    rho = (16 * A - Q(1, 2) * moves * 4) / 8
    assert rho == Q(25, 128)
    E = 4 * 2 / Q(1, 16) + 4 * 2 * 4 / (Q(1, 4) * 16) + Q(4, 4)
    assert E == 137
    D = moves * E + 4
    C_hat = 2 * moves * D / (4 * Q(1, 16) * rho)
    B = 3 * (C_hat / 4 * (2 + Q(1, 4) + Q(4, 32)) + moves * E + 8)
    result = async_certificate(4, 2, 1, 0.25, 1.0, 0.5, 0.25, slack=0.5)
    assert result.alpha_bar == pytest.approx(2 / (1 + 1.5 * 1.25))
    assert result[2:] == pytest.approx([float(value) for value in (rho, D, C_hat, B)], rel=1e-12)
    assert math.isinf(async_certificate(4, 2, 1, 0.25, 1.0, 0.5, 0.25).B)


@given(clients, delays, smoothness, part, st.floats(0.0, 1.0))
def test_certificate_limits_are_where_rho_vanishes(
    n: int, tau: int, L: float, share: float, slack: float
) -> None:
    alpha = share * 2.0 / (1.0 + (1.0 + slack) * (1.0 + max(0, 2 * tau**2 - n) / n**2))
    probe = async_certificate(n, tau, 1, 0.5, L, alpha, 1e-9 / L, slack=slack)
    inside = async_certificate(n, tau, 1, 0.5, L, alpha, probe.eta_bar / 2, slack=slack)
    near = async_certificate(n, tau, 1, 0.5, L, alpha, probe.eta_bar * (1 - 1e-7), slack=slack)
    assert 0 < near.rho < 1e-5 * inside.rho


@given(clients, smoothness, part, part)
def test_certificate_has_the_printed_rho_while_delays_are_short(
    n: int, L: float, share: float, step: float
) -> None:
    tau = math.isqrt(n // 2)
    eta = step * async_eta_bar(n, tau, L, share)
    printed = async_constants(n, tau, 1, 0.5, L, share, eta)
    certified = async_certificate(n, tau, 1, 0.5, L, share, eta)
    assert certified.rho == pytest.approx(printed.rho, rel=1e-6)
    assert certified.eta_bar == pytest.approx(printed.eta_bar)


def test_bound_by_hand_and_its_start() -> None:
    setting = (4, 1, 0, 0.25, 1.0, 0.5, 0.25)
    exact = async_certificate(*setting)
    # T = 0: D = (25/16) [4/(1/4 * 1/4) + 4/(1/4 * 16)] = (25/16) 65 and rho = 23/16 as above.
    C_hat = 2 * Q(25, 16) ** 2 * 65 / (4 * Q(1, 16) * Q(23, 16))
    assert exact.C_hat == pytest.approx(float(C_hat))
    assert async_feddr_bound(*setting, 9, 2.0) == pytest.approx(float(C_hat) / 5)
    # The ladder's first rung halves rho: price = 16 (2/16 + (1/2)(17/16)), slack = 23/(2 price).
    slack = Q(23, 32) * 16 / (2 * 16 * (Q(1, 8) + Q(17, 32)))
    rung = async_certificate(*setting, slack=float(slack))
    assert rung.rho == pytest.approx(exact.rho / 2)
    started = async_feddr_bound(*setting, 9, 0.0, start_gradient=2.0)
    assert started <= rung.B * 2.0 / 10 * (1 + 1e-12)
    assert async_feddr_bound(*setting, 9, 1.0, start_gradient=2.0) > started


@given(st.integers(1, 10**6), st.floats(0.0, 10.0), st.floats(0.0, 10.0))
def test_bound_is_monotone(rounds: int, gap: float, start: float) -> None:
    setting = (20, 3, 5, 0.05, 1.0, 0.4, 0.2)
    now = async_feddr_bound(*setting, rounds, gap, start_gradient=start)
    assert async_feddr_bound(*setting, rounds + 1, gap, start_gradient=start) <= now
    assert async_feddr_bound(*setting, rounds, gap + 1, start_gradient=start) > now
    assert async_feddr_bound(*setting, rounds, gap, start_gradient=start + 1) > now


@given(clients, delays, smoothness, part, part)
def test_start_costs_little_when_its_gradients_are_small(
    n: int, tau: int, L: float, share: float, step: float
) -> None:
    # The slack must fit every setting: never beyond the limits, and cheap for a small G0.
    alpha = share * async_alpha_bar(n, tau)
    eta = step * async_certificate(n, tau, 0, 0.5, L, alpha, 1e-9 / L).eta_bar
    exact = async_feddr_bound(n, tau, 0, 0.5, L, alpha, eta, 9, 1.0)
    nearly = async_feddr_bound(n, tau, 0, 0.5, L, alpha, eta, 9, 1.0, start_gradient=1e-30)
    assert exact < nearly < 1.01 * exact


def test_domain_errors_name_the_condition() -> None:
    with pytest.raises(ParameterError) as error:
        async_certificate(4, 2, 1, 0.25, 1.0, 0.9, 0.1)
    error.match(naming("async_certificate alpha 0.9 n tau slack alpha_bar 0.8889"))
    with pytest.raises(ParameterError, match=naming("eta 0.6 eta_bar 0.5403")):
        async_certificate(20, 3, 1, 0.05, 1.0, 0.5, 0.6)
    with pytest.raises(ParameterError, match="T: got -1, expected a whole number of at least 0"):
        async_certificate(20, 3, -1, 0.05, 1.0, 0.5, 0.1)
    with pytest.raises(ParameterError, match="tau: got -1"):
        async_alpha_bar(4, -1)
    with pytest.raises(ParameterError, match=naming("async_certificate alpha 0.95 slack")):
        async_certificate(20, 3, 0, 0.05, 1.0, 0.95, 0.1, slack=1.0)
