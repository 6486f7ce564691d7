"""The three walks of docs/architecture.md, made and compared step by step."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from importlib import import_module
from inspect import unwrap
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import fedadmm as fa
from fedadmm.core import clock
from flower.harness import Clock, FakeGrid, federation, run_through
from support.commands import call, write_small

PAGE = Path(__file__).resolve().parents[1] / "docs/architecture.md"
WALKS = {
    name: [line.split()[0] for line in text.strip().splitlines()]
    for name, text in re.findall(r"```walk (\w+)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
}


def function_of(step: str) -> CodeType:
    """The code behind room.module.Name or room.module.Class.name."""
    words, module = f"fedadmm.{step}".split("."), None
    for cut in range(len(words) - 1, 1, -1):
        try:
            module = import_module(".".join(words[:cut]))
            break
        except ModuleNotFoundError:
            continue
    found: Any = reduce(getattr, words[cut:], module)
    code: CodeType = unwrap(found).__code__
    return code


@contextmanager
def traced(steps: list[str]) -> Iterator[list[str]]:
    """The steps in the order in which they are first entered."""
    names, entered = {function_of(step): step for step in steps}, []

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := names.get(frame.f_code)) and name not in entered:
            entered.append(name)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield entered
    finally:
        sys.setprofile(before)


def run(folder: Path) -> None:
    config = write_small(folder / "small.toml", engine={"name": "sequential"})
    assert call("run", config, "--out", folder / "run").exit_code == 0
    assert call("report", folder / "run").exit_code == 0


def deployed(folder: Path) -> None:
    settings = federation(fa.FedADMM(rho=1.0), rounds=2)
    with clock.using(Clock()):
        run_through(settings, FakeGrid(settings, folder), folder)


def recipe(folder: Path) -> None:
    options = ("--scale", "smoke", "--seeds", 1, "--jobs", 1, "--out", folder)
    found = call("reproduce", "note-identity", *options)
    assert found.exit_code == 0, found.output


SCENES: dict[str, Callable[[Path], None]] = {"run": run, "deployed": deployed, "recipe": recipe}


def test_there_are_three_walks_of_at_most_twelve_steps() -> None:
    assert WALKS.keys() == SCENES.keys()
    assert all(4 < len(steps) <= 12 for steps in WALKS.values())


@pytest.mark.parametrize("name", SCENES)
def test_a_walk_is_what_happens(name: str, tmp_path: Path) -> None:
    with traced(WALKS[name]) as entered:
        SCENES[name](tmp_path)
    assert entered == WALKS[name]
