"""What every client state store promises, and what the one on disk adds."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

import fedadmm as fa
from fedadmm.core import atomic_files, codec
from fedadmm.core.local_work import LocalWork
from fedadmm.core.messages import ClientRecord
from fedadmm.run.stores import DiskStore, MemoryStore, disk, records, segments
from support.jobs import job_of
from support.rejections import naming
from support.resumable import fingerprints, run

SIZE = 10
METHOD = fa.FedADMM(rho=0.5)
INITIAL = torch.zeros(SIZE, dtype=torch.float64)


def bound(store: Any, algorithm: Any = METHOD) -> Any:
    problem = fa.Problem([fa.Quadratic(torch.eye(len(INITIAL)), INITIAL)])
    store.bind(*records.layout(job_of(algorithm, problem, LocalWork(), 0, INITIAL)))
    return store


def record(seed: int) -> ClientRecord:
    draws = torch.Generator().manual_seed(seed)
    state = METHOD.init_client(INITIAL)
    vectors = {name: torch.randn(SIZE, generator=draws, dtype=torch.float64) for name in "wy"}
    return ClientRecord(state._replace(**vectors))


def same(found: ClientRecord | None, expected: ClientRecord) -> bool:
    return found is not None and all(
        torch.equal(a, b) for a, b in zip(found.state, expected.state, strict=True)
    )


def held(directory: Path) -> list[int]:
    """The clients whose records are in the segments, with every record that is out of date."""
    return [c for n in segments.existing(directory) for c, _ in segments.scan(directory, n)]


def stored(directory: Path, client: int) -> dict[str, torch.Tensor]:
    """What the newest record of a client holds, read by safetensors itself."""
    places = [
        place
        for number in segments.existing(directory)
        for owner, place in segments.scan(directory, number)
        if owner == client
    ]
    return load(segments.raw(directory, places[-1]))


@pytest.fixture(params=["memory", "disk", "disk-without-cache"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        return bound(MemoryStore())
    cache = 0 if request.param == "disk-without-cache" else 2**20
    return bound(DiskStore(tmp_path / "clients", cache_bytes=cache))


def test_a_client_that_never_participated_has_no_record(store: Any) -> None:
    assert store.get(3) is None
    assert list(store.clients()) == []
    assert len(store) == 0


def test_the_last_commit_is_what_is_got(store: Any) -> None:
    store.commit(7, record(1), 0)
    store.commit(2, record(2), 0)
    store.commit(7, record(3), 1)
    assert same(store.get(7), record(3))
    assert same(store.get(2), record(2))
    assert list(store.clients()) == [2, 7]


def test_undo_goes_back_to_the_mark(store: Any) -> None:
    store.commit(1, record(1), 0)
    store.mark()
    store.commit(1, record(2), 1)
    store.commit(1, record(3), 1)
    store.commit(2, record(4), 1)
    store.undo()
    assert same(store.get(1), record(1))
    assert store.get(2) is None
    store.commit(2, record(5), 1)
    store.mark()
    store.undo()
    assert same(store.get(2), record(5))


def test_cleared_stores_are_empty(store: Any) -> None:
    store.commit(1, record(1), 0)
    store.clear()
    assert store.get(1) is None
    assert len(store) == 0


def test_a_run_from_round_0_refuses_a_store_that_is_not_empty(store: Any) -> None:
    store.commit(1, record(1), 0)
    with pytest.raises(fa.errors.StateError, match=naming("records 1")):
        run(2, store=store)


def test_records_are_safetensors_with_the_names_of_the_state(tmp_path: Path) -> None:
    bound(DiskStore(tmp_path)).commit(1017, record(1), 4)
    found = stored(tmp_path, 1017)
    assert sorted(found) == ["state.joined", "state.rho", "state.w", "state.y"]
    assert torch.equal(found["state.y"], record(1).state.y)


def save(store: Any) -> list[dict[str, torch.Tensor]]:
    """What a checkpoint does with a store."""
    parts = list(store.parts(store.changed()))
    store.saved()
    return parts


def test_a_checkpoint_closes_a_segment_and_one_that_nothing_needs_goes(tmp_path: Path) -> None:
    """The last two checkpoints are kept, so a segment goes with the second that replaces it."""
    store = bound(DiskStore(tmp_path))
    kept = []
    for number in range(4):
        store.commit(5, record(number), number)
        store.mark()
        save(store)
        kept.append(segments.existing(tmp_path))
    assert kept == [[1], [1, 2], [2, 3], [3, 4]]


def test_a_marked_record_stays_until_the_next_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "SEGMENT_BYTES", 1)  # a segment for each record
    store = bound(DiskStore(tmp_path))
    store.commit(5, record(0), 0)
    store.mark()
    store.commit(5, record(1), 1)
    store.commit(5, record(2), 1)
    assert segments.existing(tmp_path) == [1, 3]
    store.mark()
    assert segments.existing(tmp_path) == [3]


def test_a_store_opened_again_goes_on_and_leaves_out_what_a_crash_tore(tmp_path: Path) -> None:
    first = bound(DiskStore(tmp_path))
    for client, seed in [(5, 1), (6, 2), (5, 3)]:
        first.commit(client, record(seed), 0)
    path = segments.path_of(tmp_path, 1)
    whole = path.read_bytes()
    for torn in (whole[:-1], whole[: len(whole) * 2 // 3 + 20]):
        path.write_bytes(torn)
        again = bound(DiskStore(tmp_path))
        assert same(again.get(5), record(1))
        assert same(again.get(6), record(2))
    again.commit(5, record(4), 1)
    assert segments.existing(tmp_path) == [1, 2]
    assert same(bound(DiskStore(tmp_path)).get(5), record(4))


def churned(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fifty clients commit once, and one commits three times after each of them."""
    size = len(codec.encode(codec.pack(record(0))))
    monkeypatch.setattr(disk, "SEGMENT_BYTES", 4 * size)
    store = bound(DiskStore(directory, cache_bytes=0))
    for number in range(50):
        store.commit(number, record(number), 0)
        for again in range(3):
            store.commit(77, record(again), 0)
    return store


def test_records_move_up_where_most_of_the_segments_is_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 records were written and 51 are needed; twice that and a few segments may be there."""
    store = churned(tmp_path, monkeypatch)
    assert len(held(tmp_path)) < 2 * 51 + 6 * 4
    for reader in (store, bound(DiskStore(tmp_path))):
        assert all(same(reader.get(number), record(number)) for number in range(50))
        assert same(reader.get(77), record(2))


def test_checkpoints_and_undo_find_records_that_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = churned(tmp_path, monkeypatch)
    store.mark()
    parts = save(store)
    where = {client: store.place(client) for client in range(50)}
    for number in range(50):
        store.commit(100 + number, record(number), 1)
        for again in range(3):
            store.commit(78, record(again), 1)
    moved = [client for client in range(50) if store.place(client) != where[client]]
    assert moved
    assert {*moved} <= {*store.changed()}, "the next checkpoint says where they are now"
    segments.verify(tmp_path, segments.unpack(parts), set())
    assert all(same(store.get(number), record(number)) for number in range(50))
    store.undo()
    assert all(store.place(client) == where[client] for client in range(50))
    assert all(same(store.get(number), record(number)) for number in range(50))


def test_a_record_of_another_method_is_rejected(tmp_path: Path) -> None:
    bound(DiskStore(tmp_path)).commit(5, record(1), 0)
    other = bound(DiskStore(tmp_path), fa.FedDR(eta=1.0))
    with pytest.raises(fa.errors.StateError, match=naming("state.rho")):
        other.get(5)


def test_the_cache_keeps_to_its_limit(tmp_path: Path) -> None:
    size = (2 * SIZE + 2) * 8
    store = bound(DiskStore(tmp_path, cache_bytes=3 * size))
    for client in range(10):
        store.commit(client, record(client), 0)
        assert store.cached_bytes <= 3 * size
    assert store.cached_bytes == 3 * size
    for client in range(10):
        assert same(store.get(client), record(client))
        assert store.cached_bytes <= 3 * size


def test_prefetched_records_need_no_file_any_more(tmp_path: Path) -> None:
    store = bound(DiskStore(tmp_path))
    for client in range(4):
        store.commit(client, record(client), 0)
    fresh = bound(DiskStore(tmp_path))
    fresh.prefetch([1, 2, 99])
    fresh.prefetch([])  # waits for the thread
    for path in tmp_path.glob("*.records"):
        path.unlink()
    assert same(fresh.get(1), record(1))
    assert same(fresh.get(2), record(2))
    with pytest.raises(fa.errors.StateError, match="cannot read"):
        fresh.get(3)


def test_the_loop_prefetches_the_next_participants(tmp_path: Path) -> None:
    asked: list[list[int]] = []

    class Asked(DiskStore):
        def prefetch(self, clients: Any) -> None:
            asked.append(list(clients))
            super().prefetch(clients)

    result = run(6, store=Asked(tmp_path))
    cohorts = [record["cohort"]["clients"] for record in result.history]
    expected = [
        [client for client in after if client not in before]
        for before, after in pairwise(cohorts[1:])
    ]
    assert asked == expected


def test_the_store_does_not_change_the_run(tmp_path: Path) -> None:
    expected = fingerprints(run(8))
    assert fingerprints(run(8, store=DiskStore(tmp_path / "a"))) == expected
    assert fingerprints(run(8, store=DiskStore(tmp_path / "b", cache_bytes=0))) == expected


def test_bfloat16_rounds_the_primal_and_nothing_else(tmp_path: Path) -> None:
    store = bound(DiskStore(tmp_path, primal_dtype=torch.bfloat16))
    store.commit(5, record(1), 0)
    reread = bound(DiskStore(tmp_path, primal_dtype=torch.bfloat16)).get(5)
    for kept in (store.get(5), reread):
        assert torch.equal(kept.state.w, record(1).state.w.to(torch.bfloat16).double())
        assert torch.equal(kept.state.y, record(1).state.y)
    found = stored(tmp_path, 5)
    assert found["state.w"].dtype == torch.bfloat16
    assert found["state.y"].dtype == torch.float64


def test_with_bfloat16_the_cache_changes_nothing(tmp_path: Path) -> None:
    cached = DiskStore(tmp_path / "a", primal_dtype=torch.bfloat16)
    uncached = DiskStore(tmp_path / "b", primal_dtype=torch.bfloat16, cache_bytes=0)
    results = [fingerprints(run(8, store=store)) for store in (cached, uncached)]
    assert results[0] == results[1]
    assert results[0] != fingerprints(run(8))


def test_methods_without_client_state_write_no_files(tmp_path: Path) -> None:
    result = run(4, algorithm=fa.FedAvg(), store=DiskStore(tmp_path))
    assert [*tmp_path.iterdir()] == [tmp_path / ".lock"]
    assert sorted(result.clients) == sorted(
        {c for r in result.history for c in r["cohort"]["clients"]}
    )


def test_a_full_disk_is_a_state_error_that_names_the_file(tmp_path: Path) -> None:
    store = bound(DiskStore(tmp_path))
    store.commit(5, record(1), 0)

    class Full(atomic_files.Disk):
        def append(self, path: Path, data: bytes) -> None:
            super().append(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    told = pytest.raises(
        fa.errors.StateError, match=r"segment-0+1\.records: No space left on device"
    )
    with atomic_files.using(Full()), told:
        store.commit(5, record(2), 1)
    assert same(store.get(5), record(1))
    store.commit(5, record(3), 1)
    assert same(bound(DiskStore(tmp_path)).get(5), record(3))


def test_bad_options_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(fa.errors.ParameterError, match=naming("cache_bytes -1")):
        DiskStore(tmp_path, cache_bytes=-1)
    with pytest.raises(fa.errors.ParameterError, match=naming("primal_dtype torch.int8")):
        DiskStore(tmp_path, primal_dtype=torch.int8)
    with pytest.raises(fa.errors.StateError, match=naming("bind")):
        DiskStore(tmp_path).commit(0, record(0), 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(fa.errors.StateError, match="cannot create the folder"):
        DiskStore(tmp_path / "file" / "clients")


def test_a_temporary_store_takes_its_folder_with_it() -> None:
    store = DiskStore.temporary()
    directory = store.directory
    assert directory.is_dir()
    del store
    assert not directory.exists()
