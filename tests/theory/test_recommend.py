import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedadmm.core.errors import ParameterError
from fedadmm.theory import (
    Advice,
    Situation,
    async_certificate,
    feddr_constants,
    gong_constants,
    insa_sigma_bound,
    noise_floor,
    recommend,
)


def find(rows: tuple[Advice, ...], method: str, parameter: str) -> Advice:
    [row] = [row for row in rows if row.method.startswith(method) and row.parameter == parameter]
    return row


situations = st.builds(
    Situation,
    L=st.floats(1e-2, 1e2),
    probabilities=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=50).map(tuple),
    L_spread=st.floats(0.0, 10.0),
    batch_noise=st.floats(0.0, 10.0),
    strong_convexity=st.one_of(st.none(), st.floats(0.0, 1e-2)),
    local_steps=st.integers(1, 500),
    accuracy=st.floats(1e-6, 1.0),
    tau=st.one_of(st.none(), st.integers(0, 20)),
    window=st.integers(0, 5),
)


@settings(deadline=None, max_examples=40)
@given(situations)
def test_every_recommended_value_lies_inside_its_range(situation: Situation) -> None:
    for row in recommend(situation):
        assert row.low < row.recommended < row.high
        assert row.note.endswith(".")


@settings(deadline=None, max_examples=40)
@given(situations)
def test_theorem_rows_satisfy_their_theorems(situation: Situation) -> None:
    rows = recommend(situation)
    L, p = situation.L + situation.L_spread, min(situation.probabilities)
    gong = gong_constants(L, find(rows, "FedADMM (Gong", "rho").recommended, p)
    epsilon = find(rows, "FedADMM (Gong", "epsilon").recommended
    assert gong.c3 * epsilon == pytest.approx(situation.accuracy / 2)
    feddr_constants(L, 1 / find(rows, "FedADMM (Wang", "rho").recommended, 1.0, p)
    eta = find(rows, "FedDR (Theorem", "eta").recommended
    feddr_constants(L, eta, find(rows, "FedDR (Theorem", "alpha").recommended, p)
    assert find(rows, "FedDR (Theorem", "eta").high * L == pytest.approx(
        1 - find(rows, "FedDR (Theorem", "alpha").recommended / 2
    )
    if situation.tau is not None:
        alpha, eta = (find(rows, "asyncFedDR", name).recommended for name in ("alpha", "eta"))
        n = len(situation.probabilities)
        async_certificate(n, situation.tau, situation.window, p, L, alpha, eta)  # raises outside


@settings(deadline=None, max_examples=40)
@given(situations)
def test_learning_rates_keep_the_noise_within_the_local_accuracy(situation: Situation) -> None:
    rows = recommend(situation)
    L = situation.L + situation.L_spread
    rho, epsilon, rate = (
        find(rows, "FedADMM (Gong", name).recommended
        for name in ("rho", "epsilon", "learning_rate")
    )
    convexity = -L if situation.strong_convexity is None else situation.strong_convexity
    floor = rate * (L + rho) ** 2 * situation.batch_noise / (convexity + rho)
    assert rate <= 1 / (L + rho) * (1 + 1e-12)
    assert floor <= epsilon * (1 + 1e-9)


def test_strongly_convex_rows_by_hand() -> None:
    # mu = 0.25, L = 4: rho = beta = 1, sigma < sqrt2/(sqrt2 + 2)
    full = recommend(Situation(4.0, (1.0, 1.0), strong_convexity=0.25))
    assert find(full, "FedADMM, FedDR (convex", "rho").recommended == pytest.approx(1.0)
    sigma = find(full, "FedADMM-In", "sigma")
    assert sigma.high == pytest.approx(insa_sigma_bound(1.0, 0.25))
    assert sigma.high == pytest.approx(math.sqrt(2) / (math.sqrt(2) + 2))
    assert "full participation only" not in sigma.note
    partly = recommend(Situation(4.0, (0.5, 1.0), strong_convexity=0.25))
    assert "full participation only" in find(partly, "FedADMM-In", "sigma").note


def test_rows_appear_only_where_their_theorem_applies() -> None:
    methods = {row.method for row in recommend(Situation(1.0, (0.1,) * 10))}
    assert not any("convex" in method or "In" in method for method in methods)
    assert not any("async" in method for method in methods)
    methods = {row.method for row in recommend(Situation(1.0, (0.1,) * 10, strong_convexity=0.0))}
    assert "FedADMM, FedDR (convex losses)" in methods
    assert "FedADMM-In" not in methods


def test_practice_rows_say_what_is_lost() -> None:
    rows = recommend(Situation(2.0, (0.1,) * 10, local_steps=20))
    row = find(rows, "FedADMM, FedDR (practice", "rho")
    assert row.recommended == pytest.approx(0.1)
    assert row.high == pytest.approx(4.0)  # above 2L the theorem applies
    assert "every bound are lost" in row.note
    assert find(rows, "FedADMM, FedDR (practice", "eta").recommended == pytest.approx(10.0)
    convex = recommend(Situation(2.0, (0.1,) * 10, strong_convexity=0.0))
    note = find(convex, "FedADMM, FedDR (practice", "rho").note
    assert "convergence with accurate solves is not" in note


@settings(deadline=None, max_examples=40)
@given(situations)
def test_the_penalty_per_work_is_a_quarter_over_the_rate_times_the_steps(
    situation: Situation,
) -> None:
    rows = [row for row in recommend(situation) if row.method == "FedADMM, per work (practice)"]
    if situation.tau is not None:
        assert rows == []
        return
    rho, rate = (row.recommended for row in rows)
    assert rho * rate * situation.local_steps == pytest.approx(0.25, rel=1e-12)


def test_async_uses_the_chance_of_being_next() -> None:
    # All clients alike: the chance is 1/n whatever their probability in a round.
    few = recommend(Situation(1.0, (0.1,) * 20, tau=3))
    all_of_them = recommend(Situation(1.0, (1.0,) * 20, tau=3))
    few_eta, all_eta = find(few, "asyncFedDR", "eta"), find(all_of_them, "asyncFedDR", "eta")
    assert few_eta.recommended == pytest.approx(all_eta.recommended, rel=1e-3)
    assert few_eta.note == all_eta.note


def test_learning_rates_end_where_gradient_descent_no_longer_contracts() -> None:
    # On curvature L + rho a step multiplies the error by 1 - lr (L + rho).
    rows = recommend(Situation(3.0, (1.0,)))
    curvature = 3.0 + find(rows, "FedADMM (Gong", "rho").recommended
    row = find(rows, "FedADMM (Gong", "learning_rate")
    assert row.low == 0.0
    assert abs(1 - 0.999 * row.high * curvature) < 1 < abs(1 - 1.001 * row.high * curvature)


def test_noise_floor_by_hand_and_against_the_stationary_variance() -> None:
    assert noise_floor(3.0, 1.0, 0.0, 0.125, 2.0) == pytest.approx(4.0)  # (1/8) 16 * 2 / 1
    assert noise_floor(3.0, 1.0, 3.0, 0.125, 2.0) == pytest.approx(1.0)  # (1/8) 16 * 2 / 4
    # On curvature c SGD levels off at the variance lr v/(c (2 - lr c)), E||grad||² is c² of that.
    for curvature in (1.0, 2.0, 4.0):
        stationary = curvature * 0.125 * 2.0 / (2 - 0.125 * curvature)
        assert stationary <= noise_floor(3.0, 1.0, 0.0, 0.125, 2.0)


def test_domain_errors_name_the_field() -> None:
    with pytest.raises(ParameterError, match="Situation: probabilities is empty"):
        recommend(Situation(1.0, ()))
    with pytest.raises(
        ParameterError, match=r"probabilities\[1\] is 0.0, but must be > 0 and <= 1"
    ):
        recommend(Situation(1.0, (0.5, 0.0)))
    with pytest.raises(ParameterError, match=r"strong_convexity is 2.0, but must be >= 0 and <= 1"):
        recommend(Situation(1.0, (0.5,), strong_convexity=2.0))
    with pytest.raises(ParameterError, match=r"convexity \+ rho is -1.0"):
        noise_floor(3.0, 2.0, -3.0, 0.1, 1.0)
