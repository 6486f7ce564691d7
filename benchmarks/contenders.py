"""Starting contenders: which environment they live in, and why one is left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.workloads import Workload
from fedadmm.core.errors import EngineError
from fedadmm.run.engines.workers import usable_cores

ENVIRONMENT = "FEDADMM_BENCH_PEERS"
"""Names the virtual environment of the peers; `.cache/bench-peers` of the checkout by default."""
TIMEOUT_SECONDS = 1800.0
ROOT = Path(__file__).parents[1]
SCRIPTS = Path(__file__).parent / "peers"
"""The programs of the other frameworks."""
OWN = {"fedadmm": "benchmarks.own", "floor": "benchmarks.floor"}
"""The contenders that run in this environment, as modules of this package."""
FRAMEWORKS = {"pfl": "pfl", "flower": "flwr"}
"""The peers that live in an environment of their own, and what it must have."""


class Outcome(NamedTuple):
    """One repeat of one contender."""

    seconds: list[float]
    report: dict[str, Any]


def peer_python() -> Path:
    """The interpreter of the peers' environment."""
    return Path(os.environ.get(ENVIRONMENT, ROOT / ".cache/bench-peers")) / "bin" / "python"


def absence(peer: str) -> str | None:
    """Why a peer cannot take part, or None."""
    if peer not in FRAMEWORKS:
        return None
    python = peer_python()
    if not python.exists():
        return f"{python} does not exist; `make bench-peers` installs the peers"
    probe = [str(python), "-c", f"import {FRAMEWORKS[peer]}"]
    if subprocess.run(probe, capture_output=True, timeout=120, check=False).returncode != 0:
        return f"{python} cannot import {FRAMEWORKS[peer]}; `make bench-peers` installs the peers"
    return None


def command(contender: str, specification: Path, cores: int) -> list[str]:
    """How a contender's process is started."""
    told = [str(specification), str(time.time())]
    if contender in OWN:
        return [sys.executable, "-m", OWN[contender], *told]
    python = str(peer_python()) if contender in FRAMEWORKS else sys.executable
    launch = []
    if contender == "pfl" and cores > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={cores}"]
    return [python, *launch, str(SCRIPTS / f"{contender}_peer.py"), *told]


def run(contender: str, workload: Workload, folder: Path) -> Outcome:
    """One repeat; in a process of its own, so that contenders share nothing."""
    cores = usable_cores()
    specification = folder / f"{contender}.json"
    specification.write_text(json.dumps(workload.specification(folder, cores)))
    environment = os.environ | {"FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    if contender in FRAMEWORKS:
        environment["PYTHONPATH"] = str(SCRIPTS)  # for their worker processes
    elif contender in OWN:  # found from any folder
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
        )
    if contender == "pfl":
        environment["OMP_NUM_THREADS"] = "1"
    finished = subprocess.run(
        command(contender, specification, cores),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env=environment,
        check=False,
    )
    lines = [line for line in finished.stdout.splitlines() if line.startswith('{"seconds"')]
    if finished.returncode != 0 or not lines:
        raise EngineError(
            f"benchmarks: {contender} ended with exit code {finished.returncode}:\n"
            + finished.stderr[-2000:]
        )
    report = json.loads(lines[-1])
    return Outcome(report["seconds"], report)
