"""Damaged and hostile files: always a DataError that names the file, never much memory."""

import contextlib
import gzip
import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from data_files import heart_bytes, idx_bytes, leaf_bytes
from hypothesis import given, settings, strategies as st

from fedadmm.core.errors import DataError
from fedadmm.data import tabular
from fedadmm.data.checked_files import EXPANSION, read_npz, read_text
from fedadmm.data.loaders.heart import read_hospital
from fedadmm.data.loaders.leaf import read_leaf
from fedadmm.data.loaders.pictures import read_batch, read_idx
from fedadmm.data.partitions import Partition

QUICK = settings(max_examples=60, deadline=None)
SLACK = 2_000_000
"""Interpreter objects, buffers and the like."""


def npz_bytes(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


IMAGES = idx_bytes(np.arange(60).reshape(5, 3, 4).astype(np.uint8))
TABLE = b"x,target,client\n1,0,a\n2,1,b\n3,0,a\n"
ARRAYS = npz_bytes(inputs=np.ones((4, 2)), target=np.array([0, 1, 0, 1]), client=np.arange(4))
READERS: dict[str, tuple[str, bytes, Callable[[Path], object]]] = {
    "idx": ("f", IMAGES, read_idx),
    "idx.gz": ("f.gz", gzip.compress(IMAGES), read_idx),
    "cifar": ("f.bin", bytes(3073 * 2), read_batch),
    "cifar.gz": ("f.bin.gz", gzip.compress(bytes(3073 * 2)), read_batch),
    "leaf": ("f.json", leaf_bytes({"a": ([[0.5] * 784], [1])}), read_leaf),
    "heart": ("f.data", heart_bytes(5, 0), read_hospital),
    "csv": ("f.csv", TABLE, tabular),
    "csv.gz": ("f.csv.gz", gzip.compress(TABLE), tabular),
    "npz": ("f.npz", ARRAYS, tabular),
    "partition": (
        "f.npz",
        npz_bytes(indices=np.arange(4), offsets=np.array([0, 2, 4])),
        Partition.load,
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@contextlib.contextmanager
def memory_within(limit: float) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= limit, f"{peak} bytes were allocated, {limit} allowed"


def read_or_refuse(reader: Callable[[Path], object], path: Path, data: bytes) -> None:
    path.write_bytes(data)
    refusal = str(path)
    try:
        reader(path)
    except DataError as error:
        refusal = str(error)
    assert str(path) in refusal


@pytest.mark.parametrize("name", READERS)
def test_the_undamaged_file_is_read(folder: Path, name: str) -> None:
    file, data, reader = READERS[name]
    (folder / file).write_bytes(data)
    reader(folder / file)


@pytest.mark.parametrize("name", READERS)
@QUICK
@given(data=st.data())
def test_cut_changed_and_lengthened_files(folder: Path, name: str, data: st.DataObject) -> None:
    file, content, reader = READERS[name]
    broken = bytearray(content)
    for _ in range(data.draw(st.integers(0, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    broken = broken[: data.draw(st.integers(0, len(broken)))] + data.draw(st.binary(max_size=8))
    limit = len(broken) * EXPANSION * 2 + SLACK
    with memory_within(limit):
        read_or_refuse(reader, folder / file, bytes(broken))


@pytest.mark.parametrize("name", READERS)
@QUICK
@given(data=st.binary(max_size=200))
def test_random_bytes(folder: Path, name: str, data: bytes) -> None:
    file, _, reader = READERS[name]
    read_or_refuse(reader, folder / file, data)


@QUICK
@given(
    st.sampled_from([0x08, 0x0C, 0x0E]),
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6),
    st.booleans(),
)
def test_huge_idx_headers_allocate_nothing(
    folder: Path, kind: int, sizes: list[int], packed: bool
) -> None:
    data = struct.pack(f">BBBB{len(sizes)}I", 0, 0, kind, len(sizes), *sizes) + b"abc"
    data = gzip.compress(data) if packed else data
    with memory_within(len(data) * EXPANSION + SLACK):
        read_or_refuse(read_idx, folder / ("huge.gz" if packed else "huge"), data)


def forged_npz(shape: tuple[int, ...], body: bytes, claim: int | None = None) -> bytes:
    """An npz whose array promises `shape` and whose zip entry may claim a false size."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("inputs.npy", header.getvalue() + body)
    data = bytearray(buffer.getvalue())
    if claim is not None:
        for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
            at = data.find(signature) + offset
            data[at : at + 4] = struct.pack("<I", claim)
    return bytes(data)


@pytest.mark.parametrize("claim", [None, 2**31])
@pytest.mark.parametrize("shape", [(2**40,), (2**62, 2**62), (-1,), (5,), (2**27,)])
def test_forged_npz_headers_allocate_nothing(
    folder: Path, shape: tuple[int, ...], claim: int | None
) -> None:
    path = folder / "forged.npz"
    path.write_bytes(forged_npz(shape, b"12345678", claim))
    with memory_within(SLACK), pytest.raises(DataError, match=r"forged\.npz"):
        read_npz(path, ("inputs",))


def test_pickled_objects_are_refused(folder: Path) -> None:
    path = folder / "objects.npz"
    np.savez(path, inputs=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match=r"objects\.npz: inputs\.npy holds pickled objects"):
        read_npz(path, ("inputs",))


def test_a_gz_bomb_stops_at_what_the_header_promises(folder: Path) -> None:
    """A header for 100 bytes, then 200 MB of zeros: only the promised bytes are unpacked."""
    head = struct.pack(">BBBBI", 0, 0, 8, 1, 100)
    path = folder / "bomb.gz"
    with gzip.open(path, "wb", 1) as stream:
        stream.write(head)
        for _ in range(200):
            stream.write(bytes(1_000_000))
    with memory_within(SLACK), pytest.raises(DataError, match="goes on behind the end"):
        read_idx(path)


@pytest.mark.parametrize("name", ["f.txt", "f.txt.gz"])
def test_a_large_file_takes_no_more_memory_than_its_text(tmp_path: Path, name: str) -> None:
    """Not what a file of that size could unpack to: that would be 11 GB here."""
    text = "a line of text\n" * 700_000
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode(), 1) if name.endswith(".gz") else text.encode())
    with memory_within(4 * len(text)):
        assert read_text(path) == text
