"""Every notebook runs as it stands, without a network, and is stored without what it printed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import fedadmm as fa
from fedadmm import problems

nbformat = pytest.importorskip("nbformat", reason="the notebooks' packages are not installed")
nbclient = pytest.importorskip("nbclient", reason="the notebooks' packages are not installed")

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def said(name: str, folder: Path) -> str:
    """What its programs print, run in an empty folder on a machine that reaches nobody."""
    book = read(name)
    nowhere = "http://127.0.0.1:9"
    settings = {"XDG_CACHE_HOME": str(folder), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    settings |= {"http_proxy": nowhere, "https_proxy": nowhere, "JUPYTER_RUNTIME_DIR": str(folder)}
    with mock.patch.dict(os.environ, settings):
        os.environ.pop("FEDADMM_DATA", None)
        work = folder / "work"
        work.mkdir()
        nbclient.NotebookClient(
            book, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(work)}}
        ).execute()
    outputs = (output for cell in book.cells for output in cell.get("outputs", []))
    return "".join(output.get("text", "") for output in outputs if output.get("name") == "stdout")


def faded_limit(rho: float, keep: float) -> float:
    """How far from the optimum fading duals end, from what must hold at rest.

    There rho (w_i - theta) = (1 - keep) y_i and the y_i add up to zero, so that with
    c = rho (2 - keep) / (1 - keep) each w_i is the prox of f_i / c at theta, and theta their mean.
    """
    problem = problems.load("quadratics", clients=10)
    c, unit = rho * (2 - keep) / (1 - keep), torch.eye(problem.num_parameters, dtype=torch.float64)
    back, shift = torch.zeros_like(unit), torch.zeros_like(unit[0])
    for client in problem.clients:
        assert isinstance(client, fa.Quadratic)
        inverse = torch.linalg.inv(client.hessian().double() + c * unit)
        back, shift = back + c * inverse / 10, shift + inverse @ client.offset().double() / 10
    assert problem.facts.optimum is not None
    return float((torch.linalg.solve(unit - back, shift) - problem.facts.optimum).norm())


def test_there_are_four() -> None:
    assert [name.partition("-")[2] for name in NOTEBOOKS] == [
        "first-comparison",
        "your-own-data",
        "write-an-algorithm",
        "four-hospitals",
    ]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_no_outputs_are_stored(name: str) -> None:
    book = read(name)
    nbformat.validate(book)
    programs = [cell for cell in book.cells if cell.cell_type == "code"]
    assert programs
    assert [cell.id for cell in programs if cell.outputs or cell.execution_count is not None] == []
    assert set(book.metadata) <= {"kernelspec", "language_info"}
    assert book.metadata.kernelspec.name == "python3"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_link_leads_to_a_notebook(name: str) -> None:
    text = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (FOLDER / target).exists(), target


@pytest.mark.release
def test_the_aligned_method_is_ahead_of_fedavg_at_the_same_upload(tmp_path: Path) -> None:
    text = said("1-first-comparison", tmp_path)
    found = dict(re.findall(r"^(\S.*?) +rounds to 90%: (\[.*?\])", text, re.M))
    sent = dict(re.findall(r"^(\S.*?) +rounds to .*: (\d+) kB", text, re.M))
    rounds = {label: [int(n) for n in re.findall(r"\d+", told)] for label, told in found.items()}
    assert rounds["FedADMM"] == []
    assert max(rounds["FedADMM, aligned"]) < min(rounds["FedAvg"])
    assert sent["FedADMM, aligned"] == sent["FedAvg"]
    assert int(sent["SCAFFOLD"]) == 2 * int(sent["FedAvg"])


def test_own_files_are_learnt_from(tmp_path: Path) -> None:
    text = said("2-your-own-data", tmp_path)
    assert "[120 120 120 120] to train on, 120 held out" in text
    shares = [int(share) for share in re.findall(r"^\w+ +(\d+)%$", text, re.M)]
    assert len(shares) == 4
    assert sum(shares) > 4 * 80
    assert (tmp_path / "work" / "model.pt").stat().st_size > 0


@pytest.mark.release
def test_own_method_is_fedadmm_and_the_faded_one_is_wrong(tmp_path: Path) -> None:
    text = said("3-write-an-algorithm", tmp_path)
    mine, ours, faded = (float(one) for one in re.findall(r"distance to .*: +([\d.e-]+)", text))
    assert mine < 1e-10
    assert ours < 1e-12
    assert faded == pytest.approx(faded_limit(rho=1.0, keep=0.9), rel=1e-6)
    source = "\n".join(cell.source for cell in read("3-write-an-algorithm").cells)
    method = source.partition("class Mine(fa.Algorithm):\n")[2].partition("`total` is")[0]
    assert len([line for line in method.splitlines() if line.strip()]) <= 20


@pytest.mark.release
def test_personalised_models_are_as_good_as_local_ones_and_a_project_is_written(
    tmp_path: Path,
) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed")
    text = said("4-four-hospitals", tmp_path)
    rows = re.findall(r"^(trained locally|shared model|personalised)((?: +\d+%){5})$", text, re.M)
    mean = {name: int(found.split()[-1].rstrip("%")) for name, found in rows}
    assert mean["personalised"] >= mean["trained locally"] - 1 > mean["shared model"] + 5
    assert "the same model as without the interruption: True" in text
    assert "sites/client-3/node-key" in text
