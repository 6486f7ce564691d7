"""Tables of sites: the statistics that a site reports of its columns, and their joint preparation.

Every site reports counts, means, squared deviations, categories and class names of its training
samples.  Joined, they give the scale and the columns with which every site prepares its own table,
as `fedadmm run --csv` does it in one process.  No sample leaves a site.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedadmm.core.errors import DataError
from fedadmm.data import preparation
from fedadmm.data.dataset import Dataset, TrainTest, hold_out
from fedadmm.data.loaders.tabular import read_columns
from fedadmm.data.preparation import Column, Numbers, OneHot, Standardised
from fedadmm.data.problems.recorded import TableOptions

PREPARATION = "preparation.json"


class SiteTable(NamedTuple):
    """One site's table before its columns are prepared."""

    cells: preparation.Cells
    targets: Any
    train: Any
    """The indices of the training samples."""
    test: Any


def read_table(path: Path, options: TableOptions) -> SiteTable:
    """Read a site's own CSV file; held-out samples are chosen before anything is computed.

    Raises:
        DataError: the file has no column of the target, or a target is missing.
    """
    cells, client = read_columns(path, [options.target, *options.leave_out], options.client, True)
    aside = {options.target, client, *options.leave_out}
    features = {name: column for name, column in cells.items() if name not in aside}
    targets = cells[options.target]
    if not features:
        raise DataError(f"{path.name}: has no feature column, only the target")
    missing = [row for row, value in enumerate(targets.tolist(), 1) if value == ""]
    if missing:
        raise DataError(f"{path.name}: {options.target!r} is missing in row {missing[0]}")
    rows = Dataset(torch.arange(len(targets)), torch.zeros(len(targets)), None, name=path.name)
    split = hold_out(rows, options.test_fraction, options.partition_seed or 0)
    test = np.array([], int) if split.test is None else split.test.inputs.numpy()
    return SiteTable(features, targets, split.train.inputs.numpy(), test)


def site_statistics(path: Path, options: TableOptions) -> dict[str, Any]:
    """Return what a site reports of its table: sums and lists, as JSON."""
    table = read_table(path, options)
    cells = {name: column[table.train] for name, column in table.cells.items()}
    text = {name for name, column in cells.items() if not preparation._is_numeric(column)}
    columns: dict[str, Any] = {
        name: sorted(one) if isinstance(one, set) else vars(one)
        for name, one in preparation.statistics(cells, text).items()
    }
    found = {"samples": len(table.train), "columns": columns}
    if options.kind == "classes":
        return found | {"classes": sorted(set(table.targets.tolist()))}
    target = preparation.statistics({"": table.targets[table.train]}, ())[""]
    return found | {"target": vars(target)}


class TablePreparation(NamedTuple):
    """How every site prepares its table."""

    names: list[str]
    """The sites."""
    samples: list[int]
    """The training samples of each site."""
    columns: list[Column]
    labels: list[str]
    """The class names; empty for a regression."""
    target: Standardised | None
    """The scale of the target of a regression."""

    @classmethod
    def join(cls, statistics: Mapping[str, Mapping[str, Any]]) -> TablePreparation:
        """Join what the sites report.

        Args:
            statistics: the name of each site, with what `site_statistics` returned there.

        Raises:
            DataError: the columns of a site differ from those of the first one.
        """
        first, *others = statistics
        wanted = statistics[first]["columns"]
        for name in others:
            odd = sorted(wanted.keys() ^ statistics[name]["columns"].keys())
            if odd:
                raise DataError(f"{name}: differs from {first} in the columns {', '.join(odd)}")
        columns = [
            _joined(column, {site: one["columns"][column] for site, one in statistics.items()})
            for column in wanted
        ]
        everywhere = list(statistics.values())
        labels = set[str]().union(*(one.get("classes", ()) for one in everywhere))
        if any("classes" in one for one in everywhere) and len(labels) < 2:
            raise DataError(f"the target has one class only ({', '.join(labels)}), but needs two")
        target = None
        if not labels:
            target = _scaled("target", [Numbers(**one["target"]) for one in everywhere])
        samples = [int(one["samples"]) for one in everywhere]
        return cls(list(statistics), samples, columns, _in_order(labels), target)

    @classmethod
    def read(cls, path: Path) -> TablePreparation:
        """Read what `write` wrote."""
        found = json.loads(path.read_text("utf-8"))
        columns, target = preparation.from_document(found, path)
        return cls(found["names"], found["samples"], columns, found["labels"], target)

    def write(self, path: Path) -> None:
        """Write it to a file that travels with the app."""
        path.write_text(json.dumps(self.document(), indent=1), "utf-8")

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        columns = [vars(column) for column in self.columns]
        target = None if self.target is None else vars(self.target)
        return self._asdict() | {"columns": columns, "target": target}

    @property
    def inputs(self) -> int:
        """The number of prepared columns."""
        return sum(len(c.categories) if isinstance(c, OneHot) else 1 for c in self.columns)

    def partition(self) -> dict[str, Any]:
        """Return the content of partition.json, with which `fedadmm predict` reads new rows."""
        shown: dict[str, Any] = {
            "clients": len(self.names),
            "names": self.names,
            "sizes": self.samples,
            "total_size": sum(self.samples),
            "weights": "equal",
            "preparation": preparation.described(self.columns, self.target),
        }
        return shown | ({"labels": self.labels} if self.labels else {})

    def load(self, path: Path, options: TableOptions) -> TrainTest:
        """Return a site's training and held-out samples."""
        table = read_table(path, options)
        inputs = torch.from_numpy(preparation.apply(self.columns, table.cells).astype(np.float32))
        classes: int | None = None
        if self.labels:
            classes = len(self.labels)
            numbers = {label: number for number, label in enumerate(self.labels)}
            unknown = sorted(set(table.targets.tolist()) - numbers.keys())
            if unknown:
                raise DataError(
                    f"{path.name}: {options.target!r} is {unknown[0]!r} in some row, which no site "
                    "has reported"
                )
            targets = torch.tensor([numbers[label] for label in table.targets.tolist()])
        else:
            assert self.target is not None
            targets = torch.from_numpy(self.target.apply(table.targets)[:, 0].astype(np.float32))

        def chosen(rows: Any) -> Dataset:
            index = torch.from_numpy(rows)
            group = np.zeros(len(rows), np.int64)
            return Dataset(
                inputs[index], targets[index], classes, group, (path.name.split(".")[0],),
                name=path.name, class_names=tuple(self.labels),
            )  # fmt: skip

        return TrainTest(chosen(table.train), chosen(table.test) if len(table.test) else None)


def _joined(name: str, reported: Mapping[str, Any]) -> Column:
    words = {site: one for site, one in reported.items() if isinstance(one, list)}
    if not words:
        return _scaled(name, [Numbers(**one) for one in reported.values()])
    numeric = [site for site, one in reported.items() if site not in words and one["count"]]
    if numeric:
        raise DataError(
            f"{name!r} holds text at {', '.join(words)} and numbers at {', '.join(numeric)}; give "
            "it the same type everywhere, or leave it out"
        )
    categories = sorted(set[str]().union(*words.values()))
    if len(categories) > preparation.MOST_CATEGORIES:
        raise DataError(
            f"{name!r} holds {len(categories)} different words, as {categories[0]!r}, but a "
            f"category has at most {preparation.MOST_CATEGORIES}; leave it out"
        )
    return OneHot(name, tuple(categories))


def _scaled(name: str, reported: Sequence[Numbers]) -> Standardised:
    total = Numbers(0, 0.0, 0.0)
    for one in reported:
        total = total.joined(one)
    deviation = math.sqrt(total.squares / total.count) if total.count else 0.0
    return Standardised(name, total.mean, deviation or 1.0)


def _in_order(labels: set[str]) -> list[str]:
    """Sort class names, whole numbers by their value."""
    whole = all(label.lstrip("-").isdigit() for label in labels)
    return sorted(labels, key=int) if whole else sorted(labels)
