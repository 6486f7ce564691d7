"""Who asks: an Ed25519 signature over everything that a message holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedadmm.core.errors import ConfigError

if TYPE_CHECKING:
    from flwr.app import RecordDict

SIGNATURE = "fedadmm.signature"
Sign = Callable[["RecordDict"], None]
"""Puts a signature into a message."""


def signer(path: Path) -> Sign:
    """What signs messages with the private key in a file."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from flwr.app import ConfigRecord

    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"run-config: operator-key is '{path}', but cannot be read ({error})"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"run-config: operator-key is '{path}', but must be an Ed25519 key")

    def sign(content: RecordDict) -> None:
        content.pop(SIGNATURE, None)
        content[SIGNATURE] = ConfigRecord({"ed25519": key.sign(_digest(content)).hex()})

    return sign


def is_signed(content: RecordDict, public: str) -> bool:
    """Whether a message is signed with the private half of a public key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    record: Any = content.get(SIGNATURE)
    signature = record.get("ed25519") if isinstance(record, Mapping) else None
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(str(signature)), _digest(content))
    except (InvalidSignature, ValueError):
        return False
    return True


def _digest(content: RecordDict) -> bytes:
    """Over every record but the signature, each with its name and its length."""
    whole = hashlib.sha256(b"fedadmm message")
    for name in sorted(content):
        if name == SIGNATURE:
            continue
        record: Any = content[name]
        pieces = [name.encode(), type(record).__name__.encode()]
        for key in sorted(record):
            value = record[key]
            raw = getattr(value, "data", None)
            about = (
                [value.dtype, list(value.shape), value.stype] if raw is not None else _plain(value)
            )
            pieces += [key.encode(), json.dumps(about).encode(), bytes(raw or b"")]
        for piece in pieces:
            whole.update(len(piece).to_bytes(8, "big") + piece)
    return whole.digest()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value
