"""What a method declares about late replies is what they do to it.

Thirty clients reply one by one, from models that the others have moved since.  A method that does
not tolerate that explodes here; one that does stays near the optimum, and comes to it unless it
says why not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import fedadmm as fa
from fedadmm.algorithms import REGISTRY
from fedadmm.core.compatibility import default_requirements
from fedadmm.flower.federation import Federation
from fedadmm.run.engines import VirtualTime
from support.federations import Chosen, federation, run
from support.given_delays import GivenDelays
from support.rejections import naming

CLIENTS, STEPS = 30, 900
NUMBERS = {"rho": 1.3, "eta": 0.8}
OWN_NUMBERS = {
    "fedsgd": {"lr": 0.3},
    "fedadmm-in": {"beta": 1.3},
    "fedadmm-insa": {"beta": 1.3},
}
"""Of the size of the curvature, which is .5 to 3."""
FURTHER: dict[str, list[dict[str, Any]]] = {
    "fedadmm": [
        *({"step": 1.0}, {"step": fa.schedules.Piecewise({0: 1.0, 9: 0.9})}),
        *({"rho": fa.schedules.Piecewise({0: 1.0, 90: 3.0})}, {"rho": 0.3}),
    ],
    "aligned-admm": [{"sigma": 1.0}, {"sigma": 0.0}],
    "feddr": [{"alpha": 1.8}],
}
_EASY = ("start", "staleness")
"""Where an exact solve begins is all the same; what a late reply counts is on trial elsewhere."""
GIVEN = federation(12, CLIENTS)


def variants() -> Iterator[tuple[str, Any]]:
    """Every method that may miss a client, with each of its choices in turn."""
    for name, kind in REGISTRY.items():
        if default_requirements(kind).full_participation:
            continue
        hints = get_type_hints(kind)
        named = {field.name for field in fields(kind)}
        usual = {key: NUMBERS[key] for key in named & NUMBERS.keys()} | OWN_NUMBERS.get(name, {})
        choices = {
            field.name: get_args(hints[field.name])
            for field in fields(kind)
            if get_origin(hints[field.name]) is Literal and field.name not in _EASY
        }
        others = [{}, *({key: one} for key, some in choices.items() for one in some)]
        for options in others + FURTHER.get(name, []):
            try:
                method = kind(**usual | options)
            except fa.errors.ParameterError:
                continue
            if not options or method != kind(**usual):
                yield " ".join([name, *(f"{key}={one}" for key, one in options.items())]), method


VARIANTS = dict(variants())


def late(method: Any, engine: Any, **options: Any) -> fa.Result:
    """A run without rounds, whatever the method declares."""
    counted = method.requirements.local.mean_gradient or method.requirements.local.step_sum
    if counted or method.requirements.local.local_prox != "none":
        options |= {"solver": fa.GradientDescent(0.2), "stop": fa.Steps(10)}
    elif isinstance(method, fa.FedBuff):  # its moves add up: they must be short, as printed
        options |= {"solver": fa.GradientDescent(0.05), "stop": fa.Steps(3)}
    chosen = Chosen(engine.start, method.requirements.asynchronous)
    return run(method, GIVEN, STEPS, engine=chosen, seed=1, **options)


@pytest.mark.parametrize(
    "name",
    # Options in turn: before a release.
    [pytest.param(name, marks=pytest.mark.release if "=" in name else ()) for name in VARIANTS],
)
def test_stale_updates_affect_a_method_as_it_declares(name):
    method = VARIANTS[name]
    result = late(method, VirtualTime())
    assert result.code == ("completed" if method.requirements.stale_updates else "diverged"), (
        result.status
    )
    if method.requirements.stale_updates:
        furthest = max(float(theta.norm()) for theta in result.trajectory)
        near = max(np.linalg.norm(GIVEN.start), np.linalg.norm(GIVEN.optimum))
        assert furthest < 4 * near
        if method.bias is None:
            assert np.linalg.norm(result.params.numpy() - GIVEN.optimum) < 1e-2


INTOLERANT = {
    "FedAvg": fa.FedAvg(),
    "FedDyn": fa.FedDyn(0.8),
    "AFedPD": fa.AFedPD(0.8),
    "AlignedADMM": fa.AlignedADMM(1.3),
    "FedADMM": fa.FedADMM(1.3, step=1.0),
}
INSTEAD = "FedADMM step='tracking' FedDR FedAsync FedBuff AsyncFedDR"


@pytest.mark.parametrize("name", INTOLERANT)
@pytest.mark.parametrize("engine", [VirtualTime(), GivenDelays(4)], ids=["clock", "given delays"])
def test_stale_updates_are_rejected_with_the_methods_that_tolerate_them(name, engine):
    with pytest.raises(fa.errors.CompatibilityError, match=naming(f"engine {name} {INSTEAD}")):
        run(INTOLERANT[name], GIVEN, 3, engine=engine)


@pytest.mark.parametrize("name", INTOLERANT)
def test_an_asynchronous_deployment_rejects_them_as_well(name):
    with pytest.raises(fa.FedADMMError, match=naming(f"Federation.mode 'asynchronous' {name}")):
        Federation(INTOLERANT[name], 3, 2, initial=GIVEN.initial, mode="asynchronous")


@pytest.mark.parametrize(
    "engine", [GivenDelays(0), VirtualTime(max_staleness=0, policy="drop")], ids=["law", "clock"]
)
def test_an_engine_on_which_no_update_is_late_takes_every_method(engine):
    assert run(fa.FedAvg(), GIVEN, 3, engine=engine).code == "completed"
