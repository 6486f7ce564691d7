"""Few participants and networks with convolutions: the study's rows, tuned on a CNN.

    OMP_NUM_THREADS=1 FEDADMM_DATA=... python -m studies.participation.cnn [--seeds 3]

The study's own search is on perceptrons.  Here every row is searched on MNIST with a small CNN and
seed 1000, by its rounds to 90 %, and judged on the digits, Fashion-MNIST and CIFAR-10 small, with a
tenth or a twentieth of the clients.  The rows and problems are those of `participation.toml`.

One rule for all: start at the middle of each of a row's values, the learning rate first.  Try both
neighbours; a choice at an edge gets up to three more points beyond it, until one is no better.  A
point ends when it has needed as many rounds as the best so far.  A row that adds something to
another one starts from what that one chose, and searches what it adds.

Results go to `cnn/` as they come, and a finished search or run is not run again;
`--page FILE` writes the tables into a page instead.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

import fedadmm
from fedadmm.core.config_tree import from_config
from fedadmm.data.models import small_cnn
from fedadmm.study.recipes import Recipe, study_of
from fedadmm.study.spec import Cell
from fedadmm.study.statistics import median_ratio
from studies.participation.recipe import STUDY, recipe

RESULTS = Path(__file__).with_name("cnn")
SEARCHED_ON, SEED, ENOUGH = "mnist-cnn-10", 1000, 0.9
TRIED, LIMIT = 45, 120  # rounds of a first point, and of a run
RATES = (0.03, 0.06, 0.12)
JUDGED_ON = (
    "digits-cnn-10",
    "fashion-cnn-10",
    "digits-cnn-5",
    "fashion-cnn-5",
    "cifar10-cnn-10",
    "cifar10-resnet-10",
)
BASELINES = ("fedavg", "fedavgm", "fedadagrad", "scaffold")
ROWS: dict[str, str | None] = {
    "fedavg": None,
    "fedadagrad": None,
    "per-work-auto": None,
    "per-work-one": None,
    "lesam-aligned": "per-work-auto",
    "per-work-half": "per-work-auto",
    "scaffold": None,
    "feddyn": None,
    "lesam-dyn": "feddyn",
    "fedgloss": "feddyn",
    "fedexp": None,
    "fedavgm": None,
    "adabest": None,
}
"""Each row, and the one whose choice it starts from."""
MARKS = ("<!-- tables of studies.participation.cnn -->", "<!-- end of the tables -->")
OUTPUTS = {"printed": "test_accuracy", "averaged": "test_accuracy_averaged"}


def digits_cnn() -> nn.Module:
    """`small-cnn` for 8×8 images; 5,834 parameters."""
    layers = list(small_cnn())
    layers[7] = nn.Linear(16 * 2 * 2, 32)
    return nn.Sequential(*layers)


def cifar_cnn() -> nn.Module:
    """`small-cnn` for 32×32×3 images; 36,954 parameters."""
    layers = list(small_cnn())
    layers[0] = nn.Conv2d(3, 8, 5, padding=2)
    layers[7] = nn.Linear(16 * 8 * 8, 32)
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """Two convolutions beside a shortcut, with group norms of two groups."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        norms = nn.GroupNorm(2, outputs), nn.GroupNorm(2, outputs)
        self.path = nn.Sequential(first, norms[0], nn.ReLU(), second, norms[1])
        across = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.shortcut = nn.Identity() if (inputs, stride) == (outputs, 1) else across

    def forward(self, images: Tensor) -> Tensor:
        """What both ways give together."""
        return functional.relu(self.path(images) + self.shortcut(images))


def resnet8() -> nn.Module:
    """ResNet-8 with 8, 16 and 32 channels and group norms for 32×32×3 images; 19,858 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        Residual(8, 8, 1),
        Residual(8, 16, 2),
        Residual(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def cells() -> dict[str, Cell]:
    """The cells of these rows and problems by their names, SETTING/ROW."""
    patterns = [f"{place}/{row}" for place in (SEARCHED_ON, *JUDGED_ON) for row in ROWS]
    study = study_of(from_config(Recipe, recipe(STUDY)), "full", patterns, searching=False)
    return {cell.name: cell for cell in study.cells}


def grids() -> dict[str, dict[str, list[float]]]:
    """The three values of each key that a row searches, and that the row it starts from did not."""
    own = {one["name"]: one["search"] for one in recipe(STUDY)["methods"]}
    found: dict[str, dict[str, list[float]]] = {}
    for row, first in ROWS.items():
        keys = {key: values for key, values in own[row].items() if key != "local.solver.lr"}
        if first is None:
            found[row] = {"local.solver.lr": list(RATES), **keys}
        else:
            found[row] = {key: values for key, values in keys.items() if key not in own[first]}
    return found


def simulated(cell: Cell, values: Mapping[str, Any]) -> dict[str, Any]:
    """Run until both models are at the target: rounds, bytes and passes to it for each."""
    began = time.process_time()
    run = cell.chosen({**values, "threads": 1}).run
    history = fedadmm.simulate(run).history
    assert run.target is not None
    found: dict[str, Any] = {"seconds": round(time.process_time() - began, 1)}
    for output, metric in OUTPUTS.items():
        curve = [record["metrics"].get(metric, 0.0) for record in history]
        curve = [value if math.isfinite(value) else 0.0 for value in curve]
        reached = next((t for t, value in enumerate(curve, 1) if value >= run.target.value), None)
        until = history[:reached]
        found[output] = {
            "rounds": reached,
            "bytes": sum(
                one["traffic"]["bytes_up"] + one["traffic"]["bytes_down"] for one in until
            ),
            "passes": sum(one["work"]["passes"] for one in until),
            "best": round(max(curve, default=0.0), 4),
        }
    return found


def worth(tried: Mapping[str, Any]) -> tuple[float, float]:
    """Fewer rounds first, then the better accuracy; smaller is better."""
    found = tried["printed"]
    return (found["rounds"] or float("inf"), -found["best"])


def search(cell: Cell, start: dict[str, Any], grid: dict[str, list[float]]) -> dict[str, Any]:
    """What a row chooses, key by key."""
    tried: list[dict[str, Any]] = []
    also = {
        "seed": SEED,
        "output": {"name": cell.run.tree["output"]["handed"]},
        "target": {"metric": OUTPUTS["printed"], "value": ENOUGH},
        "problem.max_test": 1000,
    }

    def attempt(values: dict[str, Any]) -> bool:
        """Run a point; whether it is the best so far."""
        best = min(map(worth, tried), default=(float("inf"), 0.0))
        limit = TRIED if math.isinf(best[0]) else max(1, int(best[0]) - 1)
        found = simulated(cell, {**values, **also, "rounds": limit})
        tried.append({"values": dict(values), "limit": limit, **found})
        print("  ", values, found["printed"], flush=True)
        return worth(found) < best

    chosen = start | {key: values[len(values) // 2] for key, values in grid.items()}
    attempt(chosen)
    for key, (low, middle, high) in grid.items():
        for edge in (low, high):
            inner, points = middle, 0
            while points < 4 and attempt(chosen | {key: edge}):
                chosen[key] = edge
                inner, edge = edge, beyond(key, inner, edge)
                points += 1
    return {"chosen": chosen, "tried": tried}


def beyond(key: str, inner: float, edge: float) -> float:
    """The next value outwards, as far again by ratio; memories by what they forget."""
    if key in ("algorithm.momentum", "algorithm.beta"):
        return max(0.0, round(1 - (1 - edge) ** 2 / (1 - inner), 6))
    return round(edge**2 / inner, 8)


def kept(name: str) -> dict[str, Any]:
    """What a file of results holds; nothing where it is not there."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def keep(name: str, results: Mapping[str, Any]) -> None:
    """Replace a file of results."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")


def searched(known: Mapping[str, Cell]) -> dict[str, Any]:
    """What every row chooses, searched where it is not known."""
    found, wanted = kept("search"), grids()
    for row, first in ROWS.items():
        if row not in found:
            start = {} if first is None else dict(found[first]["chosen"])
            cell = known[f"{SEARCHED_ON}/{row}"]
            print(time.strftime("%H:%M"), row, flush=True)
            found[row] = search(cell, start, wanted[row]) if wanted[row] else {"chosen": start}
            keep("search", found)
    return found


def run(places: list[str], seeds: int) -> None:
    """Run what is missing, all rows of a seed before the next seed."""
    known = cells()
    chosen = {row: one["chosen"] for row, one in searched(known).items()}
    for place in places:
        done = kept(place)
        for seed, row in itertools.product(range(seeds), ROWS):
            if str(seed) not in done.setdefault(row, {}):
                values = {**chosen[row], "seed": seed, "rounds": LIMIT}
                found = simulated(known[f"{place}/{row}"], values)
                done[row][str(seed)] = found
                keep(place, done)
                rounds = [found[output]["rounds"] for output in OUTPUTS]
                print(time.strftime("%H:%M"), place, row, seed, rounds, flush=True)


def seeds_of(done: Mapping[str, Any]) -> list[str]:
    """The seeds that every row has been run with; only these count."""
    return [seed for seed in done.get("fedavg", {}) if all(seed in done.get(r, {}) for r in ROWS)]


def table(place: str) -> list[str]:
    """The rows of a problem, those with the fewest rounds first, as lines of Markdown."""
    done, titles = kept(place), {one["name"]: one["title"] for one in recipe(STUDY)["methods"]}
    setting = next(one for one in recipe(STUDY)["settings"] if one["name"] == place)
    target = setting["assign"]["target.value"]
    seeds = seeds_of(done)

    def numbers(row: str, output: str, what: str) -> Any:
        """A number for each seed; a run that missed counts as its limit."""
        found = [done[row][seed][output] for seed in seeds]
        return [LIMIT if one[what] is None else one[what] for one in found]

    def median(row: str, output: str, what: str) -> float:
        return statistics.median(numbers(row, output, what))

    def rounds(row: str, output: str) -> str:
        missed = sum(done[row][seed][output]["rounds"] is None for seed in seeds)
        return f"{median(row, output, 'rounds'):g}" + (f" ({missed} missed)" if missed else "")

    def lead(row: str, output: str) -> str:
        if row in BASELINES:
            return ""
        best = min(BASELINES, key=lambda one: median(one, output, "rounds"))
        ratio = median_ratio(numbers(row, output, "rounds"), numbers(best, output, "rounds"))
        low, high = (0.0 if end is None else 1 - end for end in (ratio.high, ratio.low))
        shown = [f"{100 * share:.0f}".replace("-", "−") for share in (1 - ratio.value, low, high)]
        return "{} % ({} to {})".format(*shown)

    def sent(row: str, output: str) -> str:
        return f"{median(row, output, 'bytes') / median('fedavg', 'printed', 'bytes'):.2f}"

    lines = [
        f"{setting['title']}, to {100 * target:.0f} %: {len(seeds)} seeds, at most {LIMIT} rounds.",
        "",
        "| | rounds | fewer than the best baseline | bytes | passes | rounds, averaged | "
        "fewer than the best, averaged | bytes, averaged |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(ROWS, key=lambda one: median(one, "printed", "rounds")):
        passes = f"{median(row, 'printed', 'passes'):.0f}"
        own = [rounds(row, "printed"), lead(row, "printed"), sent(row, "printed"), passes]
        own += [rounds(row, "averaged"), lead(row, "averaged"), sent(row, "averaged")]
        lines.append(f"| {titles[row]} | {' | '.join(own)} |")
    return lines


def main() -> None:
    """Run what is missing, or put the tables into a page, between its two marks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    parser.add_argument("--place", action="append", choices=JUDGED_ON, help="only these problems")
    parser.add_argument("--page", type=Path, help="write the tables of all results into this page")
    arguments = parser.parse_args()
    if arguments.page is None:
        run(arguments.place or list(JUDGED_ON), arguments.seeds)
    else:
        arguments.page.write_text(paged(arguments.page.read_text("utf-8")), "utf-8")


def paged(page: str) -> str:
    """A page with the tables of now: of every problem with at least three seeds."""
    before, rest = page.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    tables = [
        "\n".join(["", *table(place), ""]) for place in JUDGED_ON if len(seeds_of(kept(place))) >= 3
    ]
    return MARKS[0].join([before, "\n".join([*tables, MARKS[1] + after])])


if __name__ == "__main__":
    main()
