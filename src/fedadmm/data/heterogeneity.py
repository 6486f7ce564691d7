"""Measures of the heterogeneity of a partition, with a table and a figure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedadmm.core.atomic_files import make_directory, replacing
from fedadmm.core.errors import DataError
from fedadmm.core.problem import Problem
from fedadmm.data.dataset import FederatedData


class Summary(NamedTuple):
    """Heterogeneity measures of a partition; those of labels are None for a regression."""

    clients: int
    samples: int
    smallest: int
    median: float
    largest: int
    size_gini: float
    """Gini coefficient of the clients' sizes: 0 if all are equal, near 1 if one has all samples."""
    labels_per_client: float | None = None
    """The mean number of different labels of a client."""
    label_entropy: float | None = None
    """The mean entropy of a client's label distribution, in bits."""
    global_entropy: float | None = None
    """The entropy of the pooled label distribution, in bits; that of each client under IID."""
    tv_mean: float | None = None
    """The mean total-variation distance of the clients' label distributions from the pooled one."""
    tv_max: float | None = None
    """The largest total-variation distance of a client's label distribution from the pooled one."""


def summarise(sizes: NDArray[np.int64], counts: NDArray[np.int64] | None = None) -> Summary:
    """Return the measures of a partition.

    Args:
        sizes: The number of samples of each client.
        counts: The number of samples by label and client; None for a regression.
    """
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
    """Return the Gini coefficient: mean absolute difference of two sizes over twice the mean."""
    ordered = np.sort(sizes).astype(np.float64)
    n, total = len(ordered), ordered.sum()
    if total == 0:
        return 0.0
    ranks = np.arange(1, n + 1)
    return float((2 * ranks - n - 1) @ ordered / (n * total))


def label_mix(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share of each label at each client; zeros for a client without samples."""
    result: NDArray[np.float64] = counts / np.maximum(counts.sum(axis=0), 1)
    return result


def draw(
    path: Path, title: str, sizes: NDArray[np.int64], counts: NDArray[np.int64] | None
) -> None:
    """Write a PNG with the clients' sizes, and above them the label shares if there are labels."""
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
        figure.colorbar(image, ax=upper, label="share of the client's samples")
    axes.stairs(sizes, np.arange(len(sizes) + 1) - 0.5, fill=True)
    axes.set_xlabel("client")
    axes.set_ylabel("samples")
    make_directory(path.parent)
    with replacing(path) as stream:
        figure.savefig(stream, format="png", dpi=120)


class Description(NamedTuple):
    """Description of the distribution of a problem's samples among its clients."""

    parameters: int
    summary: Summary | None
    """None if the clients' samples are generated on demand."""
    rows: tuple[tuple[str, str], ...]
    """The rows of the table: names of quantities, and their values."""
    picture: Path | None
    """The path of the PNG, if one was written."""


def describe(problem: Problem, picture: str | Path | None = None) -> Description:
    """Describe the partition of a problem, and write a PNG to the path `picture` if given.

    Raises:
        DataError: A picture of a problem whose samples are generated on demand.
    """
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
    """Return the rows of the table of measures, as text."""
    rows = [
        ("samples", f"{summary.samples:,}"),
        ("samples per client", f"{summary.smallest:,} … {summary.median:g} … {summary.largest:,}"),
        ("size Gini", f"{summary.size_gini:.3f}"),
    ]
    if summary.label_entropy is not None:
        rows += [
            ("labels per client", f"{summary.labels_per_client:.1f}"),
            (
                "label entropy (bits)",
                f"{summary.label_entropy:.2f} of {summary.global_entropy:.2f}",
            ),
            ("TV distance to the global mix", f"{summary.tv_mean:.3f} (max {summary.tv_max:.3f})"),
        ]
    return tuple(rows)
