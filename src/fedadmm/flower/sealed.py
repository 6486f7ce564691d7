"""Packed trees in files: whole or not there, sealed by a digest, readable by their owner only.

A file that cannot be read may be good: too many open files, a disk that is busy.  Only one that
was read and does not hold what its seal says is damaged.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from fedadmm.core import files
from fedadmm.core.errors import StateError
from fedadmm.flower.protocol.codec import Packed, decode, encode
from fedadmm.flower.protocol.refusal import RefusedError
from fedadmm.run.state.digest import content_sha256

_SEAL = "sha256"
_MOST_HEADER = 100_000_000
"""Bytes of a file's header, which the format itself allows: a ledger of many clients fits in."""


class DamageError(StateError):
    """A file was read, and what it holds is not what was written."""


def write(path: Path, packed: Packed, **vouched: Tensor) -> None:
    """Write a file durably; `vouched` are tensors whose digest stands in the plain values."""
    sealed = packed.plain | {_SEAL: _seal(packed)}
    files.write(path, encode(Packed(packed.tensors | vouched, sealed)))


def read(path: Path, *vouched: str) -> Packed | None:
    """What was written; None without a file, a DamageError when it holds something else."""
    data = files.read_if_there(path)
    if data is None:
        return None
    try:
        packed = decode(data, _MOST_HEADER)
    except RefusedError as error:
        raise DamageError(f"{path} is damaged: {error.detail}") from None
    claimed = packed.plain.pop(_SEAL, None)
    sealed = {name: tensor for name, tensor in packed.tensors.items() if name not in vouched}
    if _seal(Packed(sealed, packed.plain)) != claimed:
        raise DamageError(f"{path} is damaged: its digest is not the recorded one")
    return packed


def _seal(packed: Packed) -> str:
    plain = {name: repr(value) for name, value in packed.plain.items()}
    return content_sha256(packed.tensors, plain)
