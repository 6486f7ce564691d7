"""Masks and fixed point against computations that are written down here once more."""

from __future__ import annotations

import hashlib
import hmac
import struct

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedadmm.core import pairwise_masks
from fedadmm.core.errors import ParameterError, StateError
from support.rejections import naming

SUBJECT = "update\nrun\n7"


def chacha_block(key: bytes, counter: int) -> bytes:
    """RFC 8439, with a nonce of zeros."""
    words = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter]
    words += [0, 0, 0]
    state = list(words)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[x] = (state[x] + state[y]) & 0xFFFFFFFF
            mixed = state[z] ^ state[x]
            state[z] = ((mixed << turn) | (mixed >> (32 - turn))) & 0xFFFFFFFF

    for _ in range(10):
        for column in range(4):
            quarter(column, 4 + column, 8 + column, 12 + column)
        for a, b, c, d in ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
            quarter(a, b, c, d)
    return struct.pack("<16I", *((x + y) & 0xFFFFFFFF for x, y in zip(state, words, strict=True)))


def reference_mask(private: bytes, other: bytes, shares, pair: tuple[int, int], length: int):
    """The key stream of a pair: X25519, HKDF by hand (RFC 5869), ChaCha20 by hand."""
    secret = X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(other)
    )
    lines = ["fedadmm set 1", SUBJECT, *(f"{s.client} {s.public.hex()}" for s in shares)]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    info = f"fedadmm mask 1\n{digest}\n{pair[0]} {pair[1]}".encode()
    extracted = hmac.digest(bytes(32), secret, "sha256")
    key = hmac.digest(extracted, info + b"\x01", "sha256")
    blocks = b"".join(chacha_block(key, number) for number in range(-(-length // 64)))
    return blocks[:length]


def parties(clients=(2, 5, 9)):
    made = {client: pairwise_masks.new_share(client, SUBJECT) for client in clients}
    shares = [share for share, _ in made.values()]
    return shares, {client: private for client, (_, private) in made.items()}


def test_what_is_sent_is_the_value_plus_the_masks_of_the_later_minus_those_of_the_earlier():
    shares, private = parties()
    values = np.arange(100, dtype=np.uint32)
    sent = pairwise_masks.masked(values, 5, private[5], SUBJECT, shares)
    early = reference_mask(private[5], shares[0].public, shares, (2, 5), 400)
    late = reference_mask(private[5], shares[2].public, shares, (5, 9), 400)
    expected = [
        (int(v) + b - a) % 2**32
        for v, a, b in zip(
            values,
            np.frombuffer(early, "<u4").tolist(),
            np.frombuffer(late, "<u4").tolist(),
            strict=True,
        )
    ]
    assert sent.tolist() == expected


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_masks_cancel_in_the_sum_of_the_whole_set_and_of_nothing_less(dtype):
    shares, private = parties((0, 1, 2, 3))
    draws = np.random.default_rng(0)
    values = [draws.integers(0, np.iinfo(dtype).max, 50, dtype=dtype) for _ in range(4)]
    sent = [
        pairwise_masks.masked(v, client, private[client], SUBJECT, shares)
        for client, v in enumerate(values)
    ]
    top = 2 ** (8 * np.dtype(dtype).itemsize)
    total = [sum(int(v[k]) for v in values) % top for k in range(50)]
    assert pairwise_masks.summed(sent).tolist() == total
    for left_out in range(4):
        some = pairwise_masks.summed([s for c, s in enumerate(sent) if c != left_out])
        plain = pairwise_masks.summed([v for c, v in enumerate(values) if c != left_out])
        assert (some == plain).mean() < 0.1


@pytest.mark.parametrize("colluding", [(0,), (0, 3), (0, 2, 3)])
def test_a_server_with_some_sites_sees_only_the_sum_of_the_others(colluding):
    """They know these sites' words and all masks that these sites share with others."""
    shares, private = parties((0, 1, 2, 3))
    draws = np.random.default_rng(1)
    words = {c: draws.integers(0, 2**32, 60, dtype=np.uint32) for c in private}
    honest = [c for c in private if c not in colluding]
    seen = {}
    for client in honest:
        sent = pairwise_masks.masked(words[client], client, private[client], SUBJECT, shares)
        for other in colluding:
            pair = tuple(sorted((client, other)))
            mask = reference_mask(private[other], shares[client].public, shares, pair, 240)
            known = np.frombuffer(mask, "<u4")
            sent = sent - known if client < other else sent + known
        seen[client] = sent
    total = sum(seen.values(), np.zeros(60, np.uint32))
    assert total.tolist() == sum((words[c] for c in honest), np.zeros(60, np.uint32)).tolist()
    for client in honest:
        alike = (seen[client] == words[client]).mean()
        assert alike == 1 if len(honest) == 1 else alike < 0.1


def test_no_two_pairs_rounds_or_sets_have_a_mask_in_common():
    shares, private = parties()
    zeros = np.zeros(64, np.uint64)

    def sent(subject, members):
        return pairwise_masks.masked(zeros, 2, private[2], subject, members)

    found = [
        sent(SUBJECT, shares),
        sent("update\nrun\n8", shares),
        sent(SUBJECT, shares[:2]),
        sent(SUBJECT, [shares[0], shares[2]]),
    ]
    words = np.concatenate(found)
    assert len(set(words.tolist())) == len(words)


def test_a_key_that_is_not_the_identitys_is_rejected():
    identities = {client: pairwise_masks.new_identity() for client in range(3)}
    pinned = {client: pairwise_masks.public_identity(key) for client, key in identities.items()}
    shares = [pairwise_masks.new_share(c, SUBJECT, identities[c])[0] for c in range(3)]
    pairwise_masks.check_shares(SUBJECT, shares, pinned)
    stranger = pairwise_masks.new_share(1, SUBJECT, pairwise_masks.new_identity())[0]
    swapped = shares[1]._replace(public=shares[2].public)
    for wrong in (stranger, swapped, shares[1]._replace(signature=b"")):
        with pytest.raises(StateError, match=naming("client 1")):
            pairwise_masks.check_shares(SUBJECT, [shares[0], wrong, shares[2]], pinned)
    with pytest.raises(StateError, match=naming("client 0")):
        pairwise_masks.check_shares("update\nrun\n8", shares, pinned)
    with pytest.raises(StateError, match=naming("client 2")):
        pairwise_masks.check_shares(SUBJECT, shares, {0: pinned[0], 1: pinned[1]})
    with pytest.raises(StateError, match="each once, in order"):
        pairwise_masks.check_shares(SUBJECT, [shares[0], shares[0], shares[1]], pinned)
    with pytest.raises(StateError, match="no proper one"):  # a point that makes any secret zero
        pairwise_masks.masked(
            np.zeros(1, np.uint32),
            0,
            bytes(range(32)),
            SUBJECT,
            [shares[0], pairwise_masks.Share(1, bytes(32))],
        )


@pytest.mark.parametrize(("step", "bits"), [(None, 32), (1e-6, 32), (9e-10, 64), (1e-15, 64)])
def test_the_largest_sums_that_may_come_fit_into_the_word(step, bits):
    point = pairwise_masks.fixed_point(2.0, step, members=199)
    assert point.bits == bits
    shares = [1 / 199] * 199
    for sign in (1.0, -1.0):
        largest = torch.full((3,), sign * 2.0 * (1 + pairwise_masks.SLACK), dtype=torch.float64)
        words = [point.encode((largest,), share) for share in shares]
        (found,) = point.decode(pairwise_masks.summed(words), (largest,))
        np.testing.assert_allclose(found, largest, atol=199 * point.step / 2 + 1e-12)


def test_a_word_without_headroom_and_an_entry_above_the_bound_are_rejected():
    with pytest.raises(ParameterError, match=naming("64 bits")):
        pairwise_masks.fixed_point(2.0, 1e-19)
    point = pairwise_masks.fixed_point(2.0, None)
    for wrong in (2.01, -2.01, float("nan"), float("inf")):
        with pytest.raises(pairwise_masks.RangeError, match=naming("bound 2")):
            point.encode((torch.tensor([0.0, wrong]),), 1.0)
    exact = pairwise_masks.fixed_point(1.0, 2.0**-40, members=3, noise=1.0)
    assert exact.bits == 64
    assert pairwise_masks.fixed_point(1.0, 2.0**-30, members=3).bits == 32
    assert pairwise_masks.fixed_point(1.0, 2.0**-30, members=3, noise=1.0).bits == 64


def test_rounding_is_to_the_nearest_step_and_shapes_and_types_come_back():
    point = pairwise_masks.FixedPoint(10.0, 0.25, 32)
    tree = (torch.tensor([[0.3, -0.4], [9.0, 0.0]]), None, torch.tensor([1.1], dtype=torch.float64))
    matrix, nothing, number = point.decode(point.encode(tree, 0.5), tree)
    assert matrix.tolist() == [[0.25, -0.25], [4.5, 0.0]]
    assert (nothing, number.tolist()) == (None, [0.5])
    assert (matrix.dtype, number.dtype) == (torch.float32, torch.float64)


def test_counts_keep_forty_bits_behind_the_point_and_their_sums_fit():
    point = pairwise_masks.fixed_point(1.0, None)
    rows = [[3.0, 1.25e-7, 1e300], [2.0**22, 0.5, float("nan")], [-1.0, 7.75, 2.0]]
    words = pairwise_masks.summed([point.counts(row) for row in rows])
    found = point.total(words)
    expected = [2.0**22 + 3, 8.25 + 1.25e-7, 2.0**23 + 1]
    np.testing.assert_allclose(found, expected, rtol=0, atol=3 * 2.0**-40)
    most = pairwise_masks.summed([point.counts([2.0**23 - 2.0**-30])] * pairwise_masks.MOST)
    np.testing.assert_allclose(point.total(most), pairwise_masks.MOST * (2.0**23 - 1), rtol=1e-6)


def test_noise_has_the_spread_that_is_asked_for_and_goes_in_before_the_rounding():
    point = pairwise_masks.fixed_point(1.0, None, members=3, noise=0.5)
    tree = (torch.zeros(4000, dtype=torch.float64),)
    (found,) = point.decode(point.encode(tree, 1.0, noise=0.5), tree)
    (again,) = point.decode(point.encode(tree, 1.0, noise=0.5), tree)
    assert abs(float(found.std()) - 0.5) < 0.03  # five standard errors
    assert not torch.equal(found, again)


@pytest.mark.parametrize("members", [3, 9, 10, 19, 20, 39, 50, 101])
def test_groups_contain_every_client_once_and_have_ten_to_nineteen(members):
    made = pairwise_masks.groups(range(members), 10)
    assert [c for group in made for c in group] == list(range(members))
    assert all(10 <= len(group) < 20 for group in made) or (len(made) == 1 and members < 10)
