"""Image files: what is written comes back, and what is damaged is refused by name."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import idx_bytes, write

from fedadmm.core.errors import DataError
from fedadmm.data import Normalise, idx_folder
from fedadmm.data.download import SHIPPED
from fedadmm.data.loaders.pictures import (
    cifar10_small,
    read_batch,
    read_batches,
    read_idx,
    with_writers,
)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "float32", "float64"])
def test_idx_round_trip(tmp_path: Path, dtype: str, suffix: str) -> None:
    array = np.arange(-12, 12).reshape(2, 3, 4).astype(dtype)
    read = read_idx(write(tmp_path / f"file{suffix}", idx_bytes(array)))
    assert read.dtype == np.dtype(dtype)
    assert read.dtype.isnative
    assert np.array_equal(read, array)
    assert read.flags.writeable


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated"),
        (b"\0\0\x08", "truncated"),
        (b"\0\1\x08\1\0\0\0\0", "magic number 00010801"),
        (b"\0\0\x0a\1\0\0\0\0", "magic number 00000a01"),
        (b"\0\0\x08\0", "magic number 00000800"),
        (b"\0\0\x08\2\0\0\0\1", "header, it is truncated"),
        (b"\0\0\x08\1\0\0\0\5abcd", "truncated|promises"),
        (b"\0\0\x08\1\0\0\0\2abc", "goes on behind the end"),
        (b"\0\0\x08\3" + b"\xff" * 12, "promises"),
        (b"\0\0\x0e\4" + b"\xff" * 16 + b"abc", "promises"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_damaged_idx_file_is_refused(
    tmp_path: Path, data: bytes, message: str, suffix: str
) -> None:
    path = write(tmp_path / f"broken{suffix}", data)
    with pytest.raises(DataError, match=message) as error:
        read_idx(path)
    assert str(path) in str(error.value)


def test_a_truncated_gz_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(idx_bytes(np.arange(5000).astype(np.int32)))
    path = tmp_path / "cut.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"cut\.gz.*truncated"):
        read_idx(path)
    path.write_bytes(b"not gzip at all")
    with pytest.raises(DataError, match=r"cut\.gz"):
        read_idx(path)
    with pytest.raises(DataError, match=r"nowhere: no such file"):
        read_idx(tmp_path / "nowhere")


def mnist_like(folder: Path, rows: int = 6, labels: int | None = None) -> None:
    for prefix in ("train", "t10k"):
        images = np.random.default_rng(1).integers(0, 256, (rows, 4, 5)).astype(np.uint8)
        write(folder / f"{prefix}-images-idx3-ubyte.gz", idx_bytes(images))
        classes = (np.arange(rows if labels is None else labels) % 10).astype(np.uint8)
        write(folder / f"{prefix}-labels-idx1-ubyte", idx_bytes(classes))


def test_a_folder_of_idx_files(tmp_path: Path) -> None:
    mnist_like(tmp_path)
    rows = idx_folder(tmp_path, prepare=Normalise((0.5,), (0.25,)))
    assert rows.train.inputs.shape == (6, 1, 4, 5)
    assert rows.train.inputs.dtype == torch.uint8
    assert rows.test is not None
    assert rows.test.labels.tolist() == [0, 1, 2, 3, 4, 5]
    expected = (rows.train.inputs.double() / 255 - 0.5) / 0.25
    torch.testing.assert_close(rows.train.prepared().inputs.double(), expected, rtol=0, atol=1e-5)


def test_counts_and_kinds_must_agree(tmp_path: Path) -> None:
    mnist_like(tmp_path, rows=6, labels=5)
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte: 5 labels.*holds 6 images"):
        idx_folder(tmp_path)
    with pytest.raises(DataError, match="holds neither train-images"):
        idx_folder(tmp_path / "empty")
    mnist_like(tmp_path, rows=6)
    write(tmp_path / "train-images-idx3-ubyte", idx_bytes(np.zeros((6, 4), np.uint8)))
    with pytest.raises(DataError, match="no images"):
        idx_folder(tmp_path)
    mnist_like(tmp_path / "three")
    with pytest.raises(DataError, match=r"labels run from 0 to 5, but must lie in 0 … 2"):
        idx_folder(tmp_path / "three", num_classes=3)


def test_writers_come_from_the_third_column_and_must_fit(tmp_path: Path) -> None:
    mnist_like(tmp_path)
    train = idx_folder(tmp_path).train
    table = np.zeros((8, 8), np.int32)
    table[:6, 0] = train.labels
    table[:, 2] = [30, 10, 30, 20, 10, 30, 99, 99]
    rows = with_writers(train, table, tmp_path / "qmnist")
    assert rows.groups is not None
    assert [rows.group_names[g] for g in rows.groups] == [
        f"writer {w}" for w in (30, 10, 30, 20, 10, 30)
    ]
    table[3, 0] += 1
    with pytest.raises(DataError, match="row by row"):
        with_writers(train, table, tmp_path / "qmnist")
    with pytest.raises(DataError, match="has shape"):
        with_writers(train, table[:3], tmp_path / "qmnist")


def cifar_bytes(labels: list[int]) -> bytes:
    generator = np.random.default_rng(0)
    return b"".join(
        bytes([label]) + generator.integers(0, 256, 3072).astype(np.uint8).tobytes()
        for label in labels
    )


@pytest.mark.parametrize("suffix", [".bin", ".bin.gz"])
def test_cifar_batches(tmp_path: Path, suffix: str) -> None:
    data = cifar_bytes([3, 9, 0])
    path = write(tmp_path / f"batch{suffix}", data)
    rows = read_batches([path, path])
    assert rows.labels.tolist() == [3, 9, 0, 3, 9, 0]
    assert rows.inputs.shape == (6, 3, 32, 32)
    # The second row's green value at line 1, column 2, by the format's own definition.
    assert rows.inputs[1, 1, 1, 2] == data[3073 + 1 + 1024 + 32 + 2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "holds 0 bytes"),
        (cifar_bytes([1])[:-1], "holds 3072 bytes"),
        (cifar_bytes([1]) + b"x", "rows of 3073"),
        (cifar_bytes([10]), "has label 10"),
    ],
)
def test_a_damaged_batch_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = write(tmp_path / "bad.bin", data)
    with pytest.raises(DataError, match=message) as error:
        read_batch(path)
    assert "bad.bin" in str(error.value)


def test_a_missing_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.bin: no such file"):
        read_batch(tmp_path / "none.bin")


def test_cifar_small(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (4, 32, 32, 3)).astype(np.uint8)
    y = np.array([0, 5, 9, 1], np.uint8)
    np.savez(tmp_path / "small.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    rows = cifar10_small(tmp_path / "small.npz")
    assert rows.train.inputs[2, 1, 7, 8] == x[2, 7, 8, 1]
    assert rows.test is not None
    assert rows.test.labels.tolist() == [0, 5]
    np.savez(tmp_path / "wrong.npz", x_train=x[:, :9], y_train=y, x_test=x, y_test=y)
    with pytest.raises(DataError, match=r"wrong\.npz: holds images of shape \(9, 32, 3\)"):
        cifar10_small(tmp_path / "wrong.npz")


def test_normalise_by_channel_and_inverted() -> None:
    pixels = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    expected = torch.stack(
        [(1 - pixels[:, c].double() / 255 - mean[c]) / std[c] for c in range(3)], dim=1
    )
    prepared = Normalise(mean, std, invert=True)(pixels)
    torch.testing.assert_close(prepared.double(), expected, rtol=0, atol=1e-5)
    assert prepared.dtype == torch.float32
    floats = torch.ones(2, 2)
    Normalise((0.5,), (0.5,))(floats)
    assert torch.equal(floats, torch.ones(2, 2))


def test_the_shipped_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    with np.load(SHIPPED / "digits" / "digits.npz") as stored:
        assert np.array_equal(stored["images"].reshape(-1, 64), images)
        assert np.array_equal(stored["labels"], labels)
