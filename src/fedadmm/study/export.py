"""A run for other programs: its records as one table, its model as a state dict or as ONNX."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from fedadmm.core import atomic_files
from fedadmm.core.config_tree import flattened
from fedadmm.core.errors import ConfigError, DataError
from fedadmm.core.objectives.model import ModelObjective
from fedadmm.core.outputs import Iterate
from fedadmm.core.problem import Problem
from fedadmm.data.preparation import Column, OneHot, Standardised, from_document
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.run.experiment import Experiment
from fedadmm.run.record import flat
from fedadmm.run.simulate import first_vector, make_job
from fedadmm.run.stores.records import layout, rebuild, separate
from fedadmm.study import config
from fedadmm.study.config import resolve
from fedadmm.study.formatting import csv_text
from fedadmm.study.predict import ABOUT, Predictor, described
from fedadmm.study.run_dir import (
    MODEL,
    STATE_DICT,
    RunDir,
    as_recorded,
    plain,
    runs_below,
    write_json,
)
from fedadmm.study.run_history import Columns

TABLES = ("csv", "jsonl")
ROWS = 8
"""This many rows of the first client are sent through an ONNX file to compare it with torch."""
_CLOSE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""How far apart the two may be, relative to the largest output."""


def export(directory: Path, kind: str, out: Path | None = None) -> tuple[Path, int]:
    """Write the table and return its path and how many rows it has."""
    if kind not in TABLES:
        allowed = ", ".join((*TABLES, *MODELS))
        raise ConfigError(f"--format: got {kind!r}, expected one of {allowed}")
    rows = [row for run in runs_below(directory) for row in _rows(run, directory)]
    if not rows:
        raise DataError(f"{directory}: holds no run with any round yet")
    path = out or directory / f"metrics.{kind}"
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if kind == "csv":
        values = [[row.get(key) for key in columns] for row in rows]
        atomic_files.write(path, csv_text(columns, values).encode())
    else:
        atomic_files.write(path, "".join(json.dumps(plain(row)) + "\n" for row in rows).encode())
    return path, len(rows)


def _rows(run: RunDir, root: Path) -> Iterator[dict[str, Any]]:
    """One row a round, with the run's name; tables in a record become columns with dots."""
    name = str(run.path.relative_to(root)) if run.path != root else run.path.name
    found = as_recorded(run.path, Columns(), run.summary(), run.config(), None)
    about = {"run": name, "label": found.label, "seed": found.seed}
    for record in run.records():
        yield about | flattened(flat(record, about))


class Restored(NamedTuple):
    """A run's model as a module, rows that it takes, and what else is needed to use it."""

    module: nn.Module
    rows: Tensor | None
    """None where a client's rows are no tensor, but batches of their own kind."""
    about: dict[str, Any]
    """Architecture, labels and preparation, as `fedadmm.study.predict.described` has them."""


class Exported(NamedTuple):
    """What was written."""

    path: Path
    about: dict[str, Any]
    """The round and the metric that chose it, and how well an ONNX file agrees with torch."""


def restore(directory: Path, last: bool = False, client: int | None = None) -> Restored:
    """The module of a run with its best model in it, or its last, in evaluation mode.

    With `client` it is the client's own model, in the last round that a checkpoint holds.
    """
    folder = RunDir(directory)
    if not directory.is_dir():
        raise DataError(f"{directory}: no such folder")
    if not folder.holds_run:
        raise DataError(
            f"{directory}: holds no config.toml, so that it is not known which module its vector "
            "belongs to; name the folder of one run"
        )
    model = folder.model(last or client is not None)
    chosen = resolve(config.read(str(directory)), f"{directory}: ")
    about = described(directory)
    try:
        problem = chosen.load_problem()
    except DataError:
        if about["preparation"] is None or client is not None:
            raise
        # The tables of a deployed run are at its sites; its columns are known all the same.
        predictor = Predictor(directory, last)
        return Restored(predictor.module, _random_rows(predictor.module, predictor.width), about)
    if client is not None:
        model = _personal(folder, chosen, problem, client, model)
    first = problem.clients[0].to(model.params.dtype)
    if first.flat is None:
        raise DataError(
            f"{directory}: the problem {problem.name!r} has no module; its model is the vector "
            f"'params' of {MODEL}"
        )
    first.flat.load(model.params)
    if model.buffers is not None:
        first.flat.load_buffers(model.buffers)
    own = first if isinstance(first, ModelObjective) else None
    rows = None if own is None else own.prepared(own.inputs[:ROWS])
    return Restored(first.flat.module.eval(), rows, about)


def _random_rows(module: nn.Module, width: int) -> Tensor:
    """Return prepared rows to compare an ONNX file with the module."""
    generator = torch.Generator().manual_seed(0)
    kind = next(module.parameters()).dtype
    return torch.randn(ROWS, width, generator=generator, dtype=kind)


def to_onnx(path: Path, module: nn.Module, width: int, about: dict[str, Any]) -> None:
    """Write a module of prepared rows as ONNX, from raw columns on if they were prepared.

    Args:
        path: The file.
        module: The module, in evaluation mode.
        width: Number of prepared columns.
        about: Architecture, labels and preparation, as `described` returns them.
    """
    data, _ = _onnx(Restored(module, _random_rows(module, width), about))
    atomic_files.write(path, data)


def _personal(
    folder: RunDir, chosen: Experiment, problem: Problem, client: int, model: Iterate
) -> Iterate:
    """The client's own model in place of the run's."""
    initial = first_vector(chosen, problem)
    job = make_job(chosen.resolve(), problem, initial)
    template = layout(job).template
    job.own_models.get(client, template, model.params)  # a client keeps one
    named = Checkpoints(folder.checkpoint).client(client)
    found = None if named is None else rebuild(template, named, folder.checkpoint)
    own = job.own_models.get(client, found, model.params)
    buffers = model.buffers if found is None or found.buffers is None else found.buffers
    return Iterate(own, buffers)


def export_model(
    directory: Path,
    kind: str,
    out: Path | None = None,
    last: bool = False,
    client: int | None = None,
) -> Exported:
    """Write the best model of a run, its last, or a client's own, in one of MODELS."""
    name, encode = MODELS[kind]
    path = out or directory / (name if client is None else f"client-{client}-{name}")
    own_app = not RunDir(directory).holds_run and (directory / STATE_DICT).is_file()
    if path.resolve() in (
        (directory / one).resolve() for one in (MODEL, STATE_DICT)[: 1 + own_app]
    ):
        raise ConfigError(f"--out is '{path}', the run's own file, expected another one")
    if own_app:
        return _of_own_app(directory, kind, path, last, client)
    restored = restore(directory, last, client)
    found = RunDir(directory).best()
    about = {} if last or found is None else {"round": found["round"], "metric": found["metric"]}
    if client is not None:
        latest = Checkpoints(RunDir(directory).checkpoint).latest_round()
        about = {"client": client, "round": latest}
    data, more = encode(restored)
    atomic_files.write(path, data)
    if kind == "state-dict":  # a state dict has no place for it
        write_json(path.with_suffix(".json"), restored.about)
    return Exported(path, about | more)


def _of_own_app(directory: Path, kind: str, path: Path, last: bool, client: int | None) -> Exported:
    """The tensors that a deployed server keeps by name; its folder has no code of the model."""
    if kind == "onnx" or last or client is not None:
        asked = "--format is 'onnx'" if kind == "onnx" else "--last" if last else "--client"
        raise ConfigError(
            f"{directory}: is the run of an app, which keeps the parameters of its model and not "
            f"its code, but {asked} is asked for; load {STATE_DICT} into the app's model"
        )
    tensors, content = load_file(directory / STATE_DICT), io.BytesIO()
    torch.save(tensors, content)
    atomic_files.write(path, content.getvalue() if kind == "state-dict" else save(tensors))
    return Exported(path, {"model": "of the last checkpoint"})


def _state_dict(restored: Restored) -> tuple[bytes, dict[str, Any]]:
    content = io.BytesIO()
    torch.save(separate(restored.module.state_dict()), content)
    return content.getvalue(), {}


def _safetensors(restored: Restored) -> tuple[bytes, dict[str, Any]]:
    about = {"format": "pt", ABOUT: json.dumps(restored.about)}
    return save(separate(restored.module.state_dict()), about), {}


class _FromColumns(nn.Module):
    """A module that takes raw columns, as they were before preparation, one number each.

    A missing value is NaN.  A category is its place in the list, from 0; -1 is none of them.
    """

    def __init__(
        self, columns: list[Column], module: nn.Module, target: Standardised | None
    ) -> None:
        super().__init__()
        self.columns, self.module, self.target = columns, module, target

    def forward(self, rows: Tensor) -> Tensor:
        parts = []
        for place, column in enumerate(self.columns):
            own = rows[:, place : place + 1]
            if isinstance(column, OneHot):
                parts.append((own == torch.arange(len(column.categories))).to(rows.dtype))
            else:
                mean, deviation = _scale(column, rows)
                scaled = (own - mean) / deviation
                parts.append(torch.where(torch.isnan(scaled), torch.zeros_like(scaled), scaled))
        outputs: Tensor = self.module(torch.cat(parts, dim=1))
        if self.target is None:
            return outputs
        mean, deviation = _scale(self.target, rows)
        scaled_back: Tensor = outputs * deviation + mean
        return scaled_back

    def raw(self, rows: Tensor) -> Tensor:
        """Raw columns that become these rows."""
        parts, begin = [], 0
        for column in self.columns:
            width = len(column.categories) if isinstance(column, OneHot) else 1
            own = rows[:, begin : begin + width]
            begin += width
            if isinstance(column, OneHot):
                there = own.sum(1) > 0
                parts.append(torch.where(there, own.argmax(1), -1).to(rows.dtype))
            else:
                parts.append(own[:, 0] * column.deviation + column.mean)
        return torch.stack(parts, dim=1)


def _scale(column: Standardised, rows: Tensor) -> Tensor:
    """Return mean and deviation as tensors: numbers would become single precision in ONNX."""
    return torch.tensor([column.mean, column.deviation], dtype=rows.dtype)


def _onnx(restored: Restored) -> tuple[bytes, dict[str, Any]]:
    """From raw columns where there are any, else from the module's own input on.

    Refused unless onnxruntime agrees with torch.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch needs it
    except ImportError as error:
        raise ConfigError(
            f"ONNX needs packages that are not installed ({error}); pip install 'fedadmm[onnx]'"
        ) from None
    if restored.rows is None:
        raise DataError(
            "--format is 'onnx', but the clients' rows are batches of their own kind; use "
            "state-dict or safetensors"
        )
    kind = torch.float64 if restored.rows.dtype == torch.float64 else torch.float32
    module = restored.module.to(kind)
    rows = restored.rows.to(kind) if restored.rows.is_floating_point() else restored.rows
    prepared = restored.about["preparation"]
    if prepared is not None:
        columns, scale = from_document(prepared, "preparation")
        whole = _FromColumns(columns, module, scale).eval()
        module, rows = whole, whole.raw(rows)
    data = _traced(module, rows, restored.about)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    some = rows[: max(1, len(rows) - 1)]  # another number of rows than it was traced with
    (outputs,) = session.run(None, {session.get_inputs()[0].name: some.contiguous().numpy()})
    with torch.no_grad():
        expected = module(some)
    apart = float((torch.from_numpy(outputs) - expected).abs().max())
    if not apart <= _CLOSE[kind] * (1 + float(expected.abs().max())):
        raise DataError(
            f"the ONNX model differs from torch's by {apart:.2g} on {len(some)} rows; it was not "
            "written"
        )
    return data, {"rows": len(some), "largest_difference": apart}


def _traced(module: nn.Module, rows: Tensor, about: Mapping[str, Any]) -> bytes:
    """An ONNX model that takes any number of rows, with what is said of it as metadata."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of optional packages that are not needed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's exporter warns of torch's own habits
            program = torch.onnx.export(
                module,
                (rows,),
                input_names=["rows"],
                output_names=["outputs"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"torch cannot write {type(module).__name__} as ONNX: {reason}") from error
    finally:
        logger.setLevel(level)
    assert program is not None
    program.model.metadata_props[ABOUT] = json.dumps(about)
    data: bytes = program.model_proto.SerializeToString()
    return data


MODELS: dict[str, tuple[str, Callable[[Restored], tuple[bytes, dict[str, Any]]]]] = {
    "state-dict": ("state_dict.pt", _state_dict),
    "safetensors": (STATE_DICT, _safetensors),
    "onnx": ("model.onnx", _onnx),
}
"""Name -> the file in the run directory, and what makes its content."""
