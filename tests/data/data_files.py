"""Small files of every format, written without the package's own code."""

import gzip
import json
import struct
from pathlib import Path

import numpy as np

IDX_TYPES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D}
IDX_TYPES["float64"] = 0x0E


def idx_bytes(array: np.ndarray) -> bytes:
    head = struct.pack(">BBBB", 0, 0, IDX_TYPES[array.dtype.name], array.ndim)
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return head + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def leaf_bytes(users: dict[str, tuple[list[list[float]], list[int]]]) -> bytes:
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(y) for _, y in users.values()],
            "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
        }
    ).encode()


def heart_bytes(rows: int, seed: int) -> bytes:
    generator = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        values = [f"{value:.1f}" for value in generator.normal(50, 10, 13)]
        values[int(generator.integers(13))] = "?"
        lines.append(",".join([*values, str(int(generator.integers(0, 5)))]))
    return ("\n".join(lines) + "\n").encode()
