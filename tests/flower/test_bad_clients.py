"""A bad reply is refused, counted, and costs only itself."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import fedadmm as fa
from fedadmm.core import trees
from fedadmm.core.codec import Packed, encode
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.admission import WINDOW, Admission, UploadHistory, seal
from fedadmm.flower.protocol.payloads import decode
from fedadmm.flower.server.server_app import configured
from fedadmm.flower.server.site_evaluation import outlying_metrics

from .harness import (
    FakeGrid,
    check_invariant,
    check_versions,
    federation,
    run_through,
    server_on_disk,
    simulated,
)

pytestmark = pytest.mark.usefixtures("quick")
MOST = 10**6
HUGE = 2**31 - 1


def rewritten(change):
    """A reply with another body, whose digest is made to fit: a lie, not an accident."""

    def spoil(content):
        reply, body = wire.read_reply(content, MOST)
        changed = change(body)
        return wire.write(seal(reply, changed), changed)

    return spoil


def retensored(change):
    """A reply whose vectors are changed."""

    def rewrite(body):
        packed = decode(body)
        tensors = {name: change(tensor.clone()) for name, tensor in packed.tensors.items()}
        return encode(Packed(tensors, packed.plain))

    return rewritten(rewrite)


def saying(**values):
    """A reply that says something else about the work."""

    def rewrite(body):
        packed = decode(body)
        plain = {name.replace("__", "."): value for name, value in values.items()}
        return encode(Packed(packed.tensors, packed.plain | plain))

    return rewritten(rewrite)


def reheaded(**fields):
    """A reply with another head, sealed again."""

    def spoil(content):
        reply, body = wire.read_reply(content, MOST)
        return wire.write(seal(reply._replace(**fields), body), body)

    return spoil


def raw(header, data=b""):
    """A body that says what it likes in its header."""
    metadata = {"__metadata__": {"plain": json.dumps({"info.finite": True})}}
    text = json.dumps(metadata | header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor_of(shape, size=0, dtype="F32"):
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}
    return rewritten(lambda body: raw({"upload.message.increment": entry}, bytes(size)))


def forged(content):
    """Content changed after it was sealed."""
    reply, body = wire.read_reply(content, MOST)
    return wire.write(reply, body[:-1] + bytes([body[-1] ^ 1]))


def pickled(content):
    """What another program might send: numpy's own format."""
    return RecordDict({wire.HEAD: content[wire.HEAD], wire.BODY: ArrayRecord([np.zeros(3)])})


def two_arrays(content):
    arrays = ArrayRecord()
    for name in "ab":
        arrays[name] = Array("uint8", (1,), wire.STYPE, b"x")
    return RecordDict({wire.HEAD: content[wire.HEAD], wire.BODY: arrays})


def nan(tensor):
    tensor[0] = float("nan")
    return tensor


BRACKETS = (200_000).to_bytes(8, "little") + b"[" * 200_000
BAD = {
    "nan": (retensored(nan), "finite"),
    "infinity": (retensored(lambda t: t / 0), "finite"),
    "wrong shape": (retensored(lambda t: t[:-1]), "shape"),
    "wrong type": (retensored(lambda t: t.double()), "dtype"),
    "bfloat16": (retensored(lambda t: t.bfloat16()), "dtype"),
    "huge norm": (retensored(lambda t: t + 1e9), "norm"),
    "large beside the others": (retensored(lambda t: 9e3 * t), "norm"),
    "an empty shape that cannot be": (tensor_of([0, HUGE, HUGE, HUGE]), "shape"),
    "a shape that cannot be": (tensor_of([HUGE, HUGE, HUGE]), "shape"),
    "a shape below zero": (tensor_of([-6], 24), "shape"),
    "a shape that is no number": (tensor_of(["6"], 24), "shape"),
    "nine sides": (tensor_of([1] * 9, 4), "shape"),
    "an unknown type": (tensor_of([6], 24, "F99"), "garbage"),
    "a type that torch has not": (tensor_of([24], 24, "F8_E8M0"), "garbage"),
    "a drift whose square is too large": (saying(info__drift=1e200), "range"),
    "a move that is no number": (saying(info__move=float("nan")), "range"),
    "a weight that is no number": (saying(info__weight=float("nan")), "range"),
    "an infinite weight": (saying(info__weight=float("inf")), "range"),
    "a negative weight": (saying(info__weight=-1.0), "range"),
    "absurd steps": (saying(info__solve__steps=10**40), "range"),
    "steps beyond all floats": (saying(info__solve__steps=10**400), "range"),
    "negative steps": (saying(info__solve__steps=-1), "range"),
    "infinite epochs": (saying(info__solve__epochs=float("inf")), "range"),
    "a long text": (saying(info__solve__status="x" * 501), "size"),
    "a text for a number": (saying(info__weight="1"), "dtype"),
    "not finite by its own word": (saying(info__finite=False), "finite"),
    "one value more": (saying(other=1.0), "shape"),
    "forged digest": (forged, "digest"),
    "stale version": (reheaded(version=0), "protocol"),
    "future version": (reheaded(version=9), "protocol"),
    "another round": (reheaded(sequence=0), "protocol"),
    "another run": (reheaded(run="x"), "protocol"),
    "another client": (reheaded(client=0), "protocol"),
    "another task": (reheaded(task="x"), "protocol"),
    "an unknown kind": (reheaded(kind="x"), "garbage"),
    "no head": (lambda content: RecordDict({"hello": ConfigRecord({"a": 1})}), "garbage"),
    "nothing": (lambda content: RecordDict(), "garbage"),
    "numpy's format": (pickled, "garbage"),
    "two bodies": (two_arrays, "garbage"),
    "no body": (rewritten(lambda body: b""), "garbage"),
    "brackets": (rewritten(lambda body: BRACKETS), "size"),
    "few brackets": (rewritten(lambda body: b"\x03" + bytes(7) + b"[[["), "garbage"),
    "too few bytes": (rewritten(lambda body: body[:-1]), "garbage"),
    "too many bytes": (rewritten(lambda body: body + bytes(10**5)), "size"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_reply_is_refused_and_the_run_goes_on(what, tmp_path):
    spoil, word = BAD[what]
    settings = federation(fa.FedADMM(rho=1.0), rounds=5)
    grid, number = FakeGrid(settings, tmp_path), [0]

    def in_round_three(content, client):
        return spoil(content) if client == 2 and number[0] == 2 else content

    grid.spoil = in_round_three
    history = run_through(
        settings, grid, tmp_path, lambda r: number.__setitem__(0, r.record["round"])
    )
    assert history.trace == [[0, 1, 2, 3]] * 2 + [[0, 1, 3]] + [[0, 1, 2, 3]] * 2
    assert history.outcome.counts == {word: 1}
    assert history.records[2]["network"]["refused"] == 1
    check_versions(settings, tmp_path, history.trace)
    check_invariant(settings, tmp_path)
    wanted = simulated(settings, history.trace)
    assert torch.allclose(history.outcome.params, wanted.params, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", ["rounds", "asynchronous"])
def test_one_large_upload_does_not_move_the_model(mode, tmp_path):
    """Far below any fixed bound, far above what anybody has sent: seen from the first round on."""
    algorithm = fa.FedADMM(rho=1.0) if mode == "rounds" else fa.AsyncFedDR(eta=1.0)
    rounds = 3 if mode == "rounds" else 12
    settings = federation(algorithm, rounds=rounds, mode=mode)
    grid = FakeGrid(settings, tmp_path)
    liar = retensored(lambda t: t * (9e5 / t.norm()))
    grid.spoil = lambda content, client: liar(content) if client == 2 else content
    history = run_through(settings, grid, tmp_path)
    assert all(2 not in clients for clients in history.trace)
    assert history.outcome.counts["norm"] == (3 if mode == "rounds" else 1)
    events = [event for record in history.records for event in record["network"]["events"]]
    detail = next(event["detail"] for event in events if event["reason"] == "norm")
    assert "increment has norm 9e+05, but at most" in detail
    assert "3 times what this client or most others have sent" in detail
    check_invariant(settings, tmp_path)


def brought(*sizes, step=0):
    """What a client has brought, one upload after the other."""
    made = None
    for number, size in enumerate(sizes):
        made = UploadHistory.after(made, step - len(sizes) + 1 + number, {"x": size})
    return made


CONVERGED = [1.0, *[1e-3] * WINDOW]
SIZES = {
    # nothing to compare with: only the absolute bound counts
    "alone": ({0: 1e5}, {}, []),
    "others sent nothing but zeros": ({0: 1e5, 1: 0.0}, {}, []),
    # the median of the others is 1: 3 may come, more may not
    "just below": ({0: 3.0, 1: 1.0, 2: 1.0}, {}, []),
    "just above": ({0: 3.1, 1: 1.0, 2: 1.0}, {}, [0]),
    "one other liar raises nothing": ({0: 99.0, 1: 1.0, 2: 1.0, 3: 99.0}, {}, [0, 3]),
    "one that sends next to nothing shuts nobody out": ({0: 4.0, 1: 3.0, 2: 1e-9}, {}, []),
    # a site that was larger lately may be so again, but not without limit
    "own past": ({0: 5.9}, {0: brought(2.0), 1: brought(1.0)}, []),
    "own past, more": ({0: 6.1}, {0: brought(2.0), 1: brought(1.0)}, [0]),
    "own past that is absurd": ({0: 9.1}, {0: brought(1e4), 1: brought(1.0)}, [0]),
    # steps get smaller as methods converge: what was usual long ago counts no more
    "late": ({0: 0.1}, {0: brought(*CONVERGED), 1: brought(*CONVERGED)}, [0]),
    "late, as usual": ({0: 2e-3}, {0: brought(*CONVERGED), 1: brought(*CONVERGED)}, []),
    # but a newcomer, or who was away for long, has a way to go that the others have behind them
    "a newcomer late": ({0: 2.9, 1: 1e-3}, {1: brought(*CONVERGED)}, []),
    "a newcomer's lie": ({0: 3.1, 1: 1e-3}, {1: brought(*CONVERGED)}, [0]),
    "away": ({0: 2.9}, {0: brought(1.0, step=-WINDOW - 1), 1: brought(*CONVERGED)}, []),
    "not long away": ({0: 2.9}, {0: brought(1e-3, step=-WINDOW), 1: brought(*CONVERGED)}, [0]),
    # rounding is all that is left at the optimum
    "next to nothing": ({0: 9e-7}, {0: brought(1e-15), 1: brought(1e-15)}, []),
}


@pytest.mark.parametrize("case", SIZES)
def test_the_bound_follows_what_was_sent(case):
    sent, past, refused = SIZES[case]
    arrived = {client: {"x": size} for client, size in sent.items()}
    assert sorted(Admission().outliers(arrived, past)) == refused


def test_each_vector_is_judged_for_itself():
    arrived = {0: {"x": 1.0, "y": 50.0}, 1: {"x": 9.0, "y": 1.0}}
    assert sorted(Admission().outliers(arrived, {})) == [0, 1]


def test_a_liar_does_not_get_further_step_by_step():
    """Always as much as is let in: at most 3 x 3 times what the others send, for ever."""
    admission, past = Admission(), {c: brought(1.0) for c in range(4)}
    size, most = 1.0, 0.0
    for step in range(40):
        for grown in (2.9 * size, size):
            arrived = {c: {"x": grown if c == 0 else 1.0} for c in range(4)}
            if not admission.outliers(arrived, past, step):
                size = grown
                break
        most = max(most, size)
        past = {c: UploadHistory.after(past[c], step, sizes) for c, sizes in arrived.items()}
    assert 3.0 < most <= 9.0


@pytest.mark.parametrize(
    ("name", "factor"), [("fedavg", -5.0), ("fedavg", -18.0), ("fedadmm", -18.0)]
)
def test_a_site_that_sends_several_times_its_update_changes_nothing(name, factor, tmp_path):
    algorithm = fa.FedAvg() if name == "fedavg" else fa.FedADMM(rho=1.0)
    settings = federation(algorithm, rounds=6)
    grid, number = FakeGrid(settings, tmp_path), [0]
    lie = retensored(lambda t: factor * t)
    grid.spoil = lambda content, client: lie(content) if client == 2 and number[0] else content
    history = run_through(
        settings, grid, tmp_path, lambda r: number.__setitem__(0, r.record["round"])
    )
    assert history.trace == [[0, 1, 2, 3], *[[0, 1, 3]] * 5]
    assert history.outcome.counts == {"norm": 5}
    wanted = simulated(settings, history.trace)
    assert torch.allclose(history.outcome.params, wanted.params, rtol=0, atol=1e-6)


@pytest.mark.parametrize("clients", [4, 10])
@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("method", [fa.FedAvg(), fa.FedADMM(rho=0.1)], ids=lambda m: m.name)
def test_updates_of_honest_sites_with_different_data_are_admitted(
    method, share, clients, monkeypatch
):
    """Digits with few classes each, sites of different sizes; what a server would have judged."""
    from fedadmm.data import problems
    from fedadmm.run import loop

    admission, past, arrived = Admission(), {}, {}
    taken = loop.ClientUpdates._received

    def look(self, coming):
        def seen():
            for client, upload, info in coming:
                tensors = trees.named_tensors(upload)
                arrived[client] = {name: float(tensor.norm()) for name, tensor in tensors}
                yield client, upload, info

        return taken(self, seen())

    def validate(report):
        step = report.state.round - 1
        assert admission.outliers(arrived, past, step) == {}
        for client, sizes in arrived.items():
            past[client] = UploadHistory.after(past.get(client), step, sizes)
        arrived.clear()

    monkeypatch.setattr(loop.ClientUpdates, "_received", look)
    split = {"partition": "dirichlet", "dirichlet_alpha": 0.1, "min_size": 5}
    problem = problems.load("digits", clients=clients, **split)
    sampler = fa.UniformSampling(max(1, round(share * clients)))
    solver, stop = fa.SGD(lr=0.1, batch_size=20), fa.Epochs(5)
    options = {"solver": solver, "stop": stop, "sampler": sampler, "evaluate": False}
    fa.simulate(method, problem, 15, engine="sequential", callbacks=[validate], **options)
    assert len(past) == clients


def test_a_divergence_names_who_contributed_most(tmp_path):
    solver = fa.SGD(lr=1e8, batch_size=10)
    options = {"stop": fa.Steps(1), "admission": Admission(norm_bound=1e15)}
    options |= {"evaluate_every": 1, "weights": [1, 1, 6, 1]}
    settings = federation(fa.FedAvg(), solver=solver, **options)
    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    ending = history.outcome.ending
    assert ending.code == "diverged"
    assert "the largest shares of the last updates are those of client 2 (" in ending.sentence


def test_a_first_lie_is_remembered_over_a_restart(tmp_path):
    """The bound is part of the checkpoint: who was away meanwhile is judged by the same past."""
    settings = federation(fa.FedADMM(rho=1.0), rounds=2)
    run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    settings = federation(fa.FedADMM(rho=1.0), rounds=3)
    grid = FakeGrid(settings, tmp_path)
    grid.offline = {0, 1, 3}
    grid.spoil = lambda content, client: retensored(lambda t: 9e3 * t)(content)
    with pytest.raises(fa.errors.EngineError, match="no client returned an update"):
        run_through(settings, grid, tmp_path)


def test_a_run_whose_clients_all_diverge_ends_as_diverged_after_several_rounds(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), solver=fa.SGD(lr=1e30, batch_size=10))
    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    assert history.outcome.ending.code == "diverged"
    assert history.outcome.counts["finite"] == settings.patience.empty * 4


def test_a_round_whose_only_answer_is_failed_is_skipped(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), rounds=4)
    grid, number = FakeGrid(settings, tmp_path), [0]

    def fail(content, client):
        if number[0] != 1:
            return content
        reply, _ = wire.read_reply(content, MOST)
        return wire.write(reply._replace(kind="failed", reason="too much"), b"")

    grid.spoil = fail
    history = run_through(
        settings, grid, tmp_path, lambda r: number.__setitem__(0, r.record["round"])
    )
    assert history.trace == [[0, 1, 2, 3], [], *[[0, 1, 2, 3]] * 3]
    assert history.outcome.ending.sentence == "completed all 4 rounds, and 1 without an update"
    check_invariant(settings, tmp_path)


def test_what_a_site_writes_cannot_forge_the_log(tmp_path, caplog):
    settings = federation(fa.FedADMM(rho=1.0), rounds=1)
    grid = FakeGrid(settings, tmp_path)

    def forge(content, client):
        reply, _ = wire.read_reply(content, MOST)
        reason = "x\nround 9, client 0: repaired\r\x1b[2J\u202egood"
        lie = reply._replace(kind="lost", reason=reason)
        return wire.write(lie, b"") if client == 2 else content

    grid.spoil = forge
    history = run_through(settings, grid, tmp_path)
    detail = history.records[0]["network"]["events"][0]["detail"]
    assert detail.isprintable()
    assert "round 9" in detail
    assert not any(letter in caplog.text for letter in "\r\x1b\u202e")
    assert "\nround 9" not in caplog.text


def test_only_named_nodes_take_part(tmp_path):
    names = ["client-0", "client-1", "client-2", "stranger"]
    settings = federation(fa.FedAvg(), rounds=2, names=names)
    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    assert history.trace == [[0, 1, 2]] * 2


def test_a_second_node_with_a_registered_name_stays_outside(tmp_path, caplog):
    """Whoever is there keeps the seat; when it is gone, the other one may have it."""
    settings = federation(fa.FedAvg(), rounds=4, names=[f"client-{i}" for i in range(4)])

    class Grid(FakeGrid):
        def get_nodes(self):
            nodes = super().get_nodes()
            twin = nodes[0]._replace(node_id=7, name="client-2") if nodes else None
            return nodes if self.counts["train"] < 4 or twin is None else [*nodes, twin]

    grid = Grid(settings, tmp_path)
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1, 2, 3]] * 4
    text = "node 7 takes no part: node 1002 is registered as 'client-2' too, and was first"
    assert caplog.text.count(text) == 1


WORK = {
    "a weight beyond the others'": (
        {"info__weight": 1e29},
        "info.weight is 1e+29, but the others'",
    ),
    "steps beyond the task": ({"info__solve__steps": 10**6}, "a round has at most 2"),
    "steps of rows that nobody has": (
        {"info__solve__steps": 10**8, "info__solve__epochs": 2.0},
        "info.solve.steps is 1e+08, but the others' are below",
    ),
}


@pytest.mark.parametrize("what", WORK)
def test_what_a_site_says_about_its_work_is_held_against_its_task_and_the_others(what, tmp_path):
    lie, sentence = WORK[what]
    if what == "steps beyond the task":
        lie = lie | {"info__solve__epochs": 10.0**6}
    settings = federation(fa.FedADMM(rho=1.0), rounds=3)
    grid = FakeGrid(settings, tmp_path)
    grid.spoil = lambda content, client: saying(**lie)(content) if client == 2 else content
    history = run_through(settings, grid, tmp_path)
    assert all(clients == [0, 1, 3] for clients in history.trace)
    assert history.outcome.counts["range"] == 3
    assert sentence in history.records[0]["network"]["events"][0]["detail"]
    assert history.records[-1]["work"]["penalty_max"] == 1.0


def test_one_site_that_says_its_budget_is_spent_ends_no_run(tmp_path):
    """Up to eight times what the tasks asked for may be said: replies get lost."""
    solver = fa.DPSGD(0.1, clip=0.5, multiplier=1.0, batch_size=10, delta=0.01, budget=20.0)
    settings = federation(fa.FedAvg(), rounds=6, solver=solver)
    honest = run_through(settings, FakeGrid(settings, tmp_path / "h"), tmp_path / "h")
    assert honest.outcome.ending.code == "completed"
    grid = FakeGrid(settings, tmp_path / "l")
    lie = saying(info__noised=8 * 2 * 6)
    said = []

    def once(content, client):
        if client != 2 or said:
            return content
        said.append(client)
        return lie(content)

    grid.spoil = once
    lied = run_through(settings, grid, tmp_path / "l")
    assert lied.outcome.ending.code == "completed"
    assert lied.records[-1]["privacy"]["epsilon"] > 20.0


def test_an_accuracy_above_one_is_left_out():
    answers = {c: {"test_accuracy": 0.9} for c in range(3)} | {3: {"test_accuracy": 40.0}}
    assert list(outlying_metrics(answers)) == [3]


def test_a_divergence_keeps_the_last_good_round_to_go_on_from(tmp_path):
    """Round 2 explodes; with the named client left out the same folder comes to its end."""
    options = {"admission": Admission(norm_factor=1e12, norm_bound=1e12), "weights": [1, 1, 2, 1]}
    settings = federation(fa.FedAvg(), rounds=4, evaluate_every=1, **options)
    grid, number = FakeGrid(settings, tmp_path), [0]
    lie = retensored(lambda t: t + 1e9)
    grid.spoil = lambda content, client: lie(content) if client == 2 and number[0] else content
    history = run_through(
        settings, grid, tmp_path, lambda r: number.__setitem__(0, r.record["round"])
    )
    ending, saved = history.outcome.ending, server_on_disk(settings, tmp_path)
    assert ending.code == "diverged"
    assert "those of client 2 (" in ending.sentence
    assert "the model is that of round 1, from which the run goes on" in ending.sentence
    assert saved.state.round == 1
    good = simulated(federation(fa.FedAvg(), rounds=1, **options))
    assert torch.allclose(history.outcome.params, good.params, rtol=0, atol=1e-6)
    settings = configured(settings, {"leave-out": "2"})
    again = run_through(settings, grid, tmp_path)
    assert again.outcome.ending.code == "completed"
    assert again.trace == [[0, 1, 3]] * 3
    trace = [[0, 1, 2, 3], *again.trace]
    wanted = simulated(federation(fa.FedAvg(), rounds=4, **options), trace)
    assert torch.allclose(again.outcome.params, wanted.params, rtol=0, atol=1e-6)


@pytest.mark.parametrize("word", ["x", "4", "-1"])
def test_only_clients_can_be_left_out(word):
    with pytest.raises(fa.errors.ConfigError, match="expected client numbers below 4"):
        configured(federation(fa.FedAvg()), {"leave-out": word})


@pytest.mark.parametrize("kind", ["failed", "error"])
def test_a_single_client_that_fails_ends_no_run_that_asks_one_at_a_time(kind, tmp_path):
    """Client 2 never brings anything, and is asked alone up to five times in a row."""
    trace = [[0], *[[2]] * 5, [1], [3], [0], [1]]
    settings = federation(fa.FedADMM(rho=1.0), rounds=5, sampler=fa.TraceSampling(trace))
    grid = FakeGrid(settings, tmp_path)

    def fail(content, client):
        if client != 2:
            return content
        if kind == "error":
            return RecordDict()
        reply, _ = wire.read_reply(content, MOST)
        return wire.write(reply._replace(kind="failed", reason="too much"), b"")

    grid.spoil = fail
    history = run_through(settings, grid, tmp_path)
    assert history.outcome.ending.code == "completed"
    assert [ids for ids in history.trace if ids] == [[0], [1], [3], [0], [1]]


def test_a_silent_client_costs_the_whole_patience_ever_more_rarely(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), rounds=20)
    asked, grid = [], FakeGrid(settings, tmp_path)

    def silent(moment, message, client):
        if client == 2 and moment == "reply" and message.metadata.group_id.isdigit():
            asked.append(int(message.metadata.group_id))
            return "drop"
        return None

    grid.fault = silent
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1, 3]] * 20
    assert sorted(set(asked)) == [1, 2, 4, 8, 16]
    events = history.records[2]["network"]["events"]
    assert "left 2 tasks unanswered, and is asked again in round 4" in events[0]["detail"]
    check_invariant(settings, tmp_path)


def test_a_silent_client_that_answers_again_takes_part_at_once(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), rounds=6)
    grid = FakeGrid(settings, tmp_path)
    early = ("1", "2")
    grid.fault = lambda moment, message, client: (
        "drop" if client == 2 and message.metadata.group_id in early else None
    )
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1, 3]] * 3 + [[0, 1, 2, 3]] * 3


def test_a_seat_stays_with_its_first_key_until_the_operator_says_otherwise(tmp_path, caplog):
    """Client 2 goes offline for good, and another node with its name is there."""
    names = [f"client-{i}" for i in range(4)]
    settings = federation(fa.FedAvg(), rounds=4, names=names)

    class Grid(FakeGrid):
        def get_nodes(self):
            nodes = super().get_nodes()
            gone = self.counts["train"] >= 4
            keyed = [node._replace(public_key=b"first") for node in nodes]
            twin = keyed[2]._replace(node_id=2002, public_key=b"new")
            return [keyed[0], keyed[1], twin if gone else keyed[2], keyed[3]]

    grid = Grid(settings, tmp_path)
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1, 2, 3], *[[0, 1, 3]] * 3]
    assert caplog.text.count("the seat of 'client-2' belongs to another key in this run") == 1
    settings = federation(fa.FedAvg(), rounds=6, names=names, accept_nodes=True)
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1, 2, 3]] * 2
    assert "client 2 is 6e6577 now; it was 6669727374" in caplog.text
