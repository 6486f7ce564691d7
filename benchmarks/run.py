"""All workloads beside all peers, as the table of docs/benchmarks.md and as JSON.

python benchmarks/run.py                        # everything; about half an hour on two cores
python benchmarks/run.py mlp logistic --repeats 5
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from fedadmm import bench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=list(bench.WORKLOADS))
    parser.add_argument("--repeats", type=int, default=bench.REPEATS)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--output", type=Path, help="where to write the JSON documents")
    options = parser.parse_args()

    def tell(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    documents = []
    for workload in options.workloads:
        documents.append(bench.run(workload, not options.no_peers, options.repeats, tell))
        if options.output is not None:
            options.output.write_text(json.dumps(documents, indent=2) + "\n")
    print(bench.table(documents))


if __name__ == "__main__":
    main()
