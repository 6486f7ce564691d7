"""Draws the figures of docs/reproduction.md from the committed results under studies/.

`python -m studies.papers page` calls it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from svg import write

STUDIES = Path(__file__).parents[2] / "studies"
TARGET = 0.97
LOWEST = 0.5  # of the axis of accuracies

ROWS = {
    "fedavg": ("FedAvg", "#586070", "-"),
    "scaffold": ("SCAFFOLD", "#d55e00", "-"),
    "released": ("FedADMM, as released", "#9467bd", "-"),
    "printed": ("FedADMM, as printed", "#cc79a7", "--"),
    "printed-global": ("FedADMM, step 1, from θ", "#cc79a7", ":"),
    "tracking-global": ("FedADMM, tracking, from θ", "#9467bd", ":"),
    "aligned-1": ("aligned ADMM, σ = 1", "#0072b2", "-"),
    "aligned-auto": ("aligned ADMM", "#0072b2", "--"),
    "fedprox": ("FedProx", "#009e73", "-"),
    "fedsgd": ("FedSGD", "#999999", "--"),
}
METHODS = {
    "printed": "FedADMM, printed",
    "released": "FedADMM, released",
    "printed-global": "FedADMM, step 1, from θ",
    "tracking-global": "FedADMM, tracking, from θ",
    "aligned-1": "aligned ADMM, σ = 1",
    "aligned-auto": "aligned ADMM",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
}
WORLDS = {"released": "the released network", "sound": "the network of the text"}
SPLITS = {"iid": ("IID", "#0072b2", 0.16), "shards": ("two shards", "#d55e00", -0.16)}
RUNGS = {
    "fedavg": "FedAvg",
    "momentum": "+ momentum 0.5",
    "upload": "+ upload × 2",
    "epochs": "+ drawn epochs",
    "duals": "+ duals, ρ = 0.01",
}
STEPS = {"0.5": "0.5", "1.0": "1", "1.5": "1.5", "tracking": "tracking"}
STARTS = {"own": ("own model", "#d55e00"), "global": ("global model θ", "#0072b2")}
SETTINGS = {"mnist-iid": "IID", "mnist-shards": "two shards"}


def runs(name: str) -> list[dict[str, Any]]:
    """The runs of a cell at the paper's size, by seed."""
    found = sorted((STUDIES / "gong/results").glob(f"{name}-seed*.json"))
    return [json.loads(path.read_text("utf-8")) for path in found]


def rows(identifier: str) -> dict[str, dict[str, Any]]:
    """The rows of a committed reproduction."""
    document = json.loads((STUDIES / f"papers/results/{identifier}.json").read_text("utf-8"))
    return {row["name"]: row for row in document["table"]}


def curves() -> dict[str, dict[str, list[float]]]:
    """Setting -> row -> the accuracy of seed 0 after every round, at the paper's size."""
    places = [f"{world}-{split}" for split in SPLITS for world in WORLDS]
    found = {
        place: {row: some[0]["curve"] for row in ROWS if (some := runs(f"{place}-{row}"))}
        for place in places
    }
    return {place: some for place, some in found.items() if some}


def worlds() -> dict[str, dict[str, list[float | None]]]:
    """Setting -> row -> rounds of every seed at quick scale; None where the target was missed."""
    known = rows("gong-worlds-quick")
    return {
        f"{world}-{split}": {
            row: list(known[f"{world}-{split}/{row}"]["by_seed"]["rounds_to_target"].values())
            for row in METHODS
        }
        for world in WORLDS
        for split in SPLITS
    }


def ladder() -> dict[str, list[float]]:
    """Rung -> rounds of every seed at the paper's size; a run ends at the target or after 60."""
    names = {rung: f"ladder-{rung}" for rung in RUNGS} | {"fedavg": "fedavg", "duals": "released"}
    return {
        rung: [len(run["curve"]) for run in runs(f"released-iid-{name}")]
        for rung, name in names.items()
    }


def quick_ladder() -> dict[str, dict[str, list[float]]]:
    """Setting -> rung -> rounds of every seed at quick scale."""
    known = rows("gong-ladder-quick")
    return {
        place: {
            rung: list(known[f"{place}/{rung}"]["by_seed"]["rounds_to_target"].values())
            for rung in RUNGS
        }
        for place in ("released-iid", "released-shards")
    }


def starts() -> dict[str, dict[str, dict[str, float | None]]]:
    """Setting -> start -> step -> the best accuracy, None for a run that diverged."""
    known = rows("gong-fig8-quick")
    return {
        place: {
            start: {step: known[f"{place}/{start}-{step}"]["best"]["mean"] for step in STEPS}
            for start in STARTS
        }
        for place in SETTINGS
    }


def worlds_figure() -> Figure:
    """Rounds to the target in both worlds: seeds as ticks, their mean as a dot."""
    drawn = Figure(figsize=(8.4, 3.8), layout="constrained")
    plots = drawn.subplots(1, 2, sharey=True, sharex=True)
    found = worlds()
    for plot, (world, title) in zip(plots, WORLDS.items(), strict=True):
        for split, (name, colour, shift) in SPLITS.items():
            for place, row in enumerate(METHODS):
                y = len(METHODS) - place + shift
                seeds = found[f"{world}-{split}"][row]
                met = [rounds for rounds in seeds if rounds is not None]
                if len(met) < len(seeds):
                    missed = f"{len(seeds) - len(met)} of {len(seeds)} missed"
                    plot.text(42, y, missed, color=colour, fontsize=7, va="center")
                plot.plot(met, [y] * len(met), "|", color=colour, ms=7)
                if met:
                    label = name if row == "fedavg" else None
                    plot.plot(sum(met) / len(met), y, "o", color=colour, ms=5, label=label)
        plot.set(xlabel="rounds to the target", xlim=(0, 54), ylim=(0.5, len(METHODS) + 0.6))
        plot.set_xticks(range(0, 41, 10))
        plot.set_title(title, fontsize=9.5)
    plots[0].set_yticks(range(len(METHODS), 0, -1), list(METHODS.values()))
    drawn.legend(*plots[1].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return drawn


def curves_figure() -> Figure:
    """Accuracy by round at the paper's size, seed 0."""
    found = curves()
    lines = (len(found) + 1) // 2
    drawn = Figure(figsize=(10.2, 0.4 + 2.7 * lines), layout="constrained")
    plots = list(drawn.subplots(lines, 2, sharey=True, squeeze=False).flat)
    for plot in plots[len(found) :]:
        plot.remove()
    for plot, (place, some) in zip(plots, found.items(), strict=False):
        world, _, split = place.partition("-")
        last = 30 if split == "iid" else 60
        for row, values in some.items():
            name, colour, line = ROWS[row]
            # What is beyond the axes needs no bytes: all but one of the first points below.
            first = next((k for k, value in enumerate(values) if value >= LOWEST), len(values))
            shown = dict(list(enumerate(values, 1))[max(first - 1, 0) : last + 1])
            plot.plot(shown.keys(), shown.values(), line, color=colour, label=name, lw=1.5)
        plot.axhline(TARGET, color="#999999", lw=0.8, ls=":")
        plot.set(xlabel="round", xlim=(0, last), ylim=(LOWEST, 1.0))
        plot.set_title(f"{WORLDS[world]}, {SPLITS[split][0]}", fontsize=9.5)
        plot.set_ylabel("test accuracy")
    handles = {line.get_label(): line for plot in plots for line in plot.get_lines()}
    legend = {name: handles[name] for name, *_ in ROWS.values() if name in handles}
    drawn.legend(legend.values(), legend.keys(), loc="outside right upper", fontsize=9)
    return drawn


def ladder_figure() -> Figure:
    """Rounds to the target, one change at a time: seeds as ticks, their mean as a dot."""
    drawn = Figure(figsize=(8.4, 3.1), layout="constrained")
    plots = drawn.subplots(1, 2, sharey=True)
    panels = [("the paper's size, IID", {"": ladder()}), ("quick scale", quick_ladder())]
    looks = {"": "#0072b2", "released-iid": "#0072b2", "released-shards": "#d55e00"}
    names = {"released-iid": "IID", "released-shards": "two shards"}
    for plot, (title, parts) in zip(plots, panels, strict=True):
        for number, (place, found) in enumerate(parts.items()):
            for height, rung in enumerate(RUNGS):
                y = len(RUNGS) - height + 0.16 * (len(parts) - 1) * (1 - 2 * number)
                mean = sum(found[rung]) / len(found[rung])
                label = names.get(place) if height == 0 else None
                plot.plot([min(found[rung]), max(found[rung])], [y, y], color=looks[place], lw=2)
                plot.plot(found[rung], [y] * len(found[rung]), "|", color=looks[place], ms=8)
                plot.plot(mean, y, "o", color=looks[place], ms=6, label=label)
        plot.set(xlabel="rounds to the target", xlim=(0, None))
        plot.set_title(title, fontsize=9.5)
    plots[0].set_yticks(range(len(RUNGS), 0, -1), list(RUNGS.values()))
    plots[1].legend(fontsize=9, loc="upper right")
    return drawn


def starts_figure() -> Figure:
    """The best accuracy from both starts, by server step."""
    drawn = Figure(figsize=(8.4, 3.1), layout="constrained")
    plots = drawn.subplots(1, 2, sharey=True)
    for plot, (place, found) in zip(plots, starts().items(), strict=True):
        for shift, (start, values) in zip((-0.2, 0.2), found.items(), strict=True):
            name, colour = STARTS[start]
            for x, value in enumerate(values.values()):
                if value is None:
                    look = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": 8}
                    plot.text(x + shift, 0.02, "diverged", color=colour, **look)
                else:
                    plot.bar(x + shift, value, 0.38, color=colour, label=name if x == 0 else None)
        plot.set_axisbelow(True)
        plot.set_xticks(range(len(STEPS)), list(STEPS.values()))
        plot.set(xlabel="server step", ylim=(0, 1))
        plot.set_title(SETTINGS[place], fontsize=9.5)
    plots[0].set_ylabel("best test accuracy")
    drawn.legend(*plots[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return drawn


FIGURES = {
    "gong-worlds": (worlds_figure, worlds),
    "gong-curves": (curves_figure, curves),
    "gong-ladder": (ladder_figure, lambda: {"full": ladder(), "quick": quick_ladder()}),
    "gong-fig8": (starts_figure, starts),
}
"""Name -> how it is drawn, and its numbers."""


def described(name: str) -> str:
    """All numbers of a figure as text, for screen readers and for the test of the figure."""
    return json.dumps(FIGURES[name][1](), ensure_ascii=False).replace('"', "'")


def draw_all(folder: Path) -> None:
    """Write every figure."""
    for name, (draw, _) in FIGURES.items():
        write(draw, folder / f"{name}.svg", described(name))
