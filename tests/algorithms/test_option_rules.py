"""Rules between the options of an algorithm; `core/test_validation.py` checks each option alone."""

from __future__ import annotations

import pytest

import fedadmm as fa
from support.rejections import Cases, assert_rejected

RULES: Cases = {
    "FedADMM with a schedule and a step": (
        lambda: fa.FedADMM(fa.schedules.Geometric(1.0), step=0.5),
        "FedADMM step 0.5 'tracking'",
    ),
    "FedADMM over the clients seen with a step": (
        lambda: fa.FedADMM(1.0, step=0.5, members="seen"),
        "FedADMM step 0.5 'tracking'",
    ),
    "FedADMM-InSa with a penalty above its limit": (
        lambda: fa.FedADMMInSa(1e9),
        "FedADMMInSa beta 1000000000.0 10000",
    ),
    "FedADMM-InSa with crossed limits": (
        lambda: fa.FedADMMInSa(1.0, beta_min=2.0, beta_max=1.0),
        "FedADMMInSa beta_max 1.0 2",
    ),
    "FedSplit with another relaxation": (
        lambda: fa.FedSplit(1.0, alpha=1.5),
        "FedSplit alpha 1.5 2",
    ),
}


@pytest.mark.parametrize("case", RULES)
def test_options_that_exclude_each_other_are_rejected(case: str) -> None:
    assert_rejected(fa.errors.ParameterError, RULES[case])
