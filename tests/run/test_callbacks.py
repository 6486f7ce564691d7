"""When callbacks are called, with what, and what they must not do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fedadmm as fa
from fedadmm.core.config_tree import to_config
from fedadmm.run.experiment import experiment_from_keywords
from support.federations import federation, run
from support.rejections import naming


@dataclass(frozen=True)
class Diary(fa.Callback):
    """Writes down every call; counts the rounds in its note."""

    fails_in: str = ""
    lines: ClassVar[list[Any]] = []

    def _write(self, what: str, *more: Any) -> None:
        self.lines.append((what, *more))
        if what == self.fails_in:
            raise OSError(f"no {what}")

    def begin(self, run: Any) -> str:
        self._write("begin", run.state.round)
        return "open"

    def measure(self, report: Any, live: Any, note: Any) -> tuple[int, dict[str, int]]:
        self._write("measure", live, note)
        return (note or 0) + 1, {"counted": (note or 0) + 1}

    def round(self, report: Any, live: Any) -> None:
        self._write("round", live, report.record["callbacks"]["counted"])

    def end(self, summary: Mapping[str, Any], live: Any) -> None:
        self._write("end", live, summary["code"], summary["status"])


@dataclass(frozen=True)
class Quiet(fa.Callback):
    """Only looks."""


@pytest.fixture(autouse=True)
def _empty() -> None:
    Diary.lines.clear()


def small(rounds: int, *callbacks: Any, **options: Any) -> fa.Result:
    return run(fa.FedADMM(1.0), federation(3), rounds, callbacks=callbacks, **options)


def test_the_order_of_the_calls() -> None:
    result = small(2, Diary())
    assert Diary.lines == [
        ("begin", 0),
        *(("measure", "open", None), ("round", "open", 1)),
        *(("measure", "open", 1), ("round", "open", 2)),
        ("end", "open", "completed", "completed all 2 rounds"),
    ]
    assert [record["callbacks"] for record in result.history] == [{"counted": 1}, {"counted": 2}]


def test_a_note_is_part_of_the_checkpoint(tmp_path: Path) -> None:
    saved = fa.Checkpoints(tmp_path, every=2)
    small(2, Diary(), checkpoints=saved)
    Diary.lines.clear()
    rest = small(3, Diary(), checkpoints=saved, resume=True)
    assert Diary.lines[:2] == [("begin", 2), ("measure", "open", 2)]
    assert rest.history[0]["callbacks"] == {"counted": 3}


def test_one_that_only_looks_may_come_later_and_one_that_measures_may_not(tmp_path: Path) -> None:
    saved = fa.Checkpoints(tmp_path, every=2)
    small(2, checkpoints=saved)
    small(3, Quiet(), checkpoints=saved, resume=True)
    with pytest.raises(fa.errors.StateError, match=naming("callback Diary")):
        small(4, Diary(), checkpoints=saved, resume=True)


@pytest.mark.parametrize(
    ("where", "calls"), [("begin", ["begin"]), ("measure", ["begin", "measure", "end"])]
)
def test_those_that_began_hear_of_a_failure(where: str, calls: list[str]) -> None:
    with pytest.raises(OSError, match=f"^no {where}$"):
        small(2, Diary(where))
    assert [line[0] for line in Diary.lines] == calls
    assert where == "begin" or Diary.lines[-1] == ("end", "open", "failed", f"failed: no {where}")


def test_all_of_them_end_although_one_cannot() -> None:
    @dataclass(frozen=True)
    class Broken(fa.Callback):
        def end(self, summary: Any, live: Any) -> None:
            raise OSError("cannot close")

    for order in ((Broken(), Diary()), (Diary(), Broken())):
        Diary.lines.clear()
        with pytest.raises(OSError, match="cannot close"):
            small(1, *order)
        assert Diary.lines[-1][0] == "end"


def test_an_interruption_ends_them() -> None:
    def press(report: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(2, Diary(), press)
    assert Diary.lines[-1] == ("end", "open", "interrupted", "interrupted")


def test_functions_are_callbacks_and_no_part_of_a_configuration() -> None:
    seen: list[int] = []
    small(3, lambda report: seen.append(report.record["round"]))
    assert seen == [1, 2, 3]
    made = experiment_from_keywords(
        fa.FedAvg(), federation(3).problem, 1, callbacks=[seen.append, Quiet()]
    )
    assert made.tree["callbacks"] == [{"name": f"{__name__}:Quiet"}]


def test_only_those_that_measure_affect_the_records() -> None:
    plain = experiment_from_keywords(fa.FedADMM(1.0), federation(3).problem, 1).resolve()
    assert replace(plain, callbacks=[Quiet()]).affecting() == plain.affecting()
    measured = replace(plain, callbacks=[fa.Diagnostics(3)])
    assert measured.affecting()["callbacks"] == [to_config(fa.Diagnostics(3))]


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ([3], "callbacks[0] 3 Callback"),
        ([Quiet], "callbacks[0] Quiet"),
        ([Diary(), Diary()], "Experiment callbacks Diary"),
    ],
)
def test_invalid_callbacks_are_rejected(wrong: list[Any], names: str) -> None:
    with pytest.raises(fa.errors.ParameterError, match=naming(names)):
        small(1, *wrong)
