"""Which settings protect samples from an honest-but-curious server.

    OMP_NUM_THREADS=1 python -m studies.inversion [--method fedadmm] [--client 0] [--round 1]
                                                  [--out studies/inversion/results.json]

The attacked client trains on a few of its samples. The server knows the model, the method, the
local settings and all earlier messages of the client, and reconstructs labels and samples from the
message of the given round. The table compares amounts of local work, compression, clipping, noise
on the aggregate (seen by an observer who sees only the sum and knows all other updates) and DP-SGD.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import fedadmm as fa
from fedadmm.core import trees
from fedadmm.study.formatting import pipes
from studies.inversion import attacks
from studies.inversion.inference import Transcript, attacked, infer, observe

LR, SAMPLES = 0.1, 4
METHODS: dict[str, Any] = {
    "fedsgd": fa.FedSGD(LR),
    "fedavg": fa.FedAvg(),
    "scaffold": fa.Scaffold(),
    "feddyn": fa.FedDyn(10.0),
    "fedadmm": fa.FedADMM(rho=0.1),
    "feddr": fa.FedDR(eta=10.0),
}


class AttackSetting(NamedTuple):
    """One way of training and sending."""

    title: str
    steps: int = 1
    samples: int = SAMPLES
    upload: tuple[Any, ...] = ()
    clip: bool = False
    """Whether the message is clipped to half of its length."""
    noise: float = 0.0
    """The noise multiplier on the aggregate; the observer sees the aggregate."""
    private: float = 0.0
    """The noise multiplier of DP-SGD."""


SETTINGS = (
    AttackSetting("1 step"),
    AttackSetting("5 steps", steps=5),
    AttackSetting("20 steps", steps=20),
    AttackSetting("1 step, 1 sample", samples=1),
    AttackSetting("1 step, 16 samples", samples=16),
    AttackSetting("1 step, top-k 10 %", upload=(fa.TopK(0.1),)),
    AttackSetting("1 step, 8 bits", upload=(fa.Quantise(8),)),
    AttackSetting("1 step, 2 bits", upload=(fa.Quantise(2),)),
    AttackSetting("1 step, clip", clip=True),
    *(AttackSetting(f"1 step, noise {z:g}", clip=True, noise=z) for z in (0.01, 0.1, 1.0)),
    *(AttackSetting(f"1 step, DP-SGD {z:g}", private=z) for z in (0.01, 0.1, 1.0)),
)


class AttackResult(NamedTuple):
    """What an observer learns in one setting."""

    title: str
    observer: str
    labels: float
    """The share of the labels that were recovered."""
    recovered: int
    samples: int
    psnr: float
    """The median over the samples, in decibels."""
    attack: str


def attack(
    problem: fa.Problem,
    algorithm: Any,
    setting: AttackSetting,
    client: int,
    rounds: int,
    seed: int = 0,
) -> AttackResult:
    """Train, record, infer and attack in one setting; the better of two attacks counts."""
    own = attacked(problem, client, setting.samples, seed)
    target: Any = own.clients[0]
    samples, targets = target.prepared(target.inputs).detach(), target.targets
    solver: Any = fa.SGD(LR, batch_size=None)
    if setting.private:
        size = target.num_samples
        solver = fa.DPSGD(LR, clip=1.0, multiplier=setting.private, delta=1e-12, batch_size=size)
    transcript = observe(algorithm, own, solver, setting.steps, rounds, setting.upload, seed)
    if setting.clip:
        transcript = _clipped(transcript, setting.noise, seed)
    known = infer(transcript, LR)
    model = attacks.expose(target)
    rng = torch.Generator().manual_seed(seed)
    clipped = setting.clip or setting.private > 0
    guessed = attacks.labels(model, known, len(samples), rng, clipped=clipped)
    share = (Counter(targets.tolist()) & Counter(guessed.tolist())).total() / len(targets)
    made = {"weighted": attacks.weighted(model, known, guessed, rng)}
    if model.entry is not None:
        made["analytic"] = attacks.analytic(model, known, len(samples))
    found = {
        name: [
            attacks.psnr(sample, one, model.span)
            for sample, one in zip(samples, attacks.paired(samples, guess), strict=True)
        ]
        for name, guess in made.items()
    }
    best = max(found, key=lambda name: (_recovered(found[name]), statistics.median(found[name])))
    observer = "aggregate" if setting.noise else "server"
    quality = statistics.median(found[best])
    return AttackResult(
        setting.title, observer, share, _recovered(found[best]), len(samples), quality, best
    )


def _recovered(values: Sequence[float]) -> int:
    return sum(value >= attacks.RECOGNISED for value in values)


def _clipped(transcript: Transcript, noise: float, seed: int) -> Transcript:
    """Clip every message to half its length, with Gaussian noise relative to the clipping norm."""
    rng = torch.Generator().manual_seed(seed)
    rounds = []
    for one in transcript.rounds:
        norm = torch.cat([leaf.flatten() for leaf in trees.tensors(one.message)]).norm() / 2

        def protect(leaf: torch.Tensor, norm: torch.Tensor = norm) -> torch.Tensor:
            return leaf / 2 + noise * norm * torch.randn(leaf.shape, generator=rng).to(leaf)

        rounds.append(one._replace(message=trees.map_tensors(protect, one.message)))
    return Transcript(rounds, transcript.job)


def table(found: Iterable[AttackResult]) -> str:
    """The results as a Markdown table."""
    lines = [
        [
            row.title,
            row.observer,
            f"{row.labels:.0%}".replace("%", " %"),
            f"{row.recovered} of {row.samples}",
            f"{row.psnr:.1f}",
            row.attack,
        ]
        for row in found
    ]
    headings = ["update", "seen by", "labels", "recovered", "PSNR (dB)", "attack"]
    return "\n".join(pipes(headings, lines))


def main() -> None:
    """Attack in every setting and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=METHODS, default="fedadmm")
    parser.add_argument("--client", type=int, default=0)
    parser.add_argument("--round", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the results to this JSON file too")
    given = parser.parse_args()
    problem = fa.problems.load("digits", clients=50, partition="shards", model="mlp-64-32-10")
    found = [
        attack(problem, METHODS[given.method], setting, given.client, given.round)
        for setting in SETTINGS
        # FedSGD sends one gradient and makes no local step.
        if given.method != "fedsgd" or (setting.steps == 1 and not setting.private)
    ]
    print(table(found))
    if given.out is not None:
        rows = [row._asdict() | {"psnr": round(row.psnr, 2)} for row in found]
        given.out.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
