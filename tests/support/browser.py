"""A headless Chromium for the tests, driven by playwright; the browser is the machine's own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser as Chromium, ConsoleMessage, Page, sync_playwright

PATIENCE = 60_000.0
"""Milliseconds to wait for anything."""


def chromium() -> str | None:
    """The browser's path, or None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page at a time, and what it asked for and complained about."""

    def __init__(self, started: Chromium) -> None:
        self._started = started
        self.page: Page | None = None
        self.showing: tuple[Path | str, int, int, str] | None = None
        self._complaints: list[str] = []
        self._requests: list[str] = []

    def open(self, page: Path | str, width: int, height: int, scheme: Any = "light") -> None:
        """Open a file or an address in a new page and wait until it says that it is ready."""
        self.visit(page, width, height, scheme)
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def visit(self, page: Path | str, width: int, height: int, scheme: Any = "light") -> None:
        """Open a file or an address in a new page."""
        if self.page is not None:
            self.page.context.close()
        self.showing = (page, width, height, scheme)
        self._complaints, self._requests = [], []
        self.page = self._started.new_page(
            viewport={"width": width, "height": height}, color_scheme=scheme, is_mobile=width < 600
        )
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self._complaints.append(str(error)))
        self.page.on("request", lambda request: self._requests.append(request.url))
        self.page.goto(page if isinstance(page, str) else page.resolve().as_uri())

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._complaints.append(message.text)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression (promises are awaited)."""
        return self.page.evaluate(expression)

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript condition holds."""
        self.page.wait_for_function(condition)

    def screenshot(self, path: Path) -> None:
        """Save the whole page."""
        self.page.screenshot(path=path, full_page=True)

    def complaints(self) -> list[str]:
        """Everything that the page wrote to the console as an error or a warning, or threw."""
        self.evaluate("0")  # what came before the answer has been heard
        return self._complaints

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        return self._requests


@contextmanager
def running() -> Iterator[Browser]:
    """A browser with its own profile, gone with all its processes afterwards."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        try:
            yield Browser(started)
        finally:
            started.close()
