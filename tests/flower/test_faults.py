"""Faults in one process: each leaves the invariant, the versions and the result right."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from flwr.app import Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import fedadmm as fa
from fedadmm.core import clock
from fedadmm.core.atomic_files import locked
from fedadmm.core.errors import EngineError, StateError
from fedadmm.flower.deploy.local_federation import look
from fedadmm.flower.federation import Patience
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.ledger import ReplyKind
from fedadmm.flower.server.checkpoint import ServerState
from fedadmm.flower.server.exchange import Exchange
from fedadmm.flower.server.server_app import serve
from fedadmm.flower.site.site_state import SiteState
from fedadmm.study.run_dir import RunDir

from .harness import (
    CLIENTS,
    Crash,
    FakeGrid,
    check_invariant,
    check_versions,
    federation,
    run_through,
    server_on_disk,
    simulated,
    states_on_disk,
)

pytestmark = pytest.mark.usefixtures("quick")

ALGORITHMS = {
    "fedavg": fa.FedAvg(),
    "scaffold": fa.Scaffold(),
    "fedadmm": fa.FedADMM(rho=1.0),
    "fedadmm-insa": fa.FedADMMInSa(beta=1.0),
    "feddr": fa.FedDR(eta=1.0),
    "fedadmm aligned": fa.AlignedADMM(rho=1.0, sigma=0.6),
}
ROUNDS = 6


@pytest.fixture(params=ALGORITHMS)
def settings(request):
    return federation(ALGORITHMS[request.param], rounds=ROUNDS)


def check(settings, history, folder):
    """Nothing lost, nothing twice, and the result of a fault-free run with these participants."""
    check_versions(settings, folder, history.trace)
    check_invariant(settings, folder)
    wanted = simulated(settings, history.trace)
    assert torch.allclose(history.outcome.params, wanted.params, rtol=0, atol=1e-6)
    assert len(history.trace) == ROUNDS


class Once:
    """Disturbs the first messages that match, and counts; None is a message of any round."""

    def __init__(self, moment, number, client, answer="drop", times=1):
        self.wanted = (moment, None if number is None else str(number), client)
        self.answer = answer
        self.left = times
        self.count = 0

    def __call__(self, moment, message, client):
        group = None if self.wanted[1] is None else message.metadata.group_id
        if (moment, group, client) != self.wanted or self.left == 0:
            return None
        self.left -= 1
        self.count += 1
        return self.answer


@pytest.mark.parametrize("moment", ["deliver", "reply"])
def test_a_message_lost_once_is_sent_again(settings, moment, tmp_path):
    fault = Once(moment, 3, client=1)
    history = run_through(settings, FakeGrid(settings, tmp_path, fault), tmp_path)
    assert fault.count == 1
    assert history.trace == [[0, 1, 2, 3]] * ROUNDS
    check(settings, history, tmp_path)


def test_a_reply_lost_for_good_is_rolled_back(settings, tmp_path):
    fault = Once("reply", 3, client=1, times=-1)
    history = run_through(settings, FakeGrid(settings, tmp_path, fault), tmp_path)
    assert fault.count > 1
    assert history.trace[2] == [0, 2, 3]
    assert history.trace[3] == [0, 1, 2, 3]
    assert history.records[2]["network"]["missing"] == 1
    check(settings, history, tmp_path)


def test_a_reply_that_comes_twice_counts_once(settings, tmp_path):
    fault = Once("reply", 3, client=1, answer="late")
    history = run_through(settings, FakeGrid(settings, tmp_path, fault), tmp_path)
    assert fault.count == 1
    assert history.outcome.counts["duplicate"] == 1
    check(settings, history, tmp_path)


class Counting(FakeGrid):
    """Counts the tasks that the server hands to the network."""

    tasks = 0

    def push_messages(self, messages):
        messages = list(messages)
        self.tasks += sum(message.metadata.group_id.isdigit() for message in messages)
        return super().push_messages(messages)


@pytest.mark.parametrize("mode", ["rounds", "asynchronous"])
def test_every_task_that_went_out_is_counted_down(mode, tmp_path):
    """A lost task is sent again, and a client whose replies never come received it all the same."""
    method = fa.FedAvg() if mode == "rounds" else fa.AsyncFedDR(eta=1.0)
    settings = federation(method, rounds=ROUNDS if mode == "rounds" else 60, mode=mode)
    in_rounds = mode == "rounds"
    fault = Once("reply", 3 if in_rounds else None, client=1, times=-1 if in_rounds else 2)
    grid = Counting(settings, tmp_path, fault)
    history = run_through(settings, grid, tmp_path)
    assert fault.count > 1
    initial = settings.problem.initial
    theta = initial.numel() * initial.element_size()
    assert sum(record["traffic"]["bytes_down"] for record in history.records) == grid.tasks * theta
    if mode == "rounds":
        again = history.records[2]["traffic"]["bytes_down"] - CLIENTS * theta
        assert again == (fault.count - 1) * theta > 0
        assert {r["traffic"]["bytes_down"] for r in history.records[3:]} == {CLIENTS * theta}


def test_copies_of_a_task_come_at_doubling_intervals(tmp_path):
    """Again after 10, 20, 40, 80 and 80 s, each at the next look: a slow node is not flooded."""
    patience = Patience(start=60.0, round=300.0, resend=10.0, poll=1.0, empty=4)
    settings = federation(fa.FedADMM(rho=1.0), rounds=ROUNDS, patience=patience)
    seen = []

    def deaf(moment, message, client):
        if (moment, message.metadata.group_id, client) == ("deliver", "3", 1):
            seen.append(clock.now())
            return "drop"
        return None

    history = run_through(settings, FakeGrid(settings, tmp_path, deaf), tmp_path)
    waits = [late - early for early, late in itertools.pairwise(seen)]
    assert [wait - wait % 10 for wait in waits] == [10, 20, 40, 80, 80]
    assert history.trace[2] == [0, 2, 3]
    check(settings, history, tmp_path)


class Slow(FakeGrid):
    """Its nodes say who they are after 100 s, which Flower drops if the question has expired."""

    def __init__(self, *given):
        super().__init__(*given)
        self.asked = {}

    def push_messages(self, messages):
        messages = list(messages)
        identities = super().push_messages(messages)
        for identity, message in zip(identities, messages, strict=True):
            if message.metadata.group_id == "hello":
                self.asked[identity] = clock.now(), message.metadata.ttl
        return identities

    def pull_messages(self, identities):
        def here(identity):
            if identity not in self.asked:
                return True
            at, life = self.asked[identity]
            return at + 100.0 <= clock.now() < at + life

        return super().pull_messages([one for one in identities if here(one)])


def test_nodes_that_need_longer_than_a_minute_to_start_are_heard(tmp_path):
    patience = Patience(start=300.0, round=60.0, resend=10.0, poll=1.0, empty=4)
    settings = federation(fa.FedADMM(rho=1.0), rounds=ROUNDS, patience=patience)
    grid = Slow(settings, tmp_path)
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1, 2, 3]] * ROUNDS
    assert len(grid.asked) == CLIENTS  # one question each
    check(settings, history, tmp_path)


@pytest.mark.parametrize("after", [False, True], ids=["before-commit", "after-commit"])
def test_a_client_that_dies(settings, after, tmp_path, monkeypatch):
    commit, deaths = SiteState.commit, []

    def dying(self, reply, body, record):
        if reply.client == 2 and reply.sequence == 3 and not deaths:
            deaths.append(reply)
            if after:
                commit(self, reply, body, record)
            raise Crash
        commit(self, reply, body, record)

    monkeypatch.setattr(SiteState, "commit", dying)
    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    assert len(deaths) == 1
    assert history.trace == [[0, 1, 2, 3]] * ROUNDS
    check(settings, history, tmp_path)


def test_a_client_that_is_away_for_many_rounds(settings, tmp_path):
    grid = FakeGrid(settings, tmp_path)

    def go_and_come(report):
        grid.offline = {1, 2} if report.record["round"] in (1, 2, 3, 4) else set()

    history = run_through(settings, grid, tmp_path, go_and_come)
    assert history.trace == [[0, 1, 2, 3], *[[0, 3]] * 4, [0, 1, 2, 3]]
    check(settings, history, tmp_path)


MOMENTS = ("before push", "after push", "before fold", "before checkpoint", "after checkpoint")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_server_that_dies_and_resumes(settings, moment, tmp_path, monkeypatch):
    deaths = []

    def dies(where, number):
        if where == moment and number == 3 and not deaths:
            deaths.append(where)
            raise Crash

    class Grid(FakeGrid):
        def push_messages(self, messages):
            kept = list(messages)
            number = int(kept[0].metadata.group_id) if kept[0].metadata.group_id.isdigit() else 0
            dies("before push", number)
            identities = super().push_messages(kept)
            if number == 3 and moment == "after push" and not deaths:
                self.pull_messages(identities)  # the clients work while the server dies
            dies("after push", number)
            return identities

    forget, save, rounds = Exchange.forget, ServerState.save, []

    def before_fold(self):
        """A round's replies are all in when nothing more is waited for."""
        if rounds:
            dies("before fold", rounds[-1])
        forget(self)

    def checkpoint(self, saved, brought):
        if brought:
            dies("before checkpoint", saved.state.round)
        unkept = save(self, saved, brought)
        rounds.append(saved.state.round + 1)
        if brought:
            dies("after checkpoint", saved.state.round)
        return unkept

    monkeypatch.setattr(Exchange, "forget", before_fold)
    monkeypatch.setattr(ServerState, "save", checkpoint)
    history = run_through(settings, Grid(settings, tmp_path), tmp_path)
    assert deaths == [moment]
    assert history.crashes == 1
    assert history.trace == [[0, 1, 2, 3]] * ROUNDS
    check(settings, history, tmp_path)


def test_a_wiped_disk_is_quarantined_without_a_ledger(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), rounds=ROUNDS)
    grid = FakeGrid(settings, tmp_path)

    def wipe(report):
        if report.record["round"] == 3:
            grid.wipe(1)

    history = run_through(settings, grid, tmp_path, wipe)
    assert history.trace == [[0, 1, 2, 3]] * 3 + [[0, 2, 3]] * 3
    assert history.outcome.counts["lost"] == 3
    assert server_on_disk(settings, tmp_path).ledger.entry(1).lost
    event = history.records[3]["network"]["events"][0]
    assert event["client"] == 1
    assert "version 3" in event["detail"]
    assert "version 0" in event["detail"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_wiped_disk_is_repaired_with_a_ledger(name, tmp_path):
    settings = federation(ALGORITHMS[name], rounds=ROUNDS, ledger="disk")
    grid = FakeGrid(settings, tmp_path)

    def wipe(report):
        if report.record["round"] == 3:
            grid.wipe(1)

    history = run_through(settings, grid, tmp_path, wipe)
    assert history.trace == [[0, 1, 2, 3]] * 3 + [[0, 2, 3]] + [[0, 1, 2, 3]] * 2
    assert history.outcome.counts["repaired"] == 1
    entry = server_on_disk(settings, tmp_path).ledger.entry(1)
    assert (entry.incarnation, entry.version) == (1, 2)
    check_invariant(settings, tmp_path)


def test_the_controls_of_scaffnew_add_up_to_zero_after_a_site_was_wiped(tmp_path):
    """Its server keeps nothing of a client; the sum of all h_i decides where it converges to."""
    settings = federation(fa.Scaffnew(p=0.3), rounds=ROUNDS, ledger="disk")
    grid = FakeGrid(settings, tmp_path)

    def wipe(report):
        if report.record["round"] == 3:
            grid.wipe(1)

    history = run_through(settings, grid, tmp_path, wipe)
    assert history.trace == [[0, 1, 2, 3]] * ROUNDS
    assert history.outcome.counts["repaired"] == 1
    states = states_on_disk(settings, tmp_path).values()
    controls = torch.stack([state.z + state.ratio * history.outcome.params for state in states])
    assert controls.norm() > 0.1
    assert torch.allclose(controls.sum(0), torch.zeros(controls.shape[1]), atol=1e-5)


class FaultSequence:
    """Several faults at once, by chance: losses, late replies, deaths of clients and server."""

    def __init__(self, seed, monkeypatch):
        self.chance = random.Random(seed)
        self.count = 0
        self.calm = False
        commit, save = SiteState.commit, ServerState.save

        def dying_commit(site, reply, body, record):
            self.maybe_die(0.05)
            commit(site, reply, body, record)
            self.maybe_die(0.05)

        def dying_save(disk, saved, brought):
            if brought:
                self.maybe_die(0.05)
            unkept = save(disk, saved, brought)
            if brought:
                self.maybe_die(0.05)
            return unkept

        monkeypatch.setattr(SiteState, "commit", dying_commit)
        monkeypatch.setattr(ServerState, "save", dying_save)

    def maybe_die(self, probability):
        if self.chance.random() < probability and not self.calm:
            self.count += 1
            raise Crash

    def __call__(self, moment, message, client):
        if not message.metadata.group_id.isdigit() or self.chance.random() > 0.12:
            return None
        self.count += 1
        return self.chance.choice(["drop", "drop", "late"] if moment == "reply" else ["drop"])


@pytest.mark.parametrize("seed", range(14))
def test_many_faults_at_once(seed, tmp_path, monkeypatch):
    names = list(ALGORITHMS)
    settings = federation(
        ALGORITHMS[names[seed % len(names)]],
        rounds=ROUNDS,
        sampler=fa.BernoulliSampling(0.8),
        seed=seed,
    )
    faults = FaultSequence(seed, monkeypatch)
    history = run_through(settings, FakeGrid(settings, tmp_path, faults), tmp_path)
    assert faults.count > 2
    check_versions(settings, tmp_path, history.trace)
    check_invariant(settings, tmp_path)
    missing = set(range(CLIENTS)) - {client for ids in history.trace for client in ids}
    if not missing:
        check(settings, history, tmp_path)


def test_a_task_of_a_round_that_was_made_again_is_outdated(tmp_path):
    """A second copy of a client's first task comes after it has answered the second one.

    FedSplit needs everybody, so that the round of a wiped client is made again for all.  If both
    tasks had the same number, the late copy would replace the state that the server has folded.
    """
    settings = federation(fa.FedSplit(eta=1.0), rounds=4, ledger="disk")
    first: list[Message] = []
    wiped: list[bool] = []
    late: list[ReplyKind] = []

    def fault(moment, message, client):
        if wire.HEAD not in message.content or not wiped or client != 0 or late:
            return
        again = server_on_disk(settings, tmp_path).ledger.restarts > 0
        if moment == "reply" and not again:
            first.append(message)
        elif moment == "reply":
            found = grid._app(first[0], grid.context(0)).content
            late.append(wire.read_reply(found, 10**6)[0].kind)

    grid = FakeGrid(settings, tmp_path, fault)

    def wipe(report):
        if report.record["round"] == 2 and not wiped:
            grid.wipe(1)
            wiped.append(True)

    history = run_through(settings, grid, tmp_path, wipe)
    assert late == [ReplyKind.STALE]
    assert history.outcome.counts["repaired"] == 1
    assert history.outcome.counts["lost"] == 1  # the wiped client, and nobody else
    check_invariant(settings, tmp_path)


class TwoCopies:
    """A grid on which the first copy of a message ends in an error, and then the second one too."""

    def __init__(self, second):
        self.sent, self.second = [], second

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{len(self.sent)}"
            self.sent.append(message)
        return [self.sent[-1].metadata.message_id]

    def pull_messages(self, identities):
        first = self.sent[int(min(identities)[1:])]
        content = Error(code=1, reason="the node is gone")
        if first is self.sent[1] and self.second == "answers":
            content = RecordDict()
        return [Message(content, reply_to=first)]


@pytest.mark.parametrize("second", ["answers", "fails"])
def test_an_error_counts_when_no_other_copy_is_out(second):
    """A node that died and restarted was left out of the round because of what it got before."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    exchange = Exchange(TwoCopies(second), 1.0)
    for _ in range(2):
        exchange.send("train", "1", {7: (1000, RecordDict())}, 60.0)
    came = list(exchange.arrivals(exchange.now() + 10))
    assert [arrival.key for arrival in came] == [7]
    assert came[0].error == ("" if second == "answers" else "the node is gone")


def test_whoever_stops_as_all_lost_their_state_says_so(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), rounds=4)
    grid = FakeGrid(settings, tmp_path)

    def wipe(report):
        for client in range(CLIENTS):
            grid.wipe(client)

    with pytest.raises(EngineError, match=r"4 clients lost their state \(first: 0\).*folders back"):
        run_through(settings, grid, tmp_path, wipe)


def test_a_second_server_on_one_checkpoint_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fedadmm.flower.server.server_app._PREDECESSOR", 0.1)
    settings = federation(fa.FedADMM(rho=1.0), rounds=2)
    grid = FakeGrid(settings, tmp_path)
    folder = tmp_path / "server"
    folder.mkdir()
    with locked(folder, 0.0), pytest.raises(StateError, match="in use by process"):
        serve(settings, grid, folder)
    assert not (folder / "checkpoint").exists()
    assert serve(settings, grid, folder).ending.code == "completed"


# A round that does not wait for ever --------------------------------------------------------------


def _slow(clients, group="3"):
    """Nothing that these clients answer in a round arrives."""

    def fault(moment, message, client):
        late = moment == "reply" and message.metadata.group_id == group and client in clients
        return "drop" if late else None

    return fault


def test_a_round_ends_when_a_node_is_gone_for_good(tmp_path):
    """Client 1 is asked, and its node is not seen any more: 60 s later, and not after 600."""
    patience = Patience(start=60.0, round=600.0, gone=60.0, resend=150.0, poll=1.0)
    settings = federation(fa.FedADMM(rho=1.0), rounds=ROUNDS, patience=patience)
    ends = []

    def leave(moment, message, client):
        if (moment, message.metadata.group_id, client) == ("deliver", "3", 1):
            grid.offline.add(1)
            return "drop"
        return None

    grid = FakeGrid(settings, tmp_path, leave)
    history = run_through(settings, grid, tmp_path, lambda report: ends.append(clock.now()))
    assert history.trace[2] == [0, 2, 3]
    assert 60 < ends[2] - ends[1] < 80
    (event,) = history.records[2]["network"]["events"]
    assert (event["reason"], event["detail"]) == ("missing", "its node has been gone for 60 s")
    check(settings, history, tmp_path)


def test_a_round_ends_when_enough_have_answered(tmp_path):
    """Two of four are enough; who is slower did not take part, and is asked again at once."""
    patience = Patience(start=60.0, round=600.0, enough=0.5, resend=150.0, poll=1.0)
    settings = federation(fa.FedADMM(rho=1.0), rounds=ROUNDS, patience=patience)
    ends = []
    grid = FakeGrid(settings, tmp_path, _slow({1, 2}))
    history = run_through(settings, grid, tmp_path, lambda report: ends.append(clock.now()))
    assert history.trace == [[0, 1, 2, 3]] * 2 + [[0, 3]] + [[0, 1, 2, 3]] * (ROUNDS - 3)
    assert ends[2] - ends[1] < 10
    assert "2 others had answered" in history.records[2]["network"]["events"][0]["detail"]
    check(settings, history, tmp_path)


def test_a_method_that_needs_all_clients_waits_for_them(tmp_path):
    patience = Patience(start=60.0, round=60.0, enough=0.5, resend=150.0, poll=1.0)
    settings = federation(fa.FedSplit(eta=1.0), rounds=ROUNDS, patience=patience)
    with pytest.raises(fa.errors.EngineError, match=r"needs all clients, but 2 did not bring"):
        run_through(settings, FakeGrid(settings, tmp_path, _slow({1, 2})), tmp_path)


def test_it_is_said_for_whom_a_round_waits(tmp_path, caplog):
    """In the log after 10 s and then ever more rarely, and for `deploy status` while it lasts."""
    patience = Patience(start=60.0, round=100.0, resend=150.0, poll=1.0)
    settings = federation(fa.FedADMM(rho=1.0), rounds=3, patience=patience)
    seen = []

    class Grid(FakeGrid):
        def pull_messages(self, identities):
            path = tmp_path / "server" / "waiting.json"
            seen.append(look(tmp_path / "server")["waiting"] if path.exists() else None)
            return super().pull_messages(identities)

    history = run_through(settings, Grid(settings, tmp_path, _slow({2}, "2")), tmp_path)
    said = [r.message for r in caplog.records if "waiting for" in r.message]
    assert said == ["round 2: waiting for client 2"] * 4  # after 10, 20, 40, 80 of 100 s
    assert {(w["round"], *w["clients"]) for w in seen if w is not None} == {(2, 2)}
    assert look(tmp_path / "server")["waiting"] is None
    assert history.records[1]["network"]["events"][0]["at"]


# What one site moves, and the model on the way ----------------------------------------------------


def test_records_and_status_name_the_largest_influence(tmp_path):
    """The share of the weighted norms, written down from the sites' own states."""
    settings = federation(fa.FedADMM(rho=1.0), rounds=1, weights=[0.7, 0.1, 0.1, 0.1])
    grid = FakeGrid(settings, tmp_path)
    history = run_through(settings, grid, tmp_path)
    start = settings.problem.initial
    moved = [
        float((s.w + s.y / s.rho - start).norm())
        for s in states_on_disk(settings, tmp_path).values()
    ]
    lengths = [weight * norm for weight, norm in zip((0.7, 0.1, 0.1, 0.1), moved, strict=True)]
    found = history.records[0]["network"]["influence"]
    assert found["client"] == max(range(4), key=lengths.__getitem__)
    assert found["share"] == pytest.approx(max(lengths) / sum(lengths), rel=1e-4)


def test_the_model_can_be_taken_in_the_middle(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), rounds=ROUNDS)
    found = []

    def take(report):
        path = tmp_path / "server"
        if report.record["round"] > 1:
            found.append(RunDir(path).model(last=True).params)

    run_through(settings, FakeGrid(settings, tmp_path), tmp_path, take)
    half = federation(fa.FedADMM(rho=1.0), rounds=ROUNDS - 1)
    assert len(found) == ROUNDS - 1
    assert torch.equal(found[-1], simulated(half).params)
