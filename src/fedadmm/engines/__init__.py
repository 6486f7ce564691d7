"""Ways of running the clients of a round.

An engine is chosen by a small frozen dataclass (its options), which starts it when called with
a job and a store.
"""

from __future__ import annotations

from fedadmm.engines.auto import Auto
from fedadmm.engines.choice import EngineChoice
from fedadmm.engines.job import Job, run_client
from fedadmm.engines.ray_engine import Ray
from fedadmm.engines.sequential import Sequential
from fedadmm.engines.vectorised import Vectorised
from fedadmm.engines.virtual_time import VirtualTime
from fedadmm.engines.workers import Workers
from fedadmm.protocols import AnyAlgorithm

ENGINES: dict[str, type[EngineChoice]] = {
    Sequential.name: Sequential,
    Ray.name: Ray,
    Vectorised.name: Vectorised,
    Workers.name: Workers,
    Auto.name: Auto,
    VirtualTime.name: VirtualTime,
}
"""Name on the command line and in configurations -> choice; the only place that lists them."""


def default_engine(algorithm: AnyAlgorithm | type[AnyAlgorithm]) -> str:
    """The engine of a run that names none."""
    return VirtualTime.name if algorithm.asynchronous else Sequential.name


__all__ = [
    "ENGINES",
    "Auto",
    "EngineChoice",
    "Job",
    "Ray",
    "Sequential",
    "Vectorised",
    "VirtualTime",
    "Workers",
    "default_engine",
    "run_client",
]
