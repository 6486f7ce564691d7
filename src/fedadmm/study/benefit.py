"""Does federating help each site?  Locally trained, shared and personalised models, site by site.

This needs all sites' samples in one place, as in a simulation.  Locally trained models take as many
rounds of the same local work as the federation.  The personalised models are those of the run, or
of Ditto (Li et al., ICML 2021) with the run's method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedadmm.algorithms import FedAvg
from fedadmm.core.errors import CompatibilityError
from fedadmm.core.personalisation import Ditto
from fedadmm.core.problem import Problem
from fedadmm.core.rng import derive, numpy_generator
from fedadmm.data.problems.named_problem import HeldOutSets
from fedadmm.run.evaluation import Evaluation
from fedadmm.run.experiment import Experiment
from fedadmm.run.simulate import first_vector, simulate
from fedadmm.study import formatting
from fedadmm.study.formatting import Table
from fedadmm.study.statistics import stratified_interval

MOST_SITES = 20
"""With more sites the table is left out: each is a model to train."""
WEIGHT = 0.1
"""Weight of Ditto where a run has no personalised models (studies/hospitals)."""
LOCAL, SHARED, PERSONAL = "local", "shared", "personalised"

Scores = list[NDArray[Any]]
"""One array per site: one score per test sample, larger is better."""


class Gain(NamedTuple):
    """Mean gain over the locally trained models, with its 95 % interval; above 0 is better.

    The interval is a paired bootstrap of the test samples within each site.
    """

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """The conclusion that the interval allows."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "not significant"


class SiteBenefit(NamedTuple):
    """Test scores of every site's models, and their gains over local training."""

    sites: list[str]
    sizes: list[int]
    """Test samples per site."""
    scores: dict[str, list[float]]
    """How the model was trained -> for each site its accuracy, or its mean squared error."""
    classes: bool
    gains: dict[str, list[Gain]]
    """The same for the shared and the personalised model -> a gain per site, then that over all."""

    @property
    def verdict(self) -> str:
        """The conclusion over all sites, from the personalised models if there are some."""
        how, gains = list(self.gains.items())[-1]
        return f"{how}: {gains[-1].verdict}"

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        gains = {how: [gain._asdict() for gain in found] for how, found in self.gains.items()}
        return self._asdict() | {"gains": gains, "verdict": self.verdict}

    @classmethod
    def read(cls, document: dict[str, Any]) -> SiteBenefit:
        """Return what `document` was made from."""
        values = {name: document[name] for name in cls._fields}
        gains = {h: [Gain(**gain) for gain in found] for h, found in values["gains"].items()}
        return cls(**values | {"gains": gains})

    def table(self) -> Table:
        """One row per site, with the verdict of its last column's model."""
        share, how = self.classes, list(self.gains)[-1]
        means = {
            name: np.dot(found, self.sizes) / sum(self.sizes) for name, found in self.scores.items()
        }
        names, sizes = [*self.sites, "all"], [*self.sizes, sum(self.sizes)]
        lines = []
        for row, (site, size) in enumerate(zip(names, sizes, strict=True)):
            scores = [[*found, float(means[name])][row] for name, found in self.scores.items()]
            gain = self.gains[how][row]
            shown = [formatting.number(one, share) for one in scores]
            lines.append([site, str(size), *shown, self._shown(gain), gain.verdict])
        what = "accuracy" if share else "mean squared error of the scaled target"
        notes = [
            f"{name} minus local over all sites: {self._shown(found[-1])}: {found[-1].verdict}"
            for name, found in self.gains.items()
        ]
        unit = "points" if share else "less error"
        notes.append(
            "n: test samples; local: trained on the site's own samples; gain: "
            f"{how} minus local in {unit}, with a 95 % bootstrap interval over the test samples of "
            "one split"
        )
        title = f"Does federating help? {what.capitalize()} on each site's test samples"
        headings = ["site", "n", *self.scores, "gain", "verdict"]
        return Table(title, headings, lines, "\n".join(notes))

    def _shown(self, gain: Gain) -> str:
        mean, low, high = (
            (f"{100 * one:+.1f}" if self.classes else f"{one:+.3g}").replace("-", "−")
            for one in gain
        )
        return f"{mean} ({low} to {high})"


def site_benefit(run: Experiment, shared: Tensor) -> SiteBenefit | None:
    """Train a model per site and personalised models, and score them with the shared one.

    Args:
        run: the federated run.
        shared: its last global model.

    Returns:
        The scores; None where sites hold out no test samples, or are too many.
    """
    problem = run.load_problem()
    tests: Any = problem.client_tests
    if tests is None or not 1 < problem.num_clients <= MOST_SITES:
        return None
    local = [trained(run, problem, client) for client in problem.clients]
    models = {LOCAL: local, SHARED: [shared] * problem.num_clients}
    personal = personalised(run, problem)
    models |= {} if personal is None else {PERSONAL: personal}
    return score_models(problem.data.client_names(), tests, models, run.seed)


def score_models(
    names: Sequence[str], tests: Sequence[Any], models: Mapping[str, Sequence[Tensor]], seed: int
) -> SiteBenefit:
    """Score models on each site's test samples.

    Args:
        names: the sites.
        tests: the evaluator of each site's held-out samples.
        models: how they were trained, with `LOCAL` -> one model per site.
        seed: the seed of the bootstrap.
    """
    held = [test.sets[-1] if isinstance(test, HeldOutSets) else test for test in tests]
    known = [site for site, one in enumerate(held) if len(one.targets)]
    scores = {
        how: [_sample_scores(held[site], own[site]) for site in known]
        for how, own in models.items()
    }
    classes = not held[known[0]].targets.is_floating_point()
    sign = 1 if classes else -1
    generator = numpy_generator(derive(seed, "site benefit"))
    return SiteBenefit(
        [names[site] for site in known],
        [len(held[site].targets) for site in known],
        {how: [sign * float(one.mean()) for one in found] for how, found in scores.items()},
        classes,
        {
            how: _gains(found, scores[LOCAL], generator)
            for how, found in scores.items()
            if how != LOCAL
        },
    )


def _gains(own: Scores, local: Scores, generator: np.random.Generator) -> list[Gain]:
    """The gain of each site, then that over all."""
    gains = [a - b for a, b in zip(own, local, strict=True)]
    found = []
    for group in [*([one] for one in gains), gains]:
        low, high = stratified_interval(group, generator)
        found.append(Gain(float(np.concatenate(group).mean()), low, high))
    return found


def _sample_scores(held: Any, params: Tensor) -> NDArray[Any]:
    """Whether each sample is classified correctly; or its negative squared error."""
    held.flat.load(params)
    held.flat.module.eval()
    with torch.no_grad():
        inputs = held.inputs if held.prepare is None else held.prepare(held.inputs)
        outputs = held.flat.module(inputs.to(params.dtype))
    if held.targets.is_floating_point():
        errors: NDArray[Any] = -(outputs[:, 0] - held.targets).square().double().numpy()
        return errors
    chosen = outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
    correct: NDArray[Any] = (chosen == held.targets).double().numpy()
    return correct


def trained(run: Experiment, problem: Problem, objective: Any) -> Tensor:
    """Train a model on one objective, with the run's local work and rounds."""
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


def personalised(run: Experiment, problem: Problem) -> list[Tensor] | None:
    """Train a personalised model per site; None if the run's method allows for none."""
    nothing = Evaluation(every=run.rounds, objective=False, test=False)
    local = replace(run.local, personal=run.local.personal or Ditto(WEIGHT))
    try:
        result = simulate(
            replace(run, local=local, evaluate=nothing, target=None, patience=None, callbacks=()),
            problem,
        )
    except CompatibilityError:
        return None
    return [result.personal(client) for client in range(problem.num_clients)]
