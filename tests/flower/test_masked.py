"""Masked sums over the real server and site code: whoever dies, and whatever is asked."""

from __future__ import annotations

import contextlib
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

import fedadmm as fa
from fedadmm.core import atomic_files, clock, pairwise_masks
from fedadmm.core.errors import StateError
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.ledger import ReplyKind, reply_to
from fedadmm.flower.secure_aggregation import masked_sums as server_masking
from fedadmm.flower.secure_aggregation.masked_messages import SetRequirement
from fedadmm.flower.secure_aggregation.pending_uploads import Origin, Peers, PendingUploads
from fedadmm.flower.site import app as site_app
from fedadmm.flower.site.app import Site, client_app

from .harness import (
    Clock,
    Crash,
    check_invariant,
    check_versions,
    objectives,
    run_through,
    server_on_disk,
    simulated,
)
from .masked import MaskedGrid, settings


@pytest.fixture(autouse=True)
def _time():
    with clock.using(Clock()):
        yield


def serve(made, folder: Path, **changes: Any):
    grid = MaskedGrid(made, folder)
    for name, value in changes.items():
        setattr(grid, name, value)
    history = run_through(made, grid, folder)
    return history, grid


def is_set(message: Message) -> bool:
    return wire.SET in message.content and wire.HEAD in message.content


METHODS = {
    "per work": fa.FedADMM(rho=fa.PerWork(0.25)),
    "fedavg": fa.FedAvg(),
    "fedadmm": fa.FedADMM(0.5),
    "feddr": fa.FedDR(0.5),
    "insa": fa.FedADMMInSa(),
    "scaffold": fa.Scaffold(),
    "fedexp": fa.FedExP(0.1),
    "aligned": fa.AlignedADMM(0.5),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_deployed_run_is_the_plain_one_to_the_step(name, tmp_path):
    made = settings(METHODS[name])
    history, grid = serve(made, tmp_path)
    plain = simulated(settings(METHODS[name], aggregator=fa.Sum()))
    np.testing.assert_allclose(history.outcome.params, plain.params, atol=2e-6)
    check_versions(made, tmp_path, history.trace)
    check_invariant(made, tmp_path, 5e-6)
    assert grid.errors == []
    ours, theirs = history.records[-1]["work"], plain.history[-1]["work"]
    for entry in ("steps", "epochs", "passes", "penalty_mean", "primal_residual"):
        assert ours[entry] == pytest.approx(theirs[entry], rel=1e-4), entry


def test_twenty_three_sites_are_summed_in_two_groups(tmp_path):
    made = settings(fa.FedADMM(0.5), rounds=2, clients=23)
    sizes = set()
    grid = MaskedGrid(made, tmp_path)

    def look(content, client):
        if wire.SET in content:
            sizes.add(tuple(content[wire.SET]["clients"]))
        return content

    grid.lie = look
    history = run_through(made, grid, tmp_path)
    assert sorted(map(len, sizes)) == [11, 12]
    plain = simulated(settings(fa.FedADMM(0.5), rounds=2, clients=23, aggregator=fa.Sum()))
    np.testing.assert_allclose(history.outcome.params, plain.params, atol=2e-6)


# who dies ---------------------------------------------------------------------------------------


def faults(kind: str):
    """Client 3 dies once, in the second round: (moment, whether a set is asked for)."""
    moments = {"before ready": ("deliver", False), "after ready": ("deliver", True)}
    state = {"round": 0, "until": 0.0}

    def fault(moment: str, message: Message, client: int) -> str | None:
        if wire.HEAD not in message.content or client != 3:
            return None
        sequence = wire.read_task(message.content)[0].sequence >> 32
        if sequence == 1 and kind != "after masking" and (moment, is_set(message)) == moments[kind]:
            return "drop"
        if sequence == 1 and kind == "after masking" and moment == "reply" and is_set(message):
            state["round"] += 1
            return "drop" if state["round"] == 1 else None
        return None

    return fault


@pytest.mark.parametrize("kind", ["before ready", "after ready", "after masking"])
@pytest.mark.parametrize("method", [fa.FedADMM(0.5), fa.FedAvg()])
def test_a_site_that_dies_costs_at_most_the_round(kind, method, tmp_path):
    made = settings(method)
    history, _ = serve(made, tmp_path, fault=faults(kind))
    everybody = [0, 1, 2, 3]
    expected = {
        "before ready": [everybody, [0, 1, 2], everybody, everybody],
        "after ready": [everybody, [], everybody, everybody, everybody],  # void for everybody
        "after masking": [everybody] * 4,  # asked again, it sends the same words
    }[kind]
    assert history.trace == expected
    counts = history.outcome.counts
    assert counts.get("void", 0) == (kind == "after ready")
    check_versions(made, tmp_path, history.trace)
    check_invariant(made, tmp_path, 5e-6)
    # A client that did not take part has not moved: the run is that of this participation.
    plain = simulated(settings(method, aggregator=fa.Sum(), rounds=len(expected)), history.trace)
    np.testing.assert_allclose(history.outcome.params, plain.params, atol=2e-6)


@pytest.mark.parametrize("how", ["silent", "an error", "declined"])
def test_a_site_that_is_ready_and_sends_no_words_does_not_end_the_run(how, tmp_path):
    """It makes the sum of everybody void, and is asked again after 1, 2, 4, 8 rounds."""
    made = settings(fa.FedADMM(0.5), rounds=9)
    grid = MaskedGrid(made, tmp_path)
    if how == "silent":
        grid.fault = lambda moment, message, client: (
            "drop" if client == 3 and is_set(message) else None
        )
    deliver = grid._app

    def refusing(message, context):
        if is_set(message) and context.node_config["partition-id"] == 3 and how == "an error":
            raise StateError("not now")
        if is_set(message) and context.node_config["partition-id"] == 3 and how == "declined":
            head = reply_to(wire.read_task(message.content)[0], ReplyKind.DECLINED, "not now")
            return Message(wire.write(head, b""), reply_to=message)
        return deliver(message, context)

    grid._app = refusing
    history = run_through(made, grid, tmp_path)
    void, others = [], [0, 1, 2]
    expected = [void, void, others, void, *[others] * 3, void, *[others] * 5]
    assert history.trace == expected
    check_invariant(made, tmp_path, 5e-6)
    details = [e["detail"] for e in history.records[4]["network"]["events"]]
    assert (
        "it was ready and sent no masked upload 3 times, and is asked again in round 8" in details
    )


def test_a_site_that_sends_its_words_again_rests_no_more(tmp_path):
    made = settings(fa.FedADMM(0.5), rounds=7)
    rounds = {0, 1, 3}

    def fault(moment, message, client):
        number = wire.read_task(message.content)[0].sequence >> 32 if is_set(message) else -1
        return "drop" if client == 3 and number in rounds else None

    history, _ = serve(made, tmp_path, fault=fault)
    everybody = [0, 1, 2, 3]
    assert history.trace == [[], [], [0, 1, 2], [], *[[0, 1, 2]] * 3, *[everybody] * 3]


def test_sites_that_refuse_a_set_do_not_rest_for_it(tmp_path):
    """Client 3 signs no proper key: those who say so are not those who make the sum void."""
    made = settings(fa.FedADMM(0.5), rounds=1)
    grid = MaskedGrid(made, tmp_path)
    (tmp_path / "identity-3").write_text(pairwise_masks.new_identity().hex())
    with pytest.raises(
        fa.errors.EngineError, match="no client returned an update in 4 rounds in a row"
    ):
        run_through(made, grid, tmp_path)
    assert not any("sent no masked upload" in str(content) for content in grid.seen)
    assert len([e for e in grid.errors if "the key of client 3 is not signed" in e]) >= 3 * 4


def test_words_are_the_same_however_often_they_are_asked_for(tmp_path):
    made = settings(rounds=1)
    bodies: list[tuple[int, bytes]] = []
    grid = MaskedGrid(made, tmp_path, lambda moment, message, client: None)
    seen = {"times": 0}

    def fault(moment, message, client):
        if moment == "reply" and is_set(message) and client == 1 and seen["times"] < 2:
            seen["times"] += 1
            return "drop"
        return None

    grid.fault = fault
    deliver = grid._app

    def listening(message, context):
        reply = deliver(message, context)
        if wire.SET in message.content:
            bodies.append((context.node_config["partition-id"], wire.read_body(reply.content)))
        return reply

    grid._app = listening
    run_through(made, grid, tmp_path)
    assert len([body for client, body in bodies if client == 1]) == 3
    assert len({body for client, body in bodies if client == 1}) == 1


def test_a_server_that_dies_between_set_and_sum_begins_the_round_anew(tmp_path):
    made = settings()
    died = []

    def fault(moment, message, client):
        if moment == "reply" and is_set(message) and client == 2 and not died:
            died.append(client)
            raise Crash
        return

    history, grid = serve(made, tmp_path, fault=fault)
    assert history.crashes == 1
    assert grid.errors == []  # no site was asked for another set of the same upload
    check_versions(made, tmp_path, history.trace)
    check_invariant(made, tmp_path, 5e-6)


def test_a_site_that_is_left_out_keeps_its_last_contribution(tmp_path):
    """What an operator does when a site leaves a masked run of a method that tracks a mean."""
    grid = MaskedGrid(settings(fa.FedADMM(0.5), 4), tmp_path)
    run_through(settings(fa.FedADMM(0.5), 2), grid, tmp_path)
    longer = replace(settings(fa.FedADMM(0.5), 4), leave_out=[3])
    history = run_through(longer, grid, tmp_path)
    assert history.trace == [[0, 1, 2]] * 2
    check_invariant(longer, tmp_path, 5e-6)


def test_fewer_than_the_minimum_are_never_summed(tmp_path):
    made = settings()
    grid = MaskedGrid(made, tmp_path)
    grid.offline = {1, 3}
    with pytest.raises(
        fa.errors.EngineError, match="no client returned an update in 4 rounds in a row"
    ):
        run_through(made, grid, tmp_path)
    assert not any(wire.BODY in content for content in grid.seen)
    assert server_on_disk(made, tmp_path).ledger.entries == {}


def test_a_site_that_lost_its_disk_is_quarantined_and_the_others_go_on(tmp_path):
    made = settings()
    grid = MaskedGrid(made, tmp_path)

    def wipe(report):
        if report.record["round"] == 2:
            grid.wipe(1)

    history = run_through(made, grid, tmp_path, wipe)
    assert history.trace == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 3], [0, 2, 3]]


# a server that lies -----------------------------------------------------------------------------


def changed(content: RecordDict, **values: Any) -> RecordDict:
    made = RecordDict(dict(content.items()))
    made[wire.SET] = ConfigRecord({**dict(content[wire.SET]), **values})
    return made


def without(content: RecordDict, client: int) -> RecordDict:
    """The set without a client."""
    found = content[wire.SET]
    keep = [k for k, one in enumerate(found["clients"]) if one != client]
    return changed(
        content,
        clients=[found["clients"][k] for k in keep],
        publics=b"".join(found["publics"][32 * k : 32 * k + 32] for k in keep),
        signatures=b"".join(found["signatures"][64 * k : 64 * k + 64] for k in keep),
    )


def replaced_key(content: RecordDict, client: int, share: pairwise_masks.Share) -> RecordDict:
    """The set with another key of a client."""
    found = content[wire.SET]
    k = list(found["clients"]).index(client)
    publics, signatures = bytearray(found["publics"]), bytearray(found["signatures"])
    publics[32 * k : 32 * k + 32] = share.public
    signatures[64 * k : 64 * k + 64] = share.signature
    return changed(content, publics=bytes(publics), signatures=bytes(signatures))


LIES = {
    "a set of two": (
        lambda content: without(without(content, 1), 2),
        "the set has 2 sites, but this site requires at least 3",
    ),
    "a set without the site": (
        lambda content: without(content, 0),
        "the set lacks the key that this site created",
    ),
    "a key of the server's own": (
        lambda content: replaced_key(
            content, 2, pairwise_masks.new_share(2, "update", pairwise_masks.new_identity())[0]
        ),
        "the key of client 2 is not signed by the identity that this site has of it",
    ),
    "a key of another member": (
        lambda content: replaced_key(
            content,
            2,
            pairwise_masks.Share(
                2, content[wire.SET]["publics"][32:64], content[wire.SET]["signatures"][64:128]
            ),
        ),
        "the key of client 2 is not signed by the identity",
    ),
    "a client twice": (
        lambda content: changed(content, clients=[0, 1, 1, 3]),
        "each once, in order",
    ),
    "a stranger": (
        lambda content: changed(content, clients=[0, 1, 2, 9]),
        "client 9, which this site does not know",
    ),
    "garbage": (lambda content: changed(content, publics=b""), "no proper set"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_site_answers_no_set_that_is_not_right(name, tmp_path):
    made = settings(rounds=1)
    change, words = LIES[name]
    grid = MaskedGrid(made, tmp_path)
    grid.lie = lambda content, client: (
        change(content) if client == 0 and wire.SET in content else content
    )
    history = run_through(made, grid, tmp_path)
    assert history.trace == [[], [], [1, 2, 3]]  # the others go on without it
    assert any(words in error for error in grid.errors), grid.errors
    masked = [c for c in grid.seen if c.get(wire.HEAD) and c[wire.HEAD]["kind"] == ReplyKind.MASKED]
    assert {content[wire.HEAD]["client"] for content in masked} == {1, 2, 3}


def test_an_upload_leaves_under_one_set_for_ever(tmp_path):
    """A server that repeats the round with another set, or drops a member, gets nothing."""
    made = settings(rounds=1)
    grid = MaskedGrid(made, tmp_path)
    kept: dict[int, Message] = {}

    def keep(moment, message, client):
        if is_set(message):
            kept[client] = message
        return

    grid.fault = keep
    run_through(made, grid, tmp_path)
    first = kept[0].content

    def ask(content: RecordDict) -> Message:
        return grid._app(Message(content, 1000, "train"), grid.context(0))

    words = wire.read_body(ask(first).content)
    assert wire.read_body(ask(first).content) == words
    with pytest.raises(fa.errors.StateError, match="released for another set"):
        ask(without(first, 3))
    # also from another process, which knows nothing but the disk, and after a third was asked for
    with pytest.raises(fa.errors.StateError, match="released for another set"):
        ask(without(first, 1))
    assert wire.read_body(ask(first).content) == words


def test_the_same_clients_with_another_key_are_another_set(tmp_path):
    """The difference of the two sums would be that of two uploads of the one with the new key."""
    made = settings(rounds=1)
    grid = MaskedGrid(made, tmp_path)
    kept: dict[int, Message] = {}

    def keep(moment, message, client):
        if is_set(message):
            kept[client] = message
        return

    grid.fault = keep
    run_through(made, grid, tmp_path)
    first = kept[0].content
    task, _ = wire.read_task(first)
    held = PendingUploads(held_of(tmp_path, 0).parent, "update").find(task.id)
    again, _ = pairwise_masks.new_share(2, held.subject, grid.identities[2])

    def ask(content: RecordDict) -> bytes:
        answer = grid._app(Message(content, 1000, "train"), grid.context(0))
        return wire.read_body(answer.content)

    words = ask(first)
    with pytest.raises(fa.errors.StateError, match="released for another set"):
        ask(replaced_key(first, 2, again))
    assert ask(first) == words


def test_a_restored_site_masks_with_another_key(tmp_path):
    """It may compute an upload again, with other noise: no mask is used for both."""
    made = settings(rounds=1)
    grid = MaskedGrid(made, tmp_path)
    kept: dict[int, Message] = {}

    def keep(moment, message, client):
        if wire.HEAD in message.content and not is_set(message):
            kept[client] = message
        return

    grid.fault = keep
    run_through(made, grid, tmp_path)

    def key() -> bytes:
        reply = grid._app(Message(kept[0].content, 1000, "train"), grid.context(0))
        return reply.content[wire.SHARE]["public"]

    before = key()
    assert key() == before
    grid.wipe(0)  # back to before the task
    assert key() != before


def held_of(folder: Path, client: int) -> Path:
    (found,) = (folder / f"site-{client}").glob("*/client-*/held-update.safetensors")
    return found


def computed_again(grid: MaskedGrid, folder: Path, when: str):
    """The file of client 1's waiting upload is lost, once, and the task comes again."""
    kept: dict[str, bytes] = {}
    task: list[Message] = []

    def again() -> None:
        path = held_of(folder, 1)
        kept["done"] = path.read_bytes()
        path.unlink()
        # As after an answer that got lost.
        with contextlib.suppress(StateError):
            grid._app(Message(task[0].content, 1001, "train"), grid.context(1))
        if when == "put back":
            assert path.read_bytes() != kept["done"]
            path.write_bytes(kept["done"])

    def fault(moment, message, client):
        if client != 1 or wire.HEAD not in message.content or kept:
            return
        if moment == "reply" and not is_set(message):
            task.append(message)
        elif is_set(message) and moment == ("reply" if when == "after the words" else "deliver"):
            again()
        return

    return fault


@pytest.mark.parametrize("when", ["before the words", "put back", "after the words"])
def test_an_upload_that_was_computed_twice_is_never_taken_for_the_other(when, tmp_path):
    """DP-SGD draws new noise each time: a state that was not folded must not be acknowledged."""
    pytest.importorskip("dp_accounting")
    solver = fa.DPSGD(lr=0.1, batch_size=10, clip=1.0, multiplier=2.0, delta=1e-3)
    made = settings(
        fa.FedADMM(0.5), 3, solver=solver, pipeline=[fa.Clip(5.0)], aggregator=fa.MaskedSum()
    )
    grid = MaskedGrid(made, tmp_path)
    grid.fault = computed_again(grid, tmp_path, when)
    history = run_through(made, grid, tmp_path)
    everybody = [[0, 1, 2, 3]] * 3
    assert history.trace == (everybody if when == "after the words" else [[], *everybody])
    check_versions(made, tmp_path, history.trace)
    check_invariant(made, tmp_path, 5e-6)


def test_a_ready_is_sealed_over_its_key(tmp_path):
    """Somebody between site and server cannot put another key beside an answer."""
    made = settings(rounds=1)
    grid = MaskedGrid(made, tmp_path)

    def other_key(content, client):
        if client == 1 and wire.SHARE in content:
            share = pairwise_masks.new_share(1, "update", pairwise_masks.new_identity())[0]
            attachments = {**dict(content[wire.SHARE]), "public": share.public}
            content[wire.SHARE] = ConfigRecord(attachments)
        return content

    grid.spoil = other_key
    history = run_through(made, grid, tmp_path)
    assert history.trace == [[0, 2, 3]]
    assert history.outcome.counts["digest"] == 1


@pytest.fixture
def insistent(monkeypatch):
    """A server that sums whoever is ready, whatever the sites demand."""
    monkeypatch.setattr(server_masking, "choose_groups", lambda _, demands: [list(demands)])


@pytest.mark.parametrize("server", ["agrees", "insists"])
def test_after_a_void_attempt_a_site_may_demand_the_same_set(server, tmp_path, request):
    """Client 3 is lost after the set was fixed and stays away: the strict sites wait for it."""
    if server == "insists":
        request.getfixturevalue("insistent")
    made = settings()
    grid = MaskedGrid(made, tmp_path, faults("after ready"))
    grid.policy |= {"sets-apart": True}

    def leave(report):
        if report.record["round"] == 2:
            grid.offline = {3}
        if report.record["round"] == 3:
            grid.offline = set()

    history = run_through(made, grid, tmp_path, leave)
    assert history.trace[:4] == [[0, 1, 2, 3], [], [], [0, 1, 2, 3]]
    refused = [e for e in grid.errors if "then requires the same set" in e]
    events = [event["detail"] for event in history.records[2]["network"]["events"]]
    if server == "agrees":
        assert not refused
        assert "it requires the set of its earlier upload, clients [0, 1, 2, 3]" in events
    else:
        assert "clients [0, 1, 2, 3] that were not acknowledged" in refused[0]


def test_the_set_of_a_void_attempt_is_summed_again_although_more_are_ready(tmp_path):
    """Client 2 is lost while client 3 is away; when both are back, 3 waits for one round."""
    made = settings(rounds=4)
    lose = faults("after ready")
    grid = MaskedGrid(
        made, tmp_path, lambda moment, message, client: lose(moment, message, client + 1)
    )
    grid.policy |= {"sets-apart": True}

    def leave(report):
        grid.offline = {3} if report.record["round"] == 1 else set()

    history = run_through(made, grid, tmp_path, leave)
    assert history.trace[:4] == [[0, 1, 2, 3], [], [0, 1, 2], [0, 1, 2, 3]]
    assert grid.errors == []
    check_invariant(made, tmp_path, 5e-6)


def test_a_site_has_a_minimum_of_its_own(tmp_path, request):
    made = settings(rounds=1)
    grid = MaskedGrid(made, tmp_path)
    grid.policy |= {"minimum-sites": 5}
    why = r"in a row \(4 clients are ready, but its sum needs 5\)"
    with pytest.raises(
        fa.errors.EngineError, match=f"no client returned an update in 4 rounds {why}"
    ):
        run_through(made, grid, tmp_path)
    assert grid.errors == []
    request.getfixturevalue("insistent")
    with pytest.raises(fa.errors.EngineError, match="no client returned an update"):
        run_through(made, grid, tmp_path)
    assert any("requires at least 5" in error for error in grid.errors)


def test_a_disk_that_refuses_for_a_moment_does_not_make_a_site_forget_its_set(
    tmp_path, monkeypatch
):
    identities = [pairwise_masks.new_identity() for _ in range(3)]
    known = {c: pairwise_masks.public_identity(key) for c, key in enumerate(identities)}
    peers = Peers(0, identities[0], known, apart=True)
    waiting, words = PendingUploads(tmp_path, "update"), np.arange(4, dtype=np.uint64)
    waiting.store(peers, "first", "subject", words, {}, Origin("1", "model"))
    others = [pairwise_masks.new_share(c, "subject", identities[c])[0] for c in (1, 2)]
    waiting.release(peers, "first", [waiting.find("first").share, *others], 3, "")
    waiting.store(peers, "second", "subject", words, {}, Origin("2", "another"))
    read = atomic_files.read

    def refuse(path, *rest):
        if path.name == "sets-update.json":
            raise StateError("Input/output error")
        return read(path, *rest)

    monkeypatch.setattr(atomic_files, "read", refuse)
    with pytest.raises(StateError, match="Input/output"):
        waiting.requirement(peers, waiting.find("second"), "")
    monkeypatch.undo()
    demand = waiting.requirement(peers, waiting.find("second"), "")
    assert demand == SetRequirement(3, others=(frozenset({0, 1, 2}),), apart=3)


def test_groups_are_of_those_who_agree_to_them():
    part, anyone = fa.MaskedSum(minimum=3, group=10), SetRequirement(3)
    again = SetRequirement(3, others=(frozenset({1, 2, 3}),), apart=3)

    def made(demands):
        return server_masking.choose_groups(part, demands)

    assert made(dict.fromkeys(range(4), anyone)) == [[0, 1, 2, 3]]
    assert made({0: anyone, 1: again, 2: again, 3: anyone}) == [[1, 2, 3]]
    seven = {c: again if c in (1, 2) else anyone for c in range(7)}
    assert made(seven) == [[1, 2, 3], [0, 4, 5, 6]]
    # 1 and 2 wait for 3; {0, 1, 2, 4, 5, 6} differs by 5, which is far enough for them.
    assert made({c: one for c, one in seven.items() if c != 3}) == [[0, 1, 2, 4, 5, 6]]
    # {0, 1, 2, 4} differs by 3, but 1 has left with the upload of this task.
    left = SetRequirement(3, frozenset({1, 2, 3}))
    assert made({0: anyone, 1: left, 2: anyone, 4: anyone}) == [[0, 2, 4]]
    assert made({0: anyone, 1: SetRequirement(4), 2: anyone}) == []
    assert made({0: anyone, 1: SetRequirement(5), 2: anyone, 3: anyone}) == [[0, 2, 3]]


def test_a_member_that_sends_rubbish_makes_its_sum_void(tmp_path):
    """Nobody can see whose it is, but the sum is longer than all clips together."""
    made = settings(fa.FedAvg(), pipeline=[fa.Clip(0.5)], aggregator=fa.MaskedSum())
    grid = MaskedGrid(made, tmp_path)
    deliver = grid._app

    def lying(message, context):
        reply = deliver(message, context)
        if wire.SET not in message.content or context.node_config["partition-id"] != 1:
            return reply
        from fedadmm.flower.protocol.admission import seal
        from fedadmm.flower.secure_aggregation.masked_messages import from_body, to_body

        head, body = wire.read_reply(reply.content, 10**9)
        point = made.server_job().aggregator.fixed_point
        words = from_body(body, point, 6 + 15) + np.uint32(2**30)
        return Message(wire.write(seal(head, to_body(words)), to_body(words)), reply_to=message)

    grid._app = lying
    with pytest.raises(fa.errors.EngineError, match="no client returned an update"):
        run_through(made, grid, tmp_path)


# what the server ever held ----------------------------------------------------------------------


def test_of_one_client_the_server_has_only_masked_bytes(tmp_path):
    """No row of bytes of any client's update, dual, control, loss or words without masks."""
    made = settings(fa.Scaffold(), rounds=3, evaluate_every=1)
    grid = MaskedGrid(made, tmp_path)
    secrets: dict[str, bytes] = {}
    whole = pairwise_masks.masked

    def spying(words, client, private, subject, shares):
        secrets[f"words of {client} in {subject}"] = words[:6].tobytes()
        secrets[f"key of {client} in {subject}"] = private
        return whole(words, client, private, subject, shares)

    from fedadmm.flower.secure_aggregation import pending_uploads as site
    from fedadmm.flower.site import app

    measure, plain = app._measure, site.upload_words

    def uploading(job, part, client, done):
        for name, leaf in zip("ab", [*done.upload.message], strict=False):
            secrets[f"{name} of {client}"] = leaf.numpy().tobytes()
        secrets[f"drift of {client}"] = np.float64(done.info.drift).tobytes()
        return plain(job, part, client, done)

    def measuring(*given):
        found = measure(*given)
        secrets[f"loss {len(secrets)}"] = np.float64(found["loss"]).tobytes()
        secrets[f"loss as text {len(secrets)}"] = repr(found["loss"]).encode()
        return found

    patch = pytest.MonkeyPatch()
    patch.setattr(site, "masked", spying)
    patch.setattr(site, "upload_words", uploading)
    patch.setattr(app, "_measure", measuring)
    try:
        history = run_through(made, grid, tmp_path)
    finally:
        patch.undo()
    assert len(secrets) > 50
    held = b"".join(
        path.read_bytes() for path in (tmp_path / "server").rglob("*") if path.is_file()
    )
    held += pickle.dumps((history.outcome, history.records))
    for content in grid.seen:
        for record in content.values():
            for value in dict(record).values():
                raw = value.data if hasattr(value, "data") else value
                held += raw if isinstance(raw, bytes) else repr(raw).encode()
    found = [name for name, secret in secrets.items() if secret in held]
    assert found == []
    # the search finds what is there: the masked words of a reply, and the model
    assert wire.read_body(grid.seen[-1]) in held or wire.BODY not in grid.seen[-1]
    assert server_on_disk(made, tmp_path).state.server[0].numpy().tobytes() in held


def test_metrics_travel_as_masked_sums_and_only_from_those_who_agree(tmp_path):
    made = settings(rounds=2, evaluate_every=1)
    history, grid = serve(made, tmp_path)
    plain = settings(rounds=2, evaluate_every=1, aggregator=fa.Sum())
    (tmp_path / "plain").mkdir()
    other = run_through(plain, MaskedGrid(plain, tmp_path / "plain"), tmp_path / "plain")
    for ours, theirs in zip(history.records, other.records, strict=True):
        assert ours["network"]["sites"]["answered"] == 4
        assert ours["metrics"]["loss"] == pytest.approx(theirs["metrics"]["loss"], abs=1e-5)
    assert not any(wire.METRICS in content for content in grid.seen)


def measuring(made, grid: MaskedGrid, values: list[float]) -> None:
    """Sites that measure these errors, whatever the model is."""
    sites = objectives()

    def load(context):
        number = context.node_config["partition-id"]
        return Site(sites[number], lambda params: {"error": values[number]})

    grid._app = client_app(made, load)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 5e7, -5e7])
def test_metrics_that_do_not_fit_into_the_sum_are_left_out_and_end_no_run(wrong, tmp_path):
    """One of four sites has such a value; nobody sees which."""
    target = fa.Target("error", 1.0, at_least=False)
    made = settings(rounds=3, evaluate_every=1, target=target)
    grid = MaskedGrid(made, tmp_path)
    measuring(made, grid, [2.0, wrong, 2.0, 2.0])
    history = run_through(made, grid, tmp_path)
    assert history.outcome.ending.code == "completed"
    for record in history.records:
        assert set(record["network"]["sites"]["metrics"]) == {"loss"}
        assert record["network"]["sites"]["answered"] == 4
        details = [event["detail"] for event in record["network"]["events"]]
        assert any(
            "error of clients 0, 1, 2, 3 is left out: 1 of 4 sites have no value" in one
            for one in details
        )
    assert grid.errors == []


def test_masked_metrics_never_end_a_run(tmp_path):
    """One lying site can give the mean any value, and nobody sees whose it is."""
    made = settings(rounds=2, evaluate_every=1, target=fa.Target("error", 1.0, at_least=False))
    grid = MaskedGrid(made, tmp_path)
    measuring(made, grid, [2.0, -1e6, 2.0, 2.0])
    history = run_through(made, grid, tmp_path)
    assert history.outcome.ending.code == "completed"
    assert history.records[0]["network"]["sites"]["metrics"]["error"] == pytest.approx(-249998.5)
    (tmp_path / "loss").mkdir()
    made = settings(rounds=3, evaluate_every=1)
    grid = MaskedGrid(made, tmp_path / "loss")
    usual = site_app._measure
    asked = []

    def exploding(*given):
        asked.append(given)
        return {"loss": usual(*given)["loss"] + (1e7 if len(asked) > 4 else 0.0)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_app, "_measure", exploding)
        history = run_through(made, grid, tmp_path / "loss")
    assert history.outcome.ending.code == "completed"
    assert history.records[-1]["metrics"]["loss"] > 1e5


def test_a_question_leaves_under_one_set_and_two_who_agree_are_too_few(tmp_path):
    made = settings(rounds=1, evaluate_every=1)
    grid = MaskedGrid(made, tmp_path)
    kept: dict[int, RecordDict] = {}

    def keep(content, client):
        if wire.SET in content and wire.HEAD not in content:
            kept[client] = content
        return content

    grid.lie = keep
    run_through(made, grid, tmp_path)

    def ask(content: RecordDict) -> bytes:
        reply = grid._app(Message(content, 1000, "evaluate"), grid.context(0))
        return wire.read_body(reply.content)

    assert ask(kept[0]) == ask(kept[0])
    with pytest.raises(fa.errors.StateError, match="released for another set"):
        ask(without(kept[0], 3))
    (tmp_path / "few").mkdir()
    few = MaskedGrid(made, tmp_path / "few")
    usual = few.context

    def context(client):
        found = usual(client)
        found.node_config["evaluations"] = 5 if client < 2 else 0
        return found

    few.context = context
    history = run_through(made, few, tmp_path / "few")
    assert history.records[0]["network"]["sites"] == {
        "answered": 0,
        "metrics": {},
        "declined": [2, 3],
    }


# noise ------------------------------------------------------------------------------------------


def test_noise_is_added_at_the_sites_and_counted_there(tmp_path, monkeypatch):
    pytest.importorskip("dp_accounting")
    noise = fa.GaussianNoise(4.0, 1e-2)
    made = settings(
        fa.FedAvg(), rounds=3, pipeline=[fa.Clip(0.5), noise], aggregator=fa.MaskedSum()
    )
    encode, spreads = pairwise_masks.FixedPoint.encode, set()

    def listening(self, tree, share, noise=0.0):
        spreads.add(noise)
        return encode(self, tree, share, noise)

    monkeypatch.setattr(pairwise_masks.FixedPoint, "encode", listening)
    history, _ = serve(made, tmp_path)
    # z times what a site of weight 1/4 can change, in shares of which two make up the whole
    assert [*spreads] == [pytest.approx(4.0 * 0.5 / 4 / 2**0.5)]
    from fedadmm.core.privacy import Accountant
    from fedadmm.flower.site.site_state import NoisedStep, SiteAccount

    expected = Accountant(4.0, 1e-2).epsilon(3)
    assert history.records[-1]["privacy"]["epsilon"] == pytest.approx(expected)
    for client in range(4):
        spent = SiteAccount(tmp_path / f"site-{client}", client).spent()
        assert spent == {NoisedStep(4.0, 1): 3}


def test_a_sites_own_budget_ends_what_it_sends(tmp_path):
    pytest.importorskip("dp_accounting")
    from fedadmm.core.privacy import Accountant

    made = settings(
        fa.FedAvg(),
        rounds=9,
        pipeline=[fa.Clip(0.5), fa.GaussianNoise(4.0, 1e-2)],
        aggregator=fa.MaskedSum(),
    )
    grid = MaskedGrid(made, tmp_path)
    grid.policy |= {"epsilon": 1.01 * Accountant(4.0, 1e-2).epsilon(2)}
    with pytest.raises(fa.errors.EngineError, match="no client returned an update"):
        run_through(made, grid, tmp_path)
    assert server_on_disk(made, tmp_path).ledger.entry(0).version == 2
    heads = [content[wire.HEAD] for content in grid.seen if wire.HEAD in content]
    assert any("this site's budget is" in head["reason"] for head in heads)


def test_rows_hidden_by_dp_sgd_are_accounted_as_ever(tmp_path):
    pytest.importorskip("dp_accounting")
    solver = fa.DPSGD(lr=0.1, batch_size=10, clip=1.0, multiplier=2.0, delta=1e-3)
    given = {"solver": solver, "rounds": 2, "pipeline": [fa.Clip(5.0)]}
    made = settings(fa.FedADMM(0.5), aggregator=fa.MaskedSum(), **given)
    history, _ = serve(made, tmp_path)
    plain = settings(fa.FedADMM(0.5), aggregator=fa.Sum(), **given)
    (tmp_path / "plain").mkdir()
    other = run_through(plain, MaskedGrid(plain, tmp_path / "plain"), tmp_path / "plain")
    spent = [one.records[-1]["privacy"]["epsilon"] for one in (history, other)]
    assert spent[0] == spent[1] > 0
    with pytest.raises(
        fa.errors.CompatibilityError, match="expected Clip for MaskedSum with DPSGD"
    ):
        settings(fa.FedADMM(0.5), aggregator=fa.MaskedSum(bound=9.0), solver=solver).server_job()


# what is refused --------------------------------------------------------------------------------


def test_what_does_not_go_with_masks_is_refused(tmp_path):
    with pytest.raises(fa.errors.ParameterError, match="ledger: got 'disk', expected 'none'"):
        settings(ledger="disk")
    with pytest.raises(
        fa.errors.CompatibilityError, match="expected synchronous rounds for MaskedSum"
    ):
        settings(fa.FedDR(0.5), mode="asynchronous").server_job()
    with pytest.raises(fa.errors.ParameterError, match="at least the clip's norm, 100"):
        settings(pipeline=[fa.Clip(100.0)]).server_job()
    from fedadmm.flower import DropIn

    with pytest.raises(
        fa.errors.CompatibilityError, match="metrics of a train function travel with"
    ):
        DropIn(
            fa.FedAvg(),
            4,
            model=lambda: torch.nn.Linear(2, 1),
            aggregator=fa.MaskedSum(bound=1.0),
        )


def test_a_site_without_an_identity_says_so(tmp_path):
    made = settings(rounds=1)
    grid = MaskedGrid(made, tmp_path)
    usual = grid.context

    def context(client):
        found = usual(client)
        del found.node_config["identity"]
        return found  # beside the state folder there is none either

    grid.context = context
    with pytest.raises(fa.errors.EngineError, match="no client returned an update"):
        run_through(made, grid, tmp_path)
    assert any(
        "identity is not there, but only masked sums may leave" in error for error in grid.errors
    )
