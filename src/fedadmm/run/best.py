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
    """How many measurements in a row the metric has not become better."""
    loss: float | None
    """What decides between equals; None where no loss is measured besides."""
    model: Iterate


_LOSSES = ("test_loss", "loss", "objective")
"""The first that is measured besides the metric decides between equals."""


class Judge(NamedTuple):
    """Judges by the target's metric and direction, or else by the first usual metric measured.

    Of equals the one with the lower loss is better, else the later one: where accuracy stays the
    same for many rounds, the first of them is hardly trained.
    """

    target: Target | None = None
    patience: int | None = None
    """This many measurements in a row without a better one end the run; None waits for ever."""

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
        better = best is None or (found > best.value if up else found < best.value)
        since = 0 if best is None or better else best.since + 1
        losses = (value(record, one) for one in _LOSSES if one != name)
        loss = next((one for one in losses if one is not None and not math.isnan(one)), None)
        no_worse = loss is None or best is None or best.loss is None or loss <= best.loss
        if better or (best is not None and found == best.value and no_worse):
            return Best(name, found, record["round"], since, loss, model._replace(mean=None))
        return best and best._replace(since=since)

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
