"""A metric's direction, unit and target, and the best model by it so far."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import torch

from fedadmm.core.outputs import Iterate
from fedadmm.core.parts import checked
from fedadmm.run.record import Record, value


@checked
class Target:
    """Target of a metric: the rounds until it is reached are counted, and the run can end there.

    Args:
        metric: Name of the metric, such as "test_accuracy".
        value: Value to be reached.
        at_least: Whether the metric must be at least the value (True) or at most (False, for
            losses).
        also: Metrics that must have been measured in the same round before the run ends.
        end_run: Whether the run ends at the target.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> target = fa.Target("gradient_mapping", 0.01, at_least=False)
        >>> work = dict(solver=fa.ExactSolver(), target=target)
        >>> result = fa.simulate(fa.FedADMM(rho=1.0), problem, 100, **work)
        >>> result.code, len(result.history) < 100
        ('target', True)
    """

    metric: str
    value: float
    at_least: bool = True
    also: tuple[str, ...] = ()
    end_run: bool = True

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that must be measured in the round in which the run ends."""
        return (self.metric, *self.also)

    def reached(self, value: float | None) -> bool:
        """Return whether a value meets the target; None, which is not measured, does not."""
        if value is None or math.isnan(value):
            return False
        return bool(value >= self.value if self.at_least else value <= self.value)


class Metric(NamedTuple):
    """Title, direction and description of a metric."""

    name: str
    title: str
    up: bool
    """Whether more is better."""
    share: bool = False
    """Whether it is between 0 and 1 and printed as a percentage."""
    sentence: str = ""
    known: bool = False


_SENTENCES = {
    "test_accuracy": "The share of held-out samples that the global model classifies correctly.",
    "objective": "F = f + g, the training loss with the regularizer.",
    "loss": "f, the weighted mean of the clients' training losses at the global model.",
    "train_accuracy": "The share of all clients' training samples that are classified correctly.",
    "test_loss": "The mean loss of the global model on held-out samples.",
    "validation_accuracy": "The same share of the clients' validation samples, for selection.",
    "validation_loss": "The mean loss of the global model on the clients' validation samples.",
    "gradient_mapping": "Its norm is zero exactly at a stationary point of F.",
    "sparsity": "The share of the global model's parameters that are exactly zero.",
}
"""The default metrics; the first that is measured is the one to compare by."""
_LOWER = re.compile(
    r"loss|objective|gradient|residual|error|bound|seconds|staleness|_spread(?:_|$)"
)
"""Names of metrics for which less is better; for all others more is better."""


_OVER_CLIENTS = {
    "mean": "mean over the clients",
    "worst": "worst client",
    "p10": "10th percentile of the clients",
    "p90": "90th percentile of the clients",
    "spread": "spread over the clients",
}
"""Statistics over the clients: suffix of the metric's name -> title."""
_OWN = {"own": "local models", "gain": "gain of the local models over the global one"}
"""Metrics of the local models: suffix of the metric's name -> title."""


def statistics_over_clients(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return mean, worst value, 10th percentile from the worst, and standard deviation."""
    found = torch.tensor(values, dtype=torch.float64)
    up = metric(name).up
    return {
        f"{name}_mean": float(found.mean()),
        f"{name}_worst": float(found.min() if up else found.max()),
        f"{name}_{'p10' if up else 'p90'}": float(found.quantile(0.1 if up else 0.9)),
        f"{name}_spread": float(found.std(correction=0)),
    }


def over_clients(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the metrics that have statistics over the clients, and the names of these."""
    bases = [name.removesuffix("_spread") for name in names if name.endswith("_spread")]
    return {
        base: [own for end in _OVER_CLIENTS if (own := f"{base}_{end}") in names]
        for base in bases
        if f"{base}_worst" in names
    }


def metric(name: str) -> Metric:
    """Return a metric by its name; an unknown one has the direction that its name suggests."""
    base, endings = name, ""
    for known in (_OVER_CLIENTS, _OWN):
        stem, _, ending = base.rpartition("_")
        if stem and ending in known:
            base, endings = stem, f", {known[ending]}{endings}"
    title = base.replace("_", " ").strip() + endings
    return Metric(
        name=name,
        title=title[:1].upper() + title[1:],
        up=not _LOWER.search(name.partition("_gain")[2] if "_gain" in name else name),
        share="accuracy" in name or "sparsity" in name,
        sentence=_SENTENCES.get(name, ""),
        known=name in _SENTENCES or "accuracy" in name or "loss" in name,
    )


def primary(names: Sequence[str], target: Target | None) -> str | None:
    """Return the metric to compare by: the target's, else the first default one, else any."""
    if target is not None:
        return target.metric
    return next((name for name in (*_SENTENCES, *names) if name in names), None)


def selection(names: Sequence[str], target: Target | None) -> str | None:
    """Return the metric that models and hyper-parameters are selected by.

    It is the compared one (`primary`), on validation samples where these are measured: test
    samples are for reporting.
    """
    name = primary(names, target)
    if name is None:
        return None
    validated = re.sub(r"^test_", "validation_", name)
    return validated if validated in names else name


class Best(NamedTuple):
    """The best model so far, by one metric."""

    metric: str
    value: float
    round: int
    """Round of the output model."""
    since: int
    """Number of evaluations since then."""
    loss: float | None
    """Loss for ties; None if no loss is measured in addition to the metric."""
    model: Iterate


_LOSSES = ("validation_loss", "test_loss", "loss", "objective")
"""Losses for ties: the first that is measured in addition to the metric."""


class ModelSelector(NamedTuple):
    """Judges by the target's metric and direction, or else by the first usual metric measured.

    Validation samples decide if the problem holds some out (`selection`).  Of equals the one with
    the lower loss is better, else the later one: where accuracy stays the same for many rounds,
    the first of them is hardly trained.
    """

    target: Target | None = None
    patience: int | None = None
    """This many measurements in a row without a better one end the run; None waits for ever."""

    def update(self, best: Best | None, record: Record, model: Iterate) -> Best | None:
        """The best after a round with this output model; one not measured changes nothing."""
        names = list(record["metrics"])
        name = selection(names, self.target)
        if self.target is not None and names and best is not None and best.metric != name:
            best = None  # resumed with another target: the earlier models are gone
        name = name if best is None else best.metric
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

    def is_exhausted(self, best: Best | None) -> bool:
        """Whether the last better model is too long ago."""
        return self.patience is not None and best is not None and best.since >= self.patience

    def sentence(self, best: Best) -> str:
        """Why a run ends that has waited long enough."""
        several = "measurements" if best.since > 1 else "measurement"
        return (
            f"{best.since} {several} without a better {best.metric} than {best.value:.4g} of "
            f"round {best.round}"
        )
