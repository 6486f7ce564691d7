"""Run many seeds: `python -m tests.storm --seed 123` replays one, `--minutes 60` runs an hour."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial


def _one(seed: int) -> tuple[int, Counter[str], str]:
    """A seed's counts, and what did not hold in it."""
    from .story import tell

    try:
        return seed, tell(seed), ""
    except Exception as error:
        return seed, Counter(), f"{type(error).__name__}: {error}"


def _quietly() -> None:
    """Flower's own dependencies warn while they load; and seeds share the cores."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def _results(
    first: int, count: int, minutes: float, workers: int
) -> Iterator[tuple[int, Counter[str], str]]:
    until = time.monotonic() + 60 * minutes
    if workers == 1:
        _quietly()
        for seed in range(first, first + count):
            if time.monotonic() > until:
                return
            yield _one(seed)
        return
    with multiprocessing.get_context("spawn").Pool(workers, _quietly) as pool:
        for result in pool.imap_unordered(partial(_one), range(first, first + count), chunksize=8):
            yield result
            if time.monotonic() > until:
                return


def main() -> int:
    """The number of seeds that failed, at most 1."""
    options = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__)
    options.add_argument("--seed", type=int, help="Replay this seed, with the place it fails at.")
    options.add_argument("--first", type=int, default=0, help="The first of many seeds.")
    options.add_argument("--seeds", type=int, default=10**9, help="How many seeds at most.")
    options.add_argument("--minutes", type=float, default=60.0, help="How long at most.")
    options.add_argument("--workers", type=int, default=1, help="Processes.")
    given = options.parse_args()
    if given.seed is not None:
        _quietly()
        from .story import tell

        try:
            print(dict(sorted(tell(given.seed).items())))
        except Exception:
            traceback.print_exc()
            return 1
        return 0
    total: Counter[str] = Counter()
    failed = seeds = 0
    for seed, counts, problem in _results(given.first, given.seeds, given.minutes, given.workers):
        seeds += 1
        total += counts
        if problem:
            failed += 1
            print(f"{problem}\n    python -m tests.storm --seed {seed}", flush=True)
        if seeds % 1000 == 0:
            print(f"{seeds} seeds, {failed} failed", file=sys.stderr, flush=True)
    print(f"{seeds} seeds, {failed} failed")
    for name, count in sorted(total.items()):
        print(f"{count:10d}  {name}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
