"""Every example is short and runs as it stands, from an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
MOST_LINES = 60

SAYS = {
    "quickstart": r"fedavg .*\nfedadmm .* reached the target in round \d+",
    "your_own_dataset": r"4 stations, completed all 30 rounds\naccuracy on unseen days: (9\d|100)",
    "sparse_model": r"(l1 weight .* zeros [\d.]+%.*\n){3}",
    "estimator": r"fedavg .*\nfedadmm .*\nround 20: .*\na clinic .*: (\d+\.\d% ?){4}\nreport: ",
    "hospitals": r"FedADMM: 7\d\.\d%(.*\n)  Cleveland .*\n  Hungary .*\n  Switzerland .*\n",
    "own_sampler": r"day: (\[\d+, \d+, \d+, \d+\] ?){3}\n.*\nclients seen: 20\naccuracy [6-9]\d",
    "hugging_face_lora": r"1,090 of 37,412 parameters travel\naccuracy [6-9]\d",
    "lightning_module": r"accuracy [6-9]\d",
    "streamed_files": r"loss 2\.\d+ 0\.0\d+\ntoo little: [1-3]\d\.",
    "tune_with_optuna": r"10 trials, [1-9] stopped early\nbest: lr .*, rho .*\naccuracy [89]\d",
    "incentives": r"critical reward 1\.608\n(reward .* per round, \d+ rounds, cost \d+\n){4}",
    "fine_tune_adapter": r"6,930 of 89,362 parameters travel\naccuracy [5-9]\d",
}
"""What each example prints.  The numbers are bands, not golden values."""


def run(name: str, folder: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    if done.returncode == 1 and "skipped:" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return done.stdout


SMOKE = "quickstart"


@pytest.mark.parametrize(
    "name",
    [SMOKE, *(pytest.param(name, marks=pytest.mark.release) for name in SAYS if name != SMOKE)],
)
def test_example_says_what_it_promises(name: str, tmp_path: Path) -> None:
    said = run(name, tmp_path)
    assert re.search(SAYS[name], said), said
    if name == "sparse_model":
        zeros = [float(share) for share in re.findall(r"zeros ([\d.]+)%", said)]
        assert zeros == sorted(zeros)
        assert zeros[0] < zeros[-1]


def test_own_table_is_read(tmp_path: Path) -> None:
    rows = [f"{i % 7},{(i * 5) % 11},{int(i % 7 > 3)},h{i % 3}" for i in range(120)]
    table = tmp_path / "hospitals.csv"
    table.write_text("\n".join(["age,dose,sick,hospital", *rows]) + "\n")
    assert run("bring_your_own_data", tmp_path, str(table)).startswith("3 clients")


def test_examples_are_short_and_all_of_them_are_run() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {*SAYS, "bring_your_own_data"}
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < MOST_LINES, path.name
