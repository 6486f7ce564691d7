"""Digests of what is stored, so that damage is seen before it is used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def params_sha256(params: Tensor) -> str:
    """The SHA-256 of a vector's bytes: two runs agree bit for bit exactly when these do."""
    return hashlib.sha256(raw_bytes(params)).hexdigest()


def content_sha256(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """The SHA-256 of named tensors with their types and shapes, and of the metadata."""
    names = sorted(tensors)
    described = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    digest = hashlib.sha256(json.dumps([described, sorted(metadata.items())]).encode())
    for name in names:
        digest.update(raw_bytes(tensors[name]))
    return digest.hexdigest()


def json_sha256(document: Mapping[str, Any]) -> str:
    """The SHA-256 of a JSON document, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, whatever its type, row by row."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    bytes_of: Any = flat.view(torch.uint8).numpy()
    return memoryview(bytes_of)
