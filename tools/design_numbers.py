"""Print the numbers that describe the size of the design, each measured on the code itself.

python tools/design_numbers.py
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/fedadmm"
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT))

PER_METHOD = {"Server", "Client", "Broadcast", "Message"}
"""Every file of `algorithms/` has a class of each of these names, for the same concept."""
FEATURES = re.compile(
    r"noise|privacy|clip|mask|compress|half|look|best|patience|target|budget|catch_up|virtual"
)


def algorithm_members() -> list[str]:
    """Return the public members of the contract `Algorithm`."""
    from fedadmm.core.contracts import Algorithm

    own = {*vars(Algorithm), *Algorithm.__annotations__}
    return sorted(name for name in own if not name.startswith("_"))


def feature_branches() -> list[str]:
    """Return the conditions in the training loop that name a feature."""
    tree = ast.parse((PACKAGE / "run/loop.py").read_text("utf-8"))
    tests = [node.test for node in ast.walk(tree) if isinstance(node, ast.If | ast.IfExp)]
    return [text for test in tests if FEATURES.search(text := ast.unparse(test))]


def shared_names() -> dict[str, list[str]]:
    """Return the class names that several modules define, and the module names that recur."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        where = str(path.relative_to(PACKAGE))
        if path.name != "__init__.py":
            places[path.stem].append(where)
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name not in PER_METHOD:
                places[f"class {node.name}"].append(where)
    return {name: found for name, found in places.items() if len(found) > 1}


def commands() -> list[str]:
    """Return the commands of the command line, `deploy` counted once."""
    import typer.main

    from fedadmm.cli import app

    group: Any = typer.main.get_command(app)
    return sorted(group.list_commands(None))


def resolutions() -> int:
    """Return how often one run of a configuration fills in its defaults."""
    from fedadmm.run.experiment import Experiment, ResolvedExperiment
    from fedadmm.run.simulate import simulate
    from fedadmm.study import config

    count, resolve = 0, Experiment.resolve

    def counted(self: Experiment) -> ResolvedExperiment:
        nonlocal count
        count += 1
        return resolve(self)

    Experiment.resolve = counted  # type: ignore[method-assign]
    try:
        tree = {"problem": {"name": "quadratics"}, "rounds": 1}
        simulate(config.resolve(tree))
    finally:
        Experiment.resolve = resolve  # type: ignore[method-assign]
    return count


def site_path() -> list[str]:
    """Return the functions of a site between the arrival of a task and `client_round`."""
    from tests.flower.paths import functions_before_client_round

    return functions_before_client_round()


def lines() -> dict[str, int]:
    """Return the lines of each subpackage."""
    counts: dict[str, int] = defaultdict(int)
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts
        counts[part[0] if len(part) > 1 else "."] += len(path.read_text("utf-8").splitlines())
    return dict(sorted(counts.items()))


def main() -> None:
    """Print every number with what it counts."""
    import fedadmm
    from fedadmm.run.state import RunState

    members, branches, shared = algorithm_members(), feature_branches(), shared_names()
    print(f"members of Algorithm: {len(members)} ({', '.join(members)})")
    print(f"fields of RunState: {len(RunState._fields)} ({', '.join(RunState._fields)})")
    print(f"feature branches in run/loop.py: {len(branches)} {branches or ''}")
    print(f"names in fedadmm.__all__: {len(fedadmm.__all__)}")
    print(f"commands: {len(commands())} ({', '.join(commands())})")
    print(f"names shared by modules or classes: {len(shared)}")
    for name, places in sorted(shared.items()):
        print(f"    {name}: {', '.join(places)}")
    print(f"resolutions of a run's configuration: {resolutions()}")
    path = site_path()
    print(f"functions between a task's arrival at a site and client_round: {len(path)} {path}")
    total = lines()
    print(f"lines: {sum(total.values())} {total}")


if __name__ == "__main__":
    main()
