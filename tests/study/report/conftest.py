from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedadmm
from fedadmm.data.problems import load
from support.browser import Browser, chromium, running
from support.runs import write_comparison

METHODS = {
    "fedavg": fedadmm.FedAvg(),
    "scaffold": fedadmm.Scaffold(),
    "fedadmm": fedadmm.FedADMM(rho=0.1, members="seen"),
    "fedadmm, rho 0.3": fedadmm.FedADMM(rho=0.3, members="seen"),
    "fedadmm-insa": fedadmm.FedADMMInSa(beta=0.1),
    "fedpd": fedadmm.FedPD(eta=10.0),
    "feddyn!": fedadmm.FedDyn(eta=10.0),
}


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven methods, two seeds, one of them made to diverge: real runs on the digits."""
    problem = load("digits", clients=10, max_train=300, max_test=200)
    directory = tmp_path_factory.mktemp("comparison")
    return write_comparison(directory, problem, METHODS, range(2), rounds=9)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the whole session: while it runs, its event loop is the thread's."""
    if chromium() is None:
        pytest.skip("no chromium on this machine")
    with running() as started:
        yield started


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """Where screenshots go; `FEDADMM_ARTIFACTS` names another place."""
    return Path(os.environ.get("FEDADMM_ARTIFACTS", "artifacts"))
