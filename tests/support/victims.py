"""Starts runs that are there to be killed; started as a program, driven through its pipes.

Each line on standard input is a JSON list of arguments for `run_in_directory`.  The program forks,
so that a run need not import anything first, prints the child's id, and then how it ended.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from support.resumable import run_in_directory


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        directory, *arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run_in_directory(Path(directory), *arguments)
                status = 0
            finally:
                os._exit(status)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
