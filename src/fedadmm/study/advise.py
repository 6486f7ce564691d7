"""A setting to start from: the method, its penalty and the learning rate for a problem."""

from __future__ import annotations

import math
from typing import NamedTuple

from fedadmm.core.config_tree import Tree, flattened
from fedadmm.core.errors import CompatibilityError
from fedadmm.core.schedules import PerWork
from fedadmm.run.experiment import Experiment
from fedadmm.run.simulate import first_vector
from fedadmm.study.config import merged, resolve
from fedadmm.study.formatting import OnProgress, ignore_progress
from fedadmm.theory.constants import Constants, estimate_constants

DIGITS = 3
"""Recommended numbers are rounded to this many significant digits; the estimate has no more."""


class Advice(NamedTuple):
    """A recommended setting and the estimates behind it."""

    problem: str
    clients: int
    parameters: int
    constants: Constants
    participation: float | None
    """The smallest probability of participating in a round; None where it is not constant."""
    local_steps: int
    """Local steps per round of a client with a typical number of samples."""
    settings: dict[str, object]
    """The dotted keys that the recommendation sets."""
    config: Tree
    """The complete configuration with these keys."""


def advise(
    config: Experiment,
    *,
    clients: int = 6,
    samples: int = 64,
    on_progress: OnProgress = ignore_progress,
) -> Advice:
    """Recommend a method, its penalty and a learning rate for the problem of a configuration.

    The smoothness L is estimated at some clients. The learning rate is 1 / (L + rho), and the
    penalty rho = pull / (learning rate * local steps), as in `PerWork`. The method follows from the
    participation rate: FedADMM with full participation, aligned ADMM with partial participation,
    and asyncFedDR without rounds. All of them accept a regularizer. Sampler, batch size and local
    epochs stay as configured.

    Args:
        config: The configuration to start from.
        clients: How many clients are sampled for the estimates.
        samples: How many samples of each client the curvature is estimated on.
        on_progress: Called with the current step, the number of steps done and their total.

    Returns:
        The recommended keys, the complete configuration and the estimates.

    Raises:
        CompatibilityError: The estimated smoothness is zero or not finite.

    Example:
        >>> from fedadmm.study.config import resolve
        >>> advice = advise(resolve({"problem": {"name": "quadratics", "clients": 4}}), clients=2)
        >>> advice.settings["algorithm.name"]
        'fedadmm'
    """
    problem = config.load_problem()
    found = estimate_constants(
        problem,
        first_vector(config, problem),
        clients=clients,
        samples=samples,
        seed=config.seed,
        on_progress=on_progress,
    )
    L = found.smoothness + found.smoothness_spread
    if not 0.0 < L < math.inf:
        raise CompatibilityError(
            f"problem: got an estimated smoothness of {L:g}, expected a finite number above 0. "
            "Every gradient may vanish at the initial point."
        )
    sizes = sorted((problem.clients[client].num_samples, client) for client in found.clients)
    size, typical = sizes[len(sizes) // 2]
    batch = None if config.local.solver is None else config.local.solver.batch_size
    per_epoch = 1 if batch is None else math.ceil(size / batch)
    stop = config.local.stop
    assert stop is not None, "a resolved experiment has a stopping rule"
    steps = stop.budget(per_epoch, config.seed, typical)
    pull = PerWork().pull
    rho = pull * L / (steps - pull)  # Equals pull / (rate * steps) with the rate 1 / (L + rho).
    probabilities = config.sampler.probabilities(problem.num_clients)
    participation = None if probabilities is None else float(min(probabilities))
    changes: Tree = {"local": {"start": "global"}}
    if config.tree["local"]["solver"].get("lr") is not None:
        changes["local"]["solver"] = {"lr": _rounded(1.0 / (L + rho))}
    if config.resolve().engine.is_asynchronous:
        changes["algorithm"] = {"name": "async-feddr", "eta": _rounded(1.0 / rho)}
    elif participation == 1.0:
        changes["algorithm"] = {"name": "fedadmm", "rho": _rounded(rho)}
    else:
        changes["algorithm"] = {"name": "aligned-admm", "rho": _rounded(rho)}
        changes["output"] = {"name": "participants-mean"}
    return Advice(
        config.name("problem"),
        problem.num_clients,
        problem.num_parameters,
        found,
        participation,
        steps,
        flattened(changes),
        resolve(merged(config.tree, changes)).tree,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
