"""Predictions of a run on new rows: columns, scaling, categories and labels come from the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedadmm.core.errors import DataError
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.data import models, preparation
from fedadmm.data.dataset import Dataset
from fedadmm.data.loaders.tabular import read_columns
from fedadmm.data.preparation import Column, Scaled, Spread
from fedadmm.data.problems.federation import model_factory
from fedadmm.study import config
from fedadmm.study.rundir import RunDir


class Predictor:
    """The model of a run on tables, with what it needs to read raw columns.

    Args:
        run: the folder of a run that prepared its columns, as `fedadmm run --csv` does.
        last: take the last model instead of the best one.
    """

    def __init__(self, run: str | Path, last: bool = False) -> None:
        folder = RunDir(Path(run))
        if not folder.holds_run:
            raise DataError(f"{run}: holds no config.toml, but must be the folder of one run")
        problem = config.read(str(run))["problem"]
        about = folder.partition().get("preparation")
        if about is None:
            raise DataError(
                f"{run}: the problem is {problem.get('name')!r} and its rows were taken as they "
                "are; only a run whose columns were prepared can predict from raw columns (fedadmm "
                "run --csv, or problem.preparation = 'from-sums')"
            )
        self.target = str(problem["target"])
        self.columns: list[Column] = [
            Spread(one["name"], tuple(one["words"])) if "words" in one else Scaled(**one)
            for one in about["columns"]
        ]
        self.labels: list[str] = [str(label) for label in folder.partition().get("labels", ())]
        self._scale = Scaled(**about["target"]) if "target" in about else None
        width = sum(len(c.words) if isinstance(c, Spread) else 1 for c in self.columns)
        blank = Dataset(
            torch.zeros(1, width), torch.zeros(1, dtype=torch.long), len(self.labels) or None
        )
        model = folder.model(last)
        flat = FlatModule(models.build(model_factory(problem["model"], blank, None)))
        if flat.num_parameters != model.params.numel():
            raise DataError(
                f"{run}: the model has {model.params.numel()} parameters, but "
                f"{problem['model']!r} for {width} columns has {flat.num_parameters}"
            )
        flat.to(model.params.dtype, "cpu")
        flat.load(model.params)
        self.module = flat.module.eval()

    def outputs(self, rows: Any) -> torch.Tensor:
        """What the model returns for a CSV or Parquet file, a data frame or a table of columns."""
        inputs = preparation.apply(self.columns, self._cells(rows))
        kind = next(self.module.parameters()).dtype
        with torch.no_grad():
            found: torch.Tensor = self.module(torch.from_numpy(inputs).to(kind))
        return found

    def predict_proba(self, rows: Any) -> NDArray[np.float64]:
        """The probability of each label, in the order of `labels`."""
        if not self.labels:
            raise DataError(f"{self.target!r} is a number, but probabilities are asked for")
        scores = self.outputs(rows).double()
        if scores.shape[1] == 1:
            one = torch.sigmoid(scores)
            return torch.cat([1 - one, one], dim=1).numpy()
        return torch.softmax(scores, dim=1).numpy()

    def predict(self, rows: Any) -> NDArray[Any]:
        """The likeliest label of each row, or its number."""
        if self.labels:
            likeliest = self.predict_proba(rows).argmax(axis=1)
            return np.array([self.labels[index] for index in likeliest])
        numbers: NDArray[np.float64] = self.outputs(rows).double().numpy()[:, 0]
        if self._scale is not None:
            numbers = numbers * self._scale.deviation + self._scale.mean
        return numbers

    def _cells(self, rows: Any) -> dict[str, NDArray[Any]]:
        wanted = [column.name for column in self.columns]
        if isinstance(rows, str | Path):
            read, _ = read_columns(Path(rows), wanted, None, gaps=True)
            cells = {name: read[name] for name in wanted}
        else:
            known = list(rows.keys() if isinstance(rows, Mapping) else getattr(rows, "columns", ()))
            missing = [name for name in wanted if name not in known]
            if missing:
                raise DataError(
                    f"the rows have no column {', '.join(map(repr, missing))}, but must have "
                    f"{', '.join(wanted)} (they have {', '.join(map(str, known)) or 'no names'})"
                )
            cells = {name: _column(rows[name]) for name in wanted}
        for column in self.columns:
            if isinstance(column, Spread):
                column.refuse_unknown(cells[column.name])
        return cells


def _column(values: Any) -> NDArray[Any]:
    """Numbers as numbers, everything else as text; a missing entry is a gap."""
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    return np.array(["" if one is None or one != one else str(one) for one in array.tolist()])
