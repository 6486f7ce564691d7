"""The site builds strictly, loads nothing from elsewhere, and leaves nothing out."""

from __future__ import annotations

import dataclasses
import html
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

import fedadmm
from fedadmm.algorithms import REGISTRY
from fedadmm.cli import app
from fedadmm.study.registry import families

pytest.importorskip("mkdocs", reason="the documentation's packages are not installed")
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def read(site: Path, address: str) -> str:
    return (site / address / "index.html").read_text(encoding="utf-8")


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    page = read(site, "reference/api")
    missing = []
    for name in fedadmm.__all__:
        value = getattr(fedadmm, name)
        if name == "__version__":
            continue
        module = inspect.ismodule(value)
        address = value.__name__ if module else f"{value.__module__}.{value.__qualname__}"
        if f'id="{address}"' not in page:
            missing.append(name)
    assert missing == []


def test_every_method_has_a_page_with_its_own_recursion(site: Path) -> None:
    for name, method in REGISTRY.items():
        text = html.unescape(read(site, f"methods/{name}"))
        source = inspect.getdoc(sys.modules[method.__module__])
        assert source is not None
        recursion = [line for line in source.splitlines() if line.startswith("    ")]
        for line in recursion:
            assert " ".join(line.split()) in " ".join(text.split()), (name, line)
        for field in dataclasses.fields(method):  # type: ignore[arg-type]
            assert f"<code>{field.name}</code>" in text, (name, field.name)


def test_every_command_is_in_the_reference(site: Path) -> None:
    text = html.unescape(read(site, "reference/commands"))
    root = typer.main.get_command(app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        assert f"fedadmm {name}" in text
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--") and option != "--help":
                    assert option in text, (name, option)


def test_every_part_of_a_configuration_is_in_the_reference(site: Path) -> None:
    text = html.unescape(read(site, "reference/config")).replace("“", '"').replace("”", '"')
    for family, parts in families().items():
        assert f"[{family}]" in text
        for name, part in parts.items():
            assert f'name = "{name}"' in text, (family, name)
            for field in dataclasses.fields(part):
                if field.init:
                    assert f"<code>{field.name}</code>" in text, (name, field.name)


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loads = re.compile(r'<(?:script|img|iframe|source)[^>]+src="(https?:)?//|@import')
    sheets = re.compile(r'<link[^>]+href="(?:https?:)?//[^>]*rel="(?:stylesheet|preconnect)')
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not loads.search(text), page
        assert not sheets.search(text), page
        assert "fonts.g" not in text, page


def test_included_programs_are_on_their_pages(site: Path) -> None:
    """A broken include line shows up as itself instead of the program."""
    included = 0
    for page in (ROOT / "docs").glob("*.md"):
        source = page.read_text(encoding="utf-8")
        found = re.findall(r'^--8<-- "(.+)"$', source, re.M)
        assert source.count("--8") == len(found), f"{page.name} has an include that is none"
        for name in found:
            shown = html.unescape(re.sub(r"<[^>]+>", "", read(site, page.stem)))
            for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
                assert line.strip() in shown, (page.name, name, line)
            included += 1
    assert included > 0


def test_programs_in_hand_written_pages_run() -> None:
    """Python blocks that begin with an import are whole programs."""
    ran = 0
    for page in (ROOT / "docs").glob("*.md"):
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            if block.startswith("import torch") and "--8<--" not in block:
                exec(compile(block, str(page), "exec"), {})
                ran += 1
    assert ran > 0
