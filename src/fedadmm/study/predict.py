"""Predictions of a run on new rows: columns, scaling, categories and labels come from the run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fedadmm.core.errors import DataError, ParameterError
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.parts import is_external
from fedadmm.data import models, preparation
from fedadmm.data.dataset import Dataset
from fedadmm.data.loaders.tabular import read_columns
from fedadmm.data.preparation import OneHot
from fedadmm.data.problems.named_problem import model_factory
from fedadmm.study import config
from fedadmm.study.run_dir import RunDir, check_entries, runs_below

_ENTRIES: Mapping[str, Any] = {
    "model": str,
    "target": str,
    "labels": Sequence[str],
    "preparation": Mapping[str, Any],
}
"""What `described` returns, as far as predictions need it, and its types."""
ABOUT = "fedadmm"
"""The key of an exported file's metadata that holds what `described` says, as JSON."""


def described(run: Path) -> dict[str, Any]:
    """What a model of a run needs to be used without it: architecture, labels, preparation."""
    folder = RunDir(run)
    if not folder.holds_run:
        inside = runs_below(run)
        hint = f", such as {inside[0].path}" if inside else ""
        raise DataError(f"{run}: holds no config.toml, expected the folder of one run{hint}")
    problem, partition = config.read(str(run))["problem"], folder.partition()
    return {
        "problem": problem["name"],
        "model": problem.get("model"),
        "target": problem.get("target"),
        "labels": [str(label) for label in partition.get("labels", ())],
        "preparation": partition.get("preparation"),
    }


class Predictor:
    """Predictions of a run's model on new tables, with the run's preparation of columns.

    Args:
        run: Folder of a run that prepared its columns, as `fedadmm run --csv` does, or a
            safetensors file that `fedadmm export` made of such a run.
        last: Whether to use the last model instead of the best one; a file contains only one.

    Raises:
        DataError: The folder contains no run, or its columns were not prepared.

    Example:
        >>> import tempfile, fedadmm as fa
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     try:
        ...         fa.Predictor(folder)
        ...     except fa.errors.DataError as error:
        ...         print(str(error).removeprefix(f"{folder}: "))
        holds no config.toml, expected the folder of one run
    """

    def __init__(self, run: str | Path, last: bool = False) -> None:
        path, state = Path(run), None
        if path.is_file():
            about, state = _exported(path)
        else:
            about = described(path)
        about = dict.fromkeys(_ENTRIES) | about
        if state is not None and isinstance(about["model"], str):
            config.reject_code(path, {"model": about["model"]})
        if about["preparation"] is None:
            raise DataError(
                f"{run}: the problem is {about.get('problem')!r} and its rows were taken as they "
                "are; only a run whose columns were prepared can predict from raw columns (fedadmm "
                "run --csv, or problem.preparation = 'from-sums')"
            )
        check_entries(path, about, _ENTRIES)
        self.target: str = about["target"]
        self.columns, self._scale = preparation.from_document(about["preparation"], path)
        self.labels: list[str] = about["labels"]
        width = sum(len(c.categories) if isinstance(c, OneHot) else 1 for c in self.columns)
        self.width = width
        """The number of prepared columns."""
        blank = Dataset(
            torch.zeros(1, width), torch.zeros(1, dtype=torch.long), len(self.labels) or None
        )
        try:
            factory = model_factory(about["model"], blank, None)
        except ParameterError as error:
            raise DataError(f"{path}: {error}") from None
        stored = [RunDir(path).model(last).params] if state is None else list(state.values())
        held = sum(one.numel() for one in stored)
        # A changed name may ask for a network that is too large to build.
        with torch.device("cpu" if is_external(about["model"]) else "meta"):
            module = models.build(factory)
        trained = [one for one in module.parameters() if one.requires_grad]
        named = trained if state is None else list(module.state_dict().values())
        if (wanted := sum(one.numel() for one in named)) != held:
            raise DataError(
                f"{path}: model: got {about['model']!r} with {wanted} parameters for {width} "
                f"columns and {len(self.labels)} labels, expected the {held} that are stored."
            )
        module = models.build(factory)
        if state is None:
            FlatModule(module).to(stored[0].dtype, "cpu").load(stored[0])
        else:
            try:
                module.to(stored[0].dtype).load_state_dict(state)
            except RuntimeError as error:
                raise DataError(f"{path}: model: {error}") from None
        self.module = module.eval()

    def outputs(self, rows: Any) -> torch.Tensor:
        """What the model returns for a CSV file, a data frame or a table of columns."""
        inputs = preparation.apply(self.columns, self._cells(rows))
        kind = next(self.module.parameters()).dtype
        with torch.no_grad():
            found: torch.Tensor = self.module(torch.from_numpy(inputs).to(kind))
        if not bool(found.isfinite().all()):
            raise DataError("the model returns values that are not finite for some row")
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
                    f"the rows have no column {', '.join(map(repr, missing))}, expected "
                    f"{', '.join(wanted)} (they have {', '.join(map(str, known)) or 'no names'})"
                )
            cells = {name: _column(rows[name]) for name in wanted}
        for column in self.columns:
            if isinstance(column, OneHot):
                column.reject_unknown(cells[column.name])
        return cells


def _exported(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What an exported file says of its model, and its state dict."""
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})[ABOUT])
            if not isinstance(about, dict):
                raise ValueError("its description is not a JSON object")
            return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: is neither the folder of a run nor a file that `fedadmm export --format "
            f"safetensors` made ({error})"
        ) from None


def _column(values: Any) -> NDArray[Any]:
    """Numbers as numbers, everything else as text; a missing entry is a gap."""
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    return np.array(["" if one is None or one != one else str(one) for one in array.tolist()])
