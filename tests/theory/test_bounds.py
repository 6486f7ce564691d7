import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedadmm.core.errors import ParameterError
from fedadmm.theory import THEOREMS, bound, feddr_corollary_bound, gong_bound, rounds_needed

QUANTITIES: dict[str, dict[str, float]] = {
    "gong": {"L": 1.0, "rho": 4.0, "p_min": 0.5, "gap": 2.0, "start_gradient": 1.0},
    "feddr": {"L": 1.0, "eta": 0.3, "alpha": 0.8, "p_hat": 0.1, "gap": 2.0, "error_sum": 0.1},
    "feddr_corollary": {"L": 1.0, "n": 10, "gap": 2.0},
    "wang": {"L": 1.0, "eta": 4.0, "p_hat": 0.1, "gap": 2.0},
    "async_feddr": {
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


def test_every_theorem_has_a_row_here() -> None:
    assert set(QUANTITIES) == set(THEOREMS)


def test_bound_is_the_theorems_own() -> None:
    assert bound("feddr_corollary", 9, L=1.0, n=3, gap=2.0) == feddr_corollary_bound(1.0, 3, 9, 2.0)
    assert bound("gong", 10, L=1.0, rho=4.0, p_min=0.5, gap=2.0, epsilon_max=0.1) == gong_bound(
        1.0, 4.0, 0.5, 10, 2.0, epsilon_max=0.1
    )


def test_rounds_needed_by_hand() -> None:
    # 160 * 10/3 / (K + 1) <= 0.01 from K + 1 = 53333.3 on
    assert rounds_needed("feddr_corollary", 0.01, L=1.0, n=10, gap=1.0) == 53333
    # 213 * 2 / T <= 1 from T = 426 on
    assert rounds_needed("gong", 1.0, L=1.0, rho=4.0, p_min=0.5, gap=2.0) == 426


@pytest.mark.parametrize("theorem", THEOREMS)
@given(accuracy=st.floats(1e-6, 1e6))
def test_rounds_needed_inverts_the_bound(theorem: str, accuracy: float) -> None:
    quantities = QUANTITIES[theorem]
    rounds = rounds_needed(theorem, accuracy, **quantities)
    assert bound(theorem, rounds, **quantities) <= accuracy
    assert rounds == 1 or bound(theorem, rounds - 1, **quantities) > accuracy


def test_an_accuracy_below_the_floor_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"accuracy is 1.0, .* 'gong' stays above 53.65 "):
        rounds_needed("gong", 1.0, L=1.0, rho=4.0, p_min=0.5, gap=2.0, epsilon_max=0.1)


def test_wrong_quantities_are_named() -> None:
    with pytest.raises(ParameterError, match="theorem is 'adam', but must be one of 'gong'"):
        bound("adam", 1)
    with pytest.raises(ParameterError, match="theorem 'gong' needs rho, gap; it takes L, rho"):
        bound("gong", 1, L=1.0, p_min=0.5)
    with pytest.raises(ParameterError, match="theorem 'feddr_corollary' does not know rho"):
        bound("feddr_corollary", 1, L=1.0, n=2, gap=1.0, rho=3.0)


def test_exported_names_exist_and_torch_stays_out() -> None:
    program = "import sys, fedadmm.theory; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
