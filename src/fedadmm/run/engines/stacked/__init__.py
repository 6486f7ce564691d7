"""Many clients as one computation: stacked rows, parameters and gradients."""

from __future__ import annotations

from fedadmm.run.engines.stacked.objective import StackedObjective
from fedadmm.run.engines.stacked.stacking import Stacker, refusal

__all__ = ["StackedObjective", "Stacker", "refusal"]
