"""How often a run on an accelerator waits for the host, counted on torch's `meta` device.

The device computes shapes only.  Each read of a value by the host, which on a real accelerator
waits for all work before it, is answered by a dummy and counted.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fedadmm as fa

CLIENTS, ROUNDS = 10, 3


class HostReads(TorchDispatchMode):
    """Answers reads of values from the device, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = str(func.overloadpacket)
        on_device = bool(args) and isinstance(args[0], torch.Tensor) and args[0].is_meta
        if name == "aten._local_scalar_dense" and on_device:
            self.count += 1
            return 1.0 if args[0].is_floating_point() else 1
        if name == "aten.equal" and on_device:
            self.count += 1
            return True
        if name == "aten._to_copy" and on_device and str(kwargs.get("device")) == "cpu":
            self.count += 1
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        masks = args[1] if name == "aten.index" else ()
        if on_device and any(one is not None and one.dtype == torch.bool for one in masks):
            self.count += 1  # the size of the result depends on values
            return args[0].new_empty((0,))
        return func(*args, **kwargs)


def reads_per_round(engine: str, steps: int) -> list[int]:
    flat = fa.FlatModule(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
    clients = [
        fa.ModelObjective(
            flat, fa.losses.cross_entropy, torch.randn(40, 4), torch.randint(0, 3, (40,))
        )
        for _ in range(CLIENTS)
    ]
    problem = fa.Problem(clients, initial=flat.vector.clone())
    counts = []
    with HostReads() as reads:
        fa.simulate(
            fa.FedADMM(rho=0.1),
            problem,
            ROUNDS,
            solver=fa.SGD(0.1, batch_size=10),
            stop=fa.Steps(steps),
            evaluate=False,
            engine=engine,
            device="meta",
            callbacks=[lambda report: counts.append(reads.count)],
        )
    return [later - earlier for earlier, later in pairwise(counts)]


@pytest.mark.parametrize(("engine", "most"), [("vectorised", 15), ("sequential", 15 + 2 * CLIENTS)])
def test_a_round_reads_a_bounded_number_of_values(engine: str, most: int) -> None:
    assert max(reads_per_round(engine, 2)) <= most


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_a_local_step_reads_nothing(engine: str) -> None:
    assert reads_per_round(engine, 2) == reads_per_round(engine, 12)


def test_a_step_that_reads_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    gradient = fa.ModelObjective.gradient

    def reading(self: Any, params: torch.Tensor, rows: Any = None) -> torch.Tensor:
        found = gradient(self, params, rows)
        float(found[0])
        return found

    before = reads_per_round("sequential", 4)
    monkeypatch.setattr(fa.ModelObjective, "gradient", reading)
    monkeypatch.setattr(fa.ModelObjective, "descends", False, raising=False)
    assert reads_per_round("sequential", 4)[0] >= before[0] + 4 * CLIENTS
