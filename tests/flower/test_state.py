"""The files on both sides: whole or not there, and damage is seen before it is used."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import fedadmm as fa
from fedadmm.core import atomic_files, codec
from fedadmm.core.codec import DamageError, Packed
from fedadmm.core.errors import StateError
from fedadmm.flower.protocol.admission import UploadHistory, seal
from fedadmm.flower.protocol.ledger import ReplyKind, ServerLedger, create_task, reply_to
from fedadmm.flower.server import checkpoint
from fedadmm.flower.server.checkpoint import SERVER, ServerCheckpoint, ServerState, new_run
from fedadmm.flower.server.server_app import serve
from fedadmm.flower.site.site_state import ACKED, PENDING, SiteState
from fedadmm.run.client import record_layout
from fedadmm.run.evaluation import Evaluation
from fedadmm.run.loop import initial_state
from fedadmm.run.round_callbacks import DIVERGENCE, FirstValues, RunPlan

from .harness import FakeGrid, check_invariant, federation, run_through, server_on_disk

JOB = federation(fa.FedADMM(rho=1.0)).server_job()
PLAN = RunPlan(1, Evaluation())


def a_commit(site: SiteState, sequence: int = 0):
    task = create_task(ServerLedger("run"), 0, sequence, "cast")
    body = codec.encode(Packed({"x": torch.full((6,), float(sequence))}, {"y": 1.5}))
    reply = seal(reply_to(task, ReplyKind.UPDATE), body)
    site.commit(reply, body, record_layout(JOB))
    return reply, body


def spoil(path: Path, place: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_what_is_committed_comes_back(tmp_path):
    reply, body = a_commit(SiteState(tmp_path))
    site = SiteState(tmp_path)
    ledger = site.ledger()
    assert ledger.acked is None
    assert ledger.pending is not None
    assert ledger.pending.digest == reply.digest
    assert site.pending() == (reply, body)


def test_promotion_is_a_rename(tmp_path):
    reply, _ = a_commit(SiteState(tmp_path))
    site = SiteState(tmp_path)
    site.ledger()
    site.promote()
    assert {path.name for path in tmp_path.iterdir()} == {ACKED}
    again = SiteState(tmp_path)
    assert again.ledger().acked.digest == reply.digest
    wanted = record_layout(JOB).state
    assert torch.equal(again.acked(record_layout(JOB)).state.w, wanted.w)


@pytest.mark.parametrize("place", [0, 9, 200])
def test_a_damaged_file_counts_as_not_there_and_is_kept_aside(place, tmp_path):
    a_commit(SiteState(tmp_path))
    spoil(tmp_path / PENDING, place)
    assert SiteState(tmp_path).ledger().pending is None
    assert (tmp_path / f"{PENDING}.damaged").exists()


def test_damaged_bytes_of_a_reply_are_not_sent_again(tmp_path):
    a_commit(SiteState(tmp_path))
    data = (tmp_path / PENDING).read_bytes()
    body = SiteState(tmp_path).pending()[1]
    spoil(tmp_path / PENDING, data.index(body) + len(body) - 1)
    site = SiteState(tmp_path)
    assert site.ledger().pending is not None
    assert site.pending() is None
    assert site.ledger().pending is None


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_a_file_that_cannot_be_read_now_is_not_lost(number, tmp_path, monkeypatch):
    """Too many open files is no reason to throw a good state away."""
    reply, _ = a_commit(SiteState(tmp_path))

    def refuse(self, path, begin=0, size=-1):
        raise OSError(number, "no")

    with monkeypatch.context() as patch:
        patch.setattr(atomic_files.Disk, "read", refuse)
        with pytest.raises(StateError, match="cannot read") as raised:
            SiteState(tmp_path).ledger()
    assert not isinstance(raised.value, DamageError)
    assert SiteState(tmp_path).ledger().pending.digest == reply.digest


def test_a_transient_error_costs_a_client_one_attempt_only(tmp_path, monkeypatch, quick):
    settings = federation(fa.FedADMM(rho=1.0), rounds=4, ledger="disk")
    read, refused = atomic_files.Disk.read, []

    def sometimes(self, path, begin=0, size=-1):
        if "site-2" in str(path) and path.name == PENDING and not refused:
            refused.append(path)
            raise OSError(errno.EMFILE, "Too many open files")
        return read(self, path, begin, size)

    monkeypatch.setattr(atomic_files.Disk, "read", sometimes)
    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    assert len(refused) == 1
    assert history.trace == [[0, 1, 2, 3]] * 4
    assert "lost" not in history.outcome.counts
    check_invariant(settings, tmp_path)


def test_only_the_owner_can_look_into_a_state(tmp_path):
    SiteState(tmp_path / "site")
    ServerState(tmp_path / "server", False, {})
    for folder in ("site", "server"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700


def test_two_processes_cannot_hold_a_state(tmp_path):
    second = SiteState(tmp_path).locked(timeout=0.1)
    with SiteState(tmp_path).locked(), pytest.raises(StateError, match="in use"), second:
        pass


def test_a_lock_that_is_a_folder_is_named(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(StateError, match=r"cannot lock .*\.lock"), SiteState(tmp_path).locked():
        pass


def test_what_killed_writes_left_is_swept(tmp_path):
    names = ("mine.tmp", ".tmpAb12Cd", f"{PENDING}.123.tmp")
    for folder in ("site", "server"):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_bytes(b"x")
    with SiteState(tmp_path / "site").locked():
        pass
    ServerState(tmp_path / "server", False, {})
    left = {path.name for folder in ("site", "server") for path in (tmp_path / folder).iterdir()}
    assert left == {".lock", "mine.tmp", ".tmpAb12Cd"}  # nothing says that these are ours


@pytest.mark.parametrize("make", [SiteState, lambda folder: ServerState(folder, True, {})])
def test_a_folder_behind_a_link_is_refused_and_stays_as_it_is(make, tmp_path):
    """A sweep would delete what another folder holds."""
    other = tmp_path / "other"
    other.mkdir()
    theirs = ["a.1.tmp", "contribution-0-0-1.safetensors"]
    for name in theirs:
        (other / name).write_bytes(b"x")
    (tmp_path / "link").symlink_to(other)
    with pytest.raises(StateError, match="is a link to another folder"):
        make(tmp_path / "link")
    assert sorted(path.name for path in other.iterdir()) == theirs


def test_a_checkpoint_comes_back(tmp_path):
    disk = ServerState(tmp_path, False, {"a": "1"})
    assert disk.load(initial_state(JOB, PLAN)) is None
    state = initial_state(JOB, PLAN)._replace(round=3)
    state = state.with_component(DIVERGENCE, FirstValues(loss=0.1 + 0.2))
    saved = ServerCheckpoint(
        state, new_run(), {7: 1}, 2, 5, {1: UploadHistory(2, [{"x": 0.1}], {"x": 0.3})}
    )
    saved = saved._replace(length=0.6, weights=(0.1 + 0.2, 0.7))
    disk.save(saved, {})
    again = ServerState(tmp_path, False, {"a": "1"}).load(initial_state(JOB, PLAN))
    assert again.state.round == 3
    assert FirstValues(*again.state.components[DIVERGENCE]).loss == 0.1 + 0.2
    assert torch.equal(again.state.server.mean, saved.state.server.mean)
    assert again[1:] == saved[1:]


def test_another_configuration_does_not_resume(tmp_path):
    saved = ServerCheckpoint(initial_state(JOB, PLAN), new_run(), {})
    ServerState(tmp_path, False, {"seed": "0"}).save(saved, {})
    with pytest.raises(StateError, match=r"differs in seed \(0 -> 1\)"):
        ServerState(tmp_path, False, {"seed": "1"}).load(initial_state(JOB, PLAN))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"weights": [1.0, 2.0, 3.0, 4.0]}, "weights"),
        ({"initial": torch.zeros(6)}, "initial"),
        ({"weights": [2.0] * 4}, None),  # the same up to a common factor
    ],
)
def test_other_weights_or_another_start_do_not_resume(change, key, tmp_path, quick):
    settings = federation(fa.FedADMM(rho=1.0), rounds=2)
    run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    changed = federation(fa.FedADMM(rho=1.0), rounds=3, **change)
    grid = FakeGrid(changed, tmp_path)
    if key is None:
        assert serve(changed, grid, tmp_path / "server").state.round == 3
        return
    with pytest.raises(StateError, match=rf"holds another run, which differs in {key} \("):
        serve(changed, grid, tmp_path / "server")


@pytest.mark.parametrize("place", [0, 9, -1])
def test_a_damaged_checkpoint_is_refused(place, tmp_path):
    disk = ServerState(tmp_path, False, {})
    disk.save(ServerCheckpoint(initial_state(JOB, PLAN), new_run(), {}), {})
    spoil(tmp_path / SERVER, place)
    with pytest.raises(DamageError, match="damaged"):
        disk.load(initial_state(JOB, PLAN))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"abc",
        bytes(8),
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
        (2**63).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{}",
    ],
    ids=["empty", "short", "zeros", "brackets", "endless", "nothing"],
)
def test_a_checkpoint_that_is_something_else_is_refused(data, tmp_path):
    (tmp_path / SERVER).write_bytes(data)
    with pytest.raises(DamageError, match="damaged"):
        ServerState(tmp_path, False, {}).load(initial_state(JOB, PLAN))


def test_a_checkpoint_of_an_earlier_version_is_named(tmp_path):
    save_file({"server.mean": torch.zeros(6)}, tmp_path / SERVER, {"values": "{}", "sha256": ""})
    with pytest.raises(StateError, match="written by an earlier version"):
        ServerState(tmp_path, False, {}).load(initial_state(JOB, PLAN))


def test_a_checkpoint_of_another_format_is_named(tmp_path, monkeypatch):
    disk = ServerState(tmp_path, False, {})
    with monkeypatch.context() as before:
        before.setattr(checkpoint, "FORMAT", checkpoint.FORMAT - 1)
        disk.save(ServerCheckpoint(initial_state(JOB, PLAN), new_run(), {}), {})
    with pytest.raises(StateError, match="written by an earlier version of fedadmm; finish the"):
        disk.load(initial_state(JOB, PLAN))
    disk.save(ServerCheckpoint(initial_state(JOB, PLAN), new_run(), {}), {})
    assert disk.load(initial_state(JOB, PLAN)) is not None


DAMAGES = {
    "missing": lambda path: path.unlink(),
    "another's": lambda path: path.write_bytes(
        next(path.parent.glob("contribution-2-*.safetensors")).read_bytes()
    ),
    "flipped": lambda path: spoil(path),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("when", ["long before", "just before"])
def test_a_contribution_that_is_damaged_is_never_taken_out(damage, when, tmp_path, quick, caplog):
    """A sum that restarted from nothing would leave the mean wrong and call it repaired."""
    settings = federation(fa.FedADMM(rho=1.0), rounds=6, ledger="disk")
    grid = FakeGrid(settings, tmp_path)

    def act(report):
        number = report.record["round"]
        if number == (2 if when == "long before" else 4):
            (path,) = (tmp_path / "server" / "checkpoint").glob("contribution-1-*.safetensors")
            DAMAGES[damage](path)
        if number == 4:
            grid.wipe(1)

    history = run_through(settings, grid, tmp_path, act)
    assert "repaired" not in history.outcome.counts
    assert history.outcome.counts["ledger"] == 1
    assert "cannot be removed" in caplog.text
    assert history.trace[4:] == [[0, 2, 3]] * 2
    entry = server_on_disk(settings, tmp_path).ledger.entry(1)
    assert entry.lost


def test_every_type_of_tensor_travels():
    """bfloat16 and zero-dimensional ones included; None stays None."""
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool):
        tensor = torch.arange(6).reshape(2, 3).to(dtype)
        packed = codec.pack((tensor, None, (tensor[0, 0], 1.5, "a", True)))
        again = codec.decode(codec.encode(packed))
        assert again.plain == {"2.1": 1.5, "2.2": "a", "2.3": True}
        for name, leaf in packed.tensors.items():
            assert again.tensors[name].dtype == dtype
            assert torch.equal(again.tensors[name], leaf)


def test_another_reader_understands_what_travels(tmp_path):
    """Types of all widths in one tree, sizes that are no multiple of them, and nothing at all."""
    tree = {
        "a": torch.tensor([1, 2, 3], dtype=torch.uint8),
        "b": torch.tensor([[0.5, -1.25]], dtype=torch.float64),
        "c": torch.tensor([3, -4, 5], dtype=torch.int16),
        "d": torch.empty(0, 4),
        "e": torch.arange(12.0).reshape(3, 4)[:, 1::2],
    }
    (tmp_path / "file").write_bytes(codec.encode(Packed(tree, {"y": 1.5})))
    with safe_open(tmp_path / "file", framework="pt") as file:
        assert file.metadata() == {"plain": '{"y": 1.5}'}
        assert set(file.keys()) == set(tree)
        for name, tensor in tree.items():
            assert file.get_tensor(name).dtype == tensor.dtype
            assert torch.equal(file.get_tensor(name), tensor)


def test_states_that_share_memory_travel():
    tensor = torch.ones(3)
    again = codec.decode(codec.encode(codec.pack((tensor, tensor[:2]))))
    assert torch.equal(again.tensors["1"], torch.ones(2))


@pytest.mark.parametrize("part", [b'"x"', b"12345", b"word"], ids=["name", "number", "text"])
def test_a_seal_covers_names_and_values(part, tmp_path):
    path = tmp_path / "file"
    codec.write_checksummed(
        path, Packed({"x": torch.ones(2)}, {"a": 12345, "b": "word", "c": float("nan")})
    )
    data = path.read_bytes()
    assert codec.read_checksummed(path).plain["a"] == 12345
    place = data.index(part) + len(part) // 2
    spoil(path, place)
    with pytest.raises(DamageError):
        codec.read_checksummed(path)
