"""The audit: one upload, what the attacks make of it, and the same upload better protected."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Ge, Le
from torch import Tensor

from fedadmm.core.errors import PairingError, ParameterError
from fedadmm.core.problem import Problem
from fedadmm.core.rng import derive, generator
from fedadmm.core.tables import Tree
from fedadmm.core.uploads import Uploads, vectors_of
from fedadmm.core.uploads.stages import joint_norm
from fedadmm.core.validation import Count, check
from fedadmm.run.client import Job
from fedadmm.run.engines.choice import chosen_threads, torch_threads
from fedadmm.run.experiment import Experiment
from fedadmm.run.simulation import first_vector, make_job
from fedadmm.study.auditing import attacks
from fedadmm.study.auditing.attacks import Exposed
from fedadmm.study.auditing.inference import (
    Inferred,
    Observed,
    from_the_sum,
    infer,
    observe,
    prepared_rows,
    with_rows,
)
from fedadmm.study.config import merged, resolve
from fedadmm.study.formatting import OnProgress, ignore_progress

ROWS = 4
"""By default this many of the client's rows are trained on."""
_OTHERS = 10
"""The mean row of this many other clients is the guess without any upload."""


class Attempt(NamedTuple):
    """What one attack made of an upload."""

    attack: str
    found: Tensor
    """The reconstructions, each in the place of the row that it is nearest to."""
    each: list[attacks.Score]

    @property
    def recovered(self) -> int:
        """How many rows are recognisable."""
        return sum(one.psnr >= attacks.RECOGNISED for one in self.each)

    @property
    def psnr(self) -> float:
        """The median over the rows: a mean would be that of the exact ones."""
        return statistics.median(one.psnr for one in self.each)

    @property
    def ssim(self) -> float | None:
        """The mean over the rows."""
        known = [one.ssim for one in self.each if one.ssim is not None]
        return statistics.mean(known) if known else None


class Outcome(NamedTuple):
    """What an observer learns in one setting."""

    setting: Setting
    steps: int
    labels: float | None
    """The share of the labels that were recovered; None without classes."""
    rows: Tensor
    attempts: list[Attempt]

    @property
    def best(self) -> Attempt:
        """The attempt that recovers most rows, and among equal ones comes nearest."""
        return max(self.attempts, key=lambda one: (one.recovered, one.psnr))


class Audit(NamedTuple):
    """Everything that an audit found out."""

    run: Experiment
    client: int
    round: int
    model: Exposed
    outcomes: list[Outcome]
    blind: list[attacks.Score]
    """What the mean row of other clients scores: nothing leaked below that."""
    left_out: dict[str, str]
    """Setting -> why this method or model cannot be run in it."""


def audit(
    run: Experiment,
    *,
    client: int = 0,
    rows: int | None = None,
    round_number: int = 1,
    attack: str | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Audit:
    """Attack one client's upload as the configuration has it, then with more and less protection.

    Args:
        run: what is audited; its method, solver, stopping rule and stages make the upload.
        client: whose upload it is.
        rows: how many of the client's rows it trains on; 4 by default, or as many as it has.
        round_number: the round whose upload is attacked; the server remembers all earlier ones.
        attack: one of `attacks.ATTACKS`; by default the analytic and the weighted one, as far as
            they suit the model, of which the better is shown.
        on_progress: called with the title of every setting before it is tried.
    """
    check("audit", "round", round_number, Count)
    problem = run.load_problem()
    check("audit", "client", client, Annotated[int, Ge(0), Le(problem.num_clients - 1)])
    model = attacks.expose(problem.clients[client])
    chosen = _attacks(model, attack)
    available = problem.clients[client].num_samples
    rows = min(ROWS, available) if rows is None else rows
    check("audit", "rows", rows, Annotated[int, Ge(1), Le(available)])
    outcomes: list[Outcome] = []
    left_out: dict[str, str] = {}
    auditor = _Auditor(problem, client, round_number - 1, chosen)
    wanted = list(settings_of(run, rows, available))
    for done, setting in enumerate(wanted):
        on_progress(setting.title, done, len(wanted))
        try:
            outcomes.append(auditor.outcome(run, setting))
        except (PairingError, ParameterError) as error:
            if setting.title == CONFIGURED:
                raise
            left_out[setting.title] = str(error)
    guess, span = _blind(problem, client, model), model.high - model.low
    blind = [attacks.score(row, guess, span) for row in outcomes[0].rows]
    return Audit(run, client, round_number, model, outcomes, blind, left_out)


def _attacks(model: Exposed, asked: str | None) -> Sequence[str]:
    """The attack that was chosen, or the strongest ones; refuses one that does not suit the model.

    Matching is the weighted attack without weights and with one step, for comparison.
    """
    suited = ["analytic"] if model.entry is not None else []
    suited += ["weighted", "matching"] if model.classes is not None else []
    if asked is not None and asked not in suited:
        why = {
            "analytic": "the rows enter no linear layer with a bias",
            "matching": "the targets are no classes, which it would have to know",
            "weighted": "the targets are no classes, which it would have to know",
        }
        reason = why.get(asked, "there is no such attack")
        raise PairingError(
            f"audit: attack is {asked!r}, but {reason}; there are {', '.join(suited) or 'none'}"
        )
    if not suited:
        raise PairingError(
            "audit: the rows enter no linear layer with a bias and have no classes, so that no "
            "attack applies"
        )
    return [name for name in suited if name != "matching"] if asked is None else [asked]


class _Auditor:
    """One client's uploads in one setting."""

    def __init__(self, problem: Problem, client: int, before: int, chosen: Sequence[str]) -> None:
        self._problem = problem
        self._client = client
        self._before = before
        self._chosen = chosen

    def outcome(self, run: Experiment, setting: Setting) -> Outcome:
        """Train, listen, infer, attack."""
        changed = resolve(merged(run.tree, self._with_clip(run, setting)))
        job = self._job(changed, setting.rows)
        with torch_threads(chosen_threads(job, run.threads)):
            observed = observe(job, changed.sampler, self._client, self._before)
            if setting.in_sum:
                observed = from_the_sum(job, self._client, observed)
            return self._attacked(job, setting, observed)

    def _job(self, run: Experiment, rows: int) -> Job:
        problem = with_rows(self._problem, self._client, rows, run.seed)
        initial = first_vector(run, self._problem).cpu()
        job = make_job(run.algorithm, problem, run.local, run.seed, initial)
        return job._replace(uploads=Uploads.of(run.upload))

    def _with_clip(self, run: Experiment, setting: Setting) -> Tree:
        """The changes; a clip whose norm is open cuts the upload to half its length."""
        stages = setting.changes.get("upload", [])
        if not any(stage["name"] == "clip" for stage in stages):
            return setting.changes
        free = resolve(merged(run.tree, setting.changes | {"upload": []}))
        job = self._job(free, setting.rows)
        observed = observe(job, free.sampler, self._client, self._before)
        vectors = vectors_of(job.algorithm, observed[-1].message)
        clip = {"name": "clip", "norm": joint_norm(vectors) / 2 if vectors else 1.0}
        others = [stage for stage in stages if stage["name"] != "clip"]
        return setting.changes | {"upload": [clip, *others]}

    def _attacked(self, job: Job, setting: Setting, observed: Sequence[Observed]) -> Outcome:
        model = attacks.expose(self._problem.clients[self._client].to(job.initial.dtype))
        known = infer(job, self._client, observed)
        rows, targets = prepared_rows(job.problem.clients[self._client])
        dice = generator(derive(job.seed, "attack", self._client))
        guessed, share = None, None
        if model.classes is not None:
            private = job.solver is not None and job.solver.noise is not None
            cut = job.uploads.clip is not None or private
            guessed = attacks.labels(model, known, setting.rows, dice, cut=cut)
            common = Counter(targets.tolist()) & Counter(guessed.tolist())
            share = common.total() / len(targets)
        attempts = [self._attempt(name, model, known, rows, guessed, dice) for name in self._chosen]
        return Outcome(setting, observed[-1].steps, share, rows, attempts)

    def _attempt(
        self,
        name: str,
        model: Exposed,
        known: Inferred,
        rows: Tensor,
        guessed: Tensor | None,
        dice: torch.Generator,
    ) -> Attempt:
        if name == "analytic":
            found = attacks.analytic(model, known, len(rows))
        else:
            assert guessed is not None
            found = attacks.matching(model, known, guessed, dice, weighted=name == "weighted")
        found = attacks.paired(rows, found)
        span = model.high - model.low
        each = [attacks.score(row, one, span) for row, one in zip(rows, found, strict=True)]
        return Attempt(name, found, each)


def _blind(problem: Problem, client: int, model: Exposed) -> Tensor:
    """The mean row of some other clients; the middle of the range where there is none."""
    others = [index for index in range(problem.num_clients) if index != client][:_OTHERS]
    if not others:
        return torch.full(model.shape, (model.low + model.high) / 2)
    return torch.cat([prepared_rows(problem.clients[other])[0] for other in others]).mean(0)


def document(found: Audit) -> dict[str, Any]:
    """The audit as plain values, for JSON."""
    return {
        "problem": found.run.name("problem"),
        "method": found.run.name("algorithm"),
        "client": found.client,
        "round": found.round,
        "parameters": found.model.flat.num_parameters,
        "recovered_from_decibels": attacks.RECOGNISED,
        "blind_psnr": statistics.median(one.psnr for one in found.blind),
        "settings": [
            {
                "title": one.setting.title,
                "observer": OBSERVERS[one.setting.in_sum],
                "changes": one.setting.changes,
                "rows": one.setting.rows,
                "steps": one.steps,
                "labels": one.labels,
                "best": one.best.attack,
                "attacks": {
                    attempt.attack: {
                        "recovered": attempt.recovered,
                        "psnr": attempt.psnr,
                        "ssim": attempt.ssim,
                        "each": [score._asdict() for score in attempt.each],
                    }
                    for attempt in one.attempts
                },
            }
            for one in found.outcomes
        ],
        "left_out": found.left_out,
    }


CONFIGURED = "as configured"
OBSERVERS = ("server", "sum")
"""Who sees every upload, and who sees nothing but the sum with its noise."""
_STAGES: dict[str, Tree] = {
    "top-k 10 %": {"name": "top-k", "keep": 0.1},
    "top-k 1 %": {"name": "top-k", "keep": 0.01},
    "8 bits": {"name": "quantise", "bits": 8},
    "2 bits": {"name": "quantise", "bits": 2},
    "clip": {"name": "clip"},
}
_RATE = 0.1
"""The learning rate of the exposed upload's step, where the configured solver has none."""
_NOISE = (0.01, 0.1, 1.0)
"""Multipliers, of the noise on sums and of that in local steps."""


class Setting(NamedTuple):
    """One way of training and sending, as changes of the configuration."""

    title: str
    rows: int
    changes: Tree
    in_sum: bool = False
    """Whether the observer sees the noised sum instead of the upload."""


def settings_of(run: Experiment, rows: int, available: int) -> Iterator[Setting]:
    """The configuration, the most exposed upload, and that one with one thing changed.

    A clip without a norm is one to half the length of what would be sent.
    """
    yield Setting(CONFIGURED, rows, {})
    if any(stage.place == "noise" for stage in run.upload):
        yield Setting(f"{CONFIGURED}, in the sum", rows, {}, in_sum=True)

    def local(steps: int, solver: Tree | None = None, **changes: Any) -> Tree:
        work = {"solver": solver or exposed, "stop": {"name": "steps", "steps": steps}}
        return {"local": work, "upload": []} | changes

    rate = run.tree["local"]["solver"].get("lr", _RATE)
    exposed = {"name": "sgd", "lr": rate, "batch_size": available}
    yield Setting("1 step", rows, local(1))
    if run.algorithm.requirements.local.local_solve:
        yield Setting("5 steps", rows, local(5))
        yield Setting("20 steps", rows, local(20))
    for count in (1, 16):
        if count != rows and count <= available:
            yield Setting(f"1 step, {count} row{'s' * (count > 1)}", count, local(1))
    for title, stage in _STAGES.items():
        yield Setting(f"1 step, {title}", rows, local(1, upload=[stage]))
    for multiplier in _NOISE:
        stages = [_STAGES["clip"], {"name": "gaussian", "multiplier": multiplier, "delta": 1e-12}]
        title = f"1 step, noise {multiplier:g}"
        yield Setting(title, rows, local(1, upload=stages), in_sum=True)
    if run.algorithm.requirements.local.local_solve:
        for multiplier in _NOISE:
            private = {"name": "dp-sgd", "clip": 1.0, "multiplier": multiplier, "delta": 1e-12}
            solver = exposed | private
            yield Setting(f"1 step, DP-SGD {multiplier:g}", rows, local(1, solver))
