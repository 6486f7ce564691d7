"""The preset `hospitals` on ten splits: models trained locally, shared and personalised.

    OMP_NUM_THREADS=1 python -m studies.hospitals.preset

`preset.json` is replaced.  `--table` prints the table of what is there.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from fedadmm.data.loaders.heart import HOSPITALS
from fedadmm.run.simulate import simulate
from fedadmm.study.benefit import LOCAL, PERSONAL, SHARED, personalised, trained
from fedadmm.study.config import merged, read as preset, resolve
from studies.hospitals.__main__ import cell, measured
from studies.protocol import read, write

RESULTS = Path(__file__).with_name("preset.json")
SPLITS = tuple(range(10))
METRICS = (("accuracy", 100.0, 1), ("loss", 1.0, 3))


def compare(split: int) -> dict[str, Any]:
    """Accuracy and loss of each hospital's three models on its own test samples."""
    changes = {"problem": {"partition_seed": split}, "seed": split}
    run = resolve(merged(preset("hospitals"), changes))
    problem = run.load_problem()
    shared = simulate(run, problem).params
    models = {
        LOCAL: [trained(run, problem, client) for client in problem.clients],
        SHARED: [shared] * problem.num_clients,
        PERSONAL: personalised(run, problem),
    }
    return {how: measured(problem, own) for how, own in models.items()}


def table(found: list[dict[str, Any]]) -> str:
    """Accuracy and loss by hospital, and the paired difference from local training."""
    lines = [
        f"| | | {' | '.join(HOSPITALS)} | mean | − local |",
        "|---" * (len(HOSPITALS) + 4) + "|",
    ]
    for metric, scale, digits in METRICS:
        for how in (LOCAL, SHARED, PERSONAL):
            sites = [[one[how][metric][site] for one in found] for site in range(len(HOSPITALS))]
            means = [statistics.fmean(one[how][metric]) for one in found]
            local = [statistics.fmean(one[LOCAL][metric]) for one in found]
            gaps = [own - base for own, base in zip(means, local, strict=True)]
            row = [cell(values, scale, digits) for values in (*sites, means)]
            row.append("" if how == LOCAL else cell(gaps, scale, digits))
            lines.append(f"| {metric} | {how} | {' | '.join(row)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the splits, or print their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    if not parser.parse_args().table:
        write(RESULTS, {"splits": [compare(split) for split in SPLITS]})
    print(table(read(RESULTS)["splits"]))


if __name__ == "__main__":
    main()
