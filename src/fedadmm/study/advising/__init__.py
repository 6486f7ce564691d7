"""From a problem to settings: estimate what the theorems ask for, then let them recommend."""

from __future__ import annotations

from fedadmm.study.advising.advice import Counsel, advise
from fedadmm.study.advising.estimating import Estimate, estimate

__all__ = ["Counsel", "Estimate", "advise", "estimate"]
