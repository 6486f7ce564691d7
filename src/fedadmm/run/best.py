"""The best model so far, and how long a run waits for a better one."""

from __future__ import annotations

import math
from typing import NamedTuple

from fedadmm.core.outputs import Iterate
from fedadmm.run.metrics import Target, metric, primary
from fedadmm.run.record import Record, value


class Best(NamedTuple):
    """The best model so far, by one metric."""

    metric: str
    value: float
    round: int
    """The round that it was handed out after."""
    since: int
    """How many measurements have followed, none of them better."""
    model: Iterate


class Judge(NamedTuple):
    """Judges by the target's metric and direction, or else by the first usual metric measured."""

    target: Target | None = None
    patience: int | None = None
    """So many measurements in a row without a better one end the run; None waits for ever."""

    def after(self, best: Best | None, record: Record, model: Iterate) -> Best | None:
        """The best after a round that handed out this model; one not measured changes nothing."""
        if self.target is not None and best is not None and best.metric != self.target.metric:
            best = None  # resumed with another target: nobody has the earlier models any more
        names = list(record["metrics"])
        name = best.metric if best is not None else primary(names, self.target)
        found = value(record, name) if name is not None and record["round"] else None
        if name is None or found is None or (best is None and math.isnan(found)):
            return best
        up = metric(name).up if self.target is None else self.target.at_least
        if best is None or (found > best.value if up else found < best.value):
            return Best(name, found, record["round"], 0, model._replace(mean=None))
        return best._replace(since=best.since + 1)

    def gives_up(self, best: Best | None) -> bool:
        """Whether the last better model is too long ago."""
        return self.patience is not None and best is not None and best.since >= self.patience

    def sentence(self, best: Best) -> str:
        """Why a run ends that has waited long enough."""
        several = "measurements" if best.since > 1 else "measurement"
        return (
            f"{best.since} {several} without a better {best.metric} than {best.value:.4g} of "
            f"round {best.round}"
        )
