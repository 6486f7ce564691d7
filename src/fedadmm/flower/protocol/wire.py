"""Tasks and replies as Flower messages: a header, a body of bytes, an Ed25519 signature."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedadmm.core.errors import ConfigError
from fedadmm.flower.protocol.ledger import (
    LONGEST_TEXT,
    RefusalReason,
    RefusedError,
    Reply,
    ReplyKind,
    Task,
    printable,
)

if TYPE_CHECKING:
    from flwr.app import RecordDict


STYPE = "fedadmm.safetensors"
"""Serialisation type of the one array of a body."""
HEAD, BODY, HELLO, METRICS = "fedadmm.head", "fedadmm.body", "fedadmm.hello", "fedadmm.metrics"
DECLINED = "fedadmm.declined"
SHARE, SET, QUESTION = "fedadmm.share", "fedadmm.set", "fedadmm.question"
"""For secure aggregation: the key of a site, the keys of a set, and the request a key is for."""
CONFIG, PLACE, WORK = "fedadmm.config", "fedadmm.place", "fedadmm.work"
"""Sent with a task: the configuration of the site's own training function, the state folder of a
simulated site, and the length of the local work to which a penalty was fitted."""
_NUMBERS = frozenset(("client", "sequence", "incarnation", "acked_version", "version"))
MOST_METRICS, _LARGEST = 50, 1e30
"""Largest number of metrics of a site, and the largest value of each."""
Records = Mapping[str, Mapping[str, Any]]
"""Records of plain values that are sent with a body, by name."""
_METRIC = re.compile(r"[A-Za-z0-9_.-]{1,80}")


def write(head: Task | Reply, body: bytes, attachments: Records | None = None) -> RecordDict:
    """Write a task or a reply as a message."""
    from flwr.app import ConfigRecord

    fields: dict[str, Any] = {
        key: str(value) if isinstance(value, str) else value
        for key, value in head._asdict().items()
    }
    content = write_body(body, attachments)
    content[HEAD] = ConfigRecord(fields)
    return content


def write_body(body: bytes, attachments: Records | None = None) -> RecordDict:
    """Write a message without a header."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    content = RecordDict()
    for name, values in (attachments or {}).items():
        content[name] = ConfigRecord(dict(values))
    if body:
        arrays = ArrayRecord()
        arrays["bytes"] = Array("uint8", (len(body),), STYPE, body)
        content[BODY] = arrays
    return content


def read_record(content: RecordDict, name: str) -> dict[str, Any]:
    """Read the plain values of a record; empty if the message does not have it."""
    record = content.get(name)
    return dict(record) if isinstance(record, Mapping) else {}


def read_task(content: RecordDict) -> tuple[Task, bytes]:
    """Read a task and its body."""
    return Task(**_fields(Task, content)), read_body(content)


def read_reply(content: RecordDict, most_bytes: int) -> tuple[Reply, bytes]:
    """Read a reply and its body of at most `most_bytes`."""
    fields = _fields(Reply, content)
    if fields["kind"] not in set(ReplyKind):
        raise RefusedError(RefusalReason.GARBAGE, f"kind is {fields['kind'][:40]!r}")
    reply = Reply(**fields)._replace(
        kind=ReplyKind(fields["kind"]), reason=printable(fields["reason"])
    )
    body = read_body(content)
    if len(body) > most_bytes:
        raise RefusedError(
            RefusalReason.SIZE, f"{len(body)} bytes came, but at most {most_bytes} may come"
        )
    return reply, body


def read_body(content: RecordDict) -> bytes:
    """Read the body of a message; empty if it has none."""
    from flwr.app import Array

    record: Any = content.get(BODY)
    if record is None:
        return b""
    arrays = list(record.values()) if isinstance(record, Mapping) else []
    if len(arrays) != 1 or not isinstance(arrays[0], Array) or arrays[0].stype != STYPE:
        raise RefusedError(RefusalReason.GARBAGE, "the body is not an array of bytes")
    return bytes(arrays[0].data)


def _fields(head: type[Task] | type[Reply], content: RecordDict) -> dict[str, Any]:
    record = content.get(HEAD)
    fields = dict(record) if isinstance(record, Mapping) else {}
    if fields.keys() != set(head._fields):
        raise RefusedError(RefusalReason.GARBAGE, f"there is no head of a {head.__name__.lower()}")
    for name, value in fields.items():
        kind = int if name in _NUMBERS else str
        if type(value) is not kind or (isinstance(value, str) and len(value) > LONGEST_TEXT):
            raise RefusedError(RefusalReason.GARBAGE, f"{name} is no proper {kind.__name__}")
    return fields


def identity_request(attachments: Records | None = None) -> RecordDict:
    """Request the client number of a node, as a training message, which every app accepts.

    With the records of a task it requests the length of the node's local work instead, for a
    penalty that is fitted to it.
    """
    more = {} if attachments is None else {**attachments, WORK: {}}
    return write_body(b"", {HELLO: {}, **more})


def write_client(client: int) -> RecordDict:
    """Write the client number of a node."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({HELLO: ConfigRecord({"client": client})})


def write_length(length: float) -> RecordDict:
    """Write the length of the local work: learning rate times steps of a round."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({WORK: ConfigRecord({"length": float(length)})})


def read_length(content: RecordDict) -> float:
    """Read the length of the local work of a site, or in a task the mean of all sites."""
    length = read_record(content, WORK).get("length")
    if not isinstance(length, float) or not 0 < length <= _LARGEST:
        raise RefusedError(
            RefusalReason.RANGE, f"the length of the local work is {str(length)[:40]}"
        )
    return length


def read_client(content: RecordDict, clients: int) -> int:
    """Read the client number that a node reports."""
    record: Any = content.get(HELLO)
    number = record.get("client") if isinstance(record, Mapping) else None
    if type(number) is not int or not 0 <= number < clients:
        raise RefusedError(
            RefusalReason.GARBAGE,
            f"client: got {str(number)[:40]}, expected 0 … {clients - 1}",
        )
    return number


def write_metrics(values: Mapping[str, float]) -> RecordDict:
    """Write the metrics of a site."""
    from flwr.app import MetricRecord, RecordDict

    return RecordDict({METRICS: MetricRecord(dict(values))})


def write_declined(reason: str) -> RecordDict:
    """Write why a site declines a request for metrics."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({DECLINED: ConfigRecord({"reason": reason})})


def read_measured(content: RecordDict) -> dict[str, float]:
    """Read the metrics of a site; raise a RefusedError if it declines or has none."""
    if DECLINED in content:
        reason = read_record(content, DECLINED).get("reason")
        raise RefusedError(
            RefusalReason.DECLINED, reason if isinstance(reason, str) else "without a reason"
        )
    found = read_metrics(content)
    if not found:
        raise RefusedError(RefusalReason.GARBAGE, "no metrics came")
    return found


def read_metrics(content: RecordDict) -> dict[str, float]:
    """Read the metrics of a site: a few finite numbers with plain names."""
    values = read_record(content, METRICS)
    if len(values) > MOST_METRICS:
        raise RefusedError(
            RefusalReason.GARBAGE,
            f"{len(values)} metrics came, but at most {MOST_METRICS} may come",
        )
    for name, value in values.items():
        if not _METRIC.fullmatch(str(name)):
            raise RefusedError(RefusalReason.GARBAGE, f"a metric is called {str(name)[:80]!r}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or abs(value) > _LARGEST or not math.isfinite(value):
            raise RefusedError(
                RefusalReason.RANGE, f"{name} is {str(value)[:40]}, which is no measurement"
            )
    return {str(name): float(value) for name, value in values.items()}


SIGNATURE = "fedadmm.signature"
Sign = Callable[["RecordDict"], None]
"""A function that signs a message in place."""


def signer(path: Path) -> Sign:
    """Return a function that signs messages with the private key in a file."""
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
        raise ConfigError(f"run-config: operator-key: got '{path}', expected an Ed25519 key")

    def sign(content: RecordDict) -> None:
        content.pop(SIGNATURE, None)
        content[SIGNATURE] = ConfigRecord({"ed25519": key.sign(_digest(content)).hex()})

    return sign


def is_signed(content: RecordDict, public: str) -> bool:
    """Return whether a message is signed with the private key of this public key."""
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
    """Hash every record except the signature, each with its name and length."""
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
