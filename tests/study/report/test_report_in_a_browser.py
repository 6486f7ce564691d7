"""The report as people see it: opened in a real browser from a file, with nothing else there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedadmm.study.report import write_report
from support.browser import Browser

SIZES = {"desktop": (1280, 900), "phone": (400, 844)}
PLOTS = "[...document.querySelectorAll('.plot')]"


@pytest.fixture(scope="module")
def page(comparison: Path) -> Path:
    return write_report(comparison)


@pytest.fixture
def desktop(browser: Browser, page: Path) -> Browser:
    """The page on a desktop, for tests that put back what they change."""
    if browser.showing != (page, *SIZES["desktop"], "light"):
        browser.open(page, *SIZES["desktop"], "light")
    return browser


def traces(browser: Browser) -> dict[str, list[list[object]]]:
    """Plot id -> (label, visible, number of points) of every trace."""
    found = browser.evaluate(
        f"JSON.stringify(Object.fromEntries({PLOTS}.map((p) => [p.id, p.data.map((t) => "
        "[t.meta ?? null, t.visible ?? true, (t.y ?? t.z).length])])))"
    )
    result: dict[str, list[list[object]]] = json.loads(found)
    return result


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_everything_is_drawn_and_nothing_is_fetched(
    browser: Browser, page: Path, artifacts: Path, size: str, scheme: str
) -> None:
    browser.open(page, *SIZES[size], scheme)
    plots = traces(browser)
    assert len(plots) >= 10
    for name, drawn in plots.items():
        assert drawn, f"{name} is empty"
        assert all(points for _, _, points in drawn), f"{name} has a trace without points"
    # What plotly holds must also be on the screen: a path, a bar or an image in every plot.
    marks = ".scatterlayer .trace, .barlayer .point, .heatmaplayer image"
    assert browser.evaluate(f"{PLOTS}.every((p) => p.querySelector('{marks}') !== null)")
    assert browser.evaluate("document.documentElement.dataset.theme") == scheme
    width = browser.evaluate("document.documentElement.scrollWidth")
    assert width == SIZES[size][0], "the page must not scroll sideways"
    browser.screenshot(artifacts / f"report-{size}-{scheme}.png")
    assert browser.complaints() == []
    outside = [url for url in browser.requests() if not url.startswith("data:")]
    assert outside == [page.resolve().as_uri()]


def test_lines_are_inside_their_panels(browser: Browser, page: Path) -> None:
    """A figure that is wider than its card, or cut off, shows as a box that sticks out."""
    browser.open(page, *SIZES["phone"])
    stick_out = browser.evaluate(
        f"{PLOTS}.filter((p) => p.querySelector('.main-svg').getBoundingClientRect().right > "
        "p.parentElement.getBoundingClientRect().right + 1).map((p) => p.id)"
    )
    assert stick_out == []


def test_a_phone_shows_the_whole_legend_and_says_where_a_table_goes_on(
    browser: Browser, page: Path
) -> None:
    browser.open(page, *SIZES["phone"])
    boxes = browser.evaluate(
        "[...document.querySelectorAll('.method')].map((b) => b.getBoundingClientRect())"
        ".map((r) => [r.left, r.right, r.width])"
    )
    assert len(boxes) == 7
    assert all(left >= 0 and right <= SIZES["phone"][0] and w > 40 for left, right, w in boxes)
    hints = browser.evaluate(
        "[...document.querySelectorAll('.scroll')].filter((r) => r.clientWidth).map((r) => "
        "[r.scrollWidth > r.clientWidth + 1, r.previousElementSibling.checkVisibility()])"
    )
    assert [True, True] in hints
    assert all(wider == told for wider, told in hints)
    browser.evaluate("document.querySelector('#results table').replaceChildren()")
    browser.wait("!document.querySelector('#results .more').checkVisibility()")


def test_two_settings_of_one_method_differ_in_colour_and_in_marker(desktop: Browser) -> None:
    drawn = desktop.evaluate(
        f"{PLOTS}[0].data.filter((t) => t.mode === 'markers').map((t) => "
        "[t.meta, t.marker.color, t.marker.symbol, t.x.length])"
    )
    looks = {label: (colour, symbol) for label, colour, symbol, _ in drawn}
    assert len(looks) == 7
    for parts in zip(*looks.values(), strict=True):
        assert len(set(parts)) == 7, "every method has its own colour and its own marker"
    assert all(0 < shown <= 9 for *_, shown in drawn)
    samples = desktop.evaluate(
        "[...document.querySelectorAll('.method path')].map((p) => p.getAttribute('d'))"
    )
    assert len(set(samples)) == 7


def test_legend_hides_isolates_and_brings_back(desktop: Browser) -> None:
    browser = desktop

    def shown() -> set[object]:
        return {t[0] for drawn in traces(browser).values() for t in drawn if t[0] and t[1]}

    everybody = shown()
    button = "document.querySelector('.method[data-label=\"fedavg\"]')"
    browser.evaluate(f"{button}.click()")
    browser.wait(f"{button}.getAttribute('aria-pressed') === 'false'")
    assert shown() == everybody - {"fedavg"}
    assert not browser.evaluate("document.getElementById('everything').hidden")
    browser.evaluate(f"{button}.dispatchEvent(new MouseEvent('dblclick'))")
    assert shown() == {"fedavg"}
    browser.evaluate("document.getElementById('everything').click()")
    assert shown() == everybody
    assert browser.evaluate("document.getElementById('everything').hidden")
    assert browser.complaints() == []


def test_theme_switch_recolours_the_figures(desktop: Browser) -> None:
    browser = desktop
    state = (
        "[document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor,"
        f" {PLOTS}[0].data.at(-1).line.color, {PLOTS}[0].layout.font.color]"
    )
    light = browser.evaluate(state)
    browser.evaluate("document.getElementById('theme').click()")
    dark = browser.evaluate(state)
    assert [light[0], dark[0]] == ["light", "dark"]
    assert all(before != after for before, after in zip(light, dark, strict=True))
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate(state) == light


def test_axis_switch_shows_rounds_bytes_and_time(desktop: Browser, artifacts: Path) -> None:
    browser = desktop
    plot = "document.getElementById('plot-learning-0')"
    seen = {}
    for name in ("rounds", "bytes", "time"):
        browser.evaluate(f"document.querySelector('.switch input[value={name}]').click()")
        seen[name] = browser.evaluate(
            f"[{plot}.layout.xaxis.title.text, {plot}.data.at(-1).x.at(-1)]"
        )
    assert seen["rounds"][0] == "rounds"
    assert "communication" in seen["bytes"][0]
    assert "training time" in seen["time"][0]
    assert len({last for _, last in seen.values()}) == 3
    browser.screenshot(artifacts / "report-against-time.png")
    assert browser.complaints() == []


def test_names_from_files_are_text_and_never_markup(
    browser: Browser, comparison: Path, tmp_path: Path
) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'//"
    run = tmp_path / "run"
    shutil.copytree(next((comparison / "runs").glob("fedadmm-seed0")), run)
    summary = json.loads((run / "summary.json").read_text())
    summary |= {"label": evil, "status": evil, "code": evil, "created": evil}
    (run / "summary.json").write_text(json.dumps(summary))
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps(one | {"metrics": {**one["metrics"], evil: 1.0}}) for one in records]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (run / "config.toml").write_text(f"note = {json.dumps(evil)}\n")
    (run / "partition.json").write_text(json.dumps({"labels": [evil], "counts": [[1], [2]]}))
    browser.open(write_report(run), *SIZES["desktop"])
    assert "owned" not in browser.evaluate("document.title").replace(evil, "")
    assert browser.evaluate("document.querySelectorAll('img, script').length") == 3
    assert evil in browser.evaluate("document.querySelector('h1').textContent")
    assert browser.complaints() == []


def test_a_single_run_has_figures_too(browser: Browser, comparison: Path, artifacts: Path) -> None:
    browser.open(write_report(comparison / "runs/fedadmm-insa-seed0"), *SIZES["desktop"])
    assert all(drawn for drawn in traces(browser).values())
    browser.screenshot(artifacts / "report-single-run.png")
    assert browser.complaints() == []
