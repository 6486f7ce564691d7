"""Nothing is done twice: one check per configuration, one construction per part, one writer."""

from __future__ import annotations

import ast
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import fedadmm
from fedadmm.study import config, run_dir
from fedadmm.study.compare import compare, plan
from fedadmm.study.config import resolve
from fedadmm.study.recipes import plan as plan_reproduction
from fedadmm.study.reproduce import reproduce
from fedadmm.study.runner import run_study
from fedadmm.study.spec import Cell, Study
from fedadmm.study.sweep import SweptKey, plan as plan_sweep, sweep
from support.commands import SMALL, call, write_small

METHODS = [{"algorithm": {"name": name}} for name in ("fedavg", "fedadmm", "scaffold")]


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The configurations that were checked, as they come."""
    found: list[str] = []
    real = config.from_config

    def counted(kind: Any, tree: Any) -> Any:
        found.append(kind.__name__)
        return real(kind, tree)

    monkeypatch.setattr(config, "from_config", counted)
    return found


def test_a_run_is_checked_once(tmp_path: Path, checks: list[str]) -> None:
    path = write_small(tmp_path / "small.toml")
    assert call("run", path, "--out", tmp_path / "out", "--no-report").exit_code == 0
    assert len(checks) == 1


@pytest.mark.parametrize("processes", [1, 2])
def test_a_comparison_is_checked_once_per_method(
    tmp_path: Path, checks: list[str], processes: int
) -> None:
    tree = SMALL | {"methods": METHODS, "seeds": [0, 1, 2]}
    compare(plan(tree), tmp_path, processes=processes)
    assert len(checks) == len(METHODS)


def test_a_search_adds_one_check_per_trial_and_choice(tmp_path: Path, checks: list[str]) -> None:
    search = {"values": [0.01, 0.05], "rounds": 2, "seeds": [7], "extend": 0}
    tree = SMALL | {"methods": METHODS[:2], "search": search}
    compare(plan(tree), tmp_path)
    assert len(checks) == 2 + 4 + 2


def test_a_sweep_of_48_cells_is_checked_48_times(tmp_path: Path, checks: list[str]) -> None:
    grid = [SweptKey("seed", list(range(12))), SweptKey("algorithm.rho", [0.5, 1.0, 2.0, 4.0])]
    study = plan_sweep(SMALL | {"rounds": 1}, grid, [])
    assert len(sweep(study, tmp_path).runs) == 48
    assert len(checks) == 48


def test_a_reproduction_is_checked_once_per_cell(tmp_path: Path, checks: list[str]) -> None:
    todo = plan_reproduction("note-identity", "smoke", seeds=2)
    reproduce(todo, tmp_path)
    assert len(checks) == len(todo.cells)


def test_a_part_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: Counter[str] = Counter()
    for kind in (fedadmm.FedADMM, fedadmm.GradientDescent, fedadmm.UniformSampling):
        real = kind.__post_init__

        def counted(self: Any, real: Any = real) -> None:
            made[type(self).__name__] += 1
            real(self)

        monkeypatch.setattr(kind, "__post_init__", counted)
    run_study(Study("sweep", [Cell("a", resolve(SMALL), "a")]), tmp_path)
    assert made == {"FedADMM": 1, "GradientDescent": 1, "UniformSampling": 1}


def test_a_run_reaches_another_process_as_it_is() -> None:
    schedule = {"name": "piecewise", "values": {"0": 0.5, "10": 1.0}}
    chosen = resolve(SMALL | {"algorithm": {"name": "fedadmm", "rho": schedule}})
    assert pickle.loads(pickle.dumps(chosen)) == chosen


NAMES = {config.CONFIG, run_dir.METRICS, run_dir.SUMMARY, run_dir.PARTITION, run_dir.REPORT}


def _constants(path: Path) -> set[str]:
    """The strings of a module that are more than documentation."""
    tree = ast.parse(path.read_text())
    return {
        node.value
        for statement in ast.walk(tree)
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for node in ast.iter_child_nodes(statement)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_each_file_of_a_run_directory_has_one_writer() -> None:
    source = Path(fedadmm.__file__).parent
    modules = list(source.rglob("*.py"))
    # The bundle of a deployment and Flower's own settings are not run directories.
    others = {config.CONFIG: {"flower/configured.py", "flower/deploy/network.py"}}
    for name in sorted(NAMES):
        owners = {str(path.relative_to(source)) for path in modules if name in _constants(path)}
        owner = "study/config.py" if name == config.CONFIG else "study/run_dir.py"
        assert owners - others.get(name, set()) == {owner}, name
    for path in modules:  # and whoever knows a name from there only reads
        imported = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module == "fedadmm.study.run_dir"
            for alias in node.names
        }
        if imported & {"CONFIG", "METRICS", "SUMMARY", "PARTITION", "REPORT"}:
            assert not {name for name in imported if name.startswith("write")}, path
