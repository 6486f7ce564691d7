"""Every recipe runs end to end at its smallest scale, and results are found again."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedadmm.cli import app
from fedadmm.core.config_tree import to_config
from fedadmm.core.errors import ConfigError
from fedadmm.study import config, runner
from fedadmm.study.recipes import SCALES, identifiers, load, plan, study_of
from fedadmm.study.report import write_report
from fedadmm.study.reproduce import (
    at_an_edge,
    edges,
    measure,
    reduction,
    reproduce,
    side_by_side,
)
from fedadmm.study.run_dir import RecordedRun
from fedadmm.study.statistics import spread

PROMISED = {
    *("gong-table3", "gong-table4", "gong-table5", "gong-fig3", "gong-fig4", "gong-fig5"),
    *("gong-fig6", "gong-fig7", "gong-fig8", "gong-fig9", "gong-fig10"),
    *("gong-worlds", "gong-ladder"),
    *("wang-fig1", "wang-fig2", "wang-fig3", "insa-table", "insa-fig"),
    *(
        "incentives-fig",
        "feddr-fig2",
        "feddr-fig3",
        "feddr-fig4",
        "feddr-fig5",
        "feddr-fig6",
        "note-identity",
        "flamby-heart",
    ),
}

SMOKE = {"gong-fig10", "wang-fig1", "feddr-fig6", "insa-fig", "incentives-fig", "compression"}
"""One of each paper; the others are run before a release."""
RECIPES = [
    pytest.param(name, marks=() if name in SMOKE else pytest.mark.release) for name in identifiers()
]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduction")


def test_every_promised_id_has_a_recipe() -> None:
    assert set(identifiers()) >= PROMISED


@pytest.mark.parametrize("identifier", RECIPES)
def test_every_recipe_runs_at_smoke_scale(identifier: str, out: Path) -> None:
    study = plan(identifier, "smoke")
    result = reproduce(study, out / identifier).document
    assert not [row["name"] for row in result["table"] if row["missing"]]
    assert [row["name"] for row in result["table"]] == [cell.name for cell in study.cells]
    assert json.loads((out / identifier / "results.json").read_text()) == result
    page = (out / identifier / "report.html").read_text()
    for setting in {cell.setting for cell in study.cells}:
        report = f"reports/{setting}/report.html"
        assert (out / identifier / report).stat().st_size > 100_000
        assert f'href="{report}"' in page


@pytest.mark.parametrize("identifier", identifiers())
@pytest.mark.parametrize("scale", SCALES)
def test_every_configuration_is_complete_at_every_scale(identifier: str, scale: str) -> None:
    todo = plan(identifier, scale)
    for cell in todo.cells:
        assert cell.run.rounds >= 1


@pytest.mark.skipif(not os.environ.get("FEDADMM_DATA"), reason="FEDADMM_DATA is not set")
@pytest.mark.parametrize("identifier", RECIPES)
def test_data_and_model_of_every_setting_fit_at_quick_scale(identifier: str) -> None:
    runs = [cell.run for cell in plan(identifier, "quick").cells]
    for run in {json.dumps(run.tree["problem"]): run for run in runs}.values():
        assert run.load_problem().num_clients >= 1


def test_what_a_paper_prints_is_its_first_measure() -> None:
    row: dict[str, Any] = {"setting_title": "digits", "title": "FedADMM", "reading": "as printed"}
    row |= {"paper": 33.0, "paper_speedup": None, "seeds": 1, "diverged": 0, "rounds": 50}
    measured = {"rounds_to_target": 30.0, "best": 0.9}
    row |= {name: asdict(spread([value])) for name, value in measured.items()}
    assert side_by_side([row], "rounds_to_target") == (
        ["setting", "method", "paper", "as printed"],
        [["digits", "FedADMM", "33", "30"]],
    )
    assert side_by_side([row], "best", 1) == (
        ["setting", "method", "as printed"],
        [["digits", "FedADMM", "0.9"]],
    )


def test_table_three_holds_the_papers_numbers() -> None:
    # Gong et al., Table III, the column that the abstract's 87 % comes from: 8 against 61 rounds
    column = load("gong-table3").paper["mnist-1000-iid"]
    assert column["FedADMM"] == 8
    assert 1 - 8 / column["FedAvg"] == pytest.approx(0.869, abs=5e-4)
    cells = study_of(load("gong-table3"), "full").cells
    named = {cell.name: cell.about["paper"] for cell in cells}
    assert named["mnist-100-shards/fedadmm-printed"] == 33
    assert named["mnist-100-shards/fedprox"] == "100+"


def test_readings_differ_in_what_the_programs_do_differently() -> None:
    found = {cell.name: cell.run for cell in study_of(load("gong-table3"), "full").cells}
    printed = found["mnist-1000-shards/fedadmm-printed"]
    released = found["mnist-1000-shards/fedadmm-released"]
    assert (printed.local.stop.epochs, printed.local.solver.batch_size) == (20, 10)
    assert (printed.local.start, released.local.start) == ("own", "global")
    assert (printed.algorithm.name, released.algorithm.name) == ("fedadmm", "fedadmm-released")
    assert (printed.problem.as_released, released.problem.as_released) == (None, "gong")
    assert (printed.local.solver.momentum, released.local.solver.momentum) == (0.0, 0.5)


def test_the_recipes_start_where_their_paper_or_program_does() -> None:
    """Gong prints the own model; InSa's program starts all methods of its table at theta."""
    for identifier in ("gong-table3", "gong-fig9", "feddr-fig3"):
        for cell in study_of(load(identifier), "quick").cells:
            if cell.about["reading"] == "as printed":
                assert cell.run.local.start == "own", cell.name
    for identifier in ("insa-table", "insa-fig"):
        starts = {cell.run.local.start for cell in study_of(load(identifier), "full").cells}
        assert starts == {"global"}


def test_every_released_row_of_gong_has_his_network_at_every_scale() -> None:
    """In gong-worlds and gong-ladder every row has the network of its setting's world."""
    for identifier in [name for name in identifiers() if name.startswith("gong-")]:
        for scale in ("quick", "full"):
            for cell in study_of(load(identifier), scale).cells:
                released = cell.about["reading"] == "as released"
                if identifier in ("gong-worlds", "gong-ladder"):
                    released = cell.setting.startswith("released")
                assert (cell.run.problem.as_released == "gong") == released, cell.name


def test_figure_five_of_feddr_as_released_evaluates_the_clients_models() -> None:
    for cell in study_of(load("feddr-fig5"), "quick").cells:
        local = cell.run.evaluate.target == "local"
        assert local == (cell.about["reading"] == "as released"), cell.name


def test_wangs_recipes_have_the_rounds_and_users_of_his_script() -> None:
    cells = study_of(load("wang-fig3"), "full").cells
    assert {cell.run.sampler.size for cell in cells} == {5, 10, 15, 20, 25, 30}
    assert {(cell.run.problem.clients, cell.run.rounds) for cell in cells} == {(30, 200)}
    (released,) = [
        cell.run
        for cell in study_of(load("wang-fig2"), "full").cells
        if cell.name == "synthetic-1-1/fedadmm-released"
    ]
    assert released.algorithm.name == "fedadmm-wang-released"
    assert released.local.start == "current"
    assert released.problem.as_released == "wang"


def test_fedpd_and_feddyn_coincide(out: Path) -> None:
    found = reproduce(plan("note-identity", "smoke"), out / "note-identity")
    distances = {row["name"]: row["distance"]["mean"] for row in found.document["table"]}
    assert 0 <= distances["quadratics/feddyn"] < 1e-12
    assert 0 <= distances["quadratics/fedadmm"] < 1e-12


def test_finished_cells_are_not_run_again(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = out / "note-identity"
    first = reproduce(plan("note-identity", "smoke"), folder)
    started: list[str] = []
    real = runner.run_planned

    def counted(jobs, *rest):  # type: ignore[no-untyped-def]
        started.extend(job.label for job in jobs)
        return real(jobs, *rest)

    monkeypatch.setattr(runner, "run_planned", counted)
    second = reproduce(plan("note-identity", "smoke"), folder)
    assert started == []
    assert repr(second) == repr(first)  # NaN equals itself there


def test_partial_tables_say_what_is_missing(tmp_path: Path) -> None:
    todo = plan("note-identity", "smoke", patterns=["*/fedpd"])
    reproduce(todo, tmp_path)
    drawn = reproduce(plan("note-identity", "smoke"), tmp_path, only_cached=True)
    missing = {row["name"]: row["missing"] for row in drawn.document["table"]}
    assert missing == {"quadratics/fedpd": [], "quadratics/feddyn": [0], "quadratics/fedadmm": [0]}
    assert "not run" in (tmp_path / "results.md").read_text()


def test_the_search_is_on_a_seed_that_is_not_reported() -> None:
    for identifier in identifiers():
        search = load(identifier).search
        if search is not None:
            assert not {*search.seeds} & {*plan(identifier, "full").seeds}
            assert len(search.seeds) >= 3


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean gong-table3"):
        plan("gong-tabel3", "smoke")
    with pytest.raises(ConfigError, match="matches none of"):
        plan("note-identity", "smoke", patterns=["nothing/*"])


def test_the_command_prints_one_document(out: Path) -> None:
    arguments = ["reproduce", "note-identity", "--scale", "smoke", "--json"]
    answer = CliRunner().invoke(app, [*arguments, "--out", str(out / "note-identity")])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["id"] == "note-identity"
    listing = CliRunner().invoke(app, ["reproduce", "--json"])
    assert len(json.loads(listing.stdout)["recipes"]) == len(identifiers())
    wrong = CliRunner().invoke(app, ["reproduce", "note-identity", "--scale", "huge"])
    assert wrong.exit_code == 2


def test_a_setting_may_have_a_metric_of_its_own() -> None:
    cells = plan("insa-table", "full").cells
    metrics = {cell.setting: cell.about["metric"] for cell in cells}
    assert metrics["mnist-b1"] == "test_accuracy"
    assert metrics["regression-b1"] == "loss"


def test_without_a_search_everybody_keeps_the_recipes_learning_rate() -> None:
    todo = plan("gong-table3", "full", searching=False)
    assert todo.search is None
    rates = {c.run.local.solver.lr for c in todo.cells if not c.name.endswith("/fedsgd")}
    assert rates == {load("gong-table3").base["local"]["solver"]["lr"]}


def _outcome(rounds: int | None) -> RecordedRun:
    tally = {"rounds_to_target": rounds}
    return RecordedRun(Path(), "a", "a", "a", 0, [], {"code": "completed"}, {}, tally)


def test_the_speedup_needs_both_to_have_met_the_target() -> None:
    def speedup(own: int | None, reference: RecordedRun | None) -> float | None:
        return measure("speedup", "test_accuracy", _outcome(own), reference)

    assert speedup(10, _outcome(297)) == pytest.approx(29.7)
    assert speedup(None, _outcome(297)) is None
    assert speedup(10, _outcome(None)) is None
    assert speedup(10, None) is None


def test_a_reduction_in_words() -> None:
    found = {"setting_title": "digits", "title": "FedADMM", "reading": "as printed"}
    row = found | {"rounds_to_target": {"mean": 20.0}, "ratio": 0.4}
    best = {"label": "FedAvg", "rounds_to_target": {"mean": 50.0}}
    assert "60% fewer than the best other method, FedAvg (50)" in reduction(row, best)
    assert "50% more than" in reduction(row | {"ratio": 1.5}, best)
    assert "20 rounds, as many as the best other method" in reduction(row | {"ratio": 1.0}, best)


def _tried(place: str, value: dict[str, float]) -> dict[str, Any]:
    return {"label": "x/new y/new", "place": f"{place}/new", "value": value}


def test_a_choice_at_an_end_of_what_was_tried_is_named() -> None:
    tried = [_tried("x", {"solver.lr": 0.1, "algorithm.rho": rho}) for rho in (1.0, 0.1, 0.3)]
    tried += [_tried("y", one["value"]) for one in tried]

    def chosen(rho: float) -> list[Any]:
        value = {"solver.lr": 0.1, "algorithm.rho": rho}
        return edges(tried, {"x/new y/new": {"value": value}})

    about = {"row": "new", "places": ["x", "y"], "key": "algorithm.rho"}
    assert chosen(0.3) == []
    assert chosen(1.0) == [about | {"value": 1.0, "end": "largest"}]
    assert chosen(0.1) == [about | {"value": 0.1, "end": "smallest"}]
    assert edges(tried, {}) == []
    table = at_an_edge(chosen(1.0))
    assert table.lines == [["new", "x, y", "algorithm.rho", "1", "largest"]]


def test_a_recipe_of_ones_own_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(config.write(to_config(load("note-identity"))))
    todo = plan(str(path), "smoke", patterns=["*/fedpd"])
    assert todo.about["id"] == "mine"
    (row,) = reproduce(todo, tmp_path / "out").document["table"]
    assert set(row["by_seed"]["distance"]) == {"0"}
    path.write_text("title = ")
    with pytest.raises(ConfigError, match=r"mine\.toml: is not TOML"):
        load(str(path))
    path.write_text("title = 'none'")
    with pytest.raises(ConfigError, match=r"mine\.toml: source: got nothing, expected text"):
        load(str(path))


def test_the_report_of_a_reproduction_is_drawn_again_from_its_folder(out: Path) -> None:
    folder = out / "note-identity"
    reproduce(plan("note-identity", "smoke"), folder)
    pages = [folder / "report.html", folder / "reports/quadratics/report.html"]
    before = [page.read_text() for page in pages]
    for page in pages:
        page.unlink()
    assert write_report(folder) == pages[0]
    assert [page.read_text() for page in pages] == before
