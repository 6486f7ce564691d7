"""Ways of running the clients of a round.

An engine is chosen by a small frozen dataclass, its options, which starts it for a job and a store.
"""

from __future__ import annotations

from fedadmm.core.contracts import Requirements
from fedadmm.core.parts import FAMILIES
from fedadmm.run.engines.auto import Auto as Auto
from fedadmm.run.engines.choice import EngineChoice as EngineChoice, Sequential as Sequential
from fedadmm.run.engines.ray_engine import Ray as Ray
from fedadmm.run.engines.vectorised import Vectorised as Vectorised
from fedadmm.run.engines.virtual_time import VirtualTime as VirtualTime
from fedadmm.run.engines.workers import Workers as Workers

ENGINES: dict[str, type[EngineChoice]] = FAMILIES["engine"]
"""Name on the command line and in configurations -> choice."""


def default_engine(requirements: Requirements) -> str:
    """Return the name of the engine of a run that specifies none."""
    return VirtualTime.name if requirements.asynchronous else Auto.name
