"""The ways of training and sending that an audit compares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from fedadmm.core.tables import Tree
from fedadmm.run.experiment import Experiment

CONFIGURED = "as configured"
OBSERVERS = ("server", "sum")
"""Who sees every upload, and who sees nothing but the sum with its noise."""
_STAGES: dict[str, Tree] = {
    "top-k 10 %": {"name": "top-k", "keep": 0.1},
    "top-k 1 %": {"name": "top-k", "keep": 0.01},
    "8 bits": {"name": "quantise", "bits": 8},
    "2 bits": {"name": "quantise", "bits": 2},
    "clip": {"name": "clip"},
}
_RATE = 0.1
"""The learning rate of the exposed upload's step, where the configured solver has none."""
_NOISE = (0.01, 0.1, 1.0)
"""Multipliers, of the noise on sums and of that in local steps."""


class Setting(NamedTuple):
    """One way of training and sending, as changes of the configuration."""

    title: str
    rows: int
    changes: Tree
    in_sum: bool = False
    """Whether the observer sees the noised sum instead of the upload."""


def settings_of(run: Experiment, rows: int, available: int) -> Iterator[Setting]:
    """The configuration, the most exposed upload, and that one with one thing changed.

    A clip without a norm is one to half the length of what would be sent.
    """
    yield Setting(CONFIGURED, rows, {})
    if any(stage.place == "noise" for stage in run.upload):
        yield Setting(f"{CONFIGURED}, in the sum", rows, {}, in_sum=True)

    def local(steps: int, solver: Tree | None = None, **changes: Any) -> Tree:
        work = {"solver": solver or exposed, "stop": {"name": "steps", "steps": steps}}
        return {"local": work, "upload": []} | changes

    rate = run.tree["local"]["solver"].get("lr", _RATE)
    exposed = {"name": "sgd", "lr": rate, "batch_size": available}
    yield Setting("1 step", rows, local(1))
    if run.algorithm.needs.local_solve:
        yield Setting("5 steps", rows, local(5))
        yield Setting("20 steps", rows, local(20))
    for count in (1, 16):
        if count != rows and count <= available:
            yield Setting(f"1 step, {count} row{'s' * (count > 1)}", count, local(1))
    for title, stage in _STAGES.items():
        yield Setting(f"1 step, {title}", rows, local(1, upload=[stage]))
    for multiplier in _NOISE:
        stages = [_STAGES["clip"], {"name": "gaussian", "multiplier": multiplier, "delta": 1e-12}]
        title = f"1 step, noise {multiplier:g}"
        yield Setting(title, rows, local(1, upload=stages), in_sum=True)
    if run.algorithm.needs.local_solve:
        for multiplier in _NOISE:
            private = {"name": "dp-sgd", "clip": 1.0, "multiplier": multiplier, "delta": 1e-12}
            solver = exposed | private
            yield Setting(
                f"1 step, DP-SGD {multiplier:g}",
                rows,
                local(1, solver),
            )
