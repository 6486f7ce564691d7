"""The list of mutants still fits the code; `make mutants` runs it."""

from __future__ import annotations

import tomllib

import pytest

from mutants.run import LIST, ROOT, load

MUTANTS = load()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.does)
def test_its_text_occurs_once_and_its_tests_exist(mutant):
    assert mutant.occurrences(ROOT) == 1
    assert mutant.new != mutant.old
    assert mutant.tests
    for test in mutant.tests:
        path, _, function = test.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in text


def test_every_mutant_is_another_one():
    assert len({mutant.does for mutant in MUTANTS}) == len(MUTANTS) >= 60
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_every_short_name_is_used():
    document = tomllib.loads(LIST.read_text(encoding="utf-8"))
    files = {entry["file"] for entry in document["mutant"]}
    tests = {name.partition("::")[0] for entry in document["mutant"] for name in entry["tests"]}
    assert (files, tests) == (set(document["files"]), set(document["tests"]))
