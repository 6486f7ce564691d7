"""How different the clients are: the measures people use, a table and a picture of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedadmm.core.errors import DataError
from fedadmm.core.files import make_directory, replacing
from fedadmm.core.problem import Problem
from fedadmm.data.dataset import FederatedData


class Summary(NamedTuple):
    """Heterogeneity of a partition; label measures are None for a regression."""

    clients: int
    samples: int
    smallest: int
    median: float
    largest: int
    size_gini: float
    """0 when all clients hold equally many rows, towards 1 when one holds everything."""
    labels_per_client: float | None = None
    """The mean number of different labels a client holds."""
    label_entropy: float | None = None
    """The mean entropy of a client's label mix, in bits."""
    global_entropy: float | None = None
    """The entropy of the pooled label mix, in bits; what every client has when iid."""
    tv_mean: float | None = None
    """The mean total-variation distance between a client's label mix and the pooled one."""
    tv_max: float | None = None
    """The largest such distance."""


def summarise(sizes: NDArray[np.int64], counts: NDArray[np.int64] | None = None) -> Summary:
    """The measures, from each client's size and, if there are labels, (labels, clients) counts."""
    basic = Summary(
        clients=len(sizes),
        samples=int(sizes.sum()),
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        largest=int(sizes.max()),
        size_gini=gini(sizes),
    )
    if counts is None:
        return basic
    from scipy.special import entr

    mix = label_mix(counts)
    pooled = counts.sum(axis=1) / counts.sum()
    distances = np.abs(mix - pooled[:, None]).sum(axis=0) / 2
    return basic._replace(
        labels_per_client=float((counts > 0).sum(axis=0).mean()),
        label_entropy=float(entr(mix).sum(axis=0).mean() / math.log(2)),
        global_entropy=float(entr(pooled).sum() / math.log(2)),
        tv_mean=float(distances.mean()),
        tv_max=float(distances.max()),
    )


def gini(sizes: NDArray[np.int64]) -> float:
    """The Gini coefficient: mean absolute difference of two clients over twice the mean size."""
    ordered = np.sort(sizes).astype(np.float64)
    n, total = len(ordered), ordered.sum()
    if total == 0:
        return 0.0
    ranks = np.arange(1, n + 1)
    return float((2 * ranks - n - 1) @ ordered / (n * total))


def label_mix(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The share of each label at each client; a client without rows has none of any."""
    result: NDArray[np.float64] = counts / np.maximum(counts.sum(axis=0), 1)
    return result


def draw(
    path: Path, title: str, sizes: NDArray[np.int64], counts: NDArray[np.int64] | None
) -> None:
    """Write a PNG: labels × clients (if there are labels) above the clients' sizes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5 if counts is not None else 3), layout="constrained")
    figure.suptitle(title)
    if counts is None:
        axes = figure.subplots()
    else:
        upper, axes = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
        image = upper.imshow(
            label_mix(counts), aspect="auto", cmap="viridis", vmin=0, interpolation="nearest"
        )
        upper.set_ylabel("label")
        figure.colorbar(image, ax=upper, label="share of the client's rows")
    axes.stairs(sizes, np.arange(len(sizes) + 1) - 0.5, fill=True)
    axes.set_xlabel("client")
    axes.set_ylabel("rows")
    make_directory(path.parent)
    with replacing(path) as stream:
        figure.savefig(stream, format="png", dpi=120)


class Description(NamedTuple):
    """What there is to say about how a problem's rows lie on its clients."""

    parameters: int
    summary: Summary | None
    """None when the clients are drawn on demand and hold no stored rows."""
    rows: tuple[tuple[str, str], ...]
    """The table: what is measured, and its value."""
    picture: Path | None
    """The PNG that was written."""


def describe(problem: Problem, picture: str | Path | None = None) -> Description:
    """Describe the split of a problem; with `picture`, write a PNG there."""
    data = problem.data
    basic = (("clients", f"{problem.num_clients:,}"), ("parameters", f"{problem.num_parameters:,}"))
    if not isinstance(data, FederatedData):
        if picture is not None:
            raise DataError(f"{problem.name}: its clients are drawn on demand, nothing to draw")
        return Description(problem.num_parameters, None, basic, None)
    counts = None if data.samples.num_classes is None else data.label_counts()
    sizes = data.partition.sizes
    summary = summarise(sizes, counts)
    path = None if picture is None else Path(picture)
    if path is not None:
        draw(path, f"{problem.name}: {len(sizes)} clients", sizes, counts)
    return Description(problem.num_parameters, summary, basic + _table(summary), path)


def _table(summary: Summary) -> tuple[tuple[str, str], ...]:
    """The measures as text."""
    rows = [
        ("rows", f"{summary.samples:,}"),
        ("rows a client", f"{summary.smallest:,} … {summary.median:g} … {summary.largest:,}"),
        ("size Gini", f"{summary.size_gini:.3f}"),
    ]
    if summary.label_entropy is not None:
        rows += [
            ("labels a client", f"{summary.labels_per_client:.1f}"),
            (
                "label entropy (bits)",
                f"{summary.label_entropy:.2f} of {summary.global_entropy:.2f}",
            ),
            ("TV distance to the global mix", f"{summary.tv_mean:.3f} (max {summary.tv_max:.3f})"),
        ]
    return tuple(rows)
