"""The loop on every engine with parts that have the declared members and nothing else."""

from __future__ import annotations

import pytest

import fedadmm as fa
from fedadmm.run.engines import VirtualTime, Workers
from support.given_delays import GivenDelays
from support.minimal import CENTRES, expected, run
from support.rejections import naming


@pytest.mark.parametrize(
    "engine",
    [
        "sequential",
        Workers(workers=2, timeout=60.0),
        "auto",
        VirtualTime(mode="sync"),
        GivenDelays(0),
    ],
    ids=str,
)
def test_minimal_parts_run(engine):
    result = run(engine)
    assert [float(x) for x in result.trajectory] == pytest.approx(expected(4), abs=1e-12)
    assert result.history[-1]["metrics"]["loss"] == pytest.approx(
        sum((expected(4)[-1] - centre) ** 2 / 6 for centre in CENTRES)
    )


def test_minimal_parts_run_without_rounds():
    """Every reply is a step; the mean of two centres at least has been moved towards.

    Only its author knows that a method is up to it, and must say so.
    """
    with pytest.raises(fa.errors.CompatibilityError, match=naming("engine Accepting")):
        run(VirtualTime(mode="async"), rounds=30)
    result = run(VirtualTime(mode="async"), rounds=30, stale_updates=True)
    assert 1.0 < float(result.params) < 8.0


def test_clients_that_cannot_be_stacked_are_rejected():
    with pytest.raises(fa.errors.CompatibilityError, match=naming("Vectorised")):
        run("vectorised")
