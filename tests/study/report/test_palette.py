"""Colours that everybody can tell apart, on both pages."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from fedadmm.algorithms import REGISTRY
from fedadmm.study.report import drawing, page
from fedadmm.study.report.figures import MARKERS, SHAPES, SPARE, STYLES, styles

CARDS = {"light": "#ffffff", "dark": "#191d24"}
# Machado, Oliveira, Fernandes (2009), severity 1, on linear RGB.
DEFICIENCIES = {
    "none": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
NOTICEABLE = 10.0
"""A CIE76 difference that two lines on one page need; about four times the just noticeable."""


def linear(colour: str) -> NDArray[np.float64]:
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(colour: NDArray[np.float64]) -> NDArray[np.float64]:
    ratio = XYZ @ np.clip(colour, 0, 1) / (XYZ @ np.ones(3))
    cubic = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    x, y, z = cubic
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    high, low = sorted((float(XYZ[1] @ linear(c)) for c in (one, other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_formula_on_black_and_white() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)


def test_every_registered_algorithm_has_a_colour_of_its_own() -> None:
    found = styles({name: name for name in REGISTRY})
    assert len({style.light for style in found.values()}) == len(REGISTRY)


@pytest.mark.parametrize("theme", CARDS)
def test_lines_stand_out_from_the_page(theme: str) -> None:
    for style in [*STYLES.values(), *SPARE]:
        assert contrast(getattr(style, theme), CARDS[theme]) >= 3.0, style


@pytest.mark.parametrize("theme", CARDS)
@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_methods_differ_in_colour_or_in_dashes(deficiency: str, theme: str) -> None:
    matrix = DEFICIENCIES[deficiency]
    everybody = STYLES | {f"spare {index}": style for index, style in enumerate(SPARE)}
    for (name, one), (other, two) in itertools.combinations(everybody.items(), 2):
        ends = [lab(matrix @ linear(getattr(style, theme))) for style in (one, two)]
        distance = float(np.linalg.norm(ends[0] - ends[1]))
        assert distance >= NOTICEABLE or one.dash != two.dash, (name, other, distance)


@pytest.mark.parametrize("theme", CARDS)
def test_methods_that_are_often_compared_differ_in_colour_alone(theme: str) -> None:
    names = ["fedavg", "fedprox", "scaffold", "feddyn", "fedadmm", "aligned-admm", "feddr"]
    for one, other in itertools.combinations(names, 2):
        ends = [lab(linear(getattr(STYLES[name], theme))) for name in (one, other)]
        assert np.linalg.norm(ends[0] - ends[1]) >= 1.5 * NOTICEABLE, (one, other)


def test_labels_of_one_algorithm_have_colours_of_their_own() -> None:
    found = styles({"rho 0.1": "fedadmm", "rho 1": "fedadmm", "mine": "fedmine", "x": "fedx"})
    assert found["rho 0.1"].light == STYLES["fedadmm"].light
    assert len({style.light for style in found.values()}) == len(found)
    assert len({style.marker for style in found.values()}) == len(found)


def test_every_marker_can_be_drawn_on_the_page_and_in_a_file() -> None:
    found = styles({str(i): "fedadmm" for i in range(len(MARKERS))})
    assert {style.marker for style in found.values()} == set(MARKERS)
    assert set(page.SHAPES) == set(drawing.MARKERS) == set(SHAPES)
    assert len(set(page.SHAPES.values())) == len(set(drawing.MARKERS.values())) == len(SHAPES)


def test_many_labels_differ_in_colour_or_in_dashes() -> None:
    found = styles({str(i): "fedadmm" for i in range(4 * len(SPARE))})
    assert len({(style.light, style.dash) for style in found.values()}) == len(found)
