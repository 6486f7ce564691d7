"""The command line as a process: quick to start, interrupted for real, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedadmm.cli import options
from fedadmm.study.config import resolve
from fedadmm.study.spec import Cell, Study
from support.commands import write_small

FEDADMM = [sys.executable, "-m", "fedadmm"]
LIMIT = 240


def test_the_help_page_needs_neither_torch_nor_pydantic() -> None:
    code = (
        "import sys, fedadmm.cli\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'plotly', 'matplotlib', 'sklearn', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout.strip() == "[]"


def test_json_is_all_that_stands_on_standard_output(tmp_path: Path) -> None:
    (tmp_path / "talkative.py").write_text(
        "import os\nfrom dataclasses import dataclass\n\nimport fedadmm\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Talking(fedadmm.Callback):\n"
        "    def begin(self, run):\n"
        "        print('hello from Python')\n"
        "        os.write(1, b'hello from below\\n')\n"
        "        os.system('echo hello from a child')\n"
    )
    config = write_small(tmp_path / "small.toml", callbacks=[{"name": "talkative:Talking"}])
    done = subprocess.run(
        [*FEDADMM, "run", str(config), "--out", "out", "--no-report", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert json.loads(done.stdout)["code"] == "completed"
    for origin in ("Python", "below", "a child"):
        assert f"hello from {origin}\n" in done.stderr


@pytest.mark.parametrize(
    ("number", "code", "every"),
    [
        (signal.SIGINT, 130, 5000),
        (signal.SIGTERM, 143, 0),
        pytest.param(signal.SIGINT, 130, 0, marks=pytest.mark.release),
        pytest.param(signal.SIGTERM, 143, 5000, marks=pytest.mark.release),
    ],
)
def test_an_interrupted_run_keeps_its_rounds_and_the_printed_command_goes_on(
    number: signal.Signals, code: int, every: int, tmp_path: Path
) -> None:
    config = write_small(tmp_path / "small.toml", rounds=200_000, checkpoint={"every": every})
    out = tmp_path / "out"
    process = subprocess.Popen(
        [*FEDADMM, "run", str(config), "--out", str(out), "--no-report"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_for_rounds(out / "metrics.jsonl", process)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == code, stderr
    assert stdout == ""
    done = len((out / "metrics.jsonl").read_text().splitlines())
    assert stderr == (
        f"interrupted after round {done}, {done} rounds are kept; go on with: fedadmm run {config} "
        f"--out {out} --resume --no-report\n"
    )
    resumed = subprocess.run(
        [*FEDADMM, "run", "--out", str(out), "--resume", "--rounds", str(done + 3), "--json"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    assert resumed.stderr == ""
    assert json.loads(resumed.stdout)["rounds"] == done + 3
    lines = (out / "metrics.jsonl").read_text().splitlines()
    rounds = [json.loads(line)["round"] for line in lines]
    assert rounds == list(range(1, done + 4))


def test_ctrl_c_in_a_comparison_leaves_no_process(tmp_path: Path) -> None:
    config = write_small(
        tmp_path / "small.toml", rounds=200_000, seeds=[0, 1], checkpoint={"every": 5000}
    )
    out = tmp_path / "out"
    process = subprocess.Popen(
        [*FEDADMM, "compare", str(config), "--out", str(out), "--jobs", "2", "--no-report"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for seed in (0, 1):
            _wait_for_rounds(out / f"runs/fedadmm-seed{seed}/metrics.jsonl", process)
        workers = _descendants(process.pid)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert stderr == (
        f"interrupted; go on with: fedadmm compare {config} --out {out} --resume --jobs 2 "
        "--no-report\n"
    )
    assert len(workers) >= 2
    _wait_for_the_end(workers)


def test_workers_of_a_killed_comparison_end_by_themselves(tmp_path: Path) -> None:
    config = write_small(tmp_path / "small.toml", rounds=200_000, seeds=[0, 1])
    out = tmp_path / "out"
    process = subprocess.Popen(
        [*FEDADMM, "compare", str(config), "--out", str(out), "--jobs", "2", "--no-report"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for_rounds(out / "runs/fedadmm-seed1/metrics.jsonl", process)
        workers = _descendants(process.pid)
    finally:
        process.kill()
        process.wait(LIMIT)
    _wait_for_the_end(workers)


def test_a_full_disk_is_reported_before_round_0(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="the system has no limits on file sizes")
    config = write_small(tmp_path / "small.toml")
    done = subprocess.run(
        [*FEDADMM, "run", str(config), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"fedadmm: --out is '{tmp_path / 'out'}', but cannot be written (File too large)\n"
    )
    assert list((tmp_path / "out").iterdir()) == []


def _wait_for_rounds(
    metrics: Path, process: subprocess.Popen[str] | subprocess.Popen[bytes]
) -> None:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        assert process.poll() is None, "the process ended before its time"
        if metrics.is_file() and metrics.read_bytes().count(b"\n") >= 2:
            return
        time.sleep(0.02)
    pytest.fail(f"no rounds in {metrics} after {LIMIT} s")


def _wait_for_the_end(processes: list[int]) -> None:
    deadline = time.monotonic() + LIMIT
    while any(_alive(pid) for pid in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in processes if _alive(pid)] == []


def _descendants(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == pid:
                found.append(int(entry.name))
    return found


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("engine", "threads", "parallel"),
    [
        ({"name": "vectorised"}, 1, True),
        ({"name": "sequential"}, 1, True),
        ({"name": "vectorised"}, "auto", True),  # parallel runs have one thread each
        ({"name": "vectorised"}, 2, False),
        ({"name": "workers", "workers": 2}, 1, False),
        ({"name": "auto"}, "auto", False),  # fewer runs than cores
        ({"name": "virtual-time", "mode": "sync"}, "auto", True),
    ],
)
def test_runs_that_keep_to_one_core_go_side_by_side(engine, threads, parallel, monkeypatch):
    """One process per core, unless a run uses more than one core by itself."""
    from fedadmm.run.engines import workers

    monkeypatch.setattr(workers, "usable_cores", lambda: 6)
    chosen = resolve({"problem": {"name": "digits"}, "engine": engine, "threads": threads})
    study = Study("sweep", [Cell("a", chosen, "a")])
    assert options.processes(None, study) == (6 if parallel else 1)
    assert options.processes(3, study) == 3
