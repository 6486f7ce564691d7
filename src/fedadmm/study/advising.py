"""What `fedadmm advise` recommends, from estimates and the theorems' ranges, and what it costs."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

from annotated_types import Gt, Lt

from fedadmm.core.errors import ConfigError, PairingError
from fedadmm.core.privacy import multiplier_for
from fedadmm.core.problem import Problem
from fedadmm.core.sampling import Sampler
from fedadmm.core.tables import Tree, flattened
from fedadmm.core.validation import Positive, check
from fedadmm.run.experiment import Experiment
from fedadmm.run.simulation import first_vector
from fedadmm.study.config import merged, resolve
from fedadmm.study.estimating import Estimate, estimate
from fedadmm.study.formatting import OnProgress, ignore_progress
from fedadmm.theory import (
    Advice,
    Situation,
    feddr_bound,
    gong_bound,
    recommend,
    rounds_needed,
)

PRACTICE = "FedADMM, FedDR (practice)"
CONVEX = "FedADMM, FedDR (convex losses)"
PER_WORK = "FedADMM, per work (practice)"
ACCURACY = 0.01
"""The wanted mean of ||G||², as a part of what it is at the start."""
PRIVATE_ROUNDS = 80
"""The rounds of a run with noise that says nothing else (docs/privacy.md has the search)."""
DIGITS = 3
"""What is written into a configuration is rounded: more digits would claim to be known."""


class Private(NamedTuple):
    """A setting that spends a wanted (epsilon, delta)."""

    epsilon: float
    delta: float
    rounds: int
    probability: float
    """With which every client takes part in a round."""
    cohort: float
    multiplier: float
    noise: float
    """The norm of the noise on a round's mean, in units of the clip."""


class Recommendation(NamedTuple):
    """What `fedadmm advise` has to say."""

    problem: str
    clients: int
    parameters: int
    estimate: Estimate
    situation: Situation
    rows: tuple[Advice, ...]
    """What the theorems and practice allow, and the best of it."""
    rounds: dict[str, int]
    """Theorem -> rounds until its bound on the mean of ||G||² (V/n) meets the accuracy."""
    remarks: list[str]
    config: Tree
    """A complete run with the recommended setting."""
    changed: tuple[str, ...]
    """The keys of the method and of the solver that the advice set."""
    privacy: Private | None = None
    """How to stay within a wanted epsilon."""


def advise(
    config: Experiment,
    *,
    clients: int = 6,
    rows: int = 64,
    on_progress: OnProgress = ignore_progress,
) -> Recommendation:
    """Look at a configuration's problem, and set its method, penalty and learning rate.

    Everything else stays as the configuration has it: the clients that take part, the batches and
    the number of local epochs.

    Args:
        config: what is to be run.
        clients: how many clients are looked at.
        rows: how many rows of each the curvature is taken over.
        on_progress: called with how far it is.
    """
    problem = config.load_problem()
    initial = first_vector(config, problem)
    batch = None if config.local.solver is None else config.local.solver.batch_size
    found = estimate(
        problem,
        initial,
        clients=clients,
        rows=rows,
        batch_size=batch,
        seed=config.seed,
        on_progress=on_progress,
    )
    if not 0.0 < found.largest < math.inf:
        raise PairingError(
            f"advise: the curvature found is {found.largest:g}, but must be above 0 and finite; is "
            "the start a point where every gradient vanishes?"
        )
    situation = _situation(config, problem, found, batch)
    advice = recommend(situation)
    return Recommendation(
        config.name("problem"),
        problem.num_clients,
        problem.num_parameters,
        found,
        situation,
        advice,
        _rounds(situation, found, advice),
        _remarks(situation, found),
        *_written(config, situation, advice),
    )


def _situation(
    config: Experiment, problem: Problem, found: Estimate, batch: int | None
) -> Situation:
    sampler = config.sampler
    probabilities = sampler.probabilities(problem.num_clients)
    if probabilities is None:
        raise PairingError(
            f"advise: {type(sampler).__name__} has no probabilities that stay, but the theorems "
            "ask for them; use another sampler for the advice, such as UniformSampling"
        )
    convexity = found.convexity
    return Situation(
        L=found.largest,
        probabilities=tuple(map(float, probabilities)),
        L_spread=found.spread,
        batch_noise=found.batch_noise,
        strong_convexity=None if convexity is None else min(convexity, found.largest),
        local_steps=_local_steps(config, problem, found, batch),
        accuracy=max(ACCURACY * found.mean_gradient, 1e-12),
        tau=config.resolve().engine.expected_delay(problem.num_clients),
    )


def private(
    advice: Recommendation, sampler: Sampler, rounds: int, epsilon: float, delta: float
) -> Recommendation:
    """The recommendation with noise that spends epsilon over this many rounds.

    The method is FedAvg, whose moves are fresh in every round and forget the noise of earlier ones,
    with steps of 1/L; the output is an average over rounds.  The cohort is the smallest one, from
    the configuration's upwards in doublings, with which the noise on a round's mean is at most half
    as much again as with everybody.
    """
    check("advise", "delta", delta, Annotated[float, Gt(0), Lt(1 / advice.clients)])
    check("advise", "epsilon", epsilon, Positive)
    method = advice.config["algorithm"]
    if "rho" not in method:
        raise ConfigError(
            f"--epsilon is {epsilon:g}, but noise is accounted for by rounds, and {method['name']} "
            "has none; advise for a method with rounds"
        )
    chances = sampler.probabilities(advice.clients)
    q = 1.0 if chances is None else float(chances.mean())
    everybody = multiplier_for(epsilon, delta, 1.0, rounds)
    z = multiplier_for(epsilon, delta, q, rounds)
    while q < 1.0 and z / q > 1.5 * everybody:
        q = min(1.0, 2 * q)
        z = multiplier_for(epsilon, delta, q, rounds)
    q, z = _rounded(q), math.ceil(1000 * z) / 1000
    noise = z * math.sqrt(advice.parameters) / (q * advice.clients)
    found = Private(epsilon, delta, rounds, q, q * advice.clients, z, noise)
    tree = advice.config | {
        "rounds": rounds,
        "algorithm": {"name": "fedavg"},
        "output": {"name": "averaged"},
        "sampler": {"name": "bernoulli", "probability": q},
        "upload": [
            {"name": "adaptive-clip"},
            {"name": "gaussian", "multiplier": z, "delta": delta, "budget": epsilon},
        ],
    }
    tree["local"] = advice.config["local"] | {"start": "global"}
    if "lr" in advice.changed:
        rate = _rounded(1 / advice.situation.safe_smoothness)
        tree["local"] |= {"solver": tree["local"]["solver"] | {"lr": rate}}
    remarks = [*_of_estimate(advice.estimate), WHY_FRESH]
    if noise > 1:
        remarks.append(
            f"The noise on a round's mean is {noise:.3g} times the clip: what a client sends "
            "drowns in it. More clients, a smaller model or a larger epsilon help, in this order."
        )
    return advice._replace(privacy=found, config=resolve(tree).tree, remarks=remarks)


def _local_steps(config: Experiment, problem: Problem, found: Estimate, batch: int | None) -> int:
    """Steps of a client with a typical number of rows."""
    sizes = sorted((problem.clients[client].num_samples, client) for client in found.clients)
    size, typical = sizes[len(sizes) // 2]
    per_epoch = 1 if batch is None else math.ceil(size / batch)
    rule = config.local.stop
    assert rule is not None
    return rule.budget(per_epoch, config.seed, typical)


def _rounds(situation: Situation, found: Estimate, advice: tuple[Advice, ...]) -> dict[str, int]:
    L, p_hat = situation.safe_smoothness, situation.p_hat
    best = {(row.method, row.parameter): row.recommended for row in advice}
    start: dict[str, Any] = {"gap": found.gap, "start_gradient": found.start_gradient}
    gong = {"L": L, "rho": best["FedADMM (Gong, Theorem 1)", "rho"], "p_min": p_hat}
    feddr = {"L": L, "p_hat": p_hat} | {
        name: best["FedDR (Theorem 3.1)", name] for name in ("eta", "alpha")
    }
    return {
        "gong": rounds_needed(gong_bound, situation.accuracy, **gong, **start),
        "feddr": rounds_needed(feddr_bound, situation.accuracy, **feddr, **start),
    }


WHY_FRESH = (
    "With noise the method is FedAvg: its moves are fresh in every round, while a mean that the "
    "server tracks (FedADMM, FedDyn, SCAFFOLD) adds up the noise of all rounds."
)


ALIGNED = (
    "Not everybody takes part: absent clients move along with the participants "
    "(aligned-admm), so that no dual grows old, and the output is the participants' mean. That is "
    "measured (docs/participation.md), not proven."
)
GLOBAL = (
    "Local work begins at the global model (local.start = 'global'): a few steps do not solve a "
    "client's problem, and from its own model they leave it behind (docs/participation.md)."
)
SEEN = (
    "Not everybody takes part: the mean runs over the clients seen so far (members = 'seen'), "
    "which is the theorems' mean once all were. Local work begins at the global model "
    "(local.start = 'global'): a client's own is as old as its last round."
)


def _of_estimate(found: Estimate) -> list[str]:
    if found.known_smoothness is not None:
        return []
    return [
        f"L is the largest curvature met at {len(found.clients)} clients, at the start and a few "
        "steps on; a theorem wants it everywhere, so this is an estimate and no proof."
    ]


def _remarks(situation: Situation, found: Estimate) -> list[str]:
    remarks = _of_estimate(found)
    if found.convexity is None:
        remarks.append(
            "The losses are not known to be convex. The theorems then want a penalty above 2L, "
            "with which a client hardly moves; the written setting goes below it, as the papers' "
            "own experiments do, and so has no guarantee. Watch it with the callback diagnostics."
        )
    if situation.p_hat < 1.0 and situation.tau is None:
        remarks.append(ALIGNED if situation.strong_convexity is None else SEEN)
    elif situation.tau is None:
        remarks.append(GLOBAL)
    return remarks


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _written(
    config: Experiment, situation: Situation, advice: tuple[Advice, ...]
) -> tuple[Tree, tuple[str, ...]]:
    """The configuration with the recommended FedADMM, or asyncFedDR without rounds."""
    rounds, partial = situation.tau is None, situation.p_hat < 1.0
    convex, steps = situation.strong_convexity is not None, "lr" in config.tree["local"]["solver"]
    method = CONVEX if convex else PER_WORK if rounds and steps else PRACTICE
    best = {row.parameter: row.recommended for row in advice if row.method == method}
    rho, rate = _rounded(best["rho"]), _rounded(best["learning_rate"])
    changes: Tree = {}
    if not rounds:
        changes["algorithm"] = {"name": "async-feddr", "eta": _rounded(1 / rho)}
    elif partial and not convex:
        changes["algorithm"] = {"name": "aligned-admm", "rho": rho, "download": "half"}
        changes["output"] = {"name": "participants-mean"}
    else:  # all clients take part, or the theorem's method
        changes["algorithm"] = {"name": "fedadmm", "rho": rho}
        changes["algorithm"] |= {"members": "seen"} if partial else {}
    changes["local"] = {"start": "global"}
    if steps:
        changes["local"] |= {"solver": {"lr": rate}}
    keys = [key.rpartition(".")[2] for key in flattened(changes) if not key.endswith(".name")]
    return resolve(merged(config.tree, changes)).tree, tuple(keys)
