"""What a seed decides: the federation, and which faults come how often."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch

import fedadmm as fa
from fedadmm.core.errors import CompatibilityError
from fedadmm.core.local_work import LocalWork
from fedadmm.flower import DropIn
from fedadmm.flower.federation import Federation, Patience
from fedadmm.flower.protocol.admission import Admission

from .apps import LR, STEPS, drop_in_of

KINDS = (
    "loss",
    "delay",
    "duplicates",
    "partitions",
    "kills",
    "power cuts",
    "torn writes",
    "full disks",
    "read-only disks",
    "slow disks",
    "transient errors",
    "clock leaps",
    "wall clock leaps",
    "flipped bits",
    "wiped sites",
    "restored sites",
    "wiped servers",
    "restored servers",
    "second processes",
    "second nodes",
    "changed settings",
    "a liar",
    "withdrawals",
)
"""Every seed switches some of them on, a few seeds all of them."""


@dataclass(frozen=True)
class Plan:
    """One world before it begins."""

    federation: Federation
    weights: list[float]
    kinds: frozenset[str]
    objectives: list[fa.Quadratic]
    tail: int
    """Rounds after the faults have stopped."""
    liar: int | None
    lying_server: bool = False
    """Whether somebody changes the sets of masked sums on their way to the sites."""
    policies: list[dict[str, Any]] = field(default_factory=list)
    """What each site's own file says."""
    random_work: bool = False
    """Whether local work that is repeated gives another result, as with DP-SGD."""
    odd_metrics: bool = False
    """Whether the sites' own metrics are NaN, infinite or huge now and then."""
    drop_in: DropIn | None = None
    """The mod of the sites' app, if the app has its own training loop."""

    @property
    def local(self) -> LocalWork:
        """The local work of a run without faults."""
        if self.drop_in is None:
            return self.federation.experiment.local
        return LocalWork(fa.GradientDescent(lr=LR), fa.Steps(STEPS))

    @property
    def exact(self) -> bool:
        """Whether a run without faults gives the same model up to the rounding of doubles."""
        run = self.federation.experiment
        coarse = self.masked and run.aggregator.step is None
        return not (self.random_work or coarse)

    @property
    def masked(self) -> bool:
        """Whether only masked sums leave the sites."""
        return self.federation.experiment.aggregator.is_secure

    def has(self, kind: str) -> bool:
        """Whether this fault may come."""
        return kind in self.kinds


def make(seed: int) -> Plan:
    """The plan of a seed."""
    chance = Random(f"plan {seed}")
    clients, dimension = chance.choice([3, 3, 3, 4, 5]), chance.randint(2, 3)
    algorithm, solver, stop = _method(chance)
    newer = Random(f"newer {seed}")
    if newer.random() < 0.25:
        algorithm, solver, stop = _aligned(newer), fa.ExactSolver(), fa.Steps(1)
    patient = Patience(start=60.0, round=40.0, resend=12.0, poll=2.0, empty=3)
    share = chance.choice([0.15, 0.35, 0.6])
    kinds = frozenset(kind for kind in KINDS if chance.random() < share)
    if seed % 16 == 0:
        kinds = frozenset(KINDS)
    mode = (
        "rounds"
        if chance.random() < 0.7 or not algorithm.requirements.stale_updates
        else "asynchronous"
    )
    settings: dict[str, Any] = {
        "algorithm": algorithm,
        "clients": clients,
        "rounds": chance.randint(2, 3) * (1 if mode == "rounds" else clients - 1),
        "initial": _vector(chance, dimension),
        "solver": solver,
        "stop": stop,
        "mode": mode,
        "seed": seed,
        "ledger": chance.choice(["disk", "disk", "none"]),
        "weights": [chance.uniform(0.5, 2.0) for _ in range(clients)],
        "evaluate_every": chance.choice([0, 0, 2]),
        "patience": patient,
        # Honest clients differ: the bound has to keep liars out, not them.
        "admission": Admission(norm_factor=1e3),
        "names": [f"client-{c}" for c in range(clients)] if chance.random() < 0.5 else None,
    }
    if mode == "rounds" and chance.random() < 0.3:
        settings["sampler"] = fa.UniformSampling(clients - 1)
    if _may_be_cut(algorithm) and newer.random() < 0.25:
        settings["pipeline"] = [fa.TopK(keep=1)]
    hides = Random(f"masked {seed}")
    if mode == "rounds" and "pipeline" not in settings and hides.random() < 0.3:
        # As fine as the doubles themselves, so that all books stay as exact as they are.
        settings["aggregator"] = fa.MaskedSum(bound=2048.0, step=2.0**-50)
        settings["ledger"] = "none"
        if clients == 3:
            settings.pop("sampler", None)
    abilities = Random(f"abilities {seed}")
    if "aggregator" in settings and abilities.random() < 0.5:
        _use_short_words(settings, abilities)
    random_work, odd_metrics = abilities.random() < 0.2, abilities.random() < 0.3
    policies = _policies(Random(f"policies {seed}"), settings)
    if odd_metrics and "aggregator" in settings:
        settings["evaluate_every"] = 1
        for agreed in policies:
            agreed |= {"evaluations": 100, "evaluations_with_noise": True}
            agreed.pop("metrics", None)
    calm = 2
    # Long enough to come to the optimum, with what was cut off as well; FedAvg has another limit.
    if seed % 128 == 5 and not isinstance(algorithm, fa.FedAvg):
        calm = 30 if "aggregator" in settings or "pipeline" not in settings else 120
    federation, drop_in = Federation(**settings), None
    drawn = Random(f"drop-in {seed}")
    if "aggregator" not in settings and calm == 2 and drawn.random() < 0.25:
        with suppress(CompatibilityError):  # some methods need more than an app's loop gives
            drop_in = drop_in_of(settings)
            problem = replace(drop_in.federation.problem, initial=settings["initial"])
            federation = with_run(drop_in.federation, problem=problem, rounds=settings["rounds"])
    return Plan(
        federation,
        settings["weights"],
        kinds,
        [_quadratic(chance, dimension) for _ in range(clients)],
        # Without rounds the others go on while one is repaired: it needs time for its turn.
        tail=calm * (1 if mode == "rounds" else 2 * clients),
        liar=chance.randrange(clients) if "a liar" in kinds else None,
        lying_server="aggregator" in settings and hides.random() < 0.5,
        policies=policies,
        random_work=random_work,
        odd_metrics=odd_metrics,
        drop_in=drop_in,
    )


def _use_short_words(settings: dict[str, Any], chance: Random) -> None:
    """Words of 32 bits, for most methods with a clip and noise in shares."""
    method = settings["algorithm"]
    whole = isinstance(method, fa.FedADMMInSa) or getattr(method, "members", "all") != "all"
    if whole or chance.random() < 0.4:
        settings["aggregator"] = fa.MaskedSum(bound=50.0)
    else:
        settings["aggregator"] = fa.MaskedSum()
        settings["pipeline"] = [fa.Clip(20.0), fa.GaussianNoise(0.01, 1e-5)]


def _policies(chance: Random, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """One site never evaluates, others for a while; in half of the seeds they ask for more."""
    clients = settings["clients"]
    drawn = getattr(settings.get("sampler"), "size", clients)
    strict = chance.random() < 0.5
    found: list[dict[str, Any]] = []
    for client in range(clients):
        agreed: dict[str, Any] = {"evaluations": 2 * client}
        if strict:
            agreed["approval"] = chance.random() < 0.3
            agreed["metrics"] = chance.choice([["loss"], ["loss", "accuracy"]])
        if strict and "aggregator" in settings:
            agreed["sets_apart"] = chance.random() < 0.6
            agreed["minimum_sites"] = chance.choice([3, drawn])
        found.append(agreed)
    return found


def _method(chance: Random) -> tuple[Any, Any, Any]:
    exact, once = fa.ExactSolver(), fa.Steps(1)
    descent = fa.GradientDescent(lr=0.2), fa.Steps(2)
    return chance.choice(
        [
            (fa.FedADMM(rho=1.5), exact, once),
            (fa.FedADMM(rho=1.5, members="seen"), exact, once),
            (fa.FedADMMInSa(beta=1.5), exact, once),
            (fa.FedDR(eta=0.7), exact, once),
            (fa.FedDR(eta=0.7, init="prox"), exact, once),
            (fa.FedDyn(eta=0.7), exact, once),
            (fa.Scaffold(), *descent),
            (fa.FedAvg(), *descent),
        ]
    )


def _aligned(chance: Random) -> Any:
    """Absent clients move along; what they missed reaches them later."""
    sigma: Any = chance.choice(["auto", 0.5, 1.0])
    return fa.AlignedADMM(rho=1.5, sigma=sigma)


def _may_be_cut(algorithm: Any) -> bool:
    """Whether its message is an increment of what the books sum."""
    return isinstance(algorithm, fa.FedADMM | fa.FedDR) and bool(algorithm.increments)


def _vector(chance: Random, dimension: int) -> torch.Tensor:
    return torch.tensor([chance.gauss(0, 1) for _ in range(dimension)], dtype=torch.float64)


def _quadratic(chance: Random, dimension: int) -> fa.Quadratic:
    """Eigenvalues between 1 and 2, so that a few rounds bring it near its minimum."""
    vector = _vector(chance, dimension)
    unit = vector / torch.linalg.vector_norm(vector)
    matrix = torch.eye(dimension, dtype=torch.float64) + torch.outer(unit, unit)
    return fa.Quadratic(matrix, 2 * _vector(chance, dimension))


def with_run(settings: Federation, **changes: Any) -> Federation:
    """The same federation with another experiment."""
    return replace(settings, experiment=replace(settings.experiment, **changes))


def start(settings: Federation) -> torch.Tensor:
    """Where the run starts."""
    initial = settings.problem.initial
    assert isinstance(initial, torch.Tensor)
    return initial


def _otherwise_kept(settings: Federation) -> Federation:
    if settings.experiment.aggregator.is_secure:
        return with_run(settings, aggregator=fa.Sum())
    return replace(settings, ledger="none" if settings.ledger == "disk" else "disk")


def changed(settings: Federation, chance: Random) -> tuple[Federation, bool]:
    """Other settings at a restart, and whether a run that has begun may go on with them."""
    run, problem = settings.experiment, settings.problem
    assert isinstance(problem.weights, torch.Tensor)
    other = problem.weights.tolist()
    work = replace(run.local, stop=fa.Steps(9))
    return chance.choice(
        [
            (
                with_run(settings, problem=replace(problem, weights=[*other[1:], other[0] + 1])),
                False,
            ),
            (with_run(settings, problem=replace(problem, initial=start(settings) + 1)), False),
            (with_run(settings, seed=run.seed + 1), False),
            (with_run(settings, algorithm=fa.FedADMM(rho=9.0), local=work), False),
            (_otherwise_kept(settings), False),
            (replace(settings, evaluate_every=1), True),
            (replace(settings, patience=replace(settings.patience, round=25.0)), True),
        ]
    )
