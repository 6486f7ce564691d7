"""Ways of running the clients of a round.

An engine is chosen by a small frozen dataclass (its options), which starts it when called with
a job and a store.
"""

from __future__ import annotations

from collections.abc import Callable

from fedadmm.engines.auto import Auto
from fedadmm.engines.job import Job, run_client
from fedadmm.engines.ray_engine import Ray
from fedadmm.engines.sequential import Sequential
from fedadmm.engines.vectorised import Vectorised
from fedadmm.engines.workers import Workers
from fedadmm.protocols import ClientStateStore, Engine

EngineChoice = Callable[[Job, ClientStateStore], Engine]

ENGINES: dict[str, Callable[[], EngineChoice]] = {
    Sequential.name: Sequential,
    Ray.name: Ray,
    Vectorised.name: Vectorised,
    Workers.name: Workers,
    Auto.name: Auto,
}
"""Name on the command line and in configurations -> choice; the only place that lists them."""

__all__ = [
    "ENGINES",
    "Auto",
    "EngineChoice",
    "Job",
    "Ray",
    "Sequential",
    "Vectorised",
    "Workers",
    "run_client",
]
