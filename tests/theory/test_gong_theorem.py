import math
from fractions import Fraction as Q

import pytest
from hypothesis import given, strategies as st

from fedadmm.core.errors import ParameterError
from fedadmm.theory import gong_best_rho, gong_bound, gong_constants, gong_rho_min, table_one
from support.rejections import naming

smoothness = st.floats(1e-3, 1e3)
excess = st.floats(1.01, 100.0)
probability = st.floats(0.01, 1.0)


def test_constants_by_hand() -> None:
    # L = 1, rho = 4, p = 1/2: c1 = (2/2 - 2/4)/2, c2 = 3 (1 + 16) + 2 (1 + 2/16),
    # c3 = 3 + 16/16 + (c2/c1) (4 + 16)/8
    c1, c2, c3 = gong_constants(1.0, 4.0, 0.5)
    assert c1 == pytest.approx(float(Q(1, 4)), rel=1e-15)
    assert c2 == pytest.approx(float(Q(51) + Q(9, 4)), rel=1e-15)
    assert c3 == pytest.approx(float(4 + 213 * Q(20, 8)), rel=1e-15)
    # L = 2, rho = 10, p = 1: c1 = 6/2 - 8/10, c2 = 3 * 104 + 2 (1 + 8/100)
    c1, c2, c3 = gong_constants(2.0, 10.0, 1.0)
    assert c1 == pytest.approx(2.2)
    assert c2 == pytest.approx(314.16)
    assert c3 == pytest.approx(3 + 0.16 + 314.16 / 2.2 * 42 / 40)


def test_bound_by_hand() -> None:
    # c2/c1 = 213 as above: 213 (2 + 0.1/2)/10 + 536.5 * 0.1
    printed = gong_bound(1.0, 4.0, 0.5, 10, 2.0, epsilon_max=0.1)
    assert printed == pytest.approx(43.665 + 53.65)
    # The start adds [213 (4/4 + 1/(2*3)) + 8/(0.5*16)] * 3 / 10
    started = gong_bound(1.0, 4.0, 0.5, 10, 2.0, epsilon_max=0.1, start_gradient=3.0)
    assert started - printed == pytest.approx((213 * 7 / 6 + 1) * 0.3)


def test_rho_min_is_the_root_of_c1() -> None:
    # c1 = 0 is rho² - 2 L rho - 4 L² = 0.
    for L in (0.1, 1.0, 7.0):
        rho = gong_rho_min(L)
        assert rho**2 - 2 * L * rho - 4 * L**2 == pytest.approx(0.0, abs=1e-12 * L**2)
        assert gong_constants(L, rho * 1.0001, 1.0).c1 < 1e-3 * rho
    assert gong_rho_min(1.0) == pytest.approx(3.2360679774997896)


@given(smoothness, excess, probability)
def test_constants_are_positive_and_c1_scales_with_p(L: float, times: float, p: float) -> None:
    rho = gong_rho_min(L) * times
    constants = gong_constants(L, rho, p)
    assert min(constants) > 0
    assert gong_constants(L, rho, 1.0).c1 * p == pytest.approx(constants.c1)


@given(smoothness, excess, probability, st.integers(1, 10**6), st.floats(0, 1e3), st.floats(0, 10))
def test_bound_falls_with_rounds_to_its_floor(
    L: float, times: float, p: float, rounds: int, gap: float, epsilon: float
) -> None:
    rho = gong_rho_min(L) * times
    quantities = {"epsilon_max": epsilon, "start_gradient": 1.0}
    now = gong_bound(L, rho, p, rounds, gap, **quantities)
    assert gong_bound(L, rho, p, rounds + 1, gap, **quantities) < now * (1 + 1e-12)
    assert gong_bound(L, rho, p, rounds, gap + 1, **quantities) > now * (1 - 1e-12)
    floor = gong_constants(L, rho, p).c3 * epsilon
    assert now >= floor
    assert gong_bound(L, rho, p, 10**30, gap, **quantities) == pytest.approx(floor, abs=1e-6)


@given(smoothness, st.floats(1.001, 30.0))
def test_best_rho_is_no_worse_than_any_other(L: float, times: float) -> None:
    def ratio(rho: float) -> float:
        constants = gong_constants(L, rho, 1.0)
        return constants.c2 / constants.c1

    assert ratio(gong_best_rho(L)) <= ratio(gong_rho_min(L) * times) * (1 + 1e-9)


def test_domain_errors_name_the_condition() -> None:
    with pytest.raises(ParameterError, match=naming("gong_constants rho 1.0 L 3.236")):
        gong_constants(1.0, 1.0, 0.5)
    with pytest.raises(ParameterError, match="rho"):
        gong_constants(1.0, gong_rho_min(1.0), 0.5)
    with pytest.raises(ParameterError, match=r"p_min: got 0.0, expected > 0 and <= 1"):
        gong_constants(1.0, 4.0, 0.0)
    with pytest.raises(ParameterError, match="rounds: got 0, expected a whole number"):
        gong_bound(1.0, 4.0, 0.5, 0, 1.0)
    with pytest.raises(ParameterError, match=r"gap: got -1.0, expected >= 0"):
        gong_bound(1.0, 4.0, 0.5, 1, -1.0)
    with pytest.raises(ParameterError, match="L: got nan"):
        gong_rho_min(math.nan)


def test_table_one_by_hand() -> None:
    # epsilon = 1/100, m = 100, S = 10, B = 2, G = 3
    found = table_one(0.01, 100, 10, 2.0, 3.0)
    assert found == pytest.approx(
        {
            "FedAvg": 90 / 1000 * 1e4 + 3 * 1000 + 4 * 100,
            "FedProx": 400,
            "SCAFFOLD": 1e4 + 100 * 10 ** (2 / 3),
            "FedPD": math.inf,
            "FedADMM": 1000,
        }
    )
    everybody = table_one(0.01, 100, 100, 12.0, 3.0)
    assert (everybody["FedPD"], everybody["FedProx"]) == (100, math.inf)
    with pytest.raises(ParameterError, match="epsilon: got 0"):
        table_one(0, 100, 10, 2.0, 3.0)
