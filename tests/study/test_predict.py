"""A run's model on new rows of raw columns."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

import fedadmm as fa
from fedadmm.core import codec
from support.commands import call

SITES = {
    "a": ["50,yes,1.0,ill", "20,no,,well", "60,yes,4.0,ill", "30,no,2.0,well"],
    "b": ["70,no,3.0,ill", "25,former,1.5,well", "65,yes,,ill", "35,no,2.5,well"],
}
ROWS = [line.split(",") for lines in SITES.values() for line in lines]
NEW = "dose,smoker,age\n2,no,55\n,,41\n"


def run(folder: Path, target: str = "state", *more: object) -> Path:
    for name, lines in SITES.items():
        (folder / f"{name}.csv").write_text("\n".join(["age,smoker,dose,state", *lines, ""]))
    place = folder / "run"
    given = ["--csv", folder / "a.csv", folder / "b.csv", "--target", target, "--out", place]
    few = ["--set", "rounds=3", "--set", "problem.test_fraction=0"]
    result = call("run", *given, *few, *more)
    assert result.exit_code == 0, result.stderr
    (folder / "new.csv").write_text(NEW)
    return place


def inputs() -> np.ndarray:
    """Age, smoker (former, no, yes) and dose of the new rows, standardised by hand."""
    ages = np.array([float(row[0]) for row in ROWS])
    doses = np.array([float(row[2]) for row in ROWS if row[2]])
    age = (np.array([55.0, 41.0]) - ages.mean()) / ages.std()
    dose = np.array([(2.0 - doses.mean()) / doses.std(), 0.0])
    return np.column_stack([age, [0, 0], [1, 0], [0, 0], dose])


def test_labels_and_probabilities_are_those_of_the_stored_vector(tmp_path: Path) -> None:
    place = run(tmp_path)
    params = codec.read(place / "model.safetensors").tensors["params"].double().numpy()
    well = 1 / (1 + np.exp(-inputs() @ params[:5] - params[5]))
    expected = np.column_stack([1 - well, well])
    model = fa.Predictor(place)
    np.testing.assert_allclose(model.predict_proba(tmp_path / "new.csv"), expected, rtol=1e-5)
    labels = np.array(["ill", "well"])[expected.argmax(1)]
    assert model.predict(tmp_path / "new.csv").tolist() == labels.tolist()
    frame = pd.read_csv(tmp_path / "new.csv")
    np.testing.assert_allclose(model.predict_proba(frame), expected, rtol=1e-5)
    table = {"age": [55, 41], "smoker": ["no", None], "dose": [2.0, np.nan]}
    np.testing.assert_allclose(model.predict_proba(table), expected, rtol=1e-5)


def test_the_command_prints_or_writes_them(tmp_path: Path) -> None:
    place = run(tmp_path)
    for name in SITES:
        (tmp_path / f"{name}.csv").unlink()  # the run's folder is enough
    printed = call("predict", place, tmp_path / "new.csv")
    assert printed.exit_code == 0, printed.stderr
    rows = list(csv.DictReader(io.StringIO(printed.stdout)))
    found = fa.Predictor(place).predict_proba(tmp_path / "new.csv")
    assert [float(row["p(ill)"]) for row in rows] == pytest.approx(found[:, 0], abs=1e-6)
    called = call("predict", place, tmp_path / "new.csv", "--json")
    assert [row["state"] for row in json.loads(called.stdout)["rows"]] == [r["state"] for r in rows]
    call("predict", place, tmp_path / "new.csv", "--out", tmp_path / "answers.csv")
    assert (tmp_path / "answers.csv").read_text() == printed.stdout


def test_a_number_comes_back_in_its_own_unit(tmp_path: Path) -> None:
    place = run(
        *(tmp_path, "age", "--set", "problem.kind=numbers", "--set", "problem.model=linear"),
        *("--set", 'problem.leave_out=["state", "dose"]'),
    )
    params = codec.read(place / "model.safetensors").tensors["params"].double()
    ages = torch.tensor([float(row[0]) for row in ROWS])
    one = torch.tensor([0.0, 1.0, 0.0]).double()  # former, no, yes
    expected = (one @ params[:3] + params[3]) * ages.std(unbiased=False) + ages.mean()
    model = fa.Predictor(place)
    assert model.predict({"smoker": ["no"]}) == pytest.approx([float(expected)], rel=1e-5)
    with pytest.raises(
        fa.errors.DataError, match="'age' is a number, but probabilities are asked for"
    ):
        model.predict_proba({"smoker": ["no"]})


REFUSED = {
    "a column": ("age,dose\n1,2\n", "has no column 'smoker'"),
    "a word": ("age,smoker,dose\n1,pipe,2\n", "'smoker' is 'pipe' in some row, which no training"),
    "a number": ("age,smoker,dose\nold,no,2\n", "'age' held numbers in all training rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_cannot_read_is_named(case: str, tmp_path: Path) -> None:
    text, message = REFUSED[case]
    model = fa.Predictor(run(tmp_path))
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(fa.errors.DataError, match=message):
        model.predict(tmp_path / "bad.csv")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes in folders")
def test_a_pipe_in_the_place_of_new_samples_is_rejected(tmp_path: Path) -> None:
    place = run(tmp_path)
    os.mkfifo(tmp_path / "pipe.csv")
    done = call("predict", place, tmp_path / "pipe.csv")
    assert done.exit_code == 2
    assert "pipe.csv: it is no regular file" in done.stderr


@pytest.mark.parametrize("huge", ["1e308", "-1e39", "inf"])
def test_a_number_too_large_for_sums_of_squares_is_named(huge: str, tmp_path: Path) -> None:
    place = run(tmp_path)
    new = tmp_path / "huge.csv"
    new.write_text(f"age,smoker,dose\n50,no,1\n50,no,{huge}\n")
    (tmp_path / "train.csv").write_text(f"age,dose,state\n50,1,ill\n20,{huge},well\n")
    (tmp_path / "a.csv").write_text("age,dose,state\n50,1,ill\n20,2,well\n")
    table = ["--csv", tmp_path / "train.csv", tmp_path / "a.csv", "--target", "state"]
    again = call("run", *table, "--out", tmp_path / "other")
    for done in (call("predict", place, new), again):
        assert done.exit_code == 2
        assert f".csv: dose: got {huge} in row 2, expected" in done.stderr


DAMAGES: dict[str, tuple[Any, str]] = {
    "deviation": (lambda found: _column(found, deviation=0), "columns[0].deviation"),
    "mean": (lambda found: _column(found, mean=1e308), "columns[0].mean"),
    "text": (lambda found: _column(found, mean="high"), "columns[0].mean"),
    "no name": (lambda found: _column(found, name=None), "columns[0].name"),
    "another key": (lambda found: _column(found, scale=1.0), "columns[0].scale"),
    "no columns": (lambda found: {**found, "preparation": {"columns": 3}}, "preparation.columns"),
    "a preparation that is a list": (lambda found: {**found, "preparation": []}, "preparation"),
    "labels": (lambda found: {**found, "labels": [["ill"]]}, "labels[0]"),
    "more labels": (lambda found: {**found, "labels": list("abc")}, "model"),
}


def _column(found: dict[str, Any], **changes: object) -> dict[str, Any]:
    first, *others = found["preparation"]["columns"]
    columns = [first | changes, *others]
    return found | {"preparation": found["preparation"] | {"columns": columns}}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_changed_description_is_rejected_with_its_file_and_field(
    damage: str, tmp_path: Path
) -> None:
    place = run(tmp_path)
    change, field = DAMAGES[damage]
    assert call("export", place, "--format", "safetensors").exit_code == 0
    file = place / "state_dict.safetensors"
    with safe_open(file, "pt") as opened:
        about = json.loads(opened.metadata()["fedadmm"])
    file.write_bytes(save(load_file(file), {"fedadmm": json.dumps(change(about))}))
    partition = place / "partition.json"
    partition.write_text(json.dumps(change(json.loads(partition.read_text()))))
    for given, named in ((place, place), (file, file)):
        done = call("predict", given, tmp_path / "new.csv")
        assert done.exit_code == 2
        assert str(named) in done.stderr
        assert field in done.stderr


def test_a_folder_of_runs_names_one_of_them(tmp_path: Path) -> None:
    place = run(tmp_path)
    with pytest.raises(
        fa.errors.DataError, match=f"expected the folder of one run, such as {place}"
    ):
        fa.Predictor(tmp_path)
    with pytest.raises(fa.errors.DataError, match=r"nowhere: no such folder"):
        fa.Predictor(tmp_path / "nowhere")


def test_an_exported_file_that_names_code_is_not_trusted_by_itself(tmp_path: Path) -> None:
    about = {"problem": "table", "model": "evil:Net", "preparation": None}
    path = tmp_path / "given.safetensors"
    path.write_bytes(save({"w": torch.zeros(1)}, {"fedadmm": json.dumps(about)}))
    with pytest.raises(fa.errors.ConfigError, match="names 'evil:Net', which is code"):
        fa.Predictor(path)


def test_a_run_on_rows_as_they_are_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "run"
    assert call("run", "quickstart", "--set", "rounds=1", "--out", place).exit_code == 0
    with pytest.raises(fa.errors.DataError, match="its rows were taken as they are"):
        fa.Predictor(place)


def test_an_exported_file_predicts_without_its_run(tmp_path: Path) -> None:
    place = run(tmp_path)
    expected = fa.Predictor(place).predict_proba(tmp_path / "new.csv")
    out = tmp_path / "alone.safetensors"
    assert call("export", place, "--format", "safetensors", "--out", out).exit_code == 0
    assert call("export", place, "--format", "state-dict").exit_code == 0
    said = json.loads((place / "state_dict.json").read_text())
    assert (said["labels"], said["target"], said["model"]) == (["ill", "well"], "state", "logistic")
    shutil.rmtree(place)
    alone = fa.Predictor(out)
    np.testing.assert_array_equal(alone.predict_proba(tmp_path / "new.csv"), expected)
    shown = call("predict", out, tmp_path / "new.csv")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.startswith("state,p(ill),p(well)\n")
    (tmp_path / "other").write_bytes(b"something else")
    with pytest.raises(fa.errors.DataError, match="is neither the folder of a run nor a file that"):
        fa.Predictor(tmp_path / "other")


@pytest.mark.parametrize("target", ["state", "age"])
def test_an_onnx_file_takes_raw_columns(target: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")
    numbers = ["--set", "problem.kind=numbers", "--set", "problem.model=linear"]
    place = run(tmp_path, target, *(numbers if target == "age" else []))
    told = call("export", place, "--format", "onnx")
    assert told.exit_code == 0, told.stderr
    session = onnxruntime.InferenceSession((place / "model.onnx").read_bytes())
    about = json.loads(session.get_modelmeta().custom_metadata_map["fedadmm"])
    words = {one["name"]: one.get("categories") for one in about["preparation"]["columns"]}
    table = {"age": [55.0, 41.0], "smoker": ["no", None], "dose": [2.0, np.nan]}
    table["state"] = ["ill", None]
    raw = [
        [-1.0 if cell is None else words[name].index(cell) for cell in table[name]]
        if words[name]
        else table[name]
        for name in words
    ]
    (outputs,) = session.run(None, {"rows": np.array(raw, np.float32).T})
    model = fa.Predictor(place)
    expected = model.outputs(table).numpy() if target == "state" else model.predict(table)
    np.testing.assert_allclose(outputs.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)
