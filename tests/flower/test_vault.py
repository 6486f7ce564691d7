"""The files on both sides: whole or not there, and damage is seen before it is used."""

from __future__ import annotations

import json

import pytest
import torch

import fedadmm as fa
from fedadmm.errors import StateError
from fedadmm.flower import codec
from fedadmm.flower.checkpoint import Saved, ServerVault, new_run
from fedadmm.flower.door import seal
from fedadmm.flower.parcels import Answer, Kept, answer_template, parcel_template, record_template
from fedadmm.flower.protocol import Kind, ServerLedger, issue, reply_to
from fedadmm.flower.vault import ACKED, PENDING, Vault
from fedadmm.round import initial_state

from .harness import federation

JOB = federation(fa.FedADMM(rho=1.0)).server_job()


def a_commit(vault: Vault, sequence: int = 0):
    template = answer_template(JOB, parcel_template(JOB).download)
    message = type(template.upload.message)(torch.full((6,), float(sequence)), None)
    answer = Answer(template.upload._replace(message=message), template.info)
    task = issue(ServerLedger("run"), 0, sequence, "cast")
    reply = seal(reply_to(task, Kind.UPDATE), codec.pack(answer))
    record = record_template(JOB)
    vault.commit(reply, Kept(record, answer))
    return reply, answer


def test_what_is_committed_comes_back(tmp_path):
    reply, answer = a_commit(Vault(tmp_path))
    vault = Vault(tmp_path)
    ledger = vault.ledger()
    assert ledger.acked is None
    assert ledger.pending is not None
    assert ledger.pending.digest == reply.digest
    again, kept = vault.pending(Kept(record_template(JOB), answer))
    assert again == reply
    assert torch.equal(kept.answer.upload.message.increment, answer.upload.message.increment)
    assert json.dumps(kept.answer.info._asdict()) == json.dumps(answer.info._asdict())


def test_promotion_is_a_rename(tmp_path):
    reply, _ = a_commit(Vault(tmp_path))
    vault = Vault(tmp_path)
    vault.ledger()
    vault.promote()
    assert {path.name for path in tmp_path.iterdir()} == {ACKED}
    assert Vault(tmp_path).ledger().acked.digest == reply.digest


def test_a_damaged_file_counts_as_not_there_and_is_kept_aside(tmp_path):
    a_commit(Vault(tmp_path))
    path = tmp_path / PENDING
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert Vault(tmp_path).ledger().pending is None
    assert (tmp_path / f"{PENDING}.damaged").exists()


def test_only_the_owner_can_look_into_a_vault(tmp_path):
    Vault(tmp_path / "v")
    assert (tmp_path / "v").stat().st_mode & 0o777 == 0o700


def test_two_processes_cannot_hold_a_vault(tmp_path):
    second = Vault(tmp_path).locked(timeout=0.1)
    with Vault(tmp_path).locked(), pytest.raises(StateError, match="in use"), second:
        pass


def test_a_checkpoint_comes_back(tmp_path):
    vault = ServerVault(tmp_path, False, {"a": "1"})
    assert vault.load(initial_state(JOB)) is None
    saved = Saved(initial_state(JOB)._replace(round=3), new_run(), {7: 1}, True, 2)
    vault.save(saved, {})
    again = ServerVault(tmp_path, False, {"a": "1"}).load(initial_state(JOB))
    assert again.state.round == 3
    assert torch.equal(again.state.server.mean, saved.state.server.mean)
    assert again[1:] == saved[1:]


def test_another_configuration_does_not_resume(tmp_path):
    saved = Saved(initial_state(JOB), new_run(), {})
    ServerVault(tmp_path, False, {"seed": "0"}).save(saved, {})
    with pytest.raises(StateError, match=r"differs in seed \(0 -> 1\)"):
        ServerVault(tmp_path, False, {"seed": "1"}).load(initial_state(JOB))


def test_a_damaged_checkpoint_is_refused(tmp_path):
    vault = ServerVault(tmp_path, False, {})
    vault.save(Saved(initial_state(JOB), new_run(), {}), {})
    path = tmp_path / "server.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StateError, match="damaged"):
        vault.load(initial_state(JOB))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_tensors_travel_as_bytes(dtype):
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    assert torch.equal(codec.from_raw(codec.to_raw(tensor)), tensor)


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (codec.Raw("object", (1,), b"x"), "dtype"),
        (codec.Raw("float32", (2,), b"x" * 7), "shape"),
        (codec.Raw("float32", (-1,), b""), "shape"),
        (codec.Raw("float32", (1,) * 9, b"x" * 4), "shape"),
    ],
)
def test_bytes_that_are_no_tensor_are_refused(raw, word):
    with pytest.raises(StateError, match=word):
        codec.from_raw(raw)
