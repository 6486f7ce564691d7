"""The live page: it grows with the run, keeps what its reader chose, and is nobody else's."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from fedadmm.cli import report
from fedadmm.core.errors import ConfigError, DataError
from fedadmm.study.config import resolve
from fedadmm.study.report.live import LivePage, Loopback
from fedadmm.study.run_dir import RunDir
from fedadmm.study.single_run import run
from support.browser import Browser
from support.commands import SMALL, call

POINTS = "document.querySelector('#learning .plot').data.at(-1).y.length"


def get(server: Loopback, path: str) -> bytes:
    with urlopen(server.address + path, timeout=20) as answer:
        body: bytes = answer.read()
    return body


def grow(folder: RunDir) -> int:
    """One more round, as the last one was."""
    last = folder.records()[-1]
    folder.append(last | {"round": last["round"] + 1})
    return last["round"] + 1


def test_it_grows_in_a_browser_without_forgetting_what_was_chosen(
    browser: Browser, tmp_path: Path, artifacts: Path
) -> None:
    run(resolve(SMALL), tmp_path)
    folder = RunDir(tmp_path)
    folder.close(folder.summary() | {"code": "running", "status": "running"})
    with LivePage(tmp_path).serve() as server:
        browser.open(server.address, 1280, 900)
        assert browser.evaluate(POINTS) == 4
        assert "4 rounds so far" in browser.evaluate("document.querySelector('.lead').innerText")
        browser.wait("document.documentElement?.dataset.live === 'yes'")
        browser.evaluate("window.mine = 1")
        browser.evaluate("document.querySelector('#learning input[value=bytes]').click()")
        browser.evaluate("document.getElementById('theme').click()")
        number = grow(folder)
        browser.wait(f"document.querySelector('#learning .plot').data && {POINTS} === {number}")
        chosen = "document.querySelector('#learning .switch input:checked').value"
        assert browser.evaluate(chosen) == "bytes"
        title = "document.querySelector('#learning .plot').layout.xaxis.title.text"
        assert "communication" in browser.evaluate(title)
        assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
        assert browser.evaluate("window.mine") == 1, "the page was loaded again"
        assert "5 rounds so far" in browser.evaluate("document.querySelector('.lead').innerText")
        folder.close(folder.summary() | {"code": "completed", "status": "completed all 5 rounds"})
        lead = "document.querySelector('.lead').innerText"
        browser.wait(f"{lead}.includes('completed all 5 rounds')")
        browser.screenshot(artifacts / "live-desktop.png")
        assert browser.complaints() == []
        assert all(url.startswith((server.address, "data:")) for url in browser.requests())
    browser.wait("document.documentElement.dataset.live === 'no'")


def test_a_page_that_waits_for_the_first_round_shows_it(browser: Browser, tmp_path: Path) -> None:
    with LivePage(tmp_path).serve() as server:
        assert b"waits for the first round" in get(server, "")
        browser.visit(server.address, 1280, 900)
        browser.wait("document.documentElement?.dataset.live === 'yes'")
        run(resolve(SMALL | {"rounds": 1}), tmp_path)
        browser.wait("document.documentElement?.dataset.ready === 'yes'")


def test_only_pages_of_this_machine_may_ask_and_other_paths_are_nothing(tmp_path: Path) -> None:
    run(resolve(SMALL | {"rounds": 1}), tmp_path)
    with LivePage(tmp_path).serve() as server:
        before = get(server, "version")
        assert get(server, "version") == before
        grow(RunDir(tmp_path))
        assert get(server, "version") != before
        port = int(server.address.rstrip("/").rpartition(":")[2])
        for host, path, code in (
            (f"localhost:{port}", "/version", 200),
            ("evil.example", "/", 403),
            (f"127.0.0.1:{port}", "/../config.toml", 404),
        ):
            asked = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            asked.request("GET", path, headers={"Host": host})
            assert asked.getresponse().status == code
            asked.close()
        with pytest.raises(ConfigError, match=rf"--port: got {port}\b"):
            LivePage(tmp_path).serve(port)
    with pytest.raises(DataError, match=r"^directory: got .*nowhere"):
        LivePage(tmp_path / "nowhere")


def test_the_command_ends_in_peace_with_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(resolve(SMALL | {"rounds": 1}), tmp_path)
    seen: list[str] = []
    real = LivePage.serve

    def remembered(page: LivePage, port: int = 0) -> Loopback:
        server = real(page, port)
        seen.append(server.address)
        return server

    def press() -> None:
        assert b"plotly.js" in urlopen(seen[0], timeout=20).read()
        raise KeyboardInterrupt

    monkeypatch.setattr(LivePage, "serve", remembered)
    monkeypatch.setattr(report, "_wait", press)
    told = call("watch", tmp_path, "--json")
    assert told.exit_code == 0, told.stderr
    assert json.loads(told.stdout) == {"address": seen[0]}
    with pytest.raises(URLError):
        urlopen(seen[0], timeout=5)
