"""`make fuzz`: a million changed inputs for every parser of bytes, files and configurations.

    python tests/fuzz/run.py --inputs 1000000 --seed 0 --only codec

What is found is written into the corpus, which the tests read; the exit code tells whether.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from fuzz.fuzzing import CORPUS, fuzz
from fuzz.parsers import all_parsers, quiet

MOST_FINDINGS = 10
"""Of one parser; more would say the same again."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--inputs", type=int, default=1_000_000, help="over all parsers")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", help="one parser")
    chosen = options.parse_args()
    total = wrong = 0
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=shared) as folder, quiet():
        parsers = all_parsers(Path(folder))
        used = [p for p in parsers.values() if chosen.only in (None, p.name)]
        each = -(-chosen.inputs // len(used))
        for parser in used:
            began, found, kinds = time.perf_counter(), 0, set()
            for finding in fuzz(parser, each, chosen.seed):
                found += 1
                if finding.why[:40] not in kinds and len(kinds) < MOST_FINDINGS:
                    kinds.add(finding.why[:40])
                    path = CORPUS / parser.name / finding.name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(finding.data)
                    print(f"{parser.name}: {finding.why}  {path}", flush=True)
            total, wrong = total + each, wrong + found
            rate = each / (time.perf_counter() - began)
            print(f"{parser.name:16} {each} inputs, {found} undeclared, {rate:.0f}/s", flush=True)
    print(f"{total} inputs, {wrong} undeclared (seed {chosen.seed})")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
