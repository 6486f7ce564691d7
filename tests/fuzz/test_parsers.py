"""No parser of what others wrote ends in anything but a result or its own declared error.

A few inputs each; `make fuzz` tries a million.  What was ever found stays in the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from fuzz.fuzzing import CORPUS, Finding, fuzz, judged
from fuzz.parsers import Parser, all_parsers, quiet

NAMES = (
    *("codec", "parcel", "admission", "info", "head", "metrics", "sealed", "server-state"),
    *("site-state", "manifest", "manifest-signed", "tensors", "toml", "config", "set", "grid"),
    *("bundle", "metrics.jsonl", "records", "summary.json", "config.toml", "partition.json"),
    *("events.jsonl", "processes.json", "idx", "idx.gz", "cifar", "leaf", "heart", "csv", "npz"),
    *("partition", "run-summary", "run-partition", "run-records", "exported"),
)
INPUTS = 40


@pytest.fixture(scope="module")
def parsers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Parser]]:
    with quiet():
        yield all_parsers(tmp_path_factory.mktemp("fuzz"))


def test_all_are_here(parsers: dict[str, Parser]) -> None:
    assert set(parsers) == set(NAMES)
    assert {path.name for path in CORPUS.iterdir()} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_inputs_to_begin_from_are_valid(name: str, parsers: dict[str, Parser]) -> None:
    for seed in parsers[name].seeds:
        parsers[name].parse(seed)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_found_once_is_declared_now(name: str, parsers: dict[str, Parser]) -> None:
    folder = CORPUS / name
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        assert judged(parsers[name], path.read_bytes()) is None


@pytest.mark.parametrize("name", NAMES)
def test_changed_inputs(name: str, parsers: dict[str, Parser]) -> None:
    assert list(fuzz(parsers[name], INPUTS, seed=1)) == []


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(data=st.binary(max_size=200) | st.text(max_size=60).map(str.encode))
def test_any_bytes(name: str, parsers: dict[str, Parser], data: bytes) -> None:
    assert judged(parsers[name], data) is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("token", [b"[", b'{"a":', b"a=[", b"\x00"])
def test_deeper_than_any_parser_goes(name: str, token: bytes, parsers: dict[str, Parser]) -> None:
    for data in (token * 50_000, (200_000).to_bytes(8, "little") + token * 100_000):
        assert judged(parsers[name], data) is None


def test_an_undeclared_error_a_long_time_and_much_memory_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The judge can say no."""

    def planted(data: bytes) -> object:
        return {b"e": lambda: 1 / 0, b"m": lambda: bytearray(b"x") * (1 << 20), b"t": spin}[data]()

    def spin() -> None:
        while True:
            pass

    monkeypatch.setattr("fuzz.fuzzing.MOST_SECONDS", 0.02)
    monkeypatch.setattr("fuzz.fuzzing.MOST_MEMORY", -1)
    parser = Parser("planted", [b"e", b"m", b"t"], planted, (ValueError,))
    found = [judged(parser, data) for data in parser.seeds]
    assert all(isinstance(one, Finding) for one in found)
    whys = [one.why for one in found if one is not None]
    assert whys[0].startswith("ZeroDivisionError")
    assert whys[1].endswith("MiB")
    assert whys[2] == "more than 0.08 s"


def test_the_seed_fixes_the_inputs(tmp_path: Path) -> None:
    met: list[bytes] = []
    parser = Parser("noted", [b'{"a": [1, 2]}'], met.append, (), "json")
    list(fuzz(parser, 50, seed=3))
    first, met[:] = list(met), []
    list(fuzz(parser, 50, seed=3))
    assert met == first
    assert len(set(met)) > 40
