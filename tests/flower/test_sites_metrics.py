"""What sites measure stands in its own place, and no single site ends or bends a run by it."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import fedadmm as fa
from fedadmm.core.errors import ConfigError, ParameterError
from fedadmm.flower.deploy.local_federation import look
from fedadmm.flower.federation import Patience
from fedadmm.flower.protocol import wire
from fedadmm.flower.server.run_recorder import RunRecorder
from fedadmm.flower.server.server_app import serve
from fedadmm.flower.server.site_evaluation import SiteMetrics, outlying_metrics
from fedadmm.run.record import flat
from fedadmm.study.export import export, export_model
from fedadmm.study.report.live import LivePage
from fedadmm.study.run_dir import RunDir

from .harness import DIMENSION, FakeGrid, federation, objectives, run_through

pytestmark = pytest.mark.usefixtures("quick")


class Talkative(FakeGrid):
    """`lies` are what some clients say they measured."""

    lies: dict = {}  # noqa: RUF012

    def _deliver(self, message):
        reply = super()._deliver(message)
        client = message.metadata.dst_node_id - 1000
        if reply is not None and message.metadata.message_type == "evaluate":
            said = wire.read_metrics(reply.content) | self.lies.get(client, {})
            reply.content = wire.write_metrics(said)
        return reply


def play(tmp_path, lies, rounds=8, **changes):
    settings = federation(fa.FedADMM(rho=1.0), rounds=rounds, evaluate_every=1, **changes)
    grid = Talkative(settings, tmp_path)
    grid.lies = lies
    return run_through(settings, grid, tmp_path)


def test_the_mean_is_that_of_the_sites(tmp_path):
    history = play(tmp_path, {}, rounds=2)
    losses = [float(f.value(history.outcome.params)) for f in objectives()]
    record = history.records[-1]
    assert record["network"]["sites"]["answered"] == 4
    assert record["network"]["sites"]["metrics"]["loss"] == pytest.approx(sum(losses) / 4, abs=1e-6)
    assert record["metrics"]["loss"] == record["network"]["sites"]["metrics"]["loss"]


LIES = {
    "the number of the round": {"round": 1e9},
    "traffic": {"bytes_up": -1.0, "clients": 3.0, "seconds": -5.0},
    "what the report reads": {"penalty_quartiles": 1.0, "warnings": 2.0, "virtual_time": 3.0},
    "a huge loss": {"loss": 1e300},
    "a large loss": {"loss": 1e29},
    "a loss below everything": {"loss": -1e30},
    "an accuracy of its own": {"test_accuracy": 1.0},
    "no number": {"loss": float("nan")},
    "a name like a command": {"\x1b[2Jx": 1.0},
    "an honest look": {"loss": 3.0},
}


@pytest.mark.parametrize("everybody", [False, True], ids=["one", "all"])
@pytest.mark.parametrize("lie", LIES)
def test_a_site_cannot_overwrite_the_record_or_end_the_run(lie, everybody, tmp_path):
    target = fa.Target("loss", 0.01, at_least=False)
    liars = range(4) if everybody and not LIES[lie].keys() & {"loss", "\x1b[2Jx"} else [2]
    history = play(tmp_path, dict.fromkeys(liars, LIES[lie]), target=target)
    assert history.outcome.ending.code == "completed"
    assert [record["round"] for record in history.records] == list(range(1, 9))
    for record in history.records:
        assert record["cohort"]["clients"] == [0, 1, 2, 3]
        assert record["traffic"]["bytes_up"] == 4 * 6 * 4
        assert record["clock"]["seconds"] >= 0
        assert len(record["work"]["penalty_quartiles"]) == 3
        assert not flat(record).keys() & {"warnings", "virtual_time"}
        assert 0 < record["metrics"]["loss"] < 2


def test_an_accuracy_that_one_site_invents_does_not_reach_the_target(tmp_path):
    """Even where all others have that metric, one of them cannot lift the mean over it alone."""
    lies = {client: {"test_accuracy": 0.5} for client in range(4)}
    lies[1] = {"test_accuracy": 400.0}
    target = fa.Target("test_accuracy", 0.9)
    assert play(tmp_path, lies, target=target).outcome.ending.code == "completed"


def test_a_target_that_the_sites_reach_ends_the_run(tmp_path):
    lies = {client: {"test_accuracy": 0.95} for client in range(4)}
    history = play(tmp_path, lies, target=fa.Target("test_accuracy", 0.9))
    assert history.outcome.ending.code == "target"
    assert len(history.records) == 1


def test_losses_that_explode_everywhere_end_the_run(tmp_path):
    grid_lies = {client: {} for client in range(4)}
    settings = federation(fa.FedADMM(rho=1.0), rounds=5, evaluate_every=1)
    grid = Talkative(settings, tmp_path)
    grid.lies = grid_lies

    def explode(report):
        if report.record["round"] == 2:
            grid_lies.update({client: {"loss": 1e8} for client in range(4)})

    history = run_through(settings, grid, tmp_path, explode)
    assert history.outcome.ending.code == "diverged"
    assert "round 3" in history.outcome.ending.sentence


def test_the_servers_own_metric_comes_first(tmp_path):
    lies = {client: {"test_accuracy": 0.95} for client in range(4)}
    target = fa.Target("test_accuracy", 0.9)

    def own(params):
        return {"test_accuracy": 0.25}

    history = play(tmp_path, lies, rounds=2, test=own, target=target)
    assert history.outcome.ending.code == "completed"
    assert [record["metrics"]["test_accuracy"] for record in history.records] == [0.25, 0.25]
    assert history.records[0]["network"]["sites"]["metrics"]["test_accuracy"] == pytest.approx(0.95)


def test_a_target_that_nobody_measures_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="target waits for 'speed', which is not measured"):
        play(tmp_path, {}, target=fa.Target("speed", 1.0))


def test_sites_that_leave_a_metric_out_do_not_end_the_run(tmp_path):
    """Half of them say nothing about the target: it is not reached, and not refused either."""
    lies = {client: {"test_accuracy": 0.95} for client in (0, 1)}
    history = play(tmp_path, lies, rounds=3, target=fa.Target("test_accuracy", 0.9))
    assert history.outcome.ending.code == "completed"
    assert "test_accuracy" not in history.records[-1]["metrics"]


def test_without_rounds_the_sites_are_asked_at_the_end(tmp_path):
    settings = federation(fa.AsyncFedDR(eta=1.0), rounds=6, mode="asynchronous", evaluate_every=1)
    grid = Talkative(settings, tmp_path)
    history = run_through(settings, grid, tmp_path)
    assert ["sites" in record["network"] for record in history.records] == [False] * 5 + [True]
    assert grid.counts["evaluate"] == 4


def test_whoever_is_far_from_all_others_is_left_out():
    """At 100 times (1 + what most others say): 300 beside 1 and 2."""
    assert set(outlying_metrics({0: {"a": 1.0}, 1: {"a": 2.0}, 2: {"a": 310.0}})) == {2}
    assert set(outlying_metrics({0: {"a": 1.0}, 1: {"a": 2.0}, 2: {"a": 290.0}})) == set()
    # A site that says 0 would have shut out both others by the lower one of two.
    assert set(outlying_metrics({0: {"a": 0.0}, 1: {"a": 5000.0}, 2: {"a": 5001.0}})) == set()
    assert set(outlying_metrics({0: {"a": 0.0}, 1: {"a": -2000.0}})) == {1}
    assert set(outlying_metrics({0: {"a": 1e20}})) == set()


def test_leaving_any_one_out_must_not_change_the_verdict():
    weights = dict.fromkeys(range(3), 1 / 3)
    close = SiteMetrics({0: {"loss": 1.0}, 1: {"loss": 1.0}, 2: {"loss": 9.0}}, weights)
    assert close.means()["loss"] == pytest.approx(11 / 3)
    assert not close.exceed(3.0)
    assert close.exceed(0.9)
    assert SiteMetrics({0: {"loss": 5.0}}, {0: 1.0}).exceed(3.0)
    assert not SiteMetrics({}, {}).exceed(3.0)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_deployed_run_is_exported_with_a_column_for_each_number_of_the_sites(tmp_path, kind):
    """The server's folder has no configuration, and a round without answers has no numbers."""
    settings = federation(fa.FedADMM(rho=1.0), rounds=3, evaluate_every=2)
    folder = tmp_path / "run"
    directory = RunRecorder(folder)
    directory.finish(serve(settings, FakeGrid(settings, tmp_path), folder, [directory]))
    written = RunDir(folder)
    unheard = {"sites": {"answered": 0, "metrics": {}}}
    written.append(written.records()[-1] | {"round": 4, "network": unheard})
    path, rows = export(folder, kind)
    assert rows == 4
    if kind == "csv":
        with path.open() as stream:
            table = [{k: v or None for k, v in row.items()} for row in csv.DictReader(stream)]
    else:
        table = [json.loads(line) for line in path.read_text().splitlines()]
    assert [int(row["round"]) for row in table] == [1, 2, 3, 4]
    measured = [row.get("sites.metrics.loss") for row in table]
    assert [value is None for value in measured] == [True, False, False, True]
    assert float(measured[1]) == float(table[1]["loss"])


def test_the_model_of_an_app_of_ones_own_is_exported_also_in_the_middle_of_a_run(tmp_path):
    def model():
        return torch.nn.Linear(DIMENSION, 1, bias=False)

    settings = federation(fa.FedADMM(rho=1.0), rounds=2, model=model, initial=None)
    folder, seen = tmp_path / "run", []
    directory = RunRecorder(folder)

    def save(report):
        if report.record["round"] == 2:  # the checkpoint is that of round 1
            seen.append(export_model(folder, "state-dict"))

    outcome = serve(settings, FakeGrid(settings, tmp_path), folder, [directory, save])
    assert seen[0].about == {"model": "of the last checkpoint"}
    before = torch.load(folder / "state_dict.pt")
    export_model(folder, "state-dict")
    after, module = torch.load(folder / "state_dict.pt"), model()
    module.load_state_dict(after)
    assert torch.equal(torch.nn.utils.parameters_to_vector(module.parameters()), outcome.params)
    assert any(not torch.equal(before[name], after[name]) for name in after)
    export_model(folder, "safetensors", tmp_path / "copy.safetensors")
    assert all(torch.equal(load_file(tmp_path / "copy.safetensors")[n], after[n]) for n in after)
    for kind, options, said in (
        ("onnx", {}, "--format is 'onnx' is asked for"),
        ("state-dict", {"last": True}, "--last is asked for"),
        ("state-dict", {"client": 0}, "--client is asked for"),
        ("safetensors", {}, "the run's own file"),
    ):
        with pytest.raises(ConfigError, match=said):
            export_model(folder, kind, **options)


def test_the_page_of_a_run_without_a_configuration_names_method_and_data(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), rounds=2)
    folder, titles = tmp_path / "run", []
    directory = RunRecorder(folder, settings)

    def watch(report):
        page = LivePage(folder).page()
        titles.append(page[page.index("<title>") : page.index("</title>")])

    directory.finish(serve(settings, FakeGrid(settings, tmp_path), folder, [directory, watch]))
    page = LivePage(folder).page()
    for title in [*titles, page[page.index("<title>") : page.index("</title>")]]:
        assert "FedADMM on the data of" in title
        assert str(settings.clients) in title


def test_a_run_that_goes_on_is_no_longer_said_to_be_complete(tmp_path):
    folder, seen = tmp_path / "run", []
    for rounds in (1, 2):
        settings = federation(fa.FedADMM(rho=1.0), rounds=rounds)
        directory = RunRecorder(folder)
        looks = [directory, lambda report: seen.append(look(folder)["status"])]
        directory.finish(serve(settings, FakeGrid(settings, tmp_path), folder, looks))
    assert seen == ["under way", "under way"]
    assert look(folder)["status"] == "completed all 2 rounds"


class Scores:
    """The server's own test set, which says these numbers in turn."""

    def __init__(self, values):
        self.left = list(values)

    def __call__(self, params):
        return {"test_accuracy": self.left.pop(0)}


def test_the_best_model_is_the_servers_choice_and_survives_its_restart(tmp_path):
    """Sites that praise every round move nothing: 0.5, 0.9 | 0.8, 0.7 ends in the fourth round."""
    folder, seen = tmp_path / "run", []
    options = {"evaluate_every": 1, "patience": Patience(poll=0.01)}
    lies = {client: {"test_accuracy": 0.99} for client in range(4)}

    def go(rounds, scores):
        settings = federation(fa.FedADMM(rho=1.0), rounds=rounds, test=Scores(scores), **options)
        settings = replace(settings, experiment=replace(settings.experiment, patience=2))
        grid = Talkative(settings, tmp_path)
        grid.lies = lies
        directory = RunRecorder(folder)
        keep = [directory, lambda report: seen.append(report.state)]
        return directory.finish(serve(settings, grid, folder, keep))

    go(3, [0.5, 0.9, 0.8])
    summary = go(9, [0.7, 1.0])
    assert (summary["code"], summary["rounds"]) == ("patience", 4)
    assert summary["best"] == {"round": 2, "metric": "test_accuracy", "value": 0.9}
    written = RunDir(folder)
    assert torch.equal(written.model().params, seen[1].server.theta)
    assert torch.equal(written.model(last=True).params, seen[3].server.theta)
    assert written.records()[-1]["network"]["sites"]["answered"] == 4


def test_a_server_that_measures_nothing_waits_for_no_better_model():
    settings = federation(fa.FedADMM(rho=1.0))
    with pytest.raises(ParameterError, match="patience is 2 in the experiment, but test is None"):
        replace(settings, experiment=replace(settings.experiment, patience=2))
