"""The results of `python -m benchmarks --out FILE` as the table of docs/benchmarks.md.

python -m benchmarks.page benchmarks/results.json docs/benchmarks.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

BEGIN, END = "<!-- results -->", "<!-- end of results -->"
PEERS = {"pfl": "pfl", "flower": "Flower simulation", "plain": "plain loop", "jax": "JAX by hand"}
Document = Mapping[str, Any]


class Aim(NamedTuple):
    """How many times slower than ours a peer should be."""

    peer: str
    least: float
    by: str = "seconds_per_round"


ROWS = {
    "to-accuracy": "MNIST, two shards, mlp-784-128-10, 10 of 100, E = 5, B = 10, whole command to "
    "90 %",
    "mlp": "60-32-10, 1,000 clients × 60 rows, 100 a round, 20 epochs, B = 10",
    "logistic": "MNIST, 1,000 clients, 10 a round, 1 epoch, B = 10",
    "cnn": "CNN 1 on MNIST, 1,000 clients × 60 rows, 20 a round, 5 epochs, B = 10",
}
AIMS = {
    "to-accuracy": (Aim("pfl", 8), Aim("flower", 8)),
    "mlp": (Aim("pfl", 20), Aim("jax", 1)),
    "logistic": (Aim("pfl", 4), Aim("jax", 1)),
    "cnn": (Aim("pfl", 1.35, "cpu_seconds"),),
}


def shown(seconds: float) -> str:
    """A time with three digits."""
    return f"{seconds:.3g} s" if seconds >= 0.01 else f"{seconds * 1e3:.3g} ms"


def verdict(met: bool) -> str:
    """Whether an aim is met."""
    return "**met**" if met else "missed"


def ratio(document: Document, peer: str, by: str = "seconds_per_round") -> float | None:
    """A peer's time over ours; None where it did not run."""
    taken = document[by]
    return taken[peer] / taken["fedadmm"] if peer in taken else None


def compared(document: Document) -> str:
    """One row of the table beside peers: ratios of wall clock, and of processor time."""
    name, cells = document["workload"], []
    for peer in PEERS:
        wall, cpu = (ratio(document, peer, by) for by in ("seconds_per_round", "cpu_seconds"))
        why = "skipped" if peer in document["skipped"] else "–"
        cells.append(why if wall is None or cpu is None else f"{wall:.3g} ({cpu:.2g})")
    aims = []
    for peer, least, by in AIMS[name]:
        found = ratio(document, peer, by)
        unit = " by CPU" if by == "cpu_seconds" else ""
        judged = "not measured" if found is None else verdict(found >= least)
        aims.append(f"{PEERS[peer]} ≥ {least:g}{unit}: {judged}")
    low, high = document["spread"]["fedadmm"]
    own = f"{shown(document['seconds_per_round']['fedadmm'])} ({shown(low)} to {shown(high)})"
    return f"| `{name}`: {ROWS[name]} | {own} | {' | '.join(cells)} | {'; '.join(aims)} |"


def growth(document: Document) -> str:
    """A cohort out of a million clients over the same out of a thousand."""
    (found,) = document["ratios"].values()
    own = shown(document["seconds_per_round"]["fedadmm"])
    return (
        f"100 out of a million clients over 100 out of a thousand | {own} a round, "
        f"{found:.2f} times | flat: {verdict(found <= 1.1)}"
    )


def start_up(document: Document) -> str:
    """Quickstart's first round beside `import torch`."""
    taken = document["seconds_per_round"]
    limit, found = 1.3 * taken["import torch"] + 0.5, taken["quickstart, one round"]
    others = f"`config presets` {shown(taken['config presets'])}, `--help` {shown(taken['--help'])}"
    return (
        f"quickstart to the end of its first round, whole command | {shown(found)}; {others} | "
        f"1.3 × `import torch` ({shown(taken['import torch'])}) + 0.5 s = {shown(limit)}: "
        f"{verdict(found <= limit)}"
    )


def evaluation(document: Document) -> str:
    """The share of evaluation in a round."""
    taken = document["seconds_per_round"]
    shares = {e: taken[f"E = {e}, evaluation"] / taken[f"E = {e}, round"] for e in (1, 5)}
    found = ", ".join(f"{share:.0%} (E = {epochs})" for epochs, share in shares.items())
    return (
        "CNN 1 on 10,000 held-out rows in every round, share of the round's wall clock | "
        f"{found} | ≤ 5 %: {verdict(max(shares.values()) <= 0.05)}"
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
        f"{own} a client; {listed} | ≤ 3: {verdict(max(found.values()) <= 3)}"
    )


def ray_nodes(document: Document) -> str:
    """The efficiency of a second machine."""
    one, two = document["seconds_per_round"].values()
    return (
        f"CNN 1, two nodes of one CPU over one | {shown(two)} a round, "
        f"{one / two / 2:.0%} | ≥ 85 %: {verdict(one / two / 2 >= 0.85)}"
    )


OTHERS: dict[str, Callable[[Document], str]] = {
    "start-up": start_up,
    "evaluation": evaluation,
    "cohort": cohort,
    "growth": growth,
    "ray-nodes": ray_nodes,
}


def table(documents: Sequence[Document]) -> str:
    """Both tables, and what they were measured on."""
    by_name = {document["workload"]: document for document in documents}
    first = documents[0]
    lines = [
        f"`make bench`, {first['repeats']} repeats, {first['cores']} cores (AMD EPYC, no GPU; GPUs "
        f"are untested), {first['date']}. Ratios of wall clock, in brackets of the processor time "
        "of the whole process, start-up included.",
        "",
        f"| workload | ours | {' | '.join(PEERS.values())} | aim |",
        f"|{'---|' * (len(PEERS) + 3)}",
        *(compared(by_name[name]) for name in ROWS if name in by_name),
        "",
        "| workload | what | found | aim |",
        "|---|---|---|---|",
        *(f"| `{n}` | {row(by_name[n])} |" for n, row in OTHERS.items() if n in by_name),
    ]
    return "\n".join(lines)


def main() -> None:
    """Put the table between the marks of a page."""
    results, page = map(Path, sys.argv[1:])
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    made = table(json.loads(results.read_text()))
    page.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}")


if __name__ == "__main__":
    main()
