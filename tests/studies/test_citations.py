"""Presets and studies use the settings of the papers that they cite."""

from pathlib import Path

import numpy as np
import pytest

from fedadmm.study.config import read
from fedadmm.study.recipes import load, study_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "recipe", "setting"),
    [
        ("femnist-20-writers", "wang-fig1", "accuracy"),
        ("synthetic-1-1", "wang-fig2", "synthetic-1-1"),
    ],
)
def test_presets_of_wang_use_batches_steps_and_users_of_the_paper(name, recipe, setting) -> None:
    ours = read(name)
    cells = study_of(load(recipe), "full").cells
    theirs = next(cell.run for cell in cells if cell.name == f"{setting}/fedadmm")
    solver, stop = theirs.local.solver, theirs.local.stop
    assert (solver.batch_size, stop.steps) == (2, 300)
    assert ours["local"]["solver"]["batch_size"] == solver.batch_size
    assert ours["local"]["stop"]["steps"] == stop.steps
    assert ours["sampler"]["size"] == theirs.sampler.size
    assert ours["rounds"] == theirs.rounds


def test_feddr_as_printed_starts_with_an_offset_that_never_leaves() -> None:
    """Its server begins with x0, not with the mean of the 2 x_i - y_i that it then tracks."""
    curvature, centre = np.array([1.0, 3.0, 0.5]), np.array([4.0, -2.0, 7.0])
    optimum = curvature @ centre / curvature.sum()
    eta, alpha, start = 0.7, 1.0, 1.0

    def limit(holds_the_mean: bool) -> float:
        y = np.full(3, start)
        x = (y + eta * curvature * centre) / (1 + eta * curvature)
        reflected = 2 * x - y
        server = reflected.mean() if holds_the_mean else start
        for _ in range(4000):
            y = y + alpha * (server - x)
            x = (y + eta * curvature * centre) / (1 + eta * curvature)
            server += (2 * x - y - reflected).mean()
            reflected = 2 * x - y
        return server

    assert limit(True) == pytest.approx(optimum, abs=1e-9)
    assert abs(limit(False) - optimum) > 0.1
