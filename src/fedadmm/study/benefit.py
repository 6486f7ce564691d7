"""Was federating worth it?  Each site alone, all rows pooled, and the federation, row by row.

This needs all sites' rows in one place, as `--csv` has them.  Pooled and lonely models take as many
rounds of the same local work as the federation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedadmm.algorithms import FedAvg
from fedadmm.core.problem import Problem
from fedadmm.core.rng import derive, numpy_generator
from fedadmm.run.experiment import Experiment
from fedadmm.run.simulate import first_vector, simulate
from fedadmm.study import formatting
from fedadmm.study.formatting import Table
from fedadmm.study.statistics import stratified_interval

MOST_SITES = 20
"""With more sites the table is left out: each is a model to train."""


class SiteBenefit(NamedTuple):
    """What each way of training is site_benefit on every site's held-out rows."""

    sites: list[str]
    sizes: list[int]
    scores: dict[str, list[float]]
    """alone, pooled, federated -> for each site its accuracy, or its mean squared error."""
    classes: bool
    gain: float
    """What federating gains over each site's own model, over all held-out rows; above 0 is good."""
    low: float
    high: float
    """Its 95 % interval: a paired bootstrap of the held-out rows."""

    @property
    def verdict(self) -> str:
        """In a few words."""
        if self.low > 0:
            return "federating helps"
        return "federating does not help" if self.high < 0 else "no significant difference"

    def document(self) -> dict[str, Any]:
        """For programs."""
        return self._asdict() | {"verdict": self.verdict}

    @classmethod
    def read(cls, document: dict[str, Any]) -> SiteBenefit:
        """What `document` wrote."""
        return cls(**{name: document[name] for name in cls._fields})

    def table(self) -> Table:
        """For people."""
        share = self.classes
        lines = [
            [site, str(size), *(formatting.number(own[i], share) for own in self.scores.values())]
            for i, (site, size) in enumerate(zip(self.sites, self.sizes, strict=True))
        ]
        total = sum(self.sizes)
        means = [np.dot(own, self.sizes) / total for own in self.scores.values()]
        lines.append(["all", str(total), *(formatting.number(float(m), share) for m in means)])
        what = "accuracy" if share else "mean squared error, of the scaled target"
        gain, low, high = (
            (f"{100 * one:+.1f}" if share else f"{one:+.3g}").replace("-", "−")
            for one in (self.gain, self.low, self.high)
        )
        note = (
            f"{self.verdict}: {gain}{' points' if share else ' less error'} against each site alone"
            f" (95 % interval {low} to {high}, over the held-out rows)"
        )
        title = f"Is federating site_benefit it? {what.capitalize()} on each site's held-out rows"
        return Table(title, ["site", "held-out rows", *self.scores], lines, note)


def site_benefit(run: Experiment, federated: Tensor) -> SiteBenefit | None:
    """Train every site alone and all together; None where sites hold nothing out, or are many."""
    problem = run.load_problem()
    tests: Any = problem.client_tests
    if tests is None or not 1 < problem.num_clients <= MOST_SITES:
        return None
    held = [test.parts[-1] for test in tests]
    known = [site for site, one in enumerate(held) if len(one.targets)]
    whole = trained(run, problem, pooled(problem))
    names = problem.data.client_names()
    rows = {"alone": [], "pooled": [], "federated": []}  # type: dict[str, list[NDArray[Any]]]
    for site in known:
        own = trained(run, problem, problem.clients[site])
        for how, params in (("alone", own), ("pooled", whole), ("federated", federated)):
            rows[how].append(_row_scores(held[site], params))
    classes = not held[known[0]].targets.is_floating_point()
    gains = [a - b for a, b in zip(rows["federated"], rows["alone"], strict=True)]
    dice, sizes = numpy_generator(derive(run.seed, "worth")), [len(one) for one in gains]
    low, high = stratified_interval(gains, dice)
    sign = 1 if classes else -1
    scores = {how: [sign * float(one.mean()) for one in found] for how, found in rows.items()}
    gain = float(np.concatenate(gains).mean())
    sites = [names[site] for site in known]
    return SiteBenefit(sites, sizes, scores, classes, gain, low, high)


def _row_scores(held: Any, params: Tensor) -> NDArray[Any]:
    """Whether each row is got right; or its squared error, negative so that more is better."""
    held.flat.load(params)
    held.flat.module.eval()
    with torch.no_grad():
        inputs = held.inputs if held.prepare is None else held.prepare(held.inputs)
        outputs = held.flat.module(inputs.to(params.dtype))
    if held.targets.is_floating_point():
        errors: NDArray[Any] = -(outputs[:, 0] - held.targets).square().double().numpy()
        return errors
    chosen = outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
    right: NDArray[Any] = (chosen == held.targets).double().numpy()
    return right


def pooled(problem: Problem) -> Any:
    """The loss over all rows, as one site that had them would have it."""
    clients: Any = problem.clients
    inputs = torch.cat([client.inputs for client in clients])
    targets = torch.cat([client.targets for client in clients])
    return replace(clients[0], inputs=inputs, targets=targets)


def trained(run: Experiment, problem: Problem, objective: Any) -> Tensor:
    """A model trained on one objective alone, with the run's local work and rounds."""
    return simulate(
        FedAvg(),
        Problem([objective], initial=problem.initial, buffers=problem.buffers),
        run.rounds,
        solver=run.local.solver,
        stop=run.local.stop,
        seed=run.seed,
        initial=first_vector(run, problem),
        evaluate=False,
    ).params
