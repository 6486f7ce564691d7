"""One owner per idea, counted: the fields of a run, its defaults, its validator, its functions."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import fedadmm
from fedadmm.run.experiment import Experiment

SOURCE = Path(fedadmm.__file__).parent
MOST_FUNCTIONS, MOST_MODULES = 517, 68
"""What `fedadmm run quickstart --algorithm fedadmm` may enter; lower these when it enters fewer."""


def trees() -> dict[str, ast.Module]:
    return {str(p.relative_to(SOURCE)): ast.parse(p.read_text()) for p in SOURCE.rglob("*.py")}


def test_one_class_declares_the_fields_of_a_run() -> None:
    """No other class, and no function, repeats half of them."""
    own = {field.name for field in fields(Experiment)} | {"solver", "stop"}
    copies = []
    for path, tree in trees().items():
        for node in ast.walk(tree):
            names: set[str] = set()
            if isinstance(node, ast.ClassDef) and node.name != "Experiment":
                names = {one.target.id for one in node.body if _is_field(one)}  # type: ignore[attr-defined]
            elif isinstance(node, ast.FunctionDef):
                arguments = node.args
                names = {one.arg for one in [*arguments.args, *arguments.kwonlyargs]}
            if len(names & own) >= len(own) / 2:
                copies.append((path, node.name, sorted(names & own)))  # type: ignore[attr-defined]
    assert not copies


def _is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


def test_one_function_fills_in_the_defaults_of_a_run() -> None:
    askers = {
        (path, function.name)
        for path, tree in trees().items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Attribute) and call.attr == "default_stop"
    }
    assert askers == {("run/experiment.py", "resolved_work")}


def test_there_is_one_validator() -> None:
    for path, tree in trees().items():
        modules = {
            name
            for node in ast.walk(tree)
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
        }
        assert not any(name.split(".")[0] == "pydantic" for name in modules), path
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        checks = {"check_range", "check_positive", "check_count", "check_choice", "check_kind"}
        assert not defined & checks, path


COUNT = inspect.cleandoc(
    """
    import json, pathlib, sys
    import fedadmm
    root = str(pathlib.Path(fedadmm.__file__).parent)
    seen = set()

    def enter(frame, event, argument):
        code = frame.f_code
        function = event == "call" and code.co_flags & 1 and not code.co_name.startswith("<")
        if function and code.co_filename.startswith(root):
            seen.add((code.co_filename, code.co_qualname))

    sys.setprofile(enter)
    from fedadmm.cli import app
    app(["run", "quickstart", "--algorithm", "fedadmm", "--rounds", "2", "--no-report",
         "--out", sys.argv[1]],
        standalone_mode=False)
    sys.setprofile(None)
    print(json.dumps([len(seen), len({path for path, _ in seen})]))
    """
)


def test_a_run_enters_few_functions(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COUNT, str(tmp_path / "out")]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    functions, modules = json.loads(shown.stdout.splitlines()[-1])
    assert functions <= MOST_FUNCTIONS
    assert modules <= MOST_MODULES
