import math
from fractions import Fraction as Q

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedadmm.core.errors import ParameterError
from fedadmm.theory import (
    feddr_constants,
    feddr_eta_max,
    insa_sigma_bound,
    wang_bound,
    wang_constants,
    wang_eta_min,
)

smoothness = st.floats(1e-3, 1e3)


def test_eta_min_by_hand() -> None:
    assert wang_eta_min(3.0) == pytest.approx(6.0)  # 4L/(3 - 1)
    # gamma4 = 1/8: 4 (5/4)/(sqrt(9 - 2 * 3/2) - 1)
    assert wang_eta_min(1.0, 0.125) == pytest.approx(5 / (math.sqrt(6) - 1))


@given(smoothness, st.floats(0.0, 0.24))
def test_eta_min_is_the_inverse_of_feddr_limit(L: float, gamma4: float) -> None:
    assert wang_eta_min(L, gamma4) * feddr_eta_max(L, 1.0, gamma4) == pytest.approx(1.0)
    assert wang_eta_min(L, gamma4) >= 2 * L * (1 - 1e-12)
    assert wang_eta_min(L, gamma4 + 0.001) > wang_eta_min(L, gamma4)


def test_constants_by_hand() -> None:
    # L = 1, eta = 4: h = x = 1/4; gamma1 = gamma2 = 1, gamma4 = 1/20, p = 1/2
    N = 2 - Q(5, 4) - Q(1, 8) - Q(1, 5) * Q(17, 16)
    assert Q(33, 80) == N
    beta = Q(1, 2) * N / (2 * Q(1, 4) * 2 * Q(17, 16))
    rho2 = 2 * Q(25, 16) * 20 * 4 + Q(17, 16) * 4 + N / (Q(1, 2) * Q(17, 16))
    rho1 = rho2 + Q(17, 4)
    C1 = 2 * Q(25, 16) * 2 * 16 / beta
    C3 = rho2 * C1 + Q(25, 16) * 2 * 16
    expected = [float(value) for value in (beta, rho1, rho2, C1, rho1 * C1, C3)]
    result = wang_constants(1.0, 4.0, 0.5, gamma1=1.0, gamma2=1.0, gamma4=0.05)
    assert result == pytest.approx(expected, rel=1e-12)
    bound = wang_bound(1.0, 4.0, 0.5, 9, 2.0, error_sum=3.0, gamma1=1.0, gamma2=1.0, gamma4=0.05)
    assert bound == pytest.approx(float(C1 * 2 + (rho1 * C1 + C3) * 3) / 10)


@given(smoothness, st.floats(1.01, 50.0), st.floats(0.01, 1.0), st.floats(0.0, 2.0))
def test_beta_and_c1_are_those_of_feddr(L: float, times: float, p: float, gamma: float) -> None:
    eta = wang_eta_min(L, 0.02) * times
    ours = feddr_constants(L, 1 / eta, 1.0, p, gamma1=gamma, gamma2=gamma, gamma4=0.02)
    printed = wang_constants(L, eta, p, gamma1=gamma, gamma2=gamma, gamma4=0.02)
    assert printed.beta == pytest.approx(ours.beta)
    assert pytest.approx(ours.C1) == printed.C1


@given(st.floats(1.01, 50.0), st.floats(1 / 3, 10.0), st.floats(0.001, 0.2))
def test_printed_error_constants_are_safe_for_enough_slack(
    times: float, gamma1: float, gamma4: float
) -> None:
    eta = wang_eta_min(1.0, gamma4) * times
    slack = {"gamma1": gamma1, "gamma2": 1.0, "gamma4": gamma4}
    derived = feddr_constants(1.0, 1 / eta, 1.0, **slack)
    printed = wang_constants(1.0, eta, **slack)
    assert printed.rho1 >= derived.rho1
    assert printed.rho2 >= derived.rho2


def test_printed_error_constants_fall_below_the_derived_ones_without() -> None:
    slack = {"gamma1": 1e-3, "gamma2": 1.0, "gamma4": 0.05}
    assert wang_constants(1.0, 4.0, **slack).rho2 < feddr_constants(1.0, 0.25, 1.0, **slack).rho2


def test_wang_domain_errors() -> None:
    with pytest.raises(ParameterError) as error:
        wang_constants(1.0, 1.5)
    assert str(error.value) == (
        "wang_constants: eta is 1.5, but Theorem 2 with gamma4 = 0 needs eta > 2"
    )
    with pytest.raises(ParameterError, match=r"gamma4 is 0.25, but must be >= 0 and < 0.25"):
        wang_eta_min(1.0, 0.25)
    with pytest.raises(ParameterError, match="inexact solves need gamma1, gamma2 and gamma4"):
        wang_bound(1.0, 4.0, 0.5, 10, 1.0, error_sum=1.0)


def test_insa_by_hand() -> None:
    assert insa_sigma_bound(2.0, 1.0) == pytest.approx(0.5)
    assert insa_sigma_bound(8.0, 1.0) == pytest.approx(1 / 3)  # sqrt2/(sqrt2 + 2 sqrt2)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_insa_bound_is_inverse_and_monotone(beta: float, c: float) -> None:
    sigma = insa_sigma_bound(beta, c)
    assert 0 < sigma < 1
    assert 2 * c * (1 / sigma - 1) ** 2 == pytest.approx(beta, rel=1e-6)
    assert insa_sigma_bound(2 * beta, c) < sigma < insa_sigma_bound(beta, 2 * c)


def test_insa_domain_errors() -> None:
    with pytest.raises(ParameterError, match=r"insa_sigma_bound: c is 0.0, but must be > 0"):
        insa_sigma_bound(1.0, 0.0)
