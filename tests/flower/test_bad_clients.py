"""A bad reply is refused, counted, and costs only itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import fedadmm as fa
from fedadmm.flower import wire
from fedadmm.flower.codec import Packed
from fedadmm.flower.door import seal

from .harness import FakeGrid, check_invariant, check_versions, federation, run_through, simulated

pytestmark = pytest.mark.usefixtures("quick")
MOST = 10**6


def resealed(change):
    """A reply whose content is changed and whose digest is made to fit: a lie, not an accident."""

    def spoil(content):
        reply, packed = wire.read_reply(content, MOST)
        tensors = {name: change(tensor.clone()) for name, tensor in packed.tensors.items()}
        changed = Packed(tensors, packed.plain)
        return wire.write(seal(reply, changed), changed)

    return spoil


def rehead(**fields):
    """A reply with another head, sealed again."""

    def spoil(content):
        reply, packed = wire.read_reply(content, MOST)
        return wire.write(seal(reply._replace(**fields), packed), packed)

    return spoil


def forged(content):
    """Content changed after it was sealed."""
    reply, packed = wire.read_reply(content, MOST)
    tensors = {name: tensor + 1 for name, tensor in packed.tensors.items()}
    return wire.write(reply, Packed(tensors, packed.plain))


def pickled(content):
    """What another program might send: numpy's own format."""
    arrays = ArrayRecord([np.zeros(3)])
    return RecordDict(
        {wire.HEAD: content[wire.HEAD], wire.ARRAYS: arrays, wire.PLAIN: ConfigRecord()}
    )


def short(content):
    """Fewer bytes than the shape says."""
    arrays = ArrayRecord()
    for name, array in content[wire.ARRAYS].items():
        arrays[name] = Array(array.dtype, array.shape, wire.STYPE, array.data[:-1])
    return RecordDict(
        {wire.HEAD: content[wire.HEAD], wire.ARRAYS: arrays, wire.PLAIN: content[wire.PLAIN]}
    )


def bloated(content):
    """Far more bytes than the model has."""
    arrays = ArrayRecord()
    for name in content[wire.ARRAYS]:
        arrays[name] = Array("float32", (10**5,), wire.STYPE, bytes(4 * 10**5))
    return RecordDict(
        {wire.HEAD: content[wire.HEAD], wire.ARRAYS: arrays, wire.PLAIN: content[wire.PLAIN]}
    )


def nan(tensor):
    tensor[0] = float("nan")
    return tensor


BAD = {
    "nan": (resealed(nan), "finite"),
    "infinity": (resealed(lambda t: t / 0), "finite"),
    "wrong shape": (resealed(lambda t: t[:-1]), "shape"),
    "wrong type": (resealed(lambda t: t.double()), "dtype"),
    "huge norm": (resealed(lambda t: t + 1e9), "norm"),
    "forged digest": (forged, "digest"),
    "stale version": (rehead(version=0), "protocol"),
    "future version": (rehead(version=9), "protocol"),
    "another round": (rehead(sequence=0), "protocol"),
    "another run": (rehead(run="x"), "protocol"),
    "another client": (rehead(client=0), "protocol"),
    "another task": (rehead(task="x"), "protocol"),
    "no head": (lambda content: RecordDict({"hello": ConfigRecord({"a": 1})}), "garbage"),
    "nothing": (lambda content: RecordDict(), "garbage"),
    "numpy's format": (pickled, "garbage"),
    "too few bytes": (short, "shape"),
    "too many bytes": (bloated, "size"),
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
    assert history.records[2]["refused"] == 1
    check_versions(settings, tmp_path, history.trace)
    check_invariant(settings, tmp_path)
    wanted = simulated(settings, history.trace)
    assert torch.allclose(history.outcome.params, wanted.params, rtol=0, atol=1e-6)


def test_a_run_whose_clients_all_diverge_ends_as_diverged(tmp_path):
    settings = federation(fa.FedADMM(rho=1.0), solver=fa.SGD(lr=1e30, batch_size=10))
    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    assert history.outcome.ending.code == "diverged"


def test_only_named_nodes_take_part(tmp_path):
    names = ["client-0", "client-1", "client-2", "stranger"]
    settings = federation(fa.FedAvg(), rounds=2, names=names)
    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    assert history.trace == [[0, 1, 2]] * 2
