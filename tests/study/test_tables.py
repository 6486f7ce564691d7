"""Tables are the same everywhere, and survive the signs that Markdown, LaTeX and CSV live by."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedadmm.study.compare import compare, plan
from fedadmm.study.formatting import Table, as_csv, latex, markdown, write_tables
from fedadmm.study.report import write_report
from fedadmm.study.sweep import axis, plan as plan_sweep, sweep
from support.commands import SMALL, call

ODD = Table(
    "Odd signs",
    ["method", "a_b & c", "50 %"],
    [["**FedADMM**", "1 ± 0.5†", "−3 ≥ x|y"], ["=cmd()", r"{\x}^~#$", "…✓"]],
    "A note.",
)


def test_markdown_has_a_cell_for_each_cell() -> None:
    text = markdown(ODD)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [re.split(r"(?<!\\)\|", row)[1:-1] for row in rows]
    assert [len(row) for row in cells] == [3, 3, 3, 3]
    assert cells[2] == [" **FedADMM** ", " 1 ± 0.5† ", r" −3 ≥ x\|y "]
    assert text.startswith("## Odd signs\n\n|")
    assert text.endswith("|\n\nA note.\n")


def test_latex_escapes_what_it_would_read_as_its_own() -> None:
    lines = latex(ODD).splitlines()
    assert lines[:3] == ["% Odd signs", "% A note.", r"\begin{tabular}{lrr}"]
    assert r"method & a\_b \& c & 50 \% \\" in lines
    assert r"\textbf{FedADMM} & 1 $\pm$ 0.5$^\dagger$ & $-$3 $\geq$ x|y \\" in lines
    odd = (
        r"=cmd() & \{\textbackslash{}x\}\textasciicircum{}\textasciitilde{}\#\$ & \ldots{}$\ast$ \\"
    )
    assert odd in lines


def test_no_cell_ends_its_row_or_changes_the_one_before() -> None:
    r"""In LaTeX `\\` at the end of a row looks for `*` and `[` at the beginning of the next one."""
    table = Table("Two\nlines", ["x"], [["1"], ["[1.0, 2.0]"], ["*"], ["a\nb"], [r"c\|d"]])
    lines = latex(table).splitlines()
    assert lines[:2] == ["% Two", "% lines"]
    rows = [r"1 \\", r"{[}1.0, 2.0] \\", r"{*} \\", r"a b \\", r"c\textbackslash{}|d \\"]
    assert lines[6:11] == rows
    text = [line for line in markdown(table).splitlines() if line.startswith("|")]
    assert text[-2:] == ["| a b |", r"| c\\\|d |"]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex here")
def test_latex_is_taken_by_latex(tmp_path: Path) -> None:
    body = latex(ODD)
    page = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{chr(10)}{body}"
    (tmp_path / "t.tex").write_text(page + r"\end{document}", "utf-8")
    subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )


def test_csv_has_the_numbers_where_there_are_some_and_no_formula() -> None:
    assert as_csv(ODD).splitlines()[1:] == ["FedADMM,1 ± 0.5†,−3 ≥ x|y", "'=cmd(),{\\x}^~#$,…✓"]
    numbers = ODD._replace(data=[{"a": 0.123456789, "b": [1, 2]}, {"a": None, "c": "-x"}])
    assert as_csv(numbers) == "a,b,c\n0.123456789,1 2,\n,,'-x\n"


def test_every_table_of_a_comparison_is_a_file_in_three_forms(tmp_path: Path) -> None:
    search = {"key": "local.solver.lr", "values": [0.05, 0.1], "seeds": [9], "extend": 0}
    tree = SMALL | {"rounds": 2, "seeds": [0, 1], "search": search}
    result = compare(plan(tree, ["fedavg", "fedadmm"]), tmp_path).document
    write_report(tmp_path)
    found = sorted(path.name for path in (tmp_path / "tables").iterdir())
    names = ("results", "runs", "search", "settings")
    assert found == sorted(f"{name}.{end}" for name in names for end in ("md", "tex", "csv"))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tables/results.csv").read_text())))
    told = {row["label"]: row["final"] for row in result["table"]}
    assert {row["label"]: float(row["final.mean"]) for row in rows} == {
        label: final["mean"] for label, final in told.items()
    }
    assert "FedADMM" in (tmp_path / "tables/results.md").read_text()
    printed = call("compare", "--out", tmp_path, "--resume", "--no-report", "--jobs", 1)
    assert "search on the seeds 9" in printed.stdout
    assert "searched lr 0.05, 0.1" in printed.stdout


def test_a_sweep_has_its_table_too(tmp_path: Path) -> None:
    points = plan_sweep(SMALL | {"rounds": 1}, [axis("algorithm.rho=0.5,1.0", "--grid")], [])
    result = sweep(points, tmp_path).document
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tables/cells.csv").read_text())))
    assert [float(row["set.algorithm.rho"]) for row in rows] == [0.5, 1.0]
    assert [float(row["final.loss"]) for row in rows] == [
        cell["final"]["loss"] for cell in result["runs"]
    ]
    assert "| rho | rounds done | loss |" in (tmp_path / "tables/cells.md").read_text()


def test_the_rounds_of_a_sweep_are_those_after_an_initial_one(tmp_path: Path) -> None:
    """FedDR with init="prox" begins with everybody, in round 0."""
    method = {"name": "feddr", "eta": 1.0, "init": "prox"}
    points = plan_sweep(SMALL | {"algorithm": method}, [axis("local.solver.lr=0.05", "--grid")], [])
    assert [cell["rounds"] for cell in sweep(points, tmp_path).document["runs"]] == [
        SMALL["rounds"]
    ]


def test_tables_are_written_again_over_old_ones(tmp_path: Path) -> None:
    write_tables(tmp_path, {"one": ODD})
    write_tables(tmp_path, {"one": ODD._replace(title="New")})
    assert (tmp_path / "tables/one.md").read_text().startswith("## New")
