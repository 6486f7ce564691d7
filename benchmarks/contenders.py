"""Starting contenders: which environment they live in, and why one is left out."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.workloads import Workload
from fedadmm.core.errors import EngineError
from fedadmm.run.engines.workers import usable_cores

ENVIRONMENT = "FEDADMM_BENCH_PEERS"
"""Names the virtual environment of the peers; `.cache/bench-peers` of the checkout by default."""
TIMEOUT_SECONDS = 1800.0
ROOT = Path(__file__).parents[1]
SCRIPTS = Path(__file__).parent / "peers"
"""The programs of the other frameworks."""
MARK = "FEDADMM_BENCH_RUN"
"""Environment variable by which the processes of a contender are known."""
LINGER_SECONDS = 30.0
"""How long its processes may outlive a contender before they are killed."""
FRAMEWORKS = {"pfl": "pfl", "flower": "flwr", "jax": "jax"}
"""The peers that live in an environment of their own, and what it must have."""


_NOTHING = {"peak_rss_mb": 0.0, "startup_seconds": 0.0, "engine": "auto", "clients_touched": 0}
"""What a command does not say."""


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


def _whole(workload: Workload, folder: Path) -> list[str]:
    """What a user types to come to an accuracy."""
    sets = {
        "problem.name": "mnist",
        "problem.clients": workload.clients,
        "problem.model": workload.model,
        "engine.name": "auto",
        "target.value": workload.target,
        "target.end_run": "true",
    }
    named = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    out = str(Path(tempfile.mkdtemp(dir=folder)) / "run")
    return ["-m", "fedadmm", "run", "recommended", *named, "--out", out, "--no-report", "--json"]


def command(contender: str, workload: Workload, specification: Path, cores: int) -> list[str]:
    """How a contender's process is started."""
    told = [str(specification), str(time.time())]
    if contender == "fedadmm" and workload.target:
        return [sys.executable, *_whole(workload, specification.parent)]
    if contender == "fedadmm":
        return [sys.executable, "-m", "benchmarks.own", *told]
    python = str(peer_python()) if contender in FRAMEWORKS else sys.executable
    launch = []
    if contender == "pfl" and cores > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={cores}"]
    return [python, *launch, str(SCRIPTS / f"{contender}_peer.py"), *told]


def _marked(mark: str) -> list[psutil.Process]:
    """The processes of a contender, also those whose parents have ended."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def _wait_for_the_end(mark: str) -> None:
    """Let a contender's processes end before the next one starts: workers of Ray linger."""
    deadline = time.monotonic() + LINGER_SECONDS
    while left := _marked(mark):
        if time.monotonic() > deadline:
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
        time.sleep(0.2)


def run(contender: str, workload: Workload, folder: Path) -> Outcome:
    """One repeat; in a process of its own, so that contenders share nothing."""
    cores = usable_cores()
    specification = folder / f"{contender}.json"
    specification.write_text(json.dumps(workload.specification(folder, cores)))
    mark = uuid.uuid4().hex
    environment = os.environ | {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        MARK: mark,
    }
    if contender in FRAMEWORKS:
        environment["PYTHONPATH"] = str(SCRIPTS)  # for their worker processes
    elif contender == "fedadmm":  # found from any folder
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
        )
    if contender == "pfl":
        environment["OMP_NUM_THREADS"] = "1"
    if contender == "jax":  # one device per core, among which it divides the clients
        devices = math.gcd(cores, workload.cohort)
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    began = time.perf_counter()
    try:
        finished = subprocess.run(
            command(contender, workload, specification, cores),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            env=environment,
            check=False,
        )
        wall, text = time.perf_counter() - began, finished.stdout
    finally:
        _wait_for_the_end(mark)
    if contender == "fedadmm" and workload.target and finished.returncode == 0:
        text = json.dumps({"seconds": [0.0] * json.loads(text)["rounds"]} | _NOTHING)
    lines = [line for line in text.splitlines() if line.startswith('{"seconds"')]
    if finished.returncode != 0 or not lines:
        raise EngineError(
            f"benchmarks: {contender} ended with exit code {finished.returncode}:\n"
            + finished.stderr[-2000:]
        )
    report = json.loads(lines[-1])
    if workload.target:
        return Outcome([wall], report | {"rounds": len(report["seconds"])})
    return Outcome(report["seconds"], report)
