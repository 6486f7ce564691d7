"""A folder that somebody else wrote: nothing of it is imported, linked or unpacked at will."""

from __future__ import annotations

import gzip

import pytest
from typer.testing import CliRunner

from fedadmm.cli import app
from fedadmm.core.errors import DataError
from fedadmm.data import checked_files as reading
from fedadmm.study import config

CODE = """\
from dataclasses import dataclass
from pathlib import Path

import fedadmm as fa

Path("ran").touch()


@dataclass(frozen=True)
class Mine(fa.FedAvg):
    pass
"""
RUN = ["--rounds", "1", "--set", "problem.clients=2", "--no-report"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run of a method that a file in the current folder defines, and is not loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = CliRunner().invoke(app, ["run", "digits", *RUN, "--out", "theirs"])
    assert made.exit_code == 0, made.output
    path = tmp_path / "theirs" / "config.toml"
    tree = config.parse(path.read_text(), "x")
    name = f"foreign_{tmp_path.name}:Mine".replace("-", "_")
    path.write_text(config.write(tree | {"algorithm": {"name": name}}))
    (tmp_path / f"{name.partition(':')[0]}.py").write_text(CODE)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ["export", "theirs", "--format", "onnx"],
        ["run", "theirs"],
        ["run", "--out", "theirs", "--resume"],
        ["advise", "theirs"],
        ["deploy", "local", "theirs"],
    ],
    ids=lambda words: "-".join(words[:2]),
)
def test_no_command_imports_what_a_folder_names(command, folder):
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "which is code and would be imported" in done.output
    assert "--trust-code" in done.output
    assert not (folder / "ran").exists()


def test_with_the_flag_it_is_imported(folder):
    done = CliRunner().invoke(app, ["run", "--out", "theirs", "--resume", "--trust-code", *RUN[:2]])
    assert (folder / "ran").exists()
    assert "--trust-code" not in done.output


def test_a_report_of_it_imports_nothing(folder):
    done = CliRunner().invoke(app, ["report", "theirs"])
    assert done.exit_code == 0, done.output
    assert not (folder / "ran").exists()


def test_a_linked_checkpoint_is_refused_and_the_other_folder_stays(tmp_path):
    out, other = tmp_path / "run", tmp_path / "other"
    run = ["run", "digits", *RUN, "--out", str(out)]
    assert CliRunner().invoke(app, [*run, "--checkpoint-every", "1"]).exit_code == 0
    other.mkdir()
    theirs = ["a.1.tmp", "notes.tmp", "round-00000001.server.safetensors"]
    for name in theirs:
        (other / name).write_text("{}")
    for path in sorted((out / "checkpoint").iterdir()):
        path.unlink()
    (out / "checkpoint").rmdir()
    (out / "checkpoint").symlink_to(other)
    done = CliRunner().invoke(app, ["run", "--out", str(out), "--resume", "--rounds", "2"])
    assert done.exit_code == 2
    assert "is a link to another folder" in done.output
    assert sorted(path.name for path in other.iterdir()) == theirs


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "UNPACKED", 10**6)
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"1,2\n" * 10**6))
    assert path.stat().st_size < 10**5
    with pytest.raises(DataError, match="holds more than 1000000 bytes; unpack it first"):
        reading.read_csv(path)
    monkeypatch.setattr(reading, "UNPACKED", 4 * 10**6)
    assert len(reading.read_csv(path)) == 10**6
