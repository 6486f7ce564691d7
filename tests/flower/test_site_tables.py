"""Tables of sites: what each reports of its columns, and a project whose sites have tables."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from typer.testing import CliRunner

from fedadmm.cli import app
from fedadmm.core.errors import DataError
from fedadmm.data.problems.recorded import TableOptions
from fedadmm.flower.configured import Deployment, apps, federation, table_sites
from fedadmm.flower.site.table import TablePreparation, read_table, site_statistics
from fedadmm.study import config as configs
from fedadmm.study.config import resolve
from fedadmm.study.predict import Predictor
from fedadmm.study.run_dir import RunDir

from .harness import FakeGrid, Node

pytestmark = pytest.mark.usefixtures("quick")
TABLES = {
    "north": "age,smoker,score,sick\n50,yes,1.5,no\n60,no,,yes\n40,yes,0.5,no\n55,?,2,yes\n",
    "south": "age,smoker,score,sick\n70,never,3,yes\n30,yes,1,no\n45,no,0,no\n",
}
ALL = TableOptions(target="sick", preparation="from-sums", test_fraction=0.0)


def written_tables(folder):
    paths = []
    for name, text in TABLES.items():
        paths.append(folder / f"{name}.csv")
        paths[-1].write_text(text)
    return paths


def joined(paths, options=ALL):
    """What the sites report, as it travels."""
    reported = {path.stem: site_statistics(path, options) for path in paths}
    return TablePreparation.join(json.loads(json.dumps(reported)))


def test_statistics_of_sites_give_the_columns_of_all_samples_together(tmp_path):
    """Means, deviations and categories by hand."""
    paths = written_tables(tmp_path)
    joint = joined(paths)
    age, smoker, score = joint.columns
    ages, scores = np.array([50, 60, 40, 55, 70, 30, 45.0]), np.array([1.5, 0.5, 2, 3, 1, 0])
    assert (age.mean, age.deviation) == pytest.approx((ages.mean(), ages.std()))
    assert (score.mean, score.deviation) == pytest.approx((scores.mean(), scores.std()))
    assert smoker.categories == ("never", "no", "yes")
    assert (joint.inputs, joint.labels, joint.samples) == (5, ["no", "yes"], [4, 3])
    joint.write(tmp_path / "preparation.json")
    assert TablePreparation.read(tmp_path / "preparation.json") == joint
    own = joint.load(paths[0], ALL).train
    wanted = [(60 - ages.mean()) / ages.std(), 0, 1, 0, 0]  # its score is missing
    assert own.inputs[1].tolist() == pytest.approx(wanted, abs=1e-6)
    assert own.targets.tolist() == [0, 1, 0, 1]


def test_the_target_of_a_regression_is_standardised_over_all_sites(tmp_path):
    options = TableOptions(
        target="age", kind="numbers", preparation="from-sums", test_fraction=0.0, model="linear"
    )
    paths = written_tables(tmp_path)
    joint = joined(paths, options)
    ages = np.array([50, 60, 40, 55, 70, 30, 45.0])
    own = joint.load(paths[1], options).train
    assert own.targets.tolist() == pytest.approx(((ages - ages.mean()) / ages.std())[4:].tolist())
    assert joint.labels == []


def test_held_out_samples_of_a_site_change_nothing_that_it_reports(tmp_path):
    options = TableOptions(target="sick", preparation="from-sums", test_fraction=0.5)
    path = written_tables(tmp_path)[0]
    table, reported = read_table(path, options), site_statistics(path, options)
    assert sorted([*table.train, *table.test]) == [0, 1, 2, 3]
    lines = TABLES["north"].splitlines()
    for row in table.test:
        lines[1 + row] = f"999,maybe,77,{lines[1 + row].rpartition(',')[2]}"
    path.write_text("\n".join(lines))
    assert site_statistics(path, options) == reported


@pytest.mark.parametrize("what", ["a column of text and numbers", "another column", "a new class"])
def test_tables_that_do_not_fit_each_other_are_refused(what, tmp_path):
    paths, text = written_tables(tmp_path), TABLES["south"]
    joint = joined(paths)
    changed = {
        "a column of text and numbers": re.sub(r"(never|yes|no),(?=[\d.])", "7,", text),
        "another column": text.replace("age,", "years,"),
        "a new class": text.replace("yes\n", "perhaps\n"),
    }
    paths[1].write_text(changed[what])
    with pytest.raises(DataError):
        joint.load(paths[1], ALL) if what == "a new class" else joined(paths)


def test_a_project_of_tables_trains_and_predicts_from_raw_columns(tmp_path):
    """The two apps of the project over the harness, each site with its own file only."""
    generator, paths = np.random.default_rng(0), []
    for site in range(3):
        age, smoker = generator.normal(50, 10, 60), generator.choice(["yes", "no"], 60)
        sick = (age + 20 * (smoker == "yes") > 62).astype(int)
        rows = [f"{a:.1f},{s},{t}" for a, s, t in zip(age, smoker, sick, strict=True)]
        paths.append(tmp_path / f"site{site}.csv")
        paths[-1].write_text("\n".join(["age,smoker,sick", *rows]) + "\n")
    words = ["--csv", *map(str, paths), "--target", "sick", "--rounds", "8", "--json"]
    done = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "p"), *words])
    assert done.exit_code == 0, done.output
    folder = tmp_path / "p" / "app" / "federation"
    assert "site0" not in (folder / "config.toml").read_text()
    made, config = apps(folder), resolve(configs.read(str(folder / "config.toml")))
    joint = TablePreparation.read(folder / "preparation.json")
    settings = federation(config, Deployment(3), apart=table_sites(config.problem, joint))
    grid = FakeGrid(settings, tmp_path)
    grid._app, usual = made.client, grid.context

    def context(client):
        given = usual(client)
        given.node_config["data"] = str(paths[client])
        return given

    grid.context = context
    grid.get_nodes = lambda: [Node(1000 + c, f"client-{c}") for c in range(3)]
    run = tmp_path / "run"
    made.server(grid, Context(7, 0, {}, RecordDict(), {"run-dir": str(run)}))
    assert RunDir(run).summary()["code"] == "completed"
    new = tmp_path / "new.csv"
    new.write_text("age,smoker\n90,yes\n20,no\n")
    assert Predictor(run).predict(new).tolist() == ["1", "0"]
    shown = CliRunner().invoke(app, ["predict", str(run), str(new)])
    assert shown.exit_code == 0, shown.output
    model = tmp_path / "model.safetensors"
    words = ["--format", "safetensors", "--out", str(model)]
    done = CliRunner().invoke(app, ["export", str(run), *words])
    assert done.exit_code == 0, done.output
    assert Predictor(model).predict(new).tolist() == ["1", "0"]
