"""Secure aggregation by pairwise masking: masks that cancel in the sum of all clients.

    client i    q_i = round(a_i x_i / step)  mod 2^b          fixed point
                sends  q_i + sum_{j > i} m_ij - sum_{j < i} m_ij   mod 2^b
    server      adds them up: the masks cancel, and sum q_i * step is the weighted sum

m_ij is the ChaCha20 key stream of a key that only i and j can compute: X25519 between keys that
both made for this one upload, then HKDF-SHA256 whose context names the run, the round, everyone's
key and the pair.  A key belongs to one upload, so that no mask is ever used twice, also after a
folder was restored from a backup.  Identities (Ed25519) sign the keys; a site that checks them
against identities that it got elsewhere need not believe the one who passes the keys on.

The words never overflow: weights add up to at most one, so that the sum of m clients is at most
bound / step + m / 2 in magnitude (and their noise, which is cut off), and `fixed_point` takes a
word that holds it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedadmm.core import trees
from fedadmm.core.errors import FedADMMError, ParameterError, StateError
from fedadmm.core.rng import KeyedGenerator

Words = NDArray[Any]
"""Integers modulo 2^32 or 2^64."""
Tree = TypeVar("Tree")
MOST = 200
"""Largest number of clients in one masked sum."""
SLACK = 2.0**-10
"""The rounding of a clip, by which an entry may be larger than the bound."""
TAIL = 12.0
"""Standard deviations at which noise is truncated; the probability of more is negligible."""
_LIMBS = (2.0**23, 2.0**20, 2.0**20)
"""A count travels in three words; the sums of `MOST` of each fit into 32 bits."""


def _cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise FedADMMError(
            "masked sums need cryptography, which is not installed; install fedadmm[flower]"
        ) from error


# Fixed point ------------------------------------------------------------------------------------


class FixedPoint(NamedTuple):
    """Fixed-point encoding of real numbers as integers."""

    bound: float
    """Largest absolute entry of an update."""
    step: float
    bits: int

    @property
    def dtype(self) -> Any:
        """Integer type of the words."""
        return np.uint32 if self.bits == 32 else np.uint64

    def encode(self, tree: object, share: float, noise: float = 0.0) -> Words:
        """`share` times all tensors of a tree, in their order, as one vector of words.

        `noise` is the standard deviation of what is added before the rounding, drawn from the
        machine's entropy and cut off where the headroom ends.
        """
        parts = [leaf.detach().double().cpu().reshape(-1) for leaf in trees.tensors(tree)]
        whole = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
        if not float(whole.abs().amax() if len(whole) else 0.0) <= self.bound * (1 + SLACK):
            raise RangeError(
                f"MaskedSum: bound is {self.bound:g}, but an upload has a larger entry; use a "
                "larger bound, or a clip"
            )
        whole = whole * share
        if noise:
            drawn = KeyedGenerator(None).normal(whole, "share")
            whole = whole + noise * drawn.clamp(-TAIL, TAIL)
        rounded: Words = np.rint((whole / self.step).numpy())
        return rounded.astype(np.int64).astype(self.dtype)

    def decode(self, words: Words, template: Tree) -> Tree:
        """The tree whose tensors these words are; `template` has their shapes and types."""
        signed = words.view(np.int32 if self.bits == 32 else np.int64)
        whole = torch.from_numpy(signed.astype(np.float64) * self.step)
        sizes = [leaf.numel() for leaf in trees.tensors(template)]
        parts = iter(torch.split(whole, sizes))
        return trees.map_tensors(
            lambda leaf: next(parts).reshape(leaf.shape).to(leaf.device, leaf.dtype), template
        )

    def counts(self, values: Sequence[float]) -> Words:
        """Numbers from 0 to 2^23 that are not weighted, to 2^-40; others are cut off there."""
        words = []
        for value in values:
            rest = min(max(value, 0.0), _LIMBS[0] - 1) if math.isfinite(value) else 0.0
            for scale in (1.0, *_LIMBS[1:]):
                whole = math.floor(rest * scale)
                words.append(whole)
                rest = rest * scale - whole
        return np.array(words, dtype=self.dtype)

    def total(self, words: Words) -> list[float]:
        """The sums of such numbers."""
        rows = words.astype(np.float64).reshape(-1, len(_LIMBS))
        scales = np.array([1.0, 1 / _LIMBS[1], 1 / (_LIMBS[1] * _LIMBS[2])])
        return [float(row @ scales) for row in rows]


class RangeError(ParameterError):
    """An update cannot be represented in fixed point."""


def fixed_point(
    bound: float, step: float | None, members: int = MOST, noise: float = 0.0
) -> FixedPoint:
    """Return the smallest word size that the sum of this many clients cannot overflow.

    `noise` is the largest standard deviation of a client's share.  Without a step the finest one
    for words of 32 bits, with as much room again.
    """
    largest = bound * (1 + SLACK) + members * TAIL * noise
    chosen = largest * 2.0**-30 if step is None else step
    for bits in (32, 64):
        if largest / chosen + members / 2 <= 2.0 ** (bits - 1) - 1:
            return FixedPoint(bound, chosen, bits)
    raise ParameterError(
        f"MaskedSum: step is {chosen:g}, but a sum of {members} clients may reach {largest:g}, "
        "which does not fit into 64 bits; use a larger step or a smaller bound"
    )


# Keys -------------------------------------------------------------------------------------------


class Share(NamedTuple):
    """Key share that a site sends to the other members of a sum."""

    client: int
    public: bytes
    """X25519 public key that is used for this update only."""
    signature: bytes = b""


def new_identity() -> bytes:
    """Private key of an Ed25519 identity."""
    _cryptography()
    return os.urandom(32)


def public_identity(identity: bytes) -> bytes:
    """Public key, which others pin."""
    return _signer(identity).public_key().public_bytes_raw()  # type: ignore[no-any-return]


def new_share(client: int, subject: str, identity: bytes | None = None) -> tuple[Share, bytes]:
    """A fresh key for one upload, signed, and its private half.

    `subject` names the run, the round and what is summed: a key is good for nothing else.
    """
    _cryptography()
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key = X25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    signature = b""
    if identity is not None:
        signature = _signer(identity).sign(_statement(subject, client, public))
    return Share(client, public, signature), key.private_bytes_raw()


def check_shares(subject: str, shares: Sequence[Share], pinned: Mapping[int, bytes]) -> None:
    """Reject a set with a key that its client's identity did not sign for this subject."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    clients = [share.client for share in shares]
    if clients != sorted(set(clients)):
        raise StateError(f"the set names clients {clients}, expected each once, in order")
    for share in shares:
        if share.client not in pinned:
            raise StateError(f"the set holds client {share.client}, which this site does not know")
        try:
            key = Ed25519PublicKey.from_public_bytes(pinned[share.client])
            key.verify(share.signature, _statement(subject, share.client, share.public))
        except (InvalidSignature, ValueError):
            raise StateError(
                f"the key of client {share.client} is not signed by the identity that this site "
                "has of it"
            ) from None


def set_digest(subject: str, shares: Sequence[Share]) -> str:
    """Return the digest of a set: its members and their keys."""
    members = "".join(f"\n{share.client} {share.public.hex()}" for share in shares)
    return hashlib.sha256(f"fedadmm set 1\n{subject}{members}".encode()).hexdigest()


def _statement(subject: str, client: int, public: bytes) -> bytes:
    return f"fedadmm key 1\n{subject}\n{client} {public.hex()}".encode()


def _signer(identity: bytes) -> Any:
    _cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(identity)


# Masks ------------------------------------------------------------------------------------------


def masked(
    words: Words, client: int, private: bytes, subject: str, shares: Sequence[Share]
) -> Words:
    """Return a client's words with the masks that it shares with the other members of a set."""
    digest, total = set_digest(subject, shares), words.copy()
    for other in shares:
        if other.client == client:
            continue
        mask = np.frombuffer(_stream(client, private, other, digest, words.nbytes), words.dtype)
        total = total + mask if client < other.client else total - mask
    return total


def _stream(client: int, private: bytes, other: Share, digest: str, length: int) -> bytes:
    """Return the key stream of a pair, which both members can compute."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    own = X25519PrivateKey.from_private_bytes(private)
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other.public))
    except ValueError:
        raise StateError(f"the key of client {other.client} is no proper one") from None
    low, high = sorted((client, other.client))
    context = f"fedadmm mask 1\n{digest}\n{low} {high}".encode()
    key = HKDF(SHA256(), 32, None, context).derive(secret)
    # The key is used once, so that the nonce need not differ.
    made: bytes = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(length))
    return made


def summed(vectors: Sequence[Words]) -> Words:
    """Return the sum of the masked words."""
    total = vectors[0].copy()
    for words in vectors[1:]:
        total += words
    return total


def rehearsed(vectors: Sequence[Words]) -> Words:
    """Return the masked sum of vectors in one process: keys, masks, and their cancellation."""
    made = [new_share(number, "rehearsal") for number in range(len(vectors))]
    shares = [share for share, _ in made]
    return summed(
        [
            masked(words, number, private, "rehearsal", shares)
            for number, (words, (_, private)) in enumerate(zip(vectors, made, strict=True))
        ]
    )


def groups(members: Sequence[int], size: int) -> list[list[int]]:
    """Divide the members into groups of `size` to 2 size - 1; fewer are one group."""
    count = max(1, len(members) // size)
    cuts = [len(members) * index // count for index in range(count + 1)]
    return [list(members[low:high]) for low, high in itertools.pairwise(cuts)]
