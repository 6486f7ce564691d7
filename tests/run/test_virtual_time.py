"""The virtual clock: who works when, what is dropped, what is recorded, and that it is exact."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import fedadmm as fa
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.run.engines import VirtualTime
from support.federations import WEIGHTS, assert_same, federation, run, snapshots, weighted_mean
from support.records import untimed
from support.rejections import naming

ASYNC = fa.AsyncFedDR(0.6, 1.2)


def trace_file(folder, times: dict[int, list[float]]) -> str:
    path = folder / "trace.csv"
    rows = [f"{client},{seconds}" for client, all_ in times.items() for seconds in all_]
    path.write_text("\n".join(["client,seconds", *rows]) + "\n")
    return str(path)


def test_arrivals_follow_the_trace(tmp_path):
    """Client 0 takes 2, client 1 takes 3 and then 1: both arrive at 4, the earlier start first."""
    trace = trace_file(tmp_path, {0: [2.0], 1: [3.0, 1.0]})
    given = federation(1, clients=2)
    result = run(ASYNC, given, 5, engine=VirtualTime(compute="trace", trace=trace))
    found = [
        (r["clock"]["virtual_time"], r["cohort"]["clients"], r["clock"]["delays"])
        for r in result.history
    ]
    assert found == [
        (2.0, [0], [0]),
        (3.0, [1], [1]),
        (4.0, [0], [1]),
        (4.0, [1], [1]),
        (6.0, [0], [1]),
    ]
    assert result.history[2]["clock"]["intervals"] == [[0, 2.0, 4.0, 1]]
    assert all(r["clock"]["idle"] == 0.0 for r in result.history)
    assert result.history[-1]["clock"]["steps_per_second"] == pytest.approx(5 / 6)
    assert result.history[-1]["clock"]["staleness_quantiles"] == [1, 1, 1]
    assert result.history[-1]["clock"]["longest_absence"] == 1


def test_a_synchronous_round_lasts_as_long_as_its_slowest_client(tmp_path):
    trace = trace_file(tmp_path, {0: [1.0], 1: [4.0, 2.0], 2: [3.0, 5.0]})
    given = federation(2, clients=3)
    engine = VirtualTime("sync", compute="trace", trace=trace, network_time=0.5)
    result = run(fa.FedDR(0.6), given, 3, engine=engine)
    assert [r["clock"]["virtual_time"] for r in result.history] == [4.5, 10.0, 14.5]
    worked = (1.5 + 4.5 + 3.5) + (1.5 + 2.5 + 5.5) + (1.5 + 4.5 + 3.5)
    assert result.history[-1]["clock"]["idle"] == pytest.approx(1 - worked / (3 * 14.5))
    plain = run(fa.FedDR(0.6), given, 3)
    assert all(torch.equal(a, b) for a, b in zip(result.trajectory, plain.trajectory, strict=True))


def test_with_few_places_the_clients_of_a_round_queue(tmp_path):
    """Two places for 3, 1, 1, 2 seconds: 0-3 in one, 0-1, 1-2 and 2-4 in the other."""
    trace = trace_file(tmp_path, {0: [3.0], 1: [1.0], 2: [1.0], 3: [2.0]})
    engine = VirtualTime("sync", compute="trace", trace=trace, concurrency=2)
    result = run(fa.FedDR(0.6), federation(3, clients=4), 1, engine=engine)
    (record,) = result.history
    assert record["clock"]["virtual_time"] == 4.0
    assert [entry[1:3] for entry in record["clock"]["intervals"]] == [
        [0, 3],
        [0, 1],
        [1, 2],
        [2, 4],
    ]


def test_a_deadline_drops_stragglers_and_leaves_them_as_they_were(tmp_path):
    trace = trace_file(tmp_path, {0: [1.0], 1: [9.0, 1.0], 2: [2.0]})
    given = federation(4, clients=3)
    engine = VirtualTime("sync", compute="trace", trace=trace, deadline=4.0)
    first, second = snapshots(fa.FedDR(0.6), given, 2, engine=engine)
    assert (first.record["cohort"]["clients"], first.record["clock"]["virtual_time"]) == (
        [0, 2],
        4.0,
    )
    assert first.record["clock"]["dropped"] == 1
    assert first.seen == {0, 2}
    assert (second.record["cohort"]["clients"], second.record["clock"]["virtual_time"]) == (
        [0, 1, 2],
        6.0,
    )
    for shot in (first, second):
        mean = weighted_mean(given.a, [2 * client.x - client.v for client in shot.clients])
        np.testing.assert_allclose(shot.server.xtilde, mean, atol=1e-13, rtol=0)
    same = run(fa.FedDR(0.6), given, 2, sampler=fa.TraceSampling([[0, 2], [0, 1, 2]]))
    assert_same([first.theta, second.theta], same.trajectory)


def test_updates_that_are_too_stale_are_dropped():
    given = federation(5)
    engine = VirtualTime(ratio=9.0, max_staleness=4, policy="drop")
    result = run(ASYNC, given, 100, engine=engine, seed=1)
    free = run(ASYNC, given, 100, engine=VirtualTime(ratio=9.0), seed=1)
    assert max(max(r["clock"]["delays"], default=0) for r in free.history) > 4
    assert max(max(r["clock"]["delays"], default=0) for r in result.history) <= 4
    assert sum(r["clock"]["dropped"] for r in result.history) > 0


def test_waiting_keeps_every_delay_within_the_limit():
    given = federation(5)
    engine = VirtualTime(ratio=9.0, max_staleness=3, policy="wait")
    result = run(ASYNC, given, 100, engine=engine, seed=1)
    delays = [delay for record in result.history for delay in record["clock"]["delays"]]
    assert max(delays) == 3
    assert sum(r["clock"]["dropped"] for r in result.history) == 0
    sizes = [record["cohort"]["participants"] for record in result.history]
    assert min(sizes) == 1 < max(sizes)  # those who arrive while the server waits are folded too


def test_a_staleness_limit_of_zero_is_a_synchronous_round():
    given = federation(5)
    engine = VirtualTime(ratio=3.0, max_staleness=0, policy="wait")
    result = run(ASYNC, given, 20, engine=engine, seed=1)
    assert_same(result.trajectory, run(fa.FedDR(0.6, 1.2), given, 20).trajectory)
    clock = run(fa.FedDR(0.6, 1.2), given, 20, engine=VirtualTime("sync", ratio=3.0), seed=1)
    expected = [record["clock"]["virtual_time"] for record in clock.history]
    assert [record["clock"]["virtual_time"] for record in result.history] == pytest.approx(expected)


def test_no_more_clients_work_than_there_are_places():
    result = run(ASYNC, federation(6, clients=9), 60, engine=VirtualTime(concurrency=3), seed=2)
    assert {record["clock"]["in_flight"] for record in result.history} == {2}
    assert {c for record in result.history for c in record["cohort"]["clients"]} == set(range(9))
    ends = [tuple(entry) for record in result.history for entry in record["clock"]["intervals"]]
    for _, begin, end, _ in ends:
        middle = (begin + end) / 2
        assert sum(b < middle < e for _, b, e, _ in ends) <= 3


def test_lost_updates_and_absent_clients_change_the_schedule_only():
    given = federation(7)
    engine = VirtualTime(redraw=True, availability=0.5, dropout=0.4)
    result = run(ASYNC, given, 300, engine=engine, seed=3)
    lost = sum(record["clock"]["dropped"] for record in result.history)
    replies = sum(record["cohort"]["participants"] for record in result.history)
    assert lost / (lost + replies) == pytest.approx(0.4, abs=0.08)
    clocks = [record["clock"]["virtual_time"] for record in result.history]
    assert clocks == sorted(clocks)


SCHEDULES = {
    "lost": VirtualTime(redraw=True, dropout=0.5),
    "lost in rounds": VirtualTime("sync", dropout=0.5),
    "absent": VirtualTime("sync", availability=0.5, dropout=0.3),
    "late": VirtualTime(ratio=4.0, redraw=True, deadline=2.5),
    "late in rounds": VirtualTime("sync", ratio=4.0, redraw=True, deadline=2.5, concurrency=2),
    "too stale": VirtualTime(ratio=9.0, max_staleness=3, policy="drop"),
    "few places": VirtualTime(concurrency=3, buffer=2),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_broadcast_is_counted_in_the_step_that_hands_it_out(name):
    """Whoever ended in a step or is still at work had started: in it, or at work before it."""
    engine = SCHEDULES[name]
    method = fa.FedDR(0.6, 1.2) if engine.mode == "sync" else ASYNC
    given = federation(7)
    result = run(method, given, 40, engine=engine, seed=3)
    vector, at_work = 4 * 8, 0
    for record in result.history:
        started = len(record["clock"]["intervals"]) + record["clock"]["in_flight"] - at_work
        assert record["traffic"]["bytes_down"] == started * vector
        assert record["traffic"]["bytes_up"] == record["cohort"]["participants"] * vector
        at_work = record["clock"]["in_flight"]
    folded = sum(record["cohort"]["participants"] for record in result.history)
    assert sum(record["traffic"]["bytes_down"] for record in result.history) > folded * vector


def test_lost_updates_do_not_make_a_round_cheaper():
    result = run(fa.FedDR(0.6), federation(7), 20, engine=SCHEDULES["lost in rounds"], seed=3)
    assert {record["traffic"]["bytes_down"] for record in result.history} == {5 * 4 * 8}
    assert min(record["cohort"]["participants"] for record in result.history) < 5


def test_a_deadline_that_no_client_meets_gives_empty_steps():
    given = federation(8)
    result = run(ASYNC, given, 10, engine=VirtualTime(compute="constant", deadline=0.5))
    assert [record["cohort"]["participants"] for record in result.history] == [0] * 10
    assert torch.equal(result.params, given.initial)


@pytest.mark.parametrize(
    ("method", "upload"),
    [
        (ASYNC, []),
        (fa.AsyncFedDR(0.6, init="prox"), []),
        (fa.FedADMM(1.1), []),
        (fa.FedADMM(1.1), [fa.AdaptiveClip(0.1), fa.TopK(2)]),
        (fa.FedAsync("hinge", grace=1.0), []),
        (fa.FedBuff(size=3), []),
        (fa.FedAdam(), [fa.AdaptiveClip(0.1)]),
    ],
)
def test_a_run_is_taken_up_in_the_middle_of_work_in_flight(method, upload, tmp_path):
    given = federation(10, weights=WEIGHTS)
    engine = VirtualTime(compute="log-normal", redraw=True, dropout=0.1, buffer=2)
    settings = {"engine": engine, "seed": 5, "pipeline": upload}
    whole = run(method, given, 40, **settings)
    saved = Checkpoints(tmp_path, every=3)
    run(method, given, 17, checkpoints=saved, **settings)
    rest = run(method, given, 40, checkpoints=saved, resume=True, **settings)
    assert untimed(rest.history) == untimed(whole.history)[-23:]
    assert torch.equal(rest.params, whole.params)


def test_work_in_flight_is_not_left_behind_by_an_engine_without_a_clock(tmp_path):
    given, saved = federation(10), Checkpoints(tmp_path, every=3)
    run(fa.FedADMM(1.1), given, 6, checkpoints=saved, engine=VirtualTime())
    with pytest.raises(fa.errors.StateError, match=naming("SequentialEngine")):
        run(fa.FedADMM(1.1), given, 9, checkpoints=saved, resume=True)
    run(fa.FedADMM(1.1), given, 6, checkpoints=saved, engine=VirtualTime("sync"))
    assert len(run(fa.FedADMM(1.1), given, 9, checkpoints=saved, resume=True).history) == 3


def test_records_are_plain():
    result = run(ASYNC, federation(11), 10, engine=VirtualTime(buffer=2))
    assert json.loads(json.dumps(result.history)) == result.history


def test_the_slow_clients_are_the_same_with_and_without_rounds():
    given = federation(12)
    late = run(ASYNC, given, 60, engine=VirtualTime(ratio=5.0), seed=9)
    rounds = run(fa.FedDR(0.6), given, 1, engine=VirtualTime("sync", ratio=5.0), seed=9)
    times = {entry[0]: entry[2] - entry[1] for entry in rounds.history[0]["clock"]["intervals"]}
    assert 1.0 <= min(times.values()) < max(times.values()) <= 5.0
    for record in late.history:
        for client, begin, end, _ in record["clock"]["intervals"]:
            assert end - begin == pytest.approx(times[client])


def test_log_normal_times_have_the_given_median_and_spread():
    engine = VirtualTime(compute="log-normal", compute_time=2.0, spread=0.7, redraw=True)
    (compute, network) = engine.durations()
    times = np.log([compute.seconds(1, client, turn) for client in range(40) for turn in range(50)])
    assert np.median(times) == pytest.approx(np.log(2.0), abs=0.06)
    assert np.std(times) == pytest.approx(0.7, abs=0.05)
    assert network.seconds(1, 0, 0) == 0.0


REJECTED = [
    ({"mode": "later"}, "VirtualTime mode 'later' 'async' 'sync'"),
    ({"dropout": 1.0}, "VirtualTime dropout 1.0"),
    ({"availability": 0.0}, "VirtualTime availability 0.0"),
    ({"ratio": 0.5}, "VirtualTime ratio 0.5"),
    ({"compute": "trace"}, "VirtualTime trace None compute='trace'"),
    (
        {"concurrency": 2, "buffer": 3},
        "VirtualTime concurrency 2 buffer=3",
    ),
    (
        {"policy": "drop"},
        "VirtualTime max_staleness None policy='drop'",
    ),
]


@pytest.mark.parametrize(("options", "names"), REJECTED)
def test_invalid_options_are_rejected(options, names):
    with pytest.raises(fa.errors.ParameterError, match=naming(names)):
        VirtualTime(**options)


def test_asynchronous_engines_and_synchronous_methods_are_incompatible():
    given = federation(13)
    with pytest.raises(
        fa.errors.CompatibilityError,
        match=naming("engine AsyncFedDR VirtualTime"),
    ):
        run(ASYNC, given, 1, engine="sequential")
    with pytest.raises(fa.errors.CompatibilityError, match=naming("engine AsyncFedDR")):
        run(ASYNC, given, 1, engine=VirtualTime("sync"))
    with pytest.raises(
        fa.errors.CompatibilityError,
        match=naming("sampler FedPD FullParticipation"),
    ):
        run(fa.FedPD(1.0), given, 1, engine=VirtualTime())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "trace.csv client,seconds"),
        ("0,1\n1\n", "trace.csv line 2 '1' client,seconds"),
        ("0,-1\n", "trace.csv line 1 '0,-1'"),
        ("0,1\n1,1\n", "trace.csv client 2"),
    ],
)
def test_an_invalid_trace_is_rejected(text, names, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    engine = VirtualTime(compute="trace", trace=str(path))
    with pytest.raises(fa.errors.DataError, match=naming(names)):
        run(ASYNC, federation(14, clients=3), 2, engine=engine)
