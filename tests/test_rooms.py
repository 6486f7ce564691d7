"""The walls between the rooms, and what a first import may load."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
UPWARDS = {
    "core/trees.py": "import fedadmm.run.loop",
    "algorithms/fed_avg.py": "import fedadmm.run.callbacks",
    "run/privacy.py": "import fedadmm.theory.gong",
    "run/experiment.py": "if TYPE_CHECKING:\n    from fedadmm.data import models",
    "study/spec.py": "import fedadmm.flower.federation",
    "flower/federation.py": "import fedadmm.cli.options",
}


def walls(tree: Path) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "pyproject.toml", tree)
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("file", UPWARDS)
def test_an_upward_import_is_noticed(file: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "src/fedadmm" / file
    path.write_text(path.read_text() + f"\n{UPWARDS[file]}\n")
    done = walls(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 broken" in done.stdout or "2 broken" in done.stdout


def test_simulate_loads_neither_ray_nor_flower_nor_the_report() -> None:
    program = (
        "import sys, fedadmm; fedadmm.simulate; "
        "print([name for name in sys.modules if name.split('.')[0] in ('ray', 'flwr', 'plotly') "
        "or name.startswith(('fedadmm.flower', 'fedadmm.study'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"
