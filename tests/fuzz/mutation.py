"""Seeded changes to valid inputs: bytes, tokens, numbers, and whole branches of JSON documents."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Sequence
from typing import Any

TOKENS = (
    *(b"[", b"]", b"{", b"}", b'"', b",", b":", b"=", b".", b"\n", b"\r\n", b"\x00", b"'", b"\\"),
    *(b"null", b"true", b"NaN", b"Infinity", b"1e999", b"-1", b"0", b"1.5", b"1_0", b"0x1F"),
    *(b"9" * 30, b"-" + b"9" * 400, b"\xff" * 8, b"\x00" * 8, b"\x7f" + b"\xff" * 7),
    *(b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\\ud800", b"\x1b[2J", b"../..", b"=cmd|x"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31 - 1, 2**63, 2**64, -(2**63), 10**400),
    *(0.0, -0.0, 0.5, 1.5, 1e-320, 1e308, math.inf, -math.inf, math.nan),
    *("", "x", "x" * 600, "\ud800", "\x00", "\x1b[2J", "../x", "none", "auto", "-1", "update"),
    *([], {}, [[]], [None], {"": None}, {"name": "x"}, [0, -1], [1e308, math.nan]),
)
DEEP = 200_000


def mutate(draw: random.Random, seeds: Sequence[bytes], kind: str) -> bytes:
    """A changed copy of one of the seeds; documents of the kind "json" also change as trees."""
    data = draw.choice(seeds)
    if kind == "json" and draw.random() < 0.7:
        document = json.loads(data)
        for _ in range(_few(draw)):
            document = _tree(draw, document)
        return json.dumps(document).encode()
    if draw.random() < 0.0005:
        return data[: draw.randrange(len(data) + 1)] + draw.choice(TOKENS) * DEEP
    for _ in range(_few(draw)):
        data = _bytes(draw, data, seeds)
    return data


def _few(draw: random.Random) -> int:
    return min(8, 1 + int(draw.expovariate(0.7)))


def _bytes(draw: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    at = draw.randrange(len(data) + 1)
    to = min(len(data), at + int(draw.expovariate(0.1)))
    way = draw.randrange(9)
    if way == 0 and data:
        at = min(at, len(data) - 1)
        return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
    if way == 1:
        return data[:at] + draw.randbytes(draw.randrange(1, 9)) + data[to:]
    if way == 2:
        return data[:at] + data[to:]
    if way == 3:
        return data[:to] + data[at:to] * draw.choice((1, 1, 2, 30)) + data[to:]
    if way == 4:
        other = draw.choice(seeds)
        return data[:at] + other[draw.randrange(len(other) + 1) :]
    if way == 5:
        return data[:at]
    if way == 6:
        return _number(draw, data)
    return data[:at] + draw.choice(TOKENS) + data[at if way == 7 else to :]


def _number(draw: random.Random, data: bytes) -> bytes:
    """Another number where one stands, or another length where four bytes may be one."""
    found = list(re.finditer(rb"-?\d+\.?\d*", data[:20_000]))
    if found and draw.random() < 0.7:
        begin, end = draw.choice(found).span()
        value = draw.choice([v for v in VALUES if isinstance(v, int | float)])
        return data[:begin] + json.dumps(value).encode() + data[end:]
    at = draw.randrange(len(data) + 1)
    size = draw.choice((0, 1, len(data), 2**16, 2**31 - 1, 2**31, 2**32 - 1))
    return data[:at] + size.to_bytes(4, draw.choice(("little", "big"))) + data[at + 4 :]


def _tree(draw: random.Random, document: Any) -> Any:
    """The document with one branch changed."""
    if not isinstance(document, dict | list) or not document or draw.random() < 0.15:
        return _branch(draw, document)
    copy = dict(document) if isinstance(document, dict) else list(document)
    key = draw.choice(list(copy)) if isinstance(copy, dict) else draw.randrange(len(copy))
    way = draw.random()
    if way < 0.1:
        del copy[key]
    elif way < 0.2 and isinstance(copy, dict):
        copy[draw.choice(("", "x", "\x00", "name", str(key) + "x", "-1"))] = copy.pop(key)
    elif way < 0.25 and isinstance(copy, list):
        copy += copy[:50]
    else:
        copy[key] = _tree(draw, copy[key])
    return copy


def _branch(draw: random.Random, old: Any) -> Any:
    way = draw.random()
    if way < 0.08:
        return [old]
    if way < 0.16:
        return {"name": old}
    if way < 0.17:
        deep = old
        for _ in range(draw.choice((20, 400))):
            deep = [deep]
        return deep
    if isinstance(old, int | float) and not isinstance(old, bool) and way < 0.4:
        return draw.choice((-old, old + 1, old * 10**6, str(old)[:50]))
    return draw.choice(VALUES)
