"""What a few attackers do to a run, and what bounds them.

    OMP_NUM_THREADS=1 FEDADMM_DATA=... python -m studies.attacks studies/attacks/results.json

Twenty sites with rows of a Dirichlet split, weights by rows, all of them in each of 30 rounds.  The
heaviest sites that together hold at most the attacked share of the rows lie; they know the honest
replies of their round and keep to the clip.  A finished cell is not run again; `--page FILE`
writes the tables.

`--one-liar` runs the cells of four and of ten sites of equal weight, one of which sends -1 times
its update.  They also record which site has the lowest mean cosine to the sum of the others over
the last 20 rounds, as the report of a deployed run shows it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import fedadmm as fa
from fedadmm.core import trees
from fedadmm.core.aggregation import cosines_to_others
from fedadmm.core.messages import ClientInfo, ClientRecords, Download, Engine, PartialSum, Upload
from fedadmm.core.pipeline.postprocessors import joint_norm
from fedadmm.data import problems
from fedadmm.run.client import Job
from fedadmm.run.engines import EngineChoice

PROBLEMS: dict[str, dict[str, Any]] = {
    "digits": {"name": "digits", "model": "mlp-64-32-10"},
    "fashion-mnist": {"name": "fashion-mnist", "model": "logistic", "max_train": 4000},
}
CLIP = [fa.AdaptiveClip(norm=1.0)]
ROWS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": fa.FedAvg()},
    "FedAvg, median clip": {"method": fa.FedAvg(), "pipeline": CLIP},
    "FedAvg, trimmed mean 0.3": {"method": fa.FedAvg(), "aggregator": fa.TrimmedMean(0.3)},
    "FedAvg, median": {"method": fa.FedAvg(), "aggregator": fa.Median()},
    "aligned ADMM": {"method": fa.AlignedADMM(rho=fa.PerWork(0.25))},
    "aligned ADMM, median clip": {"method": fa.AlignedADMM(rho=fa.PerWork(0.25)), "pipeline": CLIP},
    "FedADMM": {"method": fa.FedADMM(rho=fa.PerWork(0.25)), "start": "global"},
    "FedADMM, median clip": {
        "method": fa.FedADMM(rho=fa.PerWork(0.25)),
        "start": "global",
        "pipeline": CLIP,
    },
}
ATTACKS = ("sign flip", "scaled by -10", "a little is enough", "label flip")
SHARES = (0.1, 0.3)
SEEDS = (0, 1, 2)
FEW = (("iid", 4), ("dirichlet", 4), ("dirichlet", 10))
"""Partitions and numbers of sites, one of which lies."""
FEW_SEEDS = range(10)
FEW_ROWS = ("FedAvg", "FedAvg, median clip", "FedAvg, trimmed mean 0.3", "FedAvg, median")
FEW_ROWS += ("aligned ADMM", "FedADMM", "FedADMM, median clip")
WINDOW = 20
"""Rounds over which cosines are averaged."""


@dataclass(frozen=True)
class Attacked(EngineChoice):
    """The vectorised engine, some of whose replies are replaced on their way to the server."""

    liars: tuple[int, ...]
    attack: str
    cosines: list[dict[int, float]] = field(default_factory=list)
    """The cosine of each update to the sum of the others, one entry per round."""
    name = "attacked"

    def start(self, job: Job, store: ClientRecords) -> Engine:
        return AttackedEngine(self, fa.engines.Vectorised().start(job, store), job)


class AttackedEngine(Engine):
    def __init__(self, choice: Attacked, inner: Engine, job: Job) -> None:
        self._choice, self._inner, self._job = choice, inner, job

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[tuple[int, Upload, ClientInfo]]:
        replies = []
        for reply in self._inner.run_clients(ids, download, round_index):
            assert not isinstance(reply, PartialSum)
            client, upload, info = reply
            replies.append((client, trees.clone(upload), info))
        honest = [upload for client, upload, _ in replies if client not in self._choice.liars]
        bound = None if download.pipeline is None else float(download.pipeline)
        sent = []
        for client, upload, info in replies:
            if client in self._choice.liars:
                message = _lie(self._choice.attack, upload.message, [h.message for h in honest])
                upload = upload._replace(message=_within(message, bound))
            sent.append((client, upload, info))
        weight = self._job.problem.weight
        shares = {client: (weight(client), upload.message) for client, upload, _ in sent}
        self._choice.cosines.append(cosines_to_others(shares))
        yield from sent

    def close(self) -> None:
        self._inner.close()


def _lie(attack: str, own: Any, honest: list[Any]) -> Any:
    if attack == "sign flip":
        return trees.map_tensors(torch.neg, own)
    if attack == "scaled by -10":
        return trees.map_tensors(lambda leaf: -10 * leaf, own)
    if attack == "a little is enough":  # Baruch et al., NeurIPS 2019, with z = 1.5
        stacked = trees.stack(honest)
        return trees.map_tensors(lambda leaf: leaf.mean(0) - 1.5 * leaf.std(0), stacked)
    return own  # label flip: the rows lie, the site does not


def _within(message: Any, bound: float | None) -> Any:
    leaves = dict(enumerate(trees.tensors(message)))
    length = joint_norm({str(k): leaf for k, leaf in leaves.items()})
    if bound is None or length <= bound:
        return message
    return trees.map_tensors(lambda leaf: leaf * (bound / length), message)


def liars(weights: Sequence[float], share: float) -> tuple[int, ...]:
    """The heaviest clients that together hold at most this share."""
    chosen: list[int] = []
    for client in sorted(range(len(weights)), key=lambda i: -weights[i]):
        if sum(weights[i] for i in (*chosen, client)) <= share:
            chosen.append(client)
    return tuple(sorted(chosen))


def accuracy(problem: str, row: str, attack: str | None, share: float, seed: int) -> float:
    loaded = problems.load(
        **PROBLEMS[problem],
        clients=20,
        partition="dirichlet",
        dirichlet_alpha=0.5,
        partition_seed=seed,
        weights="samples",
    )
    weights = [loaded.weight(client) for client in range(20)]
    chosen = liars(weights, share) if attack else ()
    if attack == "label flip":
        clients: list[Any] = list(loaded.clients)
        for client in chosen:
            clients[client] = replace(clients[client], targets=9 - clients[client].targets)
        loaded = replace(loaded, clients=clients)
    parts = dict(ROWS[row])
    result = fa.simulate(
        parts.pop("method"),
        loaded,
        30,
        solver=fa.SGD(lr=0.1, batch_size=20),
        stop=fa.Epochs(2),
        engine=Attacked(chosen, attack or ""),
        evaluate=fa.Evaluation(every=30),
        seed=seed,
        **parts,
    )
    if result.code == "diverged":
        return float("nan")
    return float(result.history[-1]["metrics"]["test_accuracy"])


def one_liar(row: str, partition: str, sites: int, lies: bool, seed: int) -> tuple[float, int]:
    """Return test accuracy on digits, and the site with the lowest mean cosine; site 0 may lie."""
    split = {"dirichlet_alpha": 0.5} if partition == "dirichlet" else {}
    loaded = problems.load(
        **PROBLEMS["digits"], clients=sites, partition=partition, partition_seed=seed, **split
    )
    engine, parts = Attacked((0,) if lies else (), "sign flip"), dict(ROWS[row])
    result = fa.simulate(
        parts.pop("method"),
        loaded,
        30,
        solver=fa.SGD(lr=0.1, batch_size=20),
        stop=fa.Epochs(2),
        engine=engine,
        evaluate=fa.Evaluation(every=30),
        seed=seed,
        **parts,
    )
    last = engine.cosines[-WINDOW:]
    lowest = min(range(sites), key=lambda site: sum(cosines[site] for cosines in last))
    if result.code == "diverged":
        return float("nan"), lowest
    return float(result.history[-1]["metrics"]["test_accuracy"]), lowest


def run_one_liar(results: Path) -> None:
    found = json.loads(results.read_text()) if results.exists() else {}
    for partition, sites in FEW:
        for row in FEW_ROWS:
            for lies in (False, True):
                key = f"{row} | {partition} | {sites} | {'one liar' if lies else 'honest'}"
                if key in found:
                    continue
                pairs = [one_liar(row, partition, sites, lies, seed) for seed in FEW_SEEDS]
                values = [None if value != value else round(value, 4) for value, _ in pairs]
                found[key] = {"accuracy": values, "lowest cosine": [site for _, site in pairs]}
                print(key, found[key], flush=True)
                results.write_text(json.dumps(found, indent=0) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--one-liar", action="store_true")
    given = parser.parse_args()
    if given.one_liar:
        run_one_liar(given.results)
        return
    found = json.loads(given.results.read_text()) if given.results.exists() else {}
    if given.page:
        given.page.write_text(page(found))
        return
    for problem in PROBLEMS:
        cells = [(None, 0.0), *((attack, share) for share in SHARES for attack in ATTACKS)]
        for attack, share in cells:
            for row in ROWS:
                key = f"{problem} | {row} | {attack or 'none'} | {share:g}"
                if key not in found:
                    values = [accuracy(problem, row, attack, share, seed) for seed in SEEDS]
                    found[key] = [None if v != v else round(v, 4) for v in values]
                    print(key, found[key], flush=True)
                    given.results.write_text(json.dumps(found, indent=0) + "\n")


def page(found: dict[str, list[float | None]]) -> str:
    """One table for each problem: the mean accuracy of the seeds in per cent."""
    lines = []
    for problem in PROBLEMS:
        heads = [f"{attack}, {share:.0%}" for share in SHARES for attack in ATTACKS]
        lines += [f"**{problem}**", "", f"| | none | {' | '.join(heads)} |"]
        lines += ["|---|" + "---|" * (1 + len(heads))]
        for row in ROWS:
            cells = [("none", 0.0), *((attack, share) for share in SHARES for attack in ATTACKS)]
            shown = [found[f"{problem} | {row} | {attack} | {share:g}"] for attack, share in cells]
            lines.append(f"| {row} | {' | '.join(map(_cell, shown))} |")
        lines.append("")
    return "\n".join(lines)


def _cell(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return f"diverged {len(values) - len(known)}/{len(values)}"
    return f"{100 * sum(known) / len(known):.1f}"


if __name__ == "__main__":
    main()
