"""The project's own files: one version, one set of checks here, before a commit and on a server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import fedadmm

ROOT = Path(__file__).parents[1]


def test_the_version_is_written_once() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in pyproject["project"]["dynamic"]
    assert "version" not in pyproject["project"]
    source = (ROOT / pyproject["tool"]["hatch"]["version"]["path"]).read_text()
    # As hatchling looks for it, which reads the file without importing it.
    found = re.search(r'(?im)^(?:__version__|VERSION) *= *["\']v?(.+?)["\']', source)
    assert found is not None
    assert found.group(1) == fedadmm.__version__
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_the_citation_names_the_software_and_its_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == project["license"]
    assert [author["name"] for author in citation["authors"]] == [
        author["name"] for author in project["authors"]
    ]
    for key in ("message", "title"):
        assert citation[key]
    for paper in citation["references"]:
        assert {"type", "title", "authors", "year"} <= set(paper)


def test_a_commit_is_formatted_by_what_make_check_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [one["repo"] for one in hooks] == ["local"]
    commands = [hook["entry"] for one in hooks for hook in one["hooks"]]
    assert commands == ["make format"]
    checked = _recipe("check")
    for tool in ("ruff format", "ruff check"):
        assert tool in _recipe("format")
        assert tool in checked


def test_every_target_of_the_makefile_is_phony_or_a_file() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.M).group(1).split()
    targets = re.findall(r"^([a-z][\w-]*):", text, re.M)
    assert sorted(targets) == sorted(phony)
    assert "coverage" in targets


def _recipe(target: str) -> str:
    text = (ROOT / "Makefile").read_text()
    return re.search(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.M).group(1)


def test_the_workflow_runs_what_every_change_must_pass() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci/run", os.X_OK)
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert job["strategy"]["matrix"]["python"] == [
        line.rpartition(" ")[2] for line in supported if re.search(r":: 3\.\d+$", line)
    ]


@pytest.mark.parametrize(
    ("beside", "given", "used"),
    [
        (False, None, "unset"),
        (True, None, "{root}/shared/data"),
        (True, "/elsewhere", "/elsewhere"),
        (False, "/elsewhere", "/elsewhere"),
    ],
)
def test_recorded_data_is_used_if_it_is_there_and_not_needed(
    tmp_path: Path, beside: bool, given: str | None, used: str
) -> None:
    """`make` is replaced by a program that says what it was asked and where the data is."""
    for folder in ("checkout/.ci", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    if beside:
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
