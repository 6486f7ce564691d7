"""Draw rounds to the target against the participation rate."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

# Colours of Okabe and Ito, which readers with colour blindness can distinguish.
STYLES = {
    "FedAvg": ("#586070", "v", ":"),
    "SCAFFOLD": ("#d55e00", "^", "--"),
    "FedDyn": ("#cc79a7", "s", "--"),
    "FedADMM": ("#009e73", "D", "-."),
    "aligned ADMM": ("#0072b2", "o", "-"),
}

Summary = Mapping[int, Mapping[str, tuple[float, float, int]]]


def draw(summaries: Mapping[str, Summary], path: Path) -> None:
    """Draw one plot per problem: means with 95 % intervals, on logarithmic axes."""
    settings = {"svg.fonttype": "none", "svg.hashsalt": "fedadmm", "font.size": 9}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(4.2 * len(summaries), 3.4), layout="constrained")
        plots = figure.subplots(1, len(summaries), squeeze=False)[0]
        for plot, (title, found) in zip(plots, summaries.items(), strict=True):
            for index, (method, (colour, marker, line)) in enumerate(STYLES.items()):
                shown = [percent for percent in found if method in found[percent]]
                # Markers are moved apart by 3 % so that overlapping intervals can be read.
                places = [percent * 1.03 ** (index - 2) for percent in shown]
                means = [found[percent][method][0] for percent in shown]
                errors = [found[percent][method][1] for percent in shown]
                style = {"color": colour, "marker": marker, "linestyle": line, "markersize": 4}
                plot.errorbar(places, means, errors, label=method, capsize=2, lw=1.2, **style)
            plot.set_xscale("log")
            plot.set_yscale("log")
            plot.set_xticks([*found], [f"{percent} %" for percent in found], minor=False)
            plot.set_xticks([], minor=True)
            ticks = [5, 10, 20, 40, 80]
            plot.set_yticks(ticks, [str(tick) for tick in ticks])
            plot.set_yticks([], minor=True)
            plot.set_title(textwrap.fill(title, 44), fontsize=9)
            plot.set_xlabel("participation rate")
            plot.grid(axis="y", lw=0.4)
            plot.spines[["top", "right"]].set_visible(False)
        plots[0].set_ylabel("rounds to the target accuracy")
        plots[0].legend(frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})
