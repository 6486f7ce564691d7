"""An exported model computes what the run's own model computes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedadmm.core.errors import ConfigError, DataError
from fedadmm.study import export as model_export
from fedadmm.study.config import resolve
from fedadmm.study.export import Exported, export_model
from fedadmm.study.run_dir import RunDir
from fedadmm.study.single_run import run
from support.commands import SMALL, call

DIGITS = {
    "rounds": 2,
    "problem": {
        "name": "digits",
        "clients": 4,
        "max_train": 200,
        "max_test": 50,
        "model": "mlp-64-16-10",
    },
    "local": {"solver": {"name": "sgd", "lr": 0.1, "batch_size": 20}},
    "evaluate": {"objective": False},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("digits")
    run(resolve(DIGITS), path)
    return path


def flat(state: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in state.values()])


@pytest.mark.parametrize("last", [False, True])
def test_state_dicts_hold_the_vector_by_name(folder: Path, tmp_path: Path, last: bool) -> None:
    vector = RunDir(folder).model(last).params
    pt = export_model(folder, "state-dict", tmp_path / "m.pt", last).path
    by_torch = torch.load(pt, weights_only=True)
    assert torch.equal(flat(by_torch), vector)
    named = load_file(export_model(folder, "safetensors", tmp_path / "m.safetensors", last).path)
    assert named.keys() == by_torch.keys()
    assert all(torch.equal(named[name], by_torch[name]) for name in named)


@pytest.fixture(scope="module")
def onnx(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Written once: the exporter takes seconds to be imported."""
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")
    return export_model(folder, "onnx", tmp_path_factory.mktemp("onnx") / "model.onnx")


def test_onnx_computes_what_torch_computes_on_any_number_of_rows(
    folder: Path, onnx: Exported, tmp_path: Path
) -> None:
    import onnxruntime

    assert onnx.about["largest_difference"] < 1e-4
    assert onnx.about["round"] == RunDir(folder).summary()["best"]["round"]
    # The network by hand, from the named weights: two layers with a ReLU in between.
    state = torch.load(export_model(folder, "state-dict", tmp_path / "m.pt").path)
    first, bias, second, other = state.values()
    rows = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    by_hand = torch.relu(rows.flatten(1) @ first.T + bias) @ second.T + other
    session = onnxruntime.InferenceSession(onnx.path.read_bytes())
    (outputs,) = session.run(None, {"rows": rows.numpy()})
    assert torch.allclose(torch.from_numpy(outputs), by_hand, atol=1e-5)


def test_an_onnx_file_that_computes_something_else_is_not_written(
    folder: Path, onnx: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "run")
    other = RunDir(tmp_path / "run").model()
    other = other._replace(params=other.params + 0.01)
    RunDir(tmp_path / "run").write_model(None, other)
    monkeypatch.setattr(model_export, "_traced", lambda *_: onnx.path.read_bytes())
    with pytest.raises(DataError, match="differs from torch's by"):
        export_model(tmp_path / "run", "onnx")
    assert not (tmp_path / "run/model.onnx").exists()


def test_what_has_no_model_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the run's own file"):
        export_model(folder, "safetensors", folder / "model.safetensors")
    run(resolve(SMALL), tmp_path / "quadratics")
    with pytest.raises(DataError, match="'quadratics' has no module; its model is the vector"):
        export_model(tmp_path / "quadratics", "onnx")
    with pytest.raises(DataError, match=r"holds no config\.toml"):
        export_model(tmp_path, "onnx")
    (tmp_path / "quadratics/model.safetensors").unlink()
    with pytest.raises(DataError, match=r"holds no model\.safetensors yet"):
        export_model(tmp_path / "quadratics", "state-dict")


def test_the_command_says_what_it_wrote(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "named.safetensors"
    told = call("export", folder, "--format", "safetensors", "--out", out)
    assert told.exit_code == 0, told.stderr
    best = RunDir(folder).summary()["best"]["round"]
    assert told.stdout == f"round {best}, chosen by test_accuracy  {out}\n"
    assert "last model" in call("export", folder, "--format", "state-dict", "--last").stdout
    bad = call("export", folder, "--format", "keras")
    assert "expected one of csv, jsonl, state-dict, safetensors, onnx" in bad.stderr
