"""Write figures of the pages as small SVG files."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from fedadmm.study.report.drawing import SETTINGS


def write(draw: Callable[[], Figure], path: Path, description: str | None = None) -> None:
    """Draw in the style of the reports, with coordinates rounded to two decimals of a pixel."""
    text = io.StringIO()
    fonts = {"font.sans-serif": ["DejaVu Sans"]}  # every text repeats the list
    with matplotlib.rc_context({**SETTINGS, **fonts}):
        draw().savefig(text, format="svg", metadata={"Date": None, "Description": description})
    mark = f">{description}<"  # its numbers stay as they are
    parts = [re.sub(r"(\.\d\d)\d+\b", r"\1", part) for part in text.getvalue().split(mark)]
    short = re.sub(r' transform="rotate\(-0 [^"]*"', "", mark.join(parts))
    path.write_text(short, encoding="utf-8")
