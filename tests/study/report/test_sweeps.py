"""The report of a sweep: one value per setting, and the same axes for every small curve."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedadmm.study.report import write_report
from fedadmm.study.report.figures import Bars, Heat, Lines, Section
from fedadmm.study.report.panels import sections
from fedadmm.study.spec import setting_of as setting
from support.browser import Browser
from support.commands import read_content as read
from support.records import made


def swept(folder: Path, axes: dict[str, Sequence[object]], seeds: Sequence[int] = (0, 1)) -> Path:
    """A finished sweep; the accuracy of cell c with seed s ends at (10 c + s) / 100."""
    cells = []
    for number, values in enumerate(itertools.product(*axes.values())):
        for seed in seeds:
            run = folder / "cells" / f"{number}-{seed}"
            run.mkdir(parents=True)
            end = (10 * number + seed) / 100
            history = [made(t, test_accuracy=end * t / 3, clients=[t % 2]) for t in (1, 2, 3)]
            (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in history))
            about = {"algorithm": "fedavg", "method": "FedAvg", "seed": seed, "code": "completed"}
            (run / "summary.json").write_text(json.dumps(about | {"status": "completed"}))
            own = dict(zip(axes, values, strict=True)) | {"seed": seed}
            label = ", ".join(
                value if key == "method" else f"{key}={value}"
                for key, value in setting(own).items()
            )
            row = {"set": own, "directory": f"cells/{run.name}", "seed": seed, "target": None}
            cells.append(row | {"label": label or "fedavg"})
    document = {"kind": "sweep", "problem": None, "target": None, "search": None, "runs": cells}
    (folder / "results.json").write_text(json.dumps(document))
    return folder


GRID = {"algorithm.rho": [0.1, 1], "local.solver.lr": [0.01, 0.1, 0.3]}


def parts(folder: Path) -> dict[str, Section]:
    return {section.name: section for section in sections(read(folder))}


def test_two_keys_make_a_map_of_means_over_the_seeds(tmp_path: Path) -> None:
    found = parts(swept(tmp_path, GRID))
    (heat,) = found["sweep"].panels
    assert isinstance(heat, Heat)
    assert (heat.row_title, heat.rows) == ("rho", ["0.1", "1"])
    assert (heat.column, heat.names) == ("lr", ["0.01", "0.1", "0.3"])
    assert heat.values == [[0.5, 10.5, 20.5], [30.5, 40.5, 50.5]]  # per cent
    assert "the best is rho=1, lr=0.3, with 50.5 %" in found["sweep"].note


def test_small_figures_share_their_axis_and_show_the_best_behind(tmp_path: Path) -> None:
    section = parts(swept(tmp_path, GRID))["multiples"]
    assert section.columns == 3
    assert [panel.title for panel in section.panels] == [
        f"rho={rho}, lr={lr}" for rho in (0.1, 1) for lr in (0.01, 0.1, 0.3)
    ]
    spans = {tuple(panel.span or ()) for panel in section.panels if isinstance(panel, Lines)}
    (span,) = spans
    assert span == pytest.approx((0.0 - 0.05 * 0.51, 0.51 + 0.05 * 0.51))
    for panel in section.panels[:-1]:
        assert isinstance(panel, Lines)
        behind, own = panel.lines
        assert (behind.label, behind.behind) == ("rho=1, lr=0.3", True)
        assert (own.label, own.behind) == (panel.title, False)
    assert isinstance(section.panels[-1], Lines)
    assert [line.behind for line in section.panels[-1].lines] == [False]


def test_one_key_makes_bars_and_settings_of_a_sweep_are_not_compared(tmp_path: Path) -> None:
    found = parts(swept(tmp_path, {"local.solver.lr": [0.1, 0.2, 0.4]}))
    (bars,) = found["sweep"].panels
    assert isinstance(bars, Bars)
    assert (bars.column, bars.names, bars.values) == (
        "lr",
        ["0.1", "0.2", "0.4"],
        [0.5, 10.5, 20.5],
    )
    assert not read(tmp_path).results.compares
    page = write_report(tmp_path).read_text("utf-8")
    assert "<h1>3 settings of FedAvg on" in page


def test_methods_that_are_swept_have_their_proper_names(tmp_path: Path) -> None:
    folder = swept(tmp_path, {"algorithm.name": ["scaffold", "fedavg"], "local.solver.lr": [0.1]})
    assert list(read(folder).labels) == ["SCAFFOLD, lr=0.1", "FedAvg, lr=0.1"]


def test_many_settings_are_not_drawn_over_each_other(tmp_path: Path) -> None:
    few = parts(swept(tmp_path / "few", {"rounds": range(12)}))
    many = parts(swept(tmp_path / "many", {"rounds": range(40)}, seeds=[0]))
    assert "learning" in few
    assert set(many) == {"sweep", "multiples", "clients"}
    assert len(many["multiples"].panels) == 36
    assert "The first 36 of 40 settings." in many["multiples"].note
    assert '<nav class="legend' not in write_report(tmp_path / "many").read_text("utf-8")


def test_seeds_alone_are_one_method(tmp_path: Path) -> None:
    content = read(swept(tmp_path, {}))
    assert list(content.labels) == ["fedavg"]
    assert "sweep" not in parts(tmp_path)
    assert "<h1>FedAvg on" in write_report(tmp_path).read_text("utf-8")


def test_small_figures_of_a_sweep_share_a_file(tmp_path: Path) -> None:
    write_report(swept(tmp_path, GRID), figures=tmp_path / "figures")
    names = {path.name for path in (tmp_path / "figures").glob("*.svg")}
    assert {"multiples.svg", "final.svg"} <= names
    text = (tmp_path / "figures/multiples.svg").read_text("utf-8")
    assert all(f"rho={rho}, lr={lr}" in text for rho in (0.1, 1) for lr in (0.01, 0.1, 0.3))


def test_a_sweep_in_a_browser(browser: Browser, tmp_path: Path, artifacts: Path) -> None:
    browser.open(write_report(swept(tmp_path, GRID)), 400, 844)
    plots = "[...document.querySelectorAll('#multiples .plot')]"
    ranges = browser.evaluate(f"{plots}.map((p) => p.layout.yaxis.range.join())")
    assert len(ranges) == 6
    assert len(set(ranges)) == 1
    tops = browser.evaluate(f"{plots}.map((p) => p.getBoundingClientRect().top)")
    assert len(set(tops)) == 3, "a phone has two small figures side by side"
    kind = "document.getElementById('plot-sweep-0').layout.xaxis.type"
    assert browser.evaluate(kind) == "category"
    assert browser.evaluate("document.documentElement.scrollWidth") == 400
    browser.screenshot(artifacts / "report-sweep-phone.png")
    assert browser.complaints() == []
