"""The site builds strictly and loads nothing from other hosts; programs and tables are right."""

from __future__ import annotations

import contextlib
import csv
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
import tomllib
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
from fedadmm.flower import SitePolicy
from fedadmm.study.config import register, resolve

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
    pages = [path.read_text("utf-8") for path in site.glob("reference/api*/index.html")]
    page = "".join(pages)
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


def test_every_page_is_in_the_navigation_once() -> None:
    with mock.patch.object(sys, "path", [str(ROOT / "docs" / "_hooks"), *sys.path]):
        navigation = import_module("build").NAVIGATION

    def flat(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            for below in entry.values():
                yield from flat(below)
        elif isinstance(entry, list):
            for below in entry:
                yield from flat(below)

    listed = list(flat(navigation))
    assert len(listed) == len(set(listed))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= set(listed)


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
    """The hook that makes formulas, which is in no package."""
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
    plain = "a penalty rho_i of `rho_i` by (rho/2) ||x||, and the server's step"
    assert maths.prose(plain) == (
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
            if not part.__module__.startswith("fedadmm."):
                continue  # another test has registered it
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
    """A broken include line would be shown instead of the program."""
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
            while hasattr(command, "commands") and words and words[0] != "--help":
                command = command.commands[words.pop(0)]
            if words and words != ["--help"]:
                command.make_context("fedadmm", words)  # refuses an option that it does not know
                checked += 1
    assert checked > 40


def test_every_file_that_a_page_names_is_there() -> None:
    folders = "benchmarks|docker|examples|notebooks|src/fedadmm|studies|tests"
    named = set()
    for page in (ROOT / "docs").glob("*.md"):
        found = re.findall(rf"`((?:{folders})/[\w/.-]+)`", page.read_text(encoding="utf-8"))
        named |= {(page.name, name) for name in found}
    assert len(named) > 15
    assert sorted(pair for pair in named if not (ROOT / pair[1]).exists()) == []


def test_every_test_that_a_page_names_exists() -> None:
    files = {path.name: path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    named = set()
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        named |= set(re.findall(r"`(?:tests/)?(?:\w+/)*(test_\w+\.py)::(\w+)`", text))
    assert len(named) > 30
    assert sorted(one for one in named if f"def {one[1]}(" not in files.get(one[0], "")) == []


def printing() -> list[Path]:
    """The pages that show the output of their programs."""
    shown = re.compile(r"```python\n.*?```\n\n```text\n", re.S)
    return [page for page in sorted((ROOT / "docs").glob("*.md")) if shown.search(page.read_text())]


@pytest.mark.parametrize("page", printing(), ids=lambda page: page.stem)
def test_programs_print_what_the_page_shows(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, re.S)
    last = max(place for place, (_, shown) in enumerate(blocks) if shown)
    names: dict[str, object] = {}
    for program, shown in blocks[: last + 1]:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(program, page.name, "exec"), names)
        assert printed.getvalue() == shown


def test_programs_in_hand_written_pages_run() -> None:
    """Python blocks that begin with an import of torch or of our tests are whole programs."""
    ran = 0
    for page in (ROOT / "docs").glob("*.md"):
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            whole = block.startswith(("import torch", "from fedadmm.testing"))
            if whole and page not in printing():
                exec(compile(block, str(page), "exec"), {})
                ran += 1
    assert ran > 0


def test_configurations_of_pages_are_valid() -> None:
    """TOML blocks are whole configurations, or sections of one, or a site's policy."""
    checked = 0
    for page in (ROOT / "docs").glob("*.md"):
        for block in re.findall(r"```toml\n(.*?)```", page.read_text("utf-8"), re.S):
            given = tomllib.loads(block)
            if page.stem == "site-policy":
                SitePolicy(**given)
            else:
                for study_key in ("methods", "seeds", "search"):
                    given.pop(study_key, None)
                resolve({"problem": {"name": "digits"}, **given})
            checked += 1
    assert checked > 8


def test_tables_are_those_of_the_committed_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make docs-data` fills them."""
    monkeypatch.syspath_prepend(str(ROOT / "docs/_data"))
    tables = import_module("tables")
    found = 0
    for page in tables.PAGES:
        text = page.read_text("utf-8")
        assert tables.filled(text) == text, page.name
        found += len(tables.BLOCK.findall(text))
    assert found > 4


def test_the_figure_of_implementations_draws_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The committed numbers are those of the models, and only right programs converge."""
    monkeypatch.syspath_prepend(str(ROOT / "docs/_figures"))
    made = import_module("implementations").panels()
    rows = list(csv.DictReader((ROOT / "docs/implementations.csv").read_text("utf-8").splitlines()))
    assert len(rows) > 30
    for row in rows:
        distance = made[row["method"]][row["program"]][int(row["round"]) - 1]
        assert distance == pytest.approx(float(row["distance"]), rel=0.01, abs=1e-9)
    ends = {
        (method, name): path[-1] for method, runs in made.items() for name, path in runs.items()
    }
    right = {("SCAFFOLD", "PFLlib"), ("FedADMM", "bayes-admm, norm squared")}
    right |= {(method, "fedadmm") for method in made}
    assert {key for key, end in ends.items() if end < 1e-10} == right
    assert min(end for key, end in ends.items() if key not in right) > 0.04
