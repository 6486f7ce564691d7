"""The results of `python -m benchmarks --out FILE` as the picture and tables of docs/benchmarks.md.

python -m benchmarks.page benchmarks/results.json docs/benchmarks.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contenders import ROOT
from fedadmm.core.errors import DataError

BEGIN, END = "<!-- results -->", "<!-- end of results -->"
PEERS = {"plain": "plain loop", "pfl": "pfl", "flower": "Flower simulation", "jax": "JAX by hand"}
Document = Mapping[str, Any]

ROWS = {
    "to-accuracy": "MNIST, two shards, mlp-784-128-10, 10 of 100, E = 5, B = 10, whole command to "
    "90 %",
    "mlp": "mlp-60-32-10, 100 of 1,000 × 60 samples, E = 20, B = 10",
    "mlp-10k": "mlp-784-128-10, 100 of 10,000 × 10 samples, E = 1, B = 10",
    "logistic": "MNIST, 10 of 1,000 × 60 samples, E = 1, B = 10",
    "cnn": "CNN 1, MNIST, 20 of 1,000 × 60 samples, E = 5, B = 10",
    "cifar-cnn": "CNN 2, 32×32×3, 10 × 500 samples, E = 1, B = 50",
    "tutorial-cnn": "CNN of PyTorch's tutorial, 32×32×3, 10 of 100 × 500 samples, E = 5, B = 50",
    "resnet18": "ResNet-18 with group normalisation, 32×32×3, 10 × 50 samples, E = 1, B = 10",
    "transformer": "transformer, 2 layers, d = 128, 64 tokens, 10 × 60 samples, E = 1, B = 10",
}


def shown(seconds: float) -> str:
    """A time with three digits."""
    return f"{seconds:.3g} s" if seconds >= 0.01 else f"{seconds * 1e3:.3g} ms"


def ratio(document: Document, peer: str) -> tuple[float, float, float] | None:
    """A peer's median, lowest and highest repeat over our median; None where it did not run."""
    own, taken = document["seconds_per_round"]["fedadmm"], document["seconds_per_round"]
    if peer not in taken:
        return None
    low, high = document["spread"][peer]
    return taken[peer] / own, low / own, high / own


def compared(document: Document) -> str:
    """One row of the table beside peers."""
    name, cells = document["workload"], []
    for peer in PEERS:
        found = ratio(document, peer)
        why = "skipped" if peer in document["skipped"] else "–"
        cells.append(why if found is None else "{:.2f} ({:.2f}–{:.2f})".format(*found))
    low, high = document["spread"]["fedadmm"]
    own = f"{shown(document['seconds_per_round']['fedadmm'])} ({shown(low)}–{shown(high)})"
    return f"| `{name}`: {ROWS[name]} | {own} | {' | '.join(cells)} |"


def growth(document: Document) -> str:
    """A cohort out of a million clients over the same out of a thousand."""
    (found,) = document["ratios"].values()
    own = shown(document["seconds_per_round"]["fedadmm"])
    return (
        f"100 out of a million clients over 100 out of a thousand | {own} a round, "
        f"{found:.2f} times"
    )


def start_up(document: Document) -> str:
    """Quickstart's first round beside `import torch`."""
    taken = document["seconds_per_round"]
    return (
        f"quickstart to the end of its first round, whole command | "
        f"{shown(taken['quickstart, one round'])}, of which `import torch` "
        f"{shown(taken['import torch'])}; `config presets` {shown(taken['config presets'])}, "
        f"`--help` {shown(taken['--help'])}"
    )


def comparison(document: Document) -> str:
    """The whole command, and the share of the cores that it used."""
    name = "compare quickstart"
    seconds, cpu = document["seconds_per_round"][name], document["cpu_seconds"][name]
    return f"`{name}` | {shown(seconds)} on {cpu / seconds / document['cores']:.0%} of the cores"


def evaluation(document: Document) -> str:
    """The share of evaluation in a round."""
    taken = document["seconds_per_round"]
    shares = {e: taken[f"E = {e}, evaluation"] / taken[f"E = {e}, round"] for e in (1, 5)}
    found = ", ".join(f"{share:.0%} (E = {epochs})" for epochs, share in shares.items())
    return (
        "CNN 1 on 10,000 held-out samples in every round, share of the round's wall clock | "
        f"{found}"
    )


def cohort(document: Document) -> str:
    """State on disk over state in memory."""
    taken = document["seconds_per_round"]
    sizes = [key.split(",")[0] for key in taken if key.endswith("disk")]
    found = {size: taken[f"{size}, disk"] / taken[f"{size}, memory"] for size in sizes}
    listed = ", ".join(f"{one:.2f} ({int(size):,})" for size, one in found.items())
    own = shown(taken[f"{sizes[0]}, disk"])
    return (
        "FedADMM, cohorts of a million clients, state on disk over state in memory | "
        f"{own} a client; {listed}"
    )


def ray_nodes(document: Document) -> str:
    """The efficiency of a second machine."""
    one, two = document["seconds_per_round"].values()
    return f"CNN 1, two nodes of one CPU over one | {shown(two)} a round, {one / two / 2:.0%}"


OTHERS: dict[str, Callable[[Document], str]] = {
    "start-up": start_up,
    "comparison": comparison,
    "evaluation": evaluation,
    "cohort": cohort,
    "growth": growth,
    "ray-nodes": ray_nodes,
}


def table(documents: Sequence[Document]) -> str:
    """Both tables, and what they were measured on."""
    revisions = sorted({document["revision"] for document in documents})
    if len(revisions) > 1:
        raise DataError(f"results: got revisions {', '.join(revisions)}, expected one for all.")
    by_name = {document["workload"]: document for document in documents}
    first = documents[0]
    lines = [
        f"`make bench` at {first['revision']}, {first['repeats']} repeats, {first['cores']} cores "
        f"(AMD EPYC), {first['date']}. Ours: the median of the repeats' median rounds, and their "
        "range; the others: times as long.",
        "",
        f"| workload | ours | {' | '.join(PEERS.values())} |",
        f"|{'---|' * (len(PEERS) + 2)}",
        *(compared(by_name[name]) for name in ROWS if name in by_name),
        "",
        "| workload | what | found |",
        "|---|---|---|",
        *(f"| `{n}` | {row(by_name[n])} |" for n, row in OTHERS.items() if n in by_name),
    ]
    return "\n".join(lines)


def draw(documents: Sequence[Document], path: Path) -> None:
    """Draw how many times as long the peers take, on a logarithmic axis."""
    from matplotlib.figure import Figure

    sys.path.insert(0, str(ROOT / "docs" / "_figures"))
    from svg import write

    by_name = {document["workload"]: document for document in documents}
    names = [name for name in ROWS if name in by_name][::-1]
    colours = ("#2b2f36", "#0072b2", "#d55e00", "#009e73")

    def made() -> Figure:
        figure = Figure(figsize=(8.0, 0.8 + 0.36 * len(names)), layout="constrained")
        plot = figure.subplots()
        plot.axvline(1.0, color="#888888", linewidth=1)
        for (peer, title), colour in zip(PEERS.items(), colours, strict=True):
            found = {place: ratio(by_name[name], peer) for place, name in enumerate(names)}
            points = {place: one for place, one in found.items() if one is not None}
            middle = [one[0] for one in points.values()]
            ends = [[one[0] - one[1] for one in points.values()]]
            ends.append([one[2] - one[0] for one in points.values()])
            plot.errorbar(middle, list(points), xerr=ends, fmt="o", color=colour, label=title)
        plot.set(xscale="log", xlabel="time of the others / time of fedadmm")
        ticks = (0.5, 1, 2, 5, 10, 20, 50, 100)
        plot.set_xticks(ticks, map(str, ticks))
        plot.minorticks_off()
        plot.set_yticks(range(len(names)), names)
        plot.margins(y=0.15)
        figure.legend(loc="outside upper center", ncols=len(PEERS), fontsize=8)
        return figure

    write(made, path)


def main() -> None:
    """Put the tables between the marks of a page, and the picture beside it."""
    results, page = map(Path, sys.argv[1:])
    documents = json.loads(results.read_text())
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    made = table(documents)
    draw(documents, page.with_suffix(".svg"))
    page.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}")


if __name__ == "__main__":
    main()
