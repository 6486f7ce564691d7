"""The function behind `fedadmm data show PROBLEM`: how a problem's rows lie on its clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedadmm.data.federated import FederatedData
from fedadmm.data.summary import Summary, draw, summarise
from fedadmm.errors import DataError
from fedadmm.problem import Problem


class Description(NamedTuple):
    """What there is to say about a problem's split, for a table, a picture and a report."""

    name: str
    parameters: int
    summary: Summary | None
    """None when the clients are drawn on demand and hold no stored rows."""
    counts: NDArray[np.int64] | None
    """Rows of each label at each client, (labels, clients); None without labels."""
    sizes: NDArray[np.int64] | None
    """Rows of each client."""
    client_names: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]
    """The table: what is measured, and its value."""
    picture: Path | None
    """The PNG that was written."""


def describe(
    name: str, options: Mapping[str, Any] | None = None, picture: str | Path | None = None
) -> Description:
    """Load a named problem and describe its split; with `picture`, write a PNG there."""
    from fedadmm import problems

    problem = problems.load(name, **(options or {}))
    return describe_problem(problem, picture)


def describe_problem(problem: Problem, picture: str | Path | None = None) -> Description:
    """Describe the split of any problem; with `picture`, write a PNG there."""
    data = problem.data
    basic = (("clients", f"{problem.num_clients:,}"), ("parameters", f"{problem.num_parameters:,}"))
    if not isinstance(data, FederatedData):
        if picture is not None:
            raise DataError(f"{problem.name}: its clients are drawn on demand, nothing to draw")
        return Description(problem.name, problem.num_parameters, None, None, None, (), basic, None)
    counts = None if data.rows.num_classes is None else data.label_counts()
    sizes = data.partition.sizes
    summary = summarise(sizes, counts)
    if picture is not None:
        draw(Path(picture), f"{problem.name}: {len(sizes)} clients", sizes, counts)
    return Description(
        name=problem.name,
        parameters=problem.num_parameters,
        summary=summary,
        counts=counts,
        sizes=sizes,
        client_names=tuple(data.client_names()),
        rows=basic + table(summary),
        picture=None if picture is None else Path(picture),
    )


def table(summary: Summary) -> tuple[tuple[str, str], ...]:
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
