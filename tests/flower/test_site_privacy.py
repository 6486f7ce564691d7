"""What a server gets out of a site: by huge models, by evaluation, by one run after another."""

from __future__ import annotations

import json
import sys
import traceback

import pytest
import torch
from flwr.app import Message

import fedadmm as fa
from fedadmm.core.codec import encode, pack
from fedadmm.core.contracts import Round
from fedadmm.core.errors import ConfigError, EngineError
from fedadmm.core.messages import Download
from fedadmm.core.privacy import Accountant, composed_epsilon
from fedadmm.flower import SitePolicy
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.ledger import ServerLedger
from fedadmm.flower.protocol.payloads import EvaluationRequest
from fedadmm.flower.server.tasks import TrainingRequest
from fedadmm.flower.site import gate
from fedadmm.flower.site.app import client_app

from .harness import CLIENTS, DIMENSION, FakeGrid, federation, run_through
from .masked import MaskedGrid, settings

pytestmark = pytest.mark.usefixtures("quick")


def noised(**options):
    """Two epochs of three steps each: 30 rows, 10 a step."""
    usual = {"clip": 0.5, "multiplier": 1.0, "batch_size": 10, "delta": 0.01}
    return fa.DPSGD(0.1, **(usual | options))


def ask(grid, settings, run="run", client=0):
    """The answer of a site to the first task of a run."""
    job = settings.server_job()
    cast = job.algorithm.broadcast(job.algorithm.init_server(job.initial), Round(0, 0))
    broadcast = TrainingRequest(job, Download(cast), settings.admission, 0)
    task = broadcast.task(ServerLedger(run), client, 0, 0)
    message = Message(broadcast.content(task, 0), 1000 + client, "train")
    reply = grid._app(message, grid.context(client)).content
    return wire.read_reply(reply, 10**6)[0]


@pytest.mark.parametrize("largest", [0.5, 4.0])
def test_no_row_decides_whether_a_noised_answer_is_an_update(largest, tmp_path):
    """A finite entry of 3.4e38 / c overflows exactly where a row has more than c there."""
    probe = torch.zeros(DIMENSION)
    probe[2] = torch.finfo(torch.float32).max / 2.0
    settings = federation(fa.FedAvg(), initial=probe, solver=noised(batch_size=100))
    grid = FakeGrid(settings, tmp_path)
    rows = torch.rand(30, DIMENSION, generator=torch.Generator().manual_seed(1))
    rows[7, 2] = largest
    grid._sites[0] = fa.LeastSquares(rows, torch.zeros(30))
    overflows = not bool((rows @ probe).isfinite().all())
    assert overflows == (largest > 2.0)
    assert [ask(grid, settings, run=f"run-{turn}").kind for turn in range(5)] == ["update"] * 5


def test_a_federation_with_noise_needs_its_accountant_before_anything_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    federation(fa.FedAvg())
    with pytest.raises(ConfigError, match=r"fedadmm\[privacy\]"):
        federation(fa.FedAvg(), solver=noised())


def tried(grid, settings, run):
    """What a site says in the first round of a run: its kind of answer, or why there is none."""
    reply = ask(grid, settings, run=run)
    return reply.reason if reply.kind == "declined" else reply.kind


def test_a_new_run_does_not_reset_what_a_site_has_spent(tmp_path):
    """Four runs of one round, six steps each, and a budget for two of them."""
    spent = [Accountant(1.3, 0.01, 1 / 3).epsilon(6 * runs) for runs in (1, 2, 3, 4)]
    budget = (spent[1] + spent[2]) / 2
    settings = federation(fa.FedAvg(), solver=noised(multiplier=1.3, budget=budget))
    grids = [FakeGrid(settings, tmp_path) for _ in range(4)]  # a process each
    said = [tried(grid, settings, f"run-{n}") for n, grid in enumerate(grids)]
    assert said[:2] == ["update", "update"]
    for refusal in said[2:]:
        assert f"budget is {budget:g} over all runs, but a round has 6 noised steps" in refusal
        assert f"after 12 with its samples, and epsilon would be {spent[2]:.4g}" in refusal
    (path,) = (tmp_path / "site-0").rglob("account.json")
    assert path.parent.parent == tmp_path / "site-0"
    assert json.loads(path.read_text()) == {
        "noised": [{"multiplier": 1.3, "per_epoch": 3, "steps": 12}],
        "runs": {"run-0": 6, "run-1": 6},
    }


def test_runs_with_other_noise_are_added_up(tmp_path):
    """Also one whose solver has no budget of its own: the site may have one."""
    weak, strong = noised(multiplier=1.5), noised(multiplier=3.0, budget=8.0, batch_size=15)
    first, second = (federation(fa.FedAvg(), solver=solver) for solver in (weak, strong))
    grids = FakeGrid(first, tmp_path), FakeGrid(second, tmp_path)
    assert tried(grids[0], first, "run-0") == "update"
    both = {(1.5, 1 / 3): 6, (3.0, 1 / 2): 4}
    alone = [composed_epsilon({kind: count}, 0.01) for kind, count in both.items()]
    assert alone == [
        Accountant(1.5, 0.01, 1 / 3).epsilon(6),
        Accountant(3.0, 0.01, 1 / 2).epsilon(4),
    ]
    assert max(alone) < composed_epsilon(both, 0.01) < sum(alone)
    assert tried(grids[1], second, "run-1") == "update"
    grids[1].policy = {"epsilon": composed_epsilon(both, 0.01)}  # and not a step more
    said = tried(grids[1], second, "run-2")
    assert "over all runs, but a round has 4 noised steps, after 10" in said
    grids[0].policy = {"epsilon": 1.0}
    assert "this site's budget is 1 over all runs" in tried(grids[0], first, "run-3")


def test_two_runs_at_once_do_not_lose_a_count(tmp_path):
    """A second task waits while the first one computes."""
    settings = federation(fa.FedAvg(), solver=noised())
    grid, asked = FakeGrid(settings, tmp_path), []

    class Asking(fa.LogisticRegression):
        def sample_gradients(self, params, rows):
            if not asked:
                asked.append(1)
                with pytest.raises(Exception, match="is in use by process"):
                    ask(FakeGrid(settings, tmp_path), settings, run="run-1")
            return super().sample_gradients(params, rows)

    site = grid._sites[0]
    grid._sites[0] = Asking(site.features, site.targets, ridge=0.05)
    assert ask(grid, settings, run="run-0").kind == "update"
    assert asked
    assert ask(grid, settings, run="run-1").kind == "update"
    (path,) = tmp_path.rglob("account.json")
    assert json.loads(path.read_text())["runs"] == {"run-0": 6, "run-1": 6}


def question(grid, vector, client=0):
    """A site's answer to a question for its metrics: whatever model the server likes."""
    content = wire.write_body(encode(pack(EvaluationRequest(vector, None))))
    message = Message(content, 1000 + client, "evaluate")
    return grid._app(message, grid.context(client)).content


def answers(grid, times):
    """How many of so many questions are answered."""
    models = (torch.full((DIMENSION,), float(turn)) for turn in range(times))
    return sum(wire.METRICS in question(grid, model) for model in models)


def test_a_site_evaluates_nothing_unless_it_says_so_itself(tmp_path):
    settings = federation(fa.FedAvg(), evaluate_every=1)
    grid = FakeGrid(settings, tmp_path)
    grid.policy = {}
    assert answers(grid, 5) == 0
    found = question(grid, torch.zeros(DIMENSION))
    assert "does not evaluate models; evaluations=N" in str(wire.read_record(found, wire.DECLINED))


def test_a_site_answers_as_many_questions_a_day_as_it_says(tmp_path, monkeypatch):
    """Whatever process, app or run they come to, and also when the clock goes back."""
    day = ["2026-11-18T10:00:00+00:00"]
    monkeypatch.setattr("fedadmm.core.clock.timestamp", lambda: day[0])
    settings = federation(fa.FedAvg())

    def asked(times):
        grid = FakeGrid(settings, tmp_path)  # another process each time
        grid.policy = {"evaluations": 3}
        return answers(grid, times)

    assert [asked(2), asked(2), asked(2)] == [2, 1, 0]
    day[0] = "2026-11-17T10:00:00+00:00"
    assert asked(2) == 0
    day[0] = "2026-11-19T10:00:00+00:00"
    assert asked(5) == 3


@pytest.mark.parametrize("hidden", ["rows", "sites"])
def test_with_noise_a_site_evaluates_only_if_it_says_that_too(hidden, tmp_path):
    upload = [fa.Clip(0.2), fa.GaussianNoise(1.0, 0.1)] if hidden == "sites" else []
    solver = noised() if hidden == "rows" else fa.SGD(lr=0.1, batch_size=10)
    grid = FakeGrid(federation(fa.FedAvg(), solver=solver, pipeline=upload), tmp_path)
    grid.policy = {"evaluations": 100}
    assert answers(grid, 3) == 0
    grid.policy = {"evaluations": 100, "evaluations-with-noise": True}
    assert answers(grid, 3) == 3


def accuracies(grid, vector, times):
    """The noised answers of a site to the same question; None for a declined one."""
    found = []
    for _ in range(times):
        reply = question(grid, vector)
        declined = wire.DECLINED in reply
        found.append(None if declined else dict(wire.read_metrics(reply)))
    return found


def test_a_noised_evaluation_is_the_accuracy_plus_gaussian_noise(tmp_path):
    grid = FakeGrid(federation(fa.FedAvg(), solver=noised()), tmp_path)
    grid.policy = {"evaluations": 1000, "evaluation-noise": 2.0}
    site = grid._sites[0]
    vector = torch.randn(DIMENSION, generator=torch.Generator().manual_seed(8))
    correct = int(((site.features @ vector > 0) == (site.targets > 0)).sum())
    assert 10 <= correct <= 20  # of 30, so that five deviations are not cut off
    found = accuracies(grid, vector, 400)
    assert all(answer.keys() == {"train_accuracy"} for answer in found)
    noise = torch.tensor([30 * answer["train_accuracy"] - correct for answer in found])
    assert abs(float(noise.mean())) < 5 * 2.0 / 20  # five standard errors
    assert abs(float(noise.std()) / 2.0 - 1) < 5 / 28  # the error of s is s / sqrt(2 n)
    assert account_of(tmp_path, 0)["noised"] == [{"multiplier": 2.0, "per_epoch": 1, "steps": 400}]


def test_noised_evaluations_and_steps_share_the_budget(tmp_path):
    """k answers with noise s are one with s / sqrt(k): Gaussian mechanisms compose so."""
    budget = (
        Accountant(3.0 / 2**0.5, 0.01).epsilon(1) + Accountant(3.0 / 3**0.5, 0.01).epsilon(1)
    ) / 2
    settings = federation(fa.FedAvg(), solver=noised(multiplier=3.0))
    grid = FakeGrid(settings, tmp_path)
    grid.policy = {"evaluations": 100, "evaluation-noise": 3.0, "epsilon": budget}
    found = accuracies(grid, torch.zeros(DIMENSION), 4)
    assert [answer is None for answer in found] == [False, False, True, True]
    rows = [{"multiplier": 3.0, "per_epoch": 1, "steps": 2}]
    assert account_of(tmp_path, 0)["noised"] == rows
    together = composed_epsilon({(3.0, 1 / 3): 6, (3.0, 1.0): 2}, 0.01)
    assert together > budget > composed_epsilon({(3.0, 1 / 3): 6}, 0.01)
    assert "an evaluation" not in (said := tried(grid, settings, "run-0"))
    assert f"epsilon would be {together:.4g}" in said
    grid.policy["epsilon"] = 1.01 * together
    assert tried(grid, settings, "run-0") == "update"
    assert accuracies(grid, torch.zeros(DIMENSION), 1) == [None]
    line = [one for one in gate.left(tmp_path / "site-0") if one["kind"] == "update"][-1]
    assert line["epsilon"] == pytest.approx(together)


def test_noise_for_samples_does_not_cover_whole_sites(tmp_path):
    upload = [fa.Clip(0.2), fa.GaussianNoise(1.0, 0.1)]
    settings = federation(fa.FedAvg(), solver=fa.SGD(lr=0.1, batch_size=10), pipeline=upload)
    grid = FakeGrid(settings, tmp_path)
    grid.policy = {"evaluations": 100, "evaluation-noise": 100.0}
    assert answers(grid, 2) == 0
    assert account_of(tmp_path, 0) == {}
    grid.policy = {"evaluations": 100, "evaluation-noise": 0.5, "evaluations-with-noise": True}
    assert "loss" in dict(wire.read_metrics(question(grid, torch.zeros(DIMENSION))))


def test_numbers_without_classes_are_not_answered_with_noise(tmp_path):
    grid = FakeGrid(federation(fa.FedAvg(), solver=noised()), tmp_path)
    grid.policy = {"evaluations": 100, "evaluation-noise": 3.0}
    grid._sites[0] = fa.LeastSquares(torch.ones(30, DIMENSION), torch.zeros(30))
    assert accuracies(grid, torch.zeros(DIMENSION), 2) == [None, None]
    assert account_of(tmp_path, 0).get("noised", []) == []


def test_masked_evaluations_with_noise_are_charged_once(tmp_path):
    made = settings(
        fa.FedAvg(), rounds=1, solver=noised(), pipeline=[fa.Clip(50.0)], evaluate_every=1
    )
    grid = MaskedGrid(made, tmp_path)
    grid.policy = {"evaluations": 5, "evaluation-noise": 1e-6}
    (record,) = run_through(made, grid, tmp_path).records
    evaluation = {"multiplier": 1e-6, "per_epoch": 1, "steps": 1}
    for client in range(CLIENTS):
        assert account_of(tmp_path, client)["noised"][1:] == [evaluation]
    assert 0 <= record["network"]["sites"]["metrics"]["train_accuracy"] <= 1
    assert record["metrics"]["train_accuracy"] == pytest.approx(
        record["network"]["sites"]["metrics"]["train_accuracy"]
    )


def test_a_run_goes_on_without_the_sites_that_do_not_evaluate(tmp_path, caplog):
    settings = federation(fa.FedAvg(), rounds=3, evaluate_every=1)

    class Grid(FakeGrid):
        def context(self, client):
            self.policy = {"evaluations": {0: 0, 1: 2}.get(client, 100)}
            return super().context(client)

    history = run_through(settings, Grid(settings, tmp_path), tmp_path)
    assert history.trace == [list(range(CLIENTS))] * 3
    said = [record["network"]["sites"] for record in history.records]
    assert [one["answered"] for one in said] == [3, 3, 2]
    assert [one["declined"] for one in said] == [[0], [0], [0, 1]]
    assert history.outcome.counts == {"declined": 2}
    assert caplog.text.count("client 0: declined: this site does not evaluate models") == 1
    assert "client 1: declined: this site has answered 2 questions today" in caplog.text


def test_a_run_is_completed_where_no_site_evaluates(tmp_path):
    target = fa.Target("loss", 0.0)
    settings = federation(fa.FedAvg(), rounds=2, evaluate_every=1, target=target)
    grid = FakeGrid(settings, tmp_path)
    grid.policy = {}
    assert run_through(settings, grid, tmp_path).outcome.ending.code == "completed"


def test_a_nodes_own_word_comes_before_the_apps():
    policy = SitePolicy(evaluations=5)
    assert policy.configured({}) == policy
    assert policy.configured({"evaluations": 0, "partition-id": 1}) == SitePolicy()
    with pytest.raises(ConfigError, match="node-config: SitePolicy: evaluations: got -1"):
        policy.configured({"evaluations": -1})
    with pytest.raises(ConfigError, match="evaluations_with_noise: got 'yes'"):
        policy.configured({"evaluations-with-noise": "yes"})


def test_an_account_that_is_damaged_is_not_taken_for_an_empty_one(tmp_path):
    grid = FakeGrid(federation(fa.FedAvg()), tmp_path)
    assert answers(grid, 1) == 1
    (path,) = tmp_path.rglob("account.json")
    for text in ("", "[]", '{"evaluations": {"day": 3}}'):
        path.write_text(text)
        with pytest.raises(Exception, match="damaged, and only it says what this site has given"):
            question(grid, torch.zeros(DIMENSION))


@pytest.mark.parametrize("asked", ["train", "evaluate", "work"])
def test_an_error_that_quotes_a_row_stays_at_the_site(asked, tmp_path, caplog):
    """Flower sends the text of what an app raises; a loader's may hold a patient's cell."""
    rho = fa.PerWork(0.25) if asked == "work" else 0.5
    settings = federation(fa.FedADMM(rho=rho), solver=fa.SGD(0.1, batch_size=10))
    grid = FakeGrid(settings, tmp_path)
    grid.policy = {"evaluations": 3}

    def load(context):
        raise ValueError("could not convert string '2024-07-18' to float")

    grid._app = client_app(settings, load)
    requests = {
        "train": lambda: ask(grid, settings),
        "evaluate": lambda: question(grid, torch.zeros(DIMENSION)),
        "work": lambda: grid._app(
            Message(wire.identity_request({}), 1000, "train"), grid.context(0)
        ),
    }
    with pytest.raises(EngineError, match="its own log says why") as error:
        requests[asked]()
    assert "ValueError" in str(error.value)  # the kind of error is code
    shown = "".join(traceback.format_exception(error.value))
    assert "2024-07-18" not in shown  # also what a log of Flower's would show
    assert "2024-07-18" in caplog.text


@pytest.mark.parametrize("cause", ["data", "policy"])
def test_a_run_without_any_reported_work_names_the_sites_and_the_cause(cause, tmp_path):
    settings = federation(fa.FedADMM(rho=fa.PerWork(0.25)), solver=fa.SGD(0.1, batch_size=10))
    grid = FakeGrid(settings, tmp_path)

    def load(context):
        raise KeyError("smoker")

    if cause == "data":
        grid._app = client_app(settings, load)
    else:
        grid.policy = {"approval": True}
    with pytest.raises(EngineError) as error:
        run_through(settings, grid, tmp_path)
    said = str(error.value)
    assert "clients 0, 1, 2, 3" in said
    assert ("KeyError" in said) == (cause == "data")
    assert "smoker" not in said
    assert ("rho=0.1" in said) == (cause == "policy")  # advice that would not repair the data


def masked_and_noised(**changes):
    """DP-SGD at the sites, whose uploads are masked: six noised steps in a round."""
    solver = noised(multiplier=2.0, **changes)
    return settings(fa.FedAvg(), rounds=1, solver=solver, pipeline=[fa.Clip(50.0)])


def account_of(folder, client):
    path = folder / f"site-{client}" / f"ledger_{client}" / "account.json"
    return json.loads(path.read_text()) if path.exists() else {}


def test_a_void_sum_consumes_no_privacy(tmp_path):
    """Two sites are ready and the sum needs three: no words leave, so that nothing is charged."""
    made = masked_and_noised()
    grid = MaskedGrid(made, tmp_path)
    grid.offline = {2, 3}
    with pytest.raises(EngineError, match="needs 3"):
        run_through(made, grid, tmp_path)
    ready = [wire.read_record(one, wire.HEAD).get("kind") for one in grid.seen]
    assert "ready" in ready
    assert "masked" not in ready
    assert [account_of(tmp_path, client).get("noised", []) for client in (0, 1)] == [[], []]
    assert all(line["epsilon"] == 0 for line in gate.left(tmp_path / "site-0"))
    grid.offline = set()
    run_through(made, grid, tmp_path)
    for client in range(CLIENTS):
        (row,) = account_of(tmp_path, client)["noised"]
        assert row == {"multiplier": 2.0, "per_epoch": 3, "steps": 6}
    lines = [line for line in gate.left(tmp_path / "site-0") if line["kind"] == "masked"]
    assert lines[-1]["epsilon"] == pytest.approx(Accountant(2.0, 0.01, 1 / 3).epsilon(6))


def test_masked_words_that_are_sent_again_are_charged_once(tmp_path):
    made = masked_and_noised()
    lost = iter(range(2))

    def fault(moment, message, client):
        is_words = moment == "reply" and wire.SET in message.content
        return "drop" if is_words and client == 1 and next(lost, None) is not None else None

    grid = MaskedGrid(made, tmp_path, fault)
    run_through(made, grid, tmp_path)
    assert account_of(tmp_path, 1)["noised"][0]["steps"] == 6


def test_a_site_without_budget_declines_before_it_trains(tmp_path):
    """Budgets are compared before the local work, so that no other site's sum is void for it."""
    enough = Accountant(2.0, 0.01, 1 / 3).epsilon(6)
    made = masked_and_noised()
    grid = MaskedGrid(made, tmp_path)
    budgets = {1: 0.9 * enough}
    usual = grid.context

    def context(client):
        given = usual(client)
        given.node_config["epsilon"] = budgets.get(client, 1.1 * enough)
        return given

    grid.context = context
    history = run_through(made, grid, tmp_path)
    assert history.trace == [[0, 2, 3]]
    assert history.outcome.counts == {"declined": 1}
    assert account_of(tmp_path, 1) == {}
