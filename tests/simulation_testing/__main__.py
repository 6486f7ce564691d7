"""Run many seeds of the deterministic simulation.

`python -m tests.simulation_testing --seed 123` replays one, `--minutes 60` runs an hour.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator

from .worker import Result, one, prepare

_TOLD = 1000
"""Seeds between two lines about how far it is."""


def _results(first: int, count: int, minutes: float, workers: int) -> Iterator[Result]:
    """One after the other, so that all seeds before the last one are done too."""
    until = time.monotonic() + 60 * minutes
    seeds = range(first, first + count)
    if workers == 1:
        prepare()
        for seed in seeds:
            if time.monotonic() > until:
                return
            yield one(seed)
        return
    with multiprocessing.get_context("spawn").Pool(workers, prepare) as pool:
        for result in pool.imap(one, seeds, chunksize=8):
            yield result
            if time.monotonic() > until:
                return


def _replay(seed: int) -> int:
    prepare()
    from .scenario import run_seed

    try:
        print(dict(sorted(run_seed(seed).items())))
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _find_bugs(most: int) -> int:
    """How many seeds it takes, from 0 on, to find each deliberate bug."""
    import pytest

    from .test_simulation import BUGS

    prepare()
    late = 0
    for bug in BUGS:
        with pytest.MonkeyPatch.context() as patch:
            bug(patch)
            found = next((seed for seed in range(most) if one(seed)[2]), None)
        late += found is None
        needed = "not found" if found is None else found + 1
        print(f"{needed!s:>10}  {bug.__name__}: {bug.__doc__}", flush=True)
    return int(late > 0)


def main() -> int:
    """The number of seeds that failed, at most 1."""
    program = "python -m tests.simulation_testing"
    options = argparse.ArgumentParser(prog=program, description=__doc__)
    options.add_argument("--seed", type=int, help="Replay this seed, with the place it fails at.")
    options.add_argument("--first", type=int, default=0, help="The first of many seeds.")
    options.add_argument("--seeds", type=int, default=10**9, help="How many seeds at most.")
    options.add_argument("--minutes", type=float, default=60.0, help="How long at most.")
    options.add_argument("--workers", type=int, default=1, help="Processes.")
    options.add_argument("--bugs", action="store_true", help="Find the deliberate bugs.")
    given = options.parse_args()
    if given.bugs:
        return _find_bugs(min(given.seeds, 1000))
    if given.seed is not None:
        return _replay(given.seed)
    total: Counter[str] = Counter()
    failed, seeds = 0, 0
    for seed, counts, problem in _results(given.first, given.seeds, given.minutes, given.workers):
        seeds += 1
        total += counts
        if problem:
            failed += 1
            print(f"{problem}\n    python -m tests.simulation_testing --seed {seed}", flush=True)
        if seeds % _TOLD == 0:
            so_far = {"next": seed + 1, "seeds": seeds, "failed": failed, **total}
            print(json.dumps(so_far), file=sys.stderr, flush=True)
    print(f"{seeds} seeds, {failed} failed")
    for name, count in sorted(total.items()):
        print(f"{count:10d}  {name}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
