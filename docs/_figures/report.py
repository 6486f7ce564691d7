"""Photographs the head of a report for the README: `make figure` runs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

SIZE = (1280, 1290)
COLOURS = 160
"""Enough for lines and letters, and half of the bytes."""


def main(page: Path, picture: Path) -> None:
    """Write the picture, or say that there is no browser and leave the old one."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print(f"no chromium on this machine: {picture} stays as it is", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        taken = Path(folder, "page.png")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        flags += [f"--user-data-dir={folder}/profile", "--virtual-time-budget=5000"]
        flags += [f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={taken}"]
        subprocess.run(
            [browser, *flags, page.resolve().as_uri()],
            check=True,
            stderr=subprocess.DEVNULL,
            timeout=120,
        )
        Image.open(taken).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(
            picture, optimize=True
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
