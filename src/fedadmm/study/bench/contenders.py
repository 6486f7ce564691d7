"""Starting contenders: which environment they live in, and why one is left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from fedadmm.core.errors import EngineError
from fedadmm.run.engines.workers import usable_cores
from fedadmm.study.bench.workloads import Workload

ENVIRONMENT = "FEDADMM_BENCH_PEERS"
"""Names the virtual environment of the peers; `.cache/bench-peers` here by default."""
TIMEOUT_SECONDS = 1800.0
SCRIPTS = Path(__file__).parents[4] / "benchmarks" / "peers"
"""The peers' programs: those of a checkout, for an installed package has none."""
OWN = {"fedadmm": "fedadmm.study.bench.own", "floor": "fedadmm.study.bench.floor"}
"""The contenders that are part of the package."""
FRAMEWORKS = {"pfl": "pfl", "flower": "flwr"}
"""The peers that live in an environment of their own, and what it must have."""


class Outcome(NamedTuple):
    """One repeat of one contender."""

    seconds: list[float]
    report: dict[str, Any]


def peer_python() -> Path:
    """The interpreter of the peers' environment."""
    return Path(os.environ.get(ENVIRONMENT, ".cache/bench-peers")) / "bin" / "python"


def _script(peer: str) -> Path:
    return SCRIPTS / f"{peer}_peer.py"


def absence(peer: str) -> str | None:
    """Why a peer cannot take part, or None."""
    if peer in OWN:
        return None
    if not _script(peer).is_file():
        return f"{_script(peer)} does not exist; the peers come with a checkout of fedadmm"
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
    return [python, *launch, str(_script(contender)), *told]


def run(contender: str, workload: Workload, folder: Path) -> Outcome:
    """One repeat; its own process, so that nobody inherits anything."""
    cores = usable_cores()
    specification = folder / f"{contender}.json"
    specification.write_text(json.dumps(workload.specification(folder, cores)))
    environment = os.environ | {"FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    if contender in FRAMEWORKS:
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
