"""Data with natural clients: writers, hospitals, speakers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import heart_bytes, leaf_bytes, write

from fedadmm.core.errors import DataError, ParameterError
from fedadmm.data import femnist
from fedadmm.data.loaders.heart import COLUMNS, read_hospital, read_hospitals


def picture(value: float) -> list[float]:
    return [value] * 784


def test_leaf_folders_as_leaf_writes_them(tmp_path: Path) -> None:
    white, black, grey = picture(1.0), picture(0.0), picture(100 / 255)
    write(tmp_path / "train/all_0.json", leaf_bytes({"f0": ([white, black], [5, 61])}))
    write(tmp_path / "train/all_1.json", leaf_bytes({"f2": ([grey], [10])}))
    write(tmp_path / "test/all_0.json", leaf_bytes({"f2": ([grey], [0]), "f1": ([white], [1])}))
    rows = femnist(tmp_path)
    assert rows.train.inputs[:, 0, 0, 0].tolist() == [255, 0, 100]
    assert rows.train.labels.tolist() == [5, 61, 10]
    assert rows.train.group_names == ("f0", "f1", "f2")
    assert rows.train.groups.tolist() == [0, 0, 2]
    assert rows.test is not None
    assert rows.test.groups.tolist() == [2, 1]
    # White paper becomes zero, black ink one.
    assert rows.train.prepared().inputs[:2, 0, 3, 3].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is no JSON"),
        (b"[1]", "has no user_data"),
        (b'{"user_data": {}}', "equally long lists"),
        (b'{"user_data": {}, "users": ["a"], "num_samples": []}', "equally long lists"),
        (b'{"user_data": {}, "users": ["a"], "num_samples": [1]}', "'a' has no x and y"),
        (leaf_bytes({"a": ([picture(0.5)], [1, 2])}), "not a table of numbers|expected 2 rows"),
        (leaf_bytes({"a": ([[0.5] * 10], [1])}), "rows of 784 pixels"),
        (leaf_bytes({"a": ([picture(0.5)], [62])}), "label that is none of"),
        (leaf_bytes({"a": ([picture(0.5)], [1.5])}), "label that is none of"),
        (leaf_bytes({"a": ([picture(float("nan"))], [1])}), "no number from 0 to 1"),
        (leaf_bytes({"a": ([picture(2.0)], [1])}), "no number from 0 to 1"),
        (leaf_bytes({"a": ([["x"] * 784], [1])}), "not a table of numbers"),
        (leaf_bytes({"a": ([], [])}), "not a table of numbers|expected 2 rows"),
    ],
)
def test_a_damaged_leaf_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path / "train/bad.json", content)
    with pytest.raises(DataError, match=message) as error:
        femnist(tmp_path)
    assert str(path) in str(error.value)


def test_an_empty_leaf_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match=r"holds no \.json"):
        femnist(tmp_path)


def femnist_npz(path: Path, **changes: np.ndarray) -> Path:
    arrays = {
        "images": np.arange(6 * 784).reshape(6, 28, 28).astype(np.uint8),
        "labels": np.array([0, 9, 10, 36, 61, 3], np.uint8),
        "writer": np.array([0, 0, 1, 1, 1, 0], np.uint16),
        "split": np.array([0, 1, 0, 0, 0, 0], np.uint8),
        "is_dup": np.array([0, 0, 0, 0, 0, 1], bool),
        "writer_ids": np.array(["a", "b"]),
    }
    np.savez_compressed(path, **(arrays | changes))
    return path


def test_femnist_npz_drops_duplicates_and_keeps_writers(tmp_path: Path) -> None:
    rows = femnist(femnist_npz(tmp_path / "f.npz"))
    assert rows.train.labels.tolist() == [0, 10, 36, 61]
    assert rows.train.groups.tolist() == [0, 1, 1, 1]
    assert rows.test is not None
    assert rows.test.labels.tolist() == [9]
    lower = femnist(femnist_npz(tmp_path / "f.npz", split=np.zeros(6, int)), "lower").train
    assert lower.num_classes == 26
    assert lower.labels.tolist() == [0, 25]


def test_a_wrong_femnist_npz_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="images have shape"):
        femnist(femnist_npz(tmp_path / "a.npz", images=np.zeros((6, 9, 9), np.uint8)))
    with pytest.raises(DataError, match="writer must hold"):
        femnist(femnist_npz(tmp_path / "b.npz", writer=np.zeros(5, int)))
    with pytest.raises(DataError, match=r"labels run from"):
        femnist(femnist_npz(tmp_path / "c.npz", labels=np.full(6, 99)))
    with pytest.raises(ParameterError, match="subset: got 'greek'"):
        femnist(femnist_npz(tmp_path / "d.npz"), "greek")  # type: ignore[arg-type]


def test_heart_is_imputed_and_scaled_within_each_hospital(tmp_path: Path) -> None:
    paths = {n: write(tmp_path / n, heart_bytes(60, i)) for i, n in enumerate("AB")}
    rows = read_hospitals(paths, 0.25, 3)
    assert rows.test is not None
    assert torch.isfinite(rows.train.inputs).all()
    for group in (0, 1):
        mine = rows.train.inputs[torch.from_numpy(rows.train.groups == group)].double()
        torch.testing.assert_close(mine.mean(0), torch.zeros(13).double(), atol=1e-5, rtol=0)
        torch.testing.assert_close(
            mine.std(0, unbiased=False), torch.ones(13).double(), atol=1e-5, rtol=0
        )
        assert (rows.test.groups == group).sum() == pytest.approx(15, abs=1)


def test_no_hospital_sees_another(tmp_path: Path) -> None:
    first = write(tmp_path / "A", heart_bytes(40, 0))
    others = [write(tmp_path / f"B{i}", heart_bytes(30, 1 + i)) for i in (0, 1)]
    rows = [read_hospitals({"A": first, "B": other}, 0.25, 3).train for other in others]
    mine = [r.inputs[torch.from_numpy(r.groups == 0)] for r in rows]
    assert torch.equal(*mine)


def test_no_test_row_is_looked_at(tmp_path: Path) -> None:
    """Changing a patient's age changes the training rows exactly if the patient is one of them."""
    lines = heart_bytes(40, 0).decode().splitlines()
    path = write(tmp_path / "A", "\n".join(lines).encode())
    before = read_hospitals({"A": path}, 0.25, 3)
    assert before.test is not None
    unchanged = 0
    for i, line in enumerate(lines):
        older = ",".join(["999", *line.split(",")[1:]])
        write(path, "\n".join([*lines[:i], older, *lines[i + 1 :]]).encode())
        after = read_hospitals({"A": path}, 0.25, 3).train
        unchanged += torch.equal(before.train.inputs, after.inputs)
    assert unchanged == len(before.test)


def test_imputation_by_hand(tmp_path: Path) -> None:
    """Ages 1, 2, 9 and ?: the median 2; sexes 0, 1, 1, ?: the mode 1; thal never measured: 0."""
    cells = [["1", "0"], ["2", "1"], ["9", "1"], ["?", "?"]]
    lines = [",".join([*pair, *(["5"] * 10), "?", "1"]) for pair in cells]
    path = write(tmp_path / "tiny.data", "\n".join(lines).encode())
    train = read_hospitals({"tiny": path}, 0.01, 0).train
    age = np.array([1, 2, 9, 2.0])
    sex = np.array([0, 1, 1, 1.0])
    expected = np.stack([(v - v.mean()) / v.std() for v in (age, sex)], axis=1)
    got = train.inputs.double().numpy()
    assert np.allclose(sorted(map(tuple, got[:, :2])), sorted(map(tuple, expected)), atol=1e-6)
    assert np.all(got[:, 2:] == 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("1,2,3\n", "line 1 has 3 values"),
        (",".join(["1"] * 13 + ["?"]) + "\n", "no diagnosis"),
        (",".join(["1"] * 13 + ["nan"]) + "\n", "NaN or an infinity"),
        (",".join(["inf"] + ["1"] * 13) + "\n", "NaN or an infinity"),
        (",".join(["one"] + ["1"] * 13) + "\n", "neither a number nor"),
    ],
)
def test_a_damaged_hospital_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "bad.data", text.encode())
    with pytest.raises(DataError, match=message) as error:
        read_hospital(path)
    assert "bad.data" in str(error.value)
    assert len(COLUMNS) == 13
