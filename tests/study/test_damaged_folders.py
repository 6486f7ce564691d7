"""A report of damaged files ends in a sentence that names them."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from fedadmm.cli import app


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A comparison of two methods, three rounds each."""
    folder = tmp_path_factory.mktemp("study") / "made"
    options = ["--rounds", "2", "--set", "problem.clients=2", "--no-report", "--jobs", "1"]
    command = ["compare", "digits", "--algorithms", "fedavg,fedadmm", *options]
    done = CliRunner().invoke(app, [*command, "--out", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


DAMAGES = {
    "no rows": lambda found: found | {"runs": 3},
    "a row that is none": lambda found: found | {"runs": [[]]},
    "no kind": lambda found: found | {"kind": None},
    "a folder that is a list": lambda found: _row(found, directory=[]),
    "a folder that is missing": lambda found: _row(found, directory=None),
    "a label that is a number": lambda found: _row(found, label=1),
    "a target that is a word": lambda found: _row(found, target="high"),
}


def _row(found, **changes):
    first, *others = found["runs"]
    return found | {"runs": [first | changes, *others]}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_results_are_named(damage, study):
    path = study / "results.json"
    text = path.read_text()
    path.write_text(json.dumps(DAMAGES[damage](json.loads(text))))
    try:
        done = CliRunner().invoke(app, ["report", str(study)])
    finally:
        path.write_text(text)
    assert done.exit_code == 2
    assert "results.json: is damaged: " in done.output


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes in folders")
def test_a_pipe_in_the_place_of_a_file_is_refused(study):
    path = next(study.rglob("summary.json"))
    text = path.read_text()
    path.unlink()
    os.mkfifo(path)
    try:
        done = CliRunner().invoke(app, ["report", str(study)])
    finally:
        path.unlink()
        path.write_text(text)
    assert done.exit_code == 2
    assert "summary.json" in done.output
    assert "no regular file" in done.output


def test_what_no_reader_expects_is_a_sentence(study, monkeypatch):
    def broken(*_):
        raise KeyError("x")

    monkeypatch.setattr("fedadmm.study.study_result.drawn", broken)
    done = CliRunner().invoke(app, ["report", str(study)])
    assert done.exit_code == 2
    assert "KeyError: 'x'" in done.output
    assert "metrics.jsonl" in done.output


FIELDS = {
    "metrics.jsonl": {
        "cohort.clients": lambda line: line | {"cohort": {"participants": 1, "clients": [10**9]}},
        "clock.delays": lambda line: line | {"clock": {"delays": [10**12]}},
    },
    "summary.json": {
        "final": lambda found: found | {"final": []},
        "seed": lambda found: found | {"seed": "zero"},
        "target": lambda found: found | {"target": 0.9},
    },
    "partition.json": {
        "clients": lambda found: found | {"clients": 10**9},
        "sizes[1]": lambda found: found | {"sizes": [1, "two"]},
        "counts[0]": lambda found: found | {"counts": [3]},
    },
}


@pytest.mark.parametrize(
    ("file", "field"), [(file, field) for file, fields in FIELDS.items() for field in fields]
)
def test_a_changed_document_of_a_run_is_named_with_its_field(file, field, study):
    path = sorted(study.rglob(file))[0]
    text = path.read_text()
    first, *others = text.splitlines() if path.suffix == ".jsonl" else [text]
    path.write_text("\n".join([json.dumps(FIELDS[file][field](json.loads(first))), *others, ""]))
    try:
        done = CliRunner().invoke(app, ["report", str(path.parent)])
    finally:
        path.write_text(text)
    assert done.exit_code == 2
    assert file in done.output
    assert field in done.output
