"""What is built and run from the project's own files: its version, its check, its wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import fedadmm

ROOT = Path(__file__).parents[1]


def test_the_version_is_written_once() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    source = (ROOT / pyproject["tool"]["hatch"]["version"]["path"]).read_text()
    # As hatchling looks for it, which reads the file without importing it.
    found = re.search(r'(?im)^(?:__version__|VERSION) *= *["\']v?(.+?)["\']', source)
    assert found is not None
    assert found.group(1) == fedadmm.__version__


@pytest.mark.parametrize(
    ("is_there", "given", "used"),
    [
        (False, None, "unset"),
        (True, None, "{root}/shared/data"),
        (True, "/elsewhere", "/elsewhere"),
        (False, "/elsewhere", "/elsewhere"),
    ],
)
def test_recorded_data_is_used_if_it_is_there_and_not_needed(
    tmp_path: Path, is_there: bool, given: str | None, used: str
) -> None:
    """`make` is replaced by a program that says what it was asked and where the data is."""
    for folder in ("checkout/.ci", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    if is_there:
        (tmp_path / "shared/data").mkdir(parents=True)
    script = shutil.copy(ROOT / ".ci/run", tmp_path / "checkout/.ci/run")
    make = tmp_path / "bin/make"
    make.write_text('#!/bin/sh\necho "$1 ${FEDADMM_DATA-unset}"\n')
    make.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "FEDADMM_DATA"}
    environment["PATH"] = f"{tmp_path / 'bin'}:{environment['PATH']}"
    if given is not None:
        environment["FEDADMM_DATA"] = given
    done = subprocess.run(
        [script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    expected = used.format(root=tmp_path)
    assert done.stdout.splitlines()[-2:] == [f"check {expected}", f"test {expected}"]


def test_nothing_of_the_package_is_ignored() -> None:
    """The wheel leaves out what .gitignore names, whether git has it or not."""
    paths = [
        str(p.relative_to(ROOT)) for p in ROOT.glob("src/**/*") if "__pycache__" not in p.parts
    ]
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin"],
        input="\n".join(paths),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert "src/fedadmm/flower/site/app.py" in paths
    assert (done.returncode, done.stdout) == (1, "")
