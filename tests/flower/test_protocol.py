"""The pure protocol: the table of decisions, and thousands of random histories."""

from __future__ import annotations

from collections import Counter

import pytest

from fedadmm.flower.protocol.ledger import (
    NOTHING,
    Action,
    ClientLedger,
    LedgerEntry,
    RefusalReason,
    RefusedError,
    ReplyKind,
    ServerLedger,
    StoredVersion,
    create_task,
    decide,
    mark_lost,
    record_aggregated,
    reply_to,
    restart,
    stored_version,
    validate_reply,
)

from .model import explore

RUN = "r"


def server(version: int = 0, digest: str = "", incarnation: int = 0) -> ServerLedger:
    return ServerLedger(RUN, {0: LedgerEntry(incarnation, version, digest)})


def slot(
    version: int, digest: str, sequence: int, task: str = "", incarnation: int = 0
) -> StoredVersion:
    return StoredVersion(RUN, incarnation, version, sequence, task, digest)


def test_a_newcomer_computes_from_the_initial_state():
    decision = decide(NOTHING, create_task(ServerLedger(RUN), 0, 0, "c"))
    assert decision.action is Action.COMPUTE
    assert decision.ledger == NOTHING


def test_a_repeated_task_is_answered_from_the_stored_reply():
    task = create_task(server(), 0, 0, "c")
    ledger = ClientLedger(
        None, stored_version(reply_to(task, ReplyKind.UPDATE)._replace(digest="a"))
    )
    assert decide(ledger, task).action is Action.REPLAY


def test_the_acknowledgement_promotes_and_the_next_version_is_computed():
    ledger = ClientLedger(None, slot(1, "a", sequence=0))
    decision = decide(ledger, create_task(server(1, "a"), 0, 1, "c"))
    assert decision.action is Action.COMPUTE
    assert decision.promote
    assert decision.ledger == ClientLedger(slot(1, "a", sequence=0), None)


def test_a_lost_reply_is_rolled_back():
    ledger = ClientLedger(slot(1, "a", 0), slot(2, "b", 1, task="old"))
    decision = decide(ledger, create_task(server(1, "a"), 0, 2, "c"))
    assert decision.action is Action.COMPUTE
    assert not decision.promote
    assert decision.ledger == ClientLedger(slot(1, "a", 0), None)


@pytest.mark.parametrize(
    ("ledger", "task"),
    [
        # an older round after a newer one was answered
        (ClientLedger(None, slot(1, "b", 6)), create_task(server(), 0, 5, "c")),
        # an older acknowledgement
        (ClientLedger(slot(2, "a", 3), None), create_task(server(1, "x"), 0, 4, "c")),
        # an earlier incarnation
        (
            ClientLedger(slot(1, "a", 3, incarnation=1), None),
            create_task(server(1, "a"), 0, 4, "c"),
        ),
    ],
)
def test_an_outdated_task_changes_nothing(ledger, task):
    decision = decide(ledger, task)
    assert decision.action is Action.STALE
    assert decision.ledger == ledger
    assert not decision.promote
    assert not decision.forget


def test_a_wiped_disk_is_noticed():
    decision = decide(NOTHING, create_task(server(7, "a"), 0, 9, "c"))
    assert decision.action is Action.LOST
    assert "version 7" in decision.reason
    assert "version 0" in decision.reason


def test_another_state_with_the_right_number_is_noticed():
    ledger = ClientLedger(slot(7, "b", 3), None)
    assert decide(ledger, create_task(server(7, "a"), 0, 9, "c")).action is Action.LOST


def test_a_client_that_was_started_again_forgets_an_old_disk():
    ledger = ClientLedger(slot(7, "b", 3), slot(8, "c", 4))
    decision = decide(ledger, create_task(restart(server(7, "b"), 0), 0, 5, "c"))
    assert decision.action is Action.COMPUTE
    assert decision.forget
    assert decision.ledger == NOTHING


def test_the_server_aggregates_a_reply_once():
    ledger = server(1, "a")
    task = create_task(ledger, 0, 3, "c")
    reply = reply_to(task, ReplyKind.UPDATE)._replace(digest="b")
    validate_reply(ledger, task, reply)
    after = record_aggregated(ledger, reply)
    assert after.entry(0) == LedgerEntry(0, 2, "b")
    with pytest.raises(RefusedError, match="version 2") as refused:
        validate_reply(after, task, reply)
    assert refused.value.reason is RefusalReason.PROTOCOL


@pytest.mark.parametrize(
    "change",
    [
        {"run": "x"},
        {"client": 1},
        {"task": "x"},
        {"sequence": 2},
        {"incarnation": 1},
        {"version": 3},
    ],
)
def test_the_server_refuses_what_does_not_answer_the_open_task(change):
    ledger = server(1, "a")
    task = create_task(ledger, 0, 3, "c")
    reply = reply_to(task, ReplyKind.UPDATE)._replace(digest="b", **change)
    with pytest.raises(RefusedError) as refused:
        validate_reply(ledger, task, reply)
    assert refused.value.reason is RefusalReason.PROTOCOL
    assert refused.value.detail.startswith(next(iter(change)))


def test_a_task_is_the_same_only_with_the_same_content():
    ledger = server(1, "a")
    task = create_task(ledger, 0, 3, "c")
    assert task.id == create_task(ledger, 0, 3, "c").id
    others = [
        create_task(ledger, 0, 3, "d"),
        create_task(ledger, 0, 4, "c"),
        create_task(server(1, "b"), 0, 3, "c"),
        create_task(server(1, "a", 1), 0, 3, "c"),
    ]
    assert len({task.id, *(other.id for other in others)}) == 5


def test_a_lost_client_is_marked_until_it_is_started_again():
    ledger = mark_lost(server(4, "a"), 0)
    assert ledger.entry(0) == LedgerEntry(0, 4, "a", lost=True)
    assert restart(ledger, 0).entry(0) == LedgerEntry(1, 0, "")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["rounds", "asynchronous"])
@pytest.mark.parametrize("repair", [False, True], ids=["quarantine", "repair"])
@pytest.mark.parametrize("wipes", [False, True], ids=["disks-hold", "disks-wiped"])
def test_random_histories(asynchronous, repair, wipes):
    """Each of 250 histories of 100 events ends with nothing lost or counted twice."""
    happened: Counter[str] = Counter()
    for seed in range(250):
        world = explore(seed, 100, asynchronous=asynchronous, wipes=wipes, repair=repair)
        happened += world.happened
    assert happened["folded"] > 1000
    for event in (
        "dropped",
        "repeated",
        "replay",
        "stale",
        "refused",
        "client before commit",
        "client after commit",
        "client after promotion",
        "client after reply",
        "server before fold",
        "server after fold",
        "server after checkpoint",
    ):
        assert happened[event] > 0, event
    assert (happened["wipe"] > 0) == wipes
    assert (happened["lost"] > 0) == wipes
