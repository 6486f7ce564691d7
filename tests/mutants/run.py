"""Break the code on purpose, one chosen line at a time, and see that a test fails: `make mutants`.

Each mutant of `mutants.toml` is put into a copy of the tree, where the tests run that must notice.
A mutant that survives is a missing test; what only a release runs does not count.  `run.py WORD`
runs those whose description has the word.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutants.toml")
SURVIVED, KILLED = 0, 1
"""pytest's exit codes; any other says that the tests did not run."""


class Mutant(NamedTuple):
    """A line that is wrong, and the tests that must say so, as pytest's arguments."""

    does: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def occurrences(self, root: Path) -> int:
        return (root / self.file).read_text(encoding="utf-8").count(self.old)


def load() -> list[Mutant]:
    """The list, with its short names of files and tests spelt out."""
    document = tomllib.loads(LIST.read_text(encoding="utf-8"))
    files, tests = document["files"], document["tests"]
    mutants = []
    for entry in document["mutant"]:
        chosen = [name.partition("::") for name in entry["tests"]]
        arguments = tuple(tests[name] + colons + function for name, colons, function in chosen)
        mutants.append(
            Mutant(entry["does"], files[entry["file"]], entry["old"], entry["new"], arguments)
        )
    return mutants


def _run_tests(tree: Path, tests: Sequence[str], log: Path) -> int:
    """pytest's exit code, from a process that need not import torch again."""
    process = multiprocessing.get_context("fork").Process(target=_child, args=(tree, tests, log))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _child(tree: Path, tests: Sequence[str], log: Path) -> None:
    import pytest

    with log.open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(tree)
    source = str(tree / "src")
    sys.path[:0] = [source, str(tree)]
    os.environ["PYTHONPATH"] = source
    try:
        code = int(pytest.main(["-x", "-q", "-m", "not release", *tests]))
    except BaseException:  # its exit code would look like that of a test that failed
        traceback.print_exc()
        code = int(pytest.ExitCode.INTERNAL_ERROR)
    sys.exit(code)


_NO_SHRINKING = """
from hypothesis import Phase

settings.register_profile("mutants", settings(), phases=[Phase.explicit, Phase.generate])
settings.load_profile("mutants")
"""
"""For the copy's conftest: a test that fails need not look for the smallest example."""


def _copy(tree: Path) -> None:
    for name in ("src", "studies", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    with (tree / "tests" / "conftest.py").open("a", encoding="utf-8") as conftest:
        conftest.write(_NO_SHRINKING)


def _check_copy(tree: Path, mutants: Sequence[Mutant], log: Path) -> None:
    """The tests must run on the copy, and pass there while it is whole."""
    probe = tree / "tests" / "test_the_copy_is_tested.py"
    probe.write_text(
        "import fedadmm\n\n\ndef test_the_copy():\n"
        f"    assert fedadmm.__file__.startswith({str(tree)!r})\n"
    )
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    if _run_tests(tree, [str(probe), *tests], log) != SURVIVED:
        sys.exit(f"the tests fail without any mutant:\n{log.read_text()[-3000:]}")
    sys.dont_write_bytecode = True  # what is cached is older than every mutant


def _verdict(tree: Path, mutant: Mutant, log: Path) -> int:
    path = tree / mutant.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace(mutant.old, mutant.new), encoding="utf-8")
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        cached.unlink()  # its time stamp has seconds only, and a mutant may be as long as the line
    try:
        return _run_tests(tree, mutant.tests, log)
    finally:
        path.write_text(whole, encoding="utf-8")


def main(word: str = "") -> int:
    mutants = [mutant for mutant in load() if word in mutant.does]
    drifted = [mutant for mutant in mutants if mutant.occurrences(ROOT) != 1]
    if drifted:
        names = "".join(f"\n  {mutant.file}: {mutant.does}" for mutant in drifted)
        sys.exit(f"the text of these mutants does not occur once in its file:{names}")
    import scipy.optimize  # noqa: F401  every child inherits what is imported here
    import torch

    torch.set_num_threads(1)
    survivors = []
    with tempfile.TemporaryDirectory() as directory:
        tree, log = Path(directory) / "tree", Path(directory) / "log"
        _copy(tree)
        _check_copy(tree, mutants, log)
        for mutant in mutants:
            began = time.perf_counter()
            code = _verdict(tree, mutant, log)
            if code not in (SURVIVED, KILLED):
                sys.exit(f"{mutant.does}: the tests did not run:\n{log.read_text()[-3000:]}")
            survivors += [mutant] if code == SURVIVED else []
            verdict = "SURVIVED" if code == SURVIVED else "killed"
            seconds = time.perf_counter() - began
            print(f"{verdict:8} {seconds:5.1f} s  {mutant.file}: {mutant.does}", flush=True)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
