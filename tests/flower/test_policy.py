"""A site decides for itself: what its site.toml refuses, what it writes down, what it approves."""

from __future__ import annotations

import json

import pytest
import torch
from flwr.app import ConfigRecord
from typer.testing import CliRunner

import fedadmm as fa
from fedadmm.cli import app
from fedadmm.core.privacy import Accountant
from fedadmm.flower import SitePolicy
from fedadmm.flower.deploy.keys import make_operator_key
from fedadmm.flower.protocol import wire
from fedadmm.flower.site import gate
from fedadmm.flower.site.policy import POLICY, read_policy, written

from .harness import DIMENSION, FakeGrid, federation, run_through
from .test_site_privacy import ask, noised

pytestmark = pytest.mark.usefixtures("quick")
POLICIES = {
    "another algorithm": ('algorithms = ["fedavg", "feddyn"]', "this run's is fedadmm"),
    "another model": ('models = ["Sequential-14"]', "this run's is RemoteObjective-6"),
    "a stage that is missing": ('uploads = ["clip", "quantise"]', "this run's stages are clip"),
    "too few others": ("other_sites = 4", "this run has 3"),
    "a budget and no noise": ("epsilon = 3.0", "this run adds no noise at the site"),
    "too many bytes": ("task_bytes = 100", "the task has "),
    "too many steps": ("task_steps = 5", "a round has 6"),
    "not signed": (f'server_key = "{"0" * 64}"', "the message is not signed with it"),
    "not approved": ("approval = true", "waits for it; fedadmm deploy approve"),
}


def agree(grid, text, client=2):
    """Write a site's own file."""
    folder = grid.folder / f"site-{client}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / POLICY).write_text(text)
    return folder


@pytest.mark.parametrize("what", POLICIES)
def test_what_a_site_refuses_is_a_sentence_here_and_there(what, tmp_path, caplog):
    text, sentence = POLICIES[what]
    settings = federation(fa.FedADMM(rho=1.0), rounds=2, pipeline=[fa.Clip(50.0)])
    grid = FakeGrid(settings, tmp_path)
    folder = agree(grid, text)
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1, 3]] * 2
    assert history.outcome.counts == {"declined": 2}
    (event,) = history.records[0]["network"]["events"]
    assert event["client"] == 2
    assert sentence in event["detail"]
    assert f"{text.split(' = ')[0]} is " in event["detail"]
    said = [one.getMessage() for one in caplog.records if "gate.py" in one.pathname]
    assert len(said) == 2
    assert all(sentence in one for one in said)
    assert not list(folder.rglob("*.safetensors"))  # nothing was computed
    assert not list(folder.rglob(gate.LEFT))


def test_what_a_site_agrees_to_is_done(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), rounds=2, pipeline=[fa.Clip(50.0)])
    grid = FakeGrid(settings, tmp_path)
    agree(
        grid,
        'algorithms = ["fedadmm"]\nmodels = ["RemoteObjective-6"]\nuploads = ["clip"]\n'
        "other_sites = 3\ntask_bytes = 10000\ntask_steps = 6\n",
    )
    assert run_through(settings, grid, tmp_path).trace == [[0, 1, 2, 3]] * 2


def test_a_run_that_all_sites_decline_says_why(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), rounds=2)
    grid = FakeGrid(settings, tmp_path)
    for client in range(4):
        agree(grid, "other_sites = 9", client)
    with pytest.raises(
        fa.errors.EngineError, match=r"clients 0, 1, 2, 3: declined: other_sites is 9"
    ):
        run_through(settings, grid, tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("evalutions = 3", "evalutions is not a key of .*did you mean evaluations"),
        ("evaluations = -1", "evaluations: got -1, expected"),
        ('server_key = "ab"', "server_key: got 'ab', expected 64 hexadecimal digits"),
        ("epsilon = [", "is not TOML"),
    ],
)
def test_a_policy_that_cannot_be_understood_lets_nothing_leave(text, sentence, tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), rounds=1)
    grid = FakeGrid(settings, tmp_path)
    path = agree(grid, text) / POLICY
    with pytest.raises(fa.errors.ConfigError, match=sentence):
        read_policy(path)
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1, 3]]
    assert history.outcome.counts == {"error": 1}


def test_the_file_comes_before_the_app_and_the_node_before_the_file(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0))
    grid = FakeGrid(settings, tmp_path)
    app_says = SitePolicy(evaluations=7, evaluations_with_noise=True)
    made = lambda: gate.Gate(settings, grid.context(2), grid.folder / "site-2", 2, app_says).policy  # noqa: E731
    grid.policy = {}
    assert made() == app_says
    agree(grid, "evaluations = 3")
    assert made() == SitePolicy(evaluations=3)
    grid.policy = {"evaluations": 4}
    assert made() == SitePolicy(evaluations=4)
    other = tmp_path / "other.toml"
    other.write_text("approval = true")
    grid.policy = {"policy": str(other)}
    assert made() == SitePolicy(approval=True)
    grid.policy = {"policy": str(tmp_path / "nowhere.toml")}
    with pytest.raises(fa.errors.ConfigError, match="but there is no such file"):
        made()


def test_only_metrics_that_may_leave_do(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), rounds=2, evaluate_every=1)
    grid = FakeGrid(settings, tmp_path)
    agree(grid, 'evaluations = 9\nmetrics = ["accuracy"]', 2)
    grid.policy = {}
    for client in (0, 1, 3):
        agree(grid, 'evaluations = 9\nmetrics = ["loss"]', client)
    history = run_through(settings, grid, tmp_path)
    assert history.records[0]["network"]["sites"]["answered"] == 3
    assert history.records[0]["network"]["sites"]["declined"] == [2]


def test_a_task_must_be_signed_with_the_key_that_the_site_names(tmp_path):
    public = make_operator_key(tmp_path / "operator")
    make_operator_key(tmp_path / "other")
    traces = []
    for key in ("operator", "other"):
        signed = federation(fa.FedADMM(rho=1.0), 2, operator_key=str(tmp_path / key))
        grid = FakeGrid(signed, tmp_path / f"{key}-sites")
        agree(grid, f'server_key = "{public}"\nevaluations = 5')
        traces.append(run_through(signed, grid, tmp_path / f"{key}-sites").trace)
    assert traces == [[[0, 1, 2, 3]] * 2, [[0, 1, 3]] * 2]


@pytest.mark.parametrize("part", ["head", "body", "config"])
def test_a_signature_covers_everything_that_travels(part, tmp_path):
    public = make_operator_key(tmp_path / "operator")
    settings = federation(
        fa.FedADMM(rho=1.0), 1, operator_key=str(tmp_path / "operator"), train_config={"a": 1}
    )
    grid = FakeGrid(settings, tmp_path)
    agree(grid, f'server_key = "{public}"')
    deliver = grid._deliver

    def meddle(message):
        content = message.content
        if wire.HEAD in content and message.metadata.dst_node_id == 1002:
            if part == "head":
                content[wire.HEAD]["sequence"] = 5
            elif part == "config":
                content[wire.CONFIG] = ConfigRecord({"a": 2})
            else:
                content[wire.BODY]["bytes"].data += b"x"
        return deliver(message)

    grid._deliver = meddle
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1, 3]]
    assert "not signed" in history.records[0]["network"]["events"][0]["detail"]


def test_a_run_waits_until_somebody_at_the_site_approves_its_terms(tmp_path):
    """By the command line; other terms under the same name wait again."""
    settings = federation(fa.FedADMM(rho=1.0), rounds=2)
    grid = FakeGrid(settings, tmp_path)
    folder = agree(grid, "approval = true", 2)
    assert ask(grid, settings, "run-1", 2).kind == "declined"
    shown = CliRunner().invoke(app, ["deploy", "approve", str(folder)])
    assert shown.exit_code == 0, shown.output
    assert "waits  run-1" in shown.output
    lines = {tuple(line.split()) for line in shown.output.splitlines()}
    assert {("algorithm", "fedadmm"), ("clients", "4"), ("rounds", "2")} <= lines
    assert {("aggregator", "Sum()"), ("minimum_sites", "0"), ("clip", "none")} <= lines
    assert any(line[:2] == ("app", "unknown:") for line in lines)
    wrong = CliRunner().invoke(app, ["deploy", "approve", str(folder), "run-2"])
    assert wrong.exit_code == 2
    assert "RUN is 'run-2', which does not wait for approval here; there are: run-1" in wrong.output
    done = CliRunner().invoke(app, ["deploy", "approve", str(folder), "run-1", "--json"])
    assert json.loads(done.stdout)["approved"]["run-1"]["rounds"] == 2
    assert ask(grid, settings, "run-1", 2).kind == "update"
    assert ask(grid, settings, "run-2", 2).kind == "declined"
    other = federation(fa.FedADMM(rho=1.0), rounds=3)
    reply = ask(FakeGrid(other, tmp_path), other, "run-1", 2)
    assert "with other terms than those that were approved" in reply.reason


def test_no_metric_leaves_before_somebody_at_the_site_approves_a_run(tmp_path):
    """A server could ask for metrics of any model, and never send a task."""
    settings = federation(fa.FedAvg(), rounds=2, evaluate_every=1)
    grid = FakeGrid(settings, tmp_path)
    grid.policy = {"evaluations": 9}
    folder = agree(grid, "approval = true", 2)
    shorter = federation(fa.FedAvg(), rounds=1, evaluate_every=1)  # at the server: the site has 2
    run_through(shorter, grid, tmp_path)
    assert [one["kind"] for one in gate.left(folder)] == []
    (run,) = gate.waiting(folder)
    gate.approve(folder, run)
    run_through(settings, grid, tmp_path)
    assert [one["kind"] for one in gate.left(folder)] == ["update", "metrics"]


def test_an_approved_run_gets_no_more_rounds_than_were_approved(tmp_path):
    """The server goes on for five rounds; site 2 approved two, and missed the first one."""
    settings = federation(fa.FedAvg(), rounds=2)
    grid = FakeGrid(settings, tmp_path)
    folder = agree(grid, "approval = true", 2)
    run_through(federation(fa.FedAvg(), rounds=1), grid, tmp_path)
    (run,) = gate.waiting(folder)
    gate.approve(folder, run)
    history = run_through(federation(fa.FedAvg(), rounds=5), grid, tmp_path)
    assert history.trace == [[0, 1, 2, 3]] * 2 + [[0, 1, 3]] * 2
    assert history.outcome.counts["declined"] == 2


def test_a_repeated_round_number_brings_no_more_uploads_than_approved_rounds(tmp_path):
    """A server that never leaves round 1, and acknowledges nothing, asks with ever new models."""
    settings = federation(fa.FedAvg(), rounds=2)
    grid = FakeGrid(settings, tmp_path)
    folder = agree(grid, "approval = true", 0)
    assert ask(grid, settings, "run").kind == "declined"
    gate.approve(folder, "run")
    kinds = []
    for value in (1.0, 2.0, 3.0, 4.0, 4.0, 5.0):
        other = federation(fa.FedAvg(), rounds=2, initial=torch.full((DIMENSION,), value))
        kinds.append(str(ask(grid, other, "run").kind))
    assert kinds == ["update"] * 5 + ["declined"]  # the fifth repeats the fourth


def test_a_run_without_secure_aggregation_is_declined_where_it_is_demanded(tmp_path):
    grid = FakeGrid(federation(fa.FedAvg()), tmp_path)
    agree(grid, "masked = true", 0)
    assert ask(grid, federation(fa.FedAvg()), "run").kind == "declined"
    masked = federation(fa.FedAvg(), aggregator=fa.MaskedSum(bound=50.0))
    terms = gate.Terms.of(masked)
    assert terms.minimum_sites == 3
    SitePolicy(masked=True).refuse(terms)


@pytest.mark.parametrize(
    "change",
    [
        {"aggregator": fa.TrimmedMean(0.25)},
        {"aggregator": fa.MaskedSum(bound=50.0)},
        {"pipeline": [fa.Clip(2.0)]},
        {"personal": fa.Ditto(0.1)},
        {"rounds": 7},
        {"solver": noised()},
    ],
    ids=str,
)
def test_a_run_is_approved_with_all_that_changes_what_leaves(change, tmp_path):
    usual = {"pipeline": [fa.Clip(1.0)], "rounds": 6}
    first, second = (
        federation(fa.FedADMM(1.0), **usual),
        federation(fa.FedADMM(1.0), **usual | change),
    )
    assert gate.Terms.of(first).written() != gate.Terms.of(second).written()


def test_no_folder_of_a_site_leaves_it(tmp_path):
    """In the reason of a declined task, and in the text of an error."""
    settings = federation(fa.FedADMM(rho=1.0), rounds=1)
    grid = FakeGrid(settings, tmp_path / "a folder")
    agree(grid, "approval = true", 1)
    (grid.folder / "site-2" / "ledger_2" / gate.LEFT).mkdir(parents=True)
    events = run_through(settings, grid, tmp_path).records[0]["network"]["events"]
    assert {event["client"] for event in events} == {1, 2}
    for event in events:
        assert "a folder" not in event["detail"]
        assert str(tmp_path) not in event["detail"]
        assert tmp_path.parent.name not in event["detail"]


def test_the_ledger_says_what_left_and_what_it_cost(tmp_path):
    settings = federation(fa.FedAvg(), rounds=2, solver=noised(), evaluate_every=1)
    grid = FakeGrid(settings, tmp_path)
    grid.policy = {"evaluations": 9, "evaluations-with-noise": True}
    run_through(settings, grid, tmp_path)
    lines = list(gate.left(tmp_path / "site-1"))
    assert [one["kind"] for one in lines] == ["update", "metrics"] * 2
    spent = [Accountant(1.0, 0.01, 1 / 3).epsilon(6 * rounds) for rounds in (1, 1, 2, 2)]
    assert [one["epsilon"] for one in lines] == pytest.approx(spent)
    assert [one["bytes"] > 0 for one in lines] == [True] * 4
    assert lines[0]["run"] == lines[2]["run"] != ""
    (folder,) = (tmp_path / "site-1").glob("ledger_1")
    with (folder / gate.LEFT).open("ab") as stream:
        stream.write(b'\n{"torn')
    ask(grid, settings, "run-9", 1)
    shown = CliRunner().invoke(app, ["deploy", "ledger", str(tmp_path / "site-1"), "--json"])
    found = json.loads(shown.stdout)["left"]
    assert found[:4] == lines
    assert [one["run"] for one in found[4:]] == ["run-9"]
    text = CliRunner().invoke(app, ["deploy", "ledger", str(tmp_path / "site-1")]).output
    assert f"epsilon {spent[0]:.3g}" in text
    assert "5 replies, " in text


def test_nothing_leaves_that_cannot_be_written_down(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), rounds=1)
    grid = FakeGrid(settings, tmp_path)
    (tmp_path / "site-2" / "ledger_2" / gate.LEFT).mkdir(parents=True)
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1, 3]]
    assert "left.jsonl" in history.records[0]["network"]["events"][0]["detail"]


def test_a_file_that_is_written_for_a_site_says_every_key_and_can_be_read(tmp_path):
    path = tmp_path / POLICY
    path.write_text(written({"evaluations": 20, "server_key": "a" * 64}))
    assert read_policy(path) == SitePolicy(evaluations=20, server_key="a" * 64)
    text = path.read_text()
    for name in SitePolicy.__dataclass_fields__:
        assert f"{name} = " in text
    path.write_text(
        "\n".join(line.removeprefix("# ") for line in text.splitlines() if " = " in line)
    )
    assert read_policy(path).algorithms == ("fedadmm",)


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("/srv/ward 3/state/left.jsonl: is full", "left.jsonl: is full"),
        ("node-config: data is '/srv/other/rows.csv'", "node-config: data is 'rows.csv'"),
        ("fedadmm deploy approve /home/ann/state run-1", "fedadmm deploy approve state run-1"),
        ("~/runs/a.toml and (/etc/x/y)", "a.toml and (y)"),
        (
            "see https://example.org/docs/a and 3/4 of it",
            "see https://example.org/docs/a and 3/4 of it",
        ),
    ],
)
def test_a_path_in_a_text_that_leaves_is_shortened_to_its_name(text, sent):
    node = {"state-dir": "/srv/ward 3/state/left.jsonl", "partition-id": 1}
    assert gate.without_folders(text, node) == sent
