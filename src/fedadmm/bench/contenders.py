"""Starting contenders: which environment they live in, and why one is left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.bench.workloads import Workload
from fedadmm.engines.workers import usable_cores
from fedadmm.errors import EngineError

ENVIRONMENT = "FEDADMM_BENCH_PEERS"
"""Names the virtual environment of the peers; `.cache/bench-peers` here by default."""
TIMEOUT_SECONDS = 1800.0
SCRIPTS = Path(__file__).parent / "peers"
MODULES = {"pfl": "pfl", "flower": "flwr"}
"""What must be importable for a peer to take part."""


class Outcome(NamedTuple):
    """One repeat of one contender."""

    seconds: list[float]
    report: dict[str, Any]


def peer_python() -> Path:
    """The interpreter of the peers' environment."""
    return Path(os.environ.get(ENVIRONMENT, ".cache/bench-peers")) / "bin" / "python"


def absence(peer: str) -> str | None:
    """Why a peer cannot take part, or None."""
    if peer not in MODULES:
        return None
    python = peer_python()
    if not python.exists():
        return f"{python} does not exist; `make bench-peers` installs the peers"
    probe = [str(python), "-c", f"import {MODULES[peer]}"]
    if subprocess.run(probe, capture_output=True, timeout=120, check=False).returncode != 0:
        return f"{python} cannot import {MODULES[peer]}; `make bench-peers` installs the peers"
    return None


def command(contender: str, specification: Path, cores: int) -> list[str]:
    """How a contender's process is started."""
    if contender == "fedadmm":
        return [sys.executable, "-m", "fedadmm.bench.own", str(specification), str(time.time())]
    if contender in ("plain", "floor"):
        return [sys.executable, str(SCRIPTS / f"{contender}.py"), str(specification)]
    python, script = str(peer_python()), str(SCRIPTS / f"{contender}_peer.py")
    if contender == "pfl" and cores > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={cores}"]
        return [python, *launch, script, str(specification)]
    return [python, script, str(specification)]


def run(contender: str, workload: Workload, folder: Path) -> Outcome:
    """One repeat; its own process, so that nobody inherits anything."""
    cores = usable_cores()
    specification = folder / f"{contender}.json"
    specification.write_text(json.dumps(workload.specification(folder, cores)))
    environment = os.environ | {"FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    if contender in MODULES:
        environment["PYTHONPATH"] = str(SCRIPTS)  # for their worker processes
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
            f"bench: {contender} ended with exit code {finished.returncode}:\n"
            + finished.stderr[-2000:]
        )
    report = json.loads(lines[-1])
    return Outcome(report["seconds"], report)
