import pytest
from hypothesis import given, strategies as st

from fedadmm.core.errors import ParameterError
from fedadmm.theory import insa_sigma_bound


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
    with pytest.raises(ParameterError, match=r"insa_sigma_bound: c: got 0.0, expected > 0"):
        insa_sigma_bound(1.0, 0.0)
