"""Rules between the options of an algorithm; `core/test_refusals.py` checks each option alone."""

from __future__ import annotations

import pytest

import fedadmm as fa
from support.refusals import Cases, refused

ALGORITHMS: Cases = {
    "FedADMM schedule with a step": (
        lambda: fa.FedADMM(fa.Geometric(1.0), step=0.5),
        "FedADMM: step is 0.5, but must be 'tracking' with members 'seen', dual 'gradient' or a "
        "schedule of rho, which keep an exact mean (FedADMMPrinted keeps none)",
    ),
    "FedADMM seen with a step": (
        lambda: fa.FedADMM(1.0, step=0.5, members="seen"),
        "FedADMM: step is 0.5, but must be 'tracking' with members 'seen', dual 'gradient' or a "
        "schedule of rho, which keep an exact mean (FedADMMPrinted keeps none)",
    ),
    "FedADMM-InSa beta": (
        lambda: fa.FedADMMInSa(1e9),
        "FedADMMInSa: beta is 1000000000.0, but must be >= 0.0001 and <= 10000",
    ),
    "FedADMM-InSa beta_max": (
        lambda: fa.FedADMMInSa(1.0, beta_min=2.0, beta_max=1.0),
        "FedADMMInSa: beta_max is 1.0, but must be >= 2 and finite",
    ),
    "FedSplit alpha": (
        lambda: fa.FedSplit(1.0, alpha=1.5),
        "FedSplit: alpha is 1.5, but must be 2 (use FedDR for others)",
    ),
}


@pytest.mark.parametrize("case", ALGORITHMS)
def test_an_algorithm(case: str) -> None:
    refused(fa.ParameterError, ALGORITHMS[case])
