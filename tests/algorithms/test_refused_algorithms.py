"""What no algorithm accepts, word for word."""

from __future__ import annotations

import pytest

import fedadmm as fa
from support.refusals import (
    NOT_NEGATIVE,
    POSITIVE,
    Cases,
    refused,
)

ALGORITHMS: Cases = {
    "FedSGD lr": (lambda: fa.FedSGD(0.0), f"FedSGD: lr is 0.0, but {POSITIVE}"),
    "FedProx rho": (lambda: fa.FedProx(-1.0), f"FedProx: rho is -1.0, but {NOT_NEGATIVE}"),
    "Scaffold option": (
        lambda: fa.Scaffold(3),
        "Scaffold: option is 3, but must be one of 1, 2",
    ),
    "Scaffold step": (
        lambda: fa.Scaffold(step=-1.0),
        f"Scaffold: step is -1.0, but {POSITIVE}",
    ),
    "FedDyn eta": (
        lambda: fa.FedDyn(float("inf")),
        f"FedDyn: eta is inf, but {POSITIVE}",
    ),
    "FedDyn members": (
        lambda: fa.FedDyn(1.0, "some"),
        "FedDyn: members is 'some', but must be one of 'all', 'seen'",
    ),
    "FedPD eta": (lambda: fa.FedPD(0.0), f"FedPD: eta is 0.0, but {POSITIVE}"),
    "FedPD skip": (
        lambda: fa.FedPD(1.0, 1.0),
        "FedPD: skip_probability is 1.0, but must be >= 0 and < 1",
    ),
    "FedADMM rho": (lambda: fa.FedADMM(-2.0), f"FedADMM: rho is -2.0, but {POSITIVE}"),
    "FedADMM rho text": (
        lambda: fa.FedADMM("two"),
        f"FedADMM: rho is 'two', but {POSITIVE}, or a schedule: piecewise, per-work, geometric",
    ),
    "FedADMM step": (
        lambda: fa.FedADMM(1.0, step="follow"),
        "FedADMM: step is 'follow', but must be 'tracking'",
    ),
    "FedADMM step zero": (
        lambda: fa.FedADMM(1.0, step=0.0),
        f"FedADMM: step is 0.0, but {POSITIVE}",
    ),
    "FedADMM-released members": (
        lambda: fa.FedADMMReleased(1.0, members="seen"),
        "FedADMMReleased: members is 'seen', but must be one of 'all'",
    ),
    "FedADMM-printed rho": (
        lambda: fa.FedADMMPrinted(1.0),
        "FedADMMPrinted: rho is 1.0, but must be a Schedule",
    ),
    "FedADMM schedule with a step": (
        lambda: fa.FedADMM(fa.Geometric(1.0), step=0.5),
        "FedADMM: step is 0.5, but must be 'tracking' with members='seen' or a schedule of rho, "
        "which keep an exact mean (FedADMMPrinted keeps none)",
    ),
    "FedADMM members": (
        lambda: fa.FedADMM(1.0, members="some"),
        "FedADMM: members is 'some', but must be one of 'all', 'seen'",
    ),
    "FedADMM seen with a step": (
        lambda: fa.FedADMM(1.0, step=0.5, members="seen"),
        "FedADMM: step is 0.5, but must be 'tracking' with members='seen' or a schedule of rho, "
        "which keep an exact mean (FedADMMPrinted keeps none)",
    ),
    "FedADMM rho with a tracking floor": (
        lambda: fa.FedADMM(fa.Geometric(floor="tracking")),
        "FedADMM: rho has the floor 'tracking', but only a server step can have it; use a number",
    ),
    "FedADMM-In beta": (lambda: fa.FedADMMIn(0.0), f"FedADMMIn: beta is 0.0, but {POSITIVE}"),
    "FedADMM-In members": (
        lambda: fa.FedADMMIn(1.0, members="some"),
        "FedADMMIn: members is 'some', but must be one of 'all', 'seen'",
    ),
    "FedADMM-In memory": (
        lambda: fa.FedADMMInReleased(1.0, memory=-0.1),
        f"FedADMMInReleased: memory is -0.1, but {NOT_NEGATIVE}",
    ),
    "FedADMM-InSa beta": (
        lambda: fa.FedADMMInSa(1e9),
        "FedADMMInSa: beta is 1000000000.0, but must be >= 0.0001 and <= 10000",
    ),
    "FedADMM-InSa beta_min": (
        lambda: fa.FedADMMInSa(1.0, beta_min=0.0),
        f"FedADMMInSa: beta_min is 0.0, but {POSITIVE}",
    ),
    "FedADMM-InSa beta_max": (
        lambda: fa.FedADMMInSa(1.0, beta_min=2.0, beta_max=1.0),
        "FedADMMInSa: beta_max is 1.0, but must be >= 2",
    ),
    "FedADMM-InSa mu": (
        lambda: fa.FedADMMInSa(1.0, mu=1.0),
        "FedADMMInSa: mu is 1.0, but must be > 1 and finite",
    ),
    "FedADMM-InSa tau": (
        lambda: fa.FedADMMInSa(1.0, tau=0.5),
        "FedADMMInSa: tau is 0.5, but must be > 1 and finite",
    ),
    "FedDR eta": (lambda: fa.FedDR(0.0), f"FedDR: eta is 0.0, but {POSITIVE}"),
    "FedDR alpha": (
        lambda: fa.FedDR(1.0, 2.0),
        "FedDR: alpha is 2.0, but must be > 0 and < 2",
    ),
    "FedDR init": (
        lambda: fa.FedDR(1.0, init="zero"),
        "FedDR: init is 'zero', but must be one of 'start', 'prox'",
    ),
    "FedDR-II eta": (lambda: fa.FedDRII(-1.0), f"FedDRII: eta is -1.0, but {POSITIVE}"),
    "FedSplit eta": (lambda: fa.FedSplit(-1.0), f"FedSplit: eta is -1.0, but {POSITIVE}"),
    "FedSplit alpha": (
        lambda: fa.FedSplit(1.0, alpha=1.5),
        "FedSplit: alpha is 1.5, but must be 2 (use FedDR for others)",
    ),
}


@pytest.mark.parametrize("case", ALGORITHMS)
def test_an_algorithm(case: str) -> None:
    refused(fa.ParameterError, ALGORITHMS[case])
