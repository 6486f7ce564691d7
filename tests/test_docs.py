"""The site builds strictly, loads nothing from elsewhere, and leaves nothing out."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import typer.main
from filelock import FileLock

import fedadmm
from fedadmm.algorithms import REGISTRY
from fedadmm.cli import app
from fedadmm.core.parts import FAMILIES, config_fields
from fedadmm.study.config import register

pytest.importorskip("mkdocs", reason="the documentation's packages are not installed")
pytest.importorskip("latex2mathml", reason="the documentation's packages are not installed")
from mkdocs.utils import yaml_load

ROOT = Path(__file__).parent.parent


def build(project: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Build a project's site; not `--quiet`, which hides from `--strict` what it counts."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=project,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all test processes."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    target, built = shared / "site", shared / "site.built"
    with FileLock(shared / "site.lock"):
        if not built.exists():
            done = build(ROOT, target)
            assert done.returncode == 0, done.stdout + done.stderr
            built.touch()
    return target


@pytest.mark.parametrize("link", ["concepts.md", "concept.md", "concepts.md#nowhere"])
def test_a_link_that_leads_nowhere_fails_the_build(link: str, tmp_path: Path) -> None:
    """Two pages under our own rules for links, without what the whole site takes to build."""
    rules = yaml_load((ROOT / "mkdocs.yml").read_text("utf-8"))["validation"]
    (tmp_path / "mkdocs.yml").write_text(
        json.dumps({"site_name": "two pages", "theme": "mkdocs", "validation": rules})
    )
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "concepts.md").write_text("# Concepts\n")
    (tmp_path / "docs" / "index.md").write_text(f"# Start\n\n[on]({link})\n")
    done = build(tmp_path, tmp_path / "site")
    assert (done.returncode == 0) == (link == "concepts.md"), done.stderr
    assert (link in done.stderr) == (link != "concepts.md")


def read(site: Path, address: str) -> str:
    return (site / address / "index.html").read_text(encoding="utf-8")


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    page = read(site, "reference/api")
    missing = []
    parts = [part for family in FAMILIES.values() for part in family.values()]
    for name in fedadmm.__all__:
        value = getattr(fedadmm, name)
        if name == "__version__":
            continue
        module = inspect.ismodule(value)
        address = value.__name__ if module else f"{value.__module__}.{value.__qualname__}"
        entry = page.partition(f'id="{address}"')[2].partition("<h3")[0]
        shown = html.unescape(re.sub(r"<[^>]+>", "", entry))
        taken = inspect.signature(value).parameters.values() if value in parts else ()
        if not entry or not all(str(one.replace(annotation=one.empty)) in shown for one in taken):
            missing.append(name)
    assert missing == []


def letters(text: str) -> str:
    """Letters and digits alone: formulas on the page have other signs than plain text."""
    return re.sub(r"[\W_]|sum|sqrt", "", text)


def test_every_method_has_a_page_with_its_own_recursion(site: Path) -> None:
    glyphs = {"theta": "θ", "rho": "ρ", "eta": "η", "beta": "β", "alpha": "α", "gamma": "γ"}
    glyphs |= {"delta": "δ", "Delta": "Δ", "sigma": "σ", "tau": "τ", "mu": "μ", "grad": ""}
    glyphs |= {"xbar": "x", "xhat": "x", "xtilde": "x"}
    names = re.compile("|".join(rf"(?<![A-Za-z]){name}(?![A-Za-z])" for name in glyphs))
    for name, method in REGISTRY.items():
        text = html.unescape(read(site, f"methods/{name}"))
        shown = letters(re.sub(r"<[^>]+>", "", text))
        source = inspect.getdoc(sys.modules[method.__module__])
        assert source is not None
        recursion = [line for line in source.splitlines() if line.startswith("    ")]
        for line in recursion:
            assert letters(names.sub(lambda found: glyphs[found[0]], line)) in shown, (name, line)
        assert text.count("<tr>") > len(recursion)
        for field in dataclasses.fields(method):  # type: ignore[arg-type]
            assert f"<code>{field.name}</code>" in text, (name, field.name)


@pytest.fixture
def maths() -> Iterator[ModuleType]:
    """The hook that makes formulas, which stands beside the pages and in no package."""
    with mock.patch.object(sys, "path", [str(ROOT / "docs" / "_hooks"), *sys.path]):
        yield import_module("maths")


def test_plain_recursions_become_formulas(maths: ModuleType) -> None:
    for plain, expected in {
        "w_i+ ~ argmin f_i(w) + <y_i, w> + (rho/2) ||w - theta||^2, started at theta": (
            r"$w_{i}^{+} \approx \operatorname{argmin} f_{i}(w) + \langle y_{i}, w\rangle + "
            r"\tfrac{\rho}{2} \lVert w - \theta\rVert^{2}$, started at $\theta$"
        ),
        "x_i+ ~ prox_{eta g}(v_i+)": (
            r"$x_{i}^{+} \approx \operatorname{prox}_{\eta  g}(v_{i}^{+})$"
        ),
        "v <- v + beta1 m / (sqrt(v) + tau);   send w": (
            r"$v \leftarrow v + \beta_{1} m / (\sqrt{v} + \tau)$;&emsp;send $w$"
        ),
        "theta <- mean over S of xhat_i, as FedDR's": (
            r"$\theta \leftarrow$ mean over $S$ of $\hat{x}_{i}$, as FedDR's"
        ),
    }.items():
        assert maths.formulas(plain) == expected
    told = "a penalty rho_i of `rho_i` by (rho/2) ||x||, and the server's step"
    assert maths.prose(told) == (
        r"a penalty $\rho_{i}$ of `rho_i` by $\tfrac{\rho}{2}$ ||x||, and the server's step"
    )


def test_formulas_are_there_without_any_script(site: Path) -> None:
    found = 0
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "arithmatex" not in text, page
        for formula in re.findall(r"<math.*?</math>", text, re.S):
            assert "\\" not in formula, (
                page,
                formula,
            )  # a command that the converter does not know
            found += 1
    assert found > 100


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
    register()
    for family, parts in FAMILIES.items():
        table = {"callback": "callbacks"}.get(family, family)
        assert family == "schedule" or f"{table}]" in text
        for name, part in parts.items():
            assert f'name = "{name}"' in text, (family, name)
            for field in config_fields(part):
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


def test_every_command_of_a_page_can_be_typed() -> None:
    checked = 0
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        lines = re.findall(r"^(?:\$ )?(fedadmm [a-z][^#\n]*)", text, re.M)
        for line in [*lines, *re.findall(r"`(fedadmm [a-z][^`]*)`", text)]:
            command, words = typer.main.get_command(app), shlex.split(line)[1:]
            while hasattr(command, "commands") and words:
                command = command.commands[words.pop(0)]
            if words and words != ["--help"]:
                command.make_context("fedadmm", words)  # refuses an option that it does not know
                checked += 1
    assert checked > 40


def test_every_file_that_a_page_names_is_there() -> None:
    folders = "benchmarks|docker|examples|notebooks|src|studies|tests"
    named = set()
    for page in (ROOT / "docs").glob("*.md"):
        found = re.findall(rf"`((?:{folders})/[\w/.-]+)`", page.read_text(encoding="utf-8"))
        named |= {(page.name, name) for name in found}
    assert len(named) > 15
    assert sorted(pair for pair in named if not (ROOT / pair[1]).exists()) == []


def test_the_tutorial_prints_what_it_shows() -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, re.S)
    assert len([shown for _, shown in blocks if shown]) > 4
    names: dict[str, object] = {}
    for program, shown in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(program, "tutorial.md", "exec"), names)
        assert printed.getvalue() == shown


def test_programs_in_hand_written_pages_run() -> None:
    """Python blocks that begin with an import are whole programs."""
    ran = 0
    for page in (ROOT / "docs").glob("*.md"):
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            if block.startswith("import torch") and "--8<--" not in block:
                exec(compile(block, str(page), "exec"), {})
                ran += 1
    assert ran > 0


TABLES = """
### One in fifty

| | one | **two** | **three** |
|---|---|---|---|
| SCAFFOLD | 7 | 20 | 45 (9) |
| the same, averaged | 7 | 10 | 40 |
| FedAvg | 7 | 40 | 90 |
| FedAvg, averaged | 7 | 40 | 150+ (2) |

### One in five

| | **two** | one |
|---|---|---|
| FedAvg | 10 | 7 |
| AdaBest, at m | 20 | 7 |
"""


def test_the_picture_of_few_participants_draws_the_tables_of_its_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ratios to FedAvg as printed, geometric means over the problems with bold heads."""
    monkeypatch.syspath_prepend(str(ROOT / "docs/_figures"))
    picture = import_module("participation")
    tables = picture.read(TABLES)
    printed, averaged = picture.curves(tables, ""), picture.curves(tables, ", averaged")
    assert printed["SCAFFOLD"] == {2: pytest.approx(0.5)}
    assert printed["AdaBest"] == {20: pytest.approx(2.0)}
    assert averaged["SCAFFOLD"] == {2: pytest.approx(1 / 3)}
    assert averaged["FedAvg"] == {2: pytest.approx((150 / 90) ** 0.5)}
    page = (ROOT / "docs/participation-tables.md").read_text("utf-8")
    drawn = (ROOT / "docs/participation.svg").read_text("utf-8")
    assert f">{picture.described(page)}<" in drawn, "run `make figure`"
    assert set(picture.read(page)) == {1, 2, 5, 10, 20}
    assert len(drawn) < 60_000
