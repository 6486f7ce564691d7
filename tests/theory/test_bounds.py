import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from fedadmm.core.errors import ParameterError
from fedadmm.theory import async_feddr_bound, feddr_bound, gong_bound, noise_floor, rounds_needed
from support.rejections import naming

QUANTITIES: dict[Callable[..., float], dict[str, float]] = {
    gong_bound: {"L": 1.0, "rho": 4.0, "p_min": 0.5, "gap": 2.0, "start_gradient": 1.0},
    feddr_bound: {"L": 1.0, "eta": 0.3, "alpha": 0.8, "p_hat": 0.1, "gap": 2.0, "error_sum": 0.1},
    async_feddr_bound: {
        "n": 20,
        "tau": 3,
        "T": 2,
        "p_hat": 0.05,
        "L": 1.0,
        "alpha": 0.5,
        "eta": 0.2,
        "gap": 2.0,
    },
}


def test_rounds_needed_by_hand() -> None:
    # 160 * 10/3 / (K + 1) <= 0.01 from K + 1 = 53333.3 on
    corollary = {"L": 1.0, "eta": 1 / 3, "alpha": 1.0, "p_hat": 0.1, "gap": 1.0}
    assert rounds_needed(feddr_bound, 0.01, **corollary) == 53333
    # 213 * 2 / T <= 1 from T = 426 on
    assert rounds_needed(gong_bound, 1.0, L=1.0, rho=4.0, p_min=0.5, gap=2.0) == 426


@pytest.mark.parametrize("bound", QUANTITIES)
@given(accuracy=st.floats(1e-6, 1e6))
def test_rounds_needed_inverts_the_bound(bound: Callable[..., float], accuracy: float) -> None:
    quantities = QUANTITIES[bound]
    rounds = rounds_needed(bound, accuracy, **quantities)
    assert bound(rounds=rounds, **quantities) <= accuracy
    assert rounds == 1 or bound(rounds=rounds - 1, **quantities) > accuracy


def test_an_accuracy_below_the_floor_is_refused() -> None:
    with pytest.raises(ParameterError, match=naming("accuracy 1.0 53.65 gong_bound")):
        rounds_needed(gong_bound, 1.0, L=1.0, rho=4.0, p_min=0.5, gap=2.0, epsilon_max=0.1)


def test_exported_names_exist_and_torch_stays_out() -> None:
    program = "import sys, fedadmm.theory; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_noise_floor_by_hand_and_against_the_stationary_variance() -> None:
    assert noise_floor(3.0, 1.0, 0.0, 0.125, 2.0) == pytest.approx(4.0)  # (1/8) 16 * 2 / 1
    assert noise_floor(3.0, 1.0, 3.0, 0.125, 2.0) == pytest.approx(1.0)  # (1/8) 16 * 2 / 4
    # On curvature c SGD levels off at the variance lr v/(c (2 - lr c)), E||grad||² is c² of that.
    for curvature in (1.0, 2.0, 4.0):
        stationary = curvature * 0.125 * 2.0 / (2 - 0.125 * curvature)
        assert stationary <= noise_floor(3.0, 1.0, 0.0, 0.125, 2.0)


def test_noise_floor_needs_a_strongly_convex_local_problem() -> None:
    with pytest.raises(ParameterError, match=r"convexity \+ rho"):
        noise_floor(3.0, 2.0, -3.0, 0.1, 1.0)
