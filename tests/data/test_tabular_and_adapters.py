"""Your own data: tables on disk, torch datasets, Hugging Face datasets."""

from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import write
from torch.utils.data import Dataset as TorchDataset, TensorDataset

from fedadmm.core.errors import DataError
from fedadmm.data import (
    from_hugging_face,
    from_partitioner,
    from_torch,
    hold_out,
    problems,
    tabular,
)
from fedadmm.data.checked_files import read_csv

CSV = "hospital,age,dose,sick\nnorth,1,2.5,yes\nsouth,3,4,no\nnorth,5,6,no\n"


def check_table(rows) -> None:
    assert rows.inputs.tolist() == [[1, 2.5], [3, 4], [5, 6]]
    assert rows.num_classes == 2
    assert rows.labels.tolist() == [1, 0, 0]
    assert [rows.group_names[g] for g in rows.groups] == ["north", "south", "north"]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_csv(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, CSV.encode())
    check_table(tabular(path, target="sick", client="hospital"))


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + CSV,
        CSV.replace(",", ";").replace("\n", "\r\n"),
        CSV.replace(",", ";").replace("2.5", "2,5"),
        CSV.replace(",", "\t"),
        "\n" + CSV.replace(",", ";").replace("age", '"age"'),
    ],
    ids=["byte-order mark", "semicolons", "decimal commas", "tabs", "an empty first line"],
)
def test_csv_as_spreadsheets_write_it(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "t.csv", text.encode())
    check_table(tabular(path, target="sick", client="hospital"))


def test_a_comma_in_a_name_or_a_word_separates_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", b'"dose, mg";x\n1,5;"2,5, or so"\n')
    assert read_csv(path) == [["dose, mg", "x"], ["1.5", "2,5, or so"]]
    path = write(tmp_path / "u.csv", b'x,y\n"1,5",2\n')
    assert read_csv(path)[1] == ["1,5", "2"]


def test_npz_with_rows_of_any_shape(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(4, 2, 3))
    np.savez(tmp_path / "t.npz", inputs=x, target=[10, 2, 10, 2], client=["b", "a", "b", "b"])
    rows = tabular(tmp_path / "t.npz")
    assert rows.inputs.shape == (4, 2, 3)
    assert rows.labels.tolist() == [1, 0, 1, 0]
    assert [rows.group_names[g] for g in rows.groups] == ["b", "a", "b", "b"]
    np.savez(tmp_path / "s.npz", inputs=x, target=[1, 2], client=["b", "a", "b", "b"])
    with pytest.raises(DataError, match=r"s\.npz: inputs has shape \(4, 2, 3\) and target \(2,\)"):
        tabular(tmp_path / "s.npz")


def test_a_folder_where_every_file_is_a_client(tmp_path: Path) -> None:
    write(tmp_path / "rome.csv", b"x,target\n1,0\n2,1\n")
    write(tmp_path / "oslo.csv", b"x,target\n3,1\n")
    write(tmp_path / "notes.txt", b"ignored")
    rows = tabular(tmp_path, client=None)
    assert rows.group_names == ("oslo", "rome")
    assert rows.inputs.flatten().tolist() == [3, 1, 2]
    assert rows.groups.tolist() == [0, 1, 1]


def test_numbers_to_regress_on_and_chosen_inputs(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", CSV.encode())
    rows = tabular(path, target="dose", client="hospital", inputs=["age"], kind="numbers")
    assert rows.num_classes is None
    assert rows.targets.tolist() == [2.5, 4, 6]
    assert rows.inputs.tolist() == [[1], [3], [5]]


def test_whole_number_classes_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", b"x,target\n1,10\n1,2\n1,10\n")
    assert tabular(path, client=None).labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line of column names"),
        ("x,target,client\n", "line of column names"),
        ("x,y,client\n1,2,3\n", "has no column 'target'"),
        ("x,target\n1,2\n", "has no column 'client'"),
        ("target,client\n1,2\n", "no feature column"),
        ("x,x,target,client\n1,2,3,4\n", "two columns have the same name"),
        ("x,target,client\n1,2\n", "line 2 has 2 values, but the header has 3"),
        ("x,target,client\n1,0,a\nnan,1,a\n", "'x' is missing or not finite in row 2"),
        ("x,target,client\n1,0,a\n1e999,1,a\n", "'x' is missing or not finite in row 2"),
        ("x,target,client\n1,0,a\n,1,a\n", "'x' holds '' in row 2"),
        ("x,target,client\n1,0,a\nred,1,a\n", "'x' holds 'red' in row 2"),
        ("x,target,client\n1,,a\n2,1,a\n", "'target' is missing in row 1"),
        ("x,target,client\n1,0,a\n2,1,\n", "'client' is missing in row 2"),
        ("x,target,client\n1,0,a\n2,0,b\n", "has one class only"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "bad.csv", text.encode())
    with pytest.raises(DataError, match=message) as error:
        tabular(path)
    assert "bad.csv" in str(error.value)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither a file nor a folder"):
        tabular(tmp_path)
    write(tmp_path / "a.csv", b"x,target\n1,0\n")
    write(tmp_path / "b.csv", b"x,z,target\n1,2,0\n")
    with pytest.raises(DataError, match="rows of different shapes"):
        tabular(tmp_path, client=None)


class Squares(TorchDataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.array([index, index**2], np.float32), index % 3


def test_a_list_of_torch_datasets() -> None:
    tensors = TensorDataset(torch.tensor([[7.0, 8.0]]), torch.tensor([2]))
    rows = from_torch([Squares(4), tensors], num_classes=3, names=["mine", "yours"])
    assert rows.inputs.tolist() == [[0, 0], [1, 1], [2, 4], [3, 9], [7, 8]]
    assert rows.labels.tolist() == [0, 1, 2, 0, 2]
    assert rows.groups.tolist() == [0, 0, 0, 0, 1]
    assert rows.group_names == ("mine", "yours")
    assert from_torch([tensors]).targets.dtype == torch.float32
    with pytest.raises(DataError, match="dataset 1 is empty"):
        from_torch([tensors, Squares(0)])
    with pytest.raises(DataError, match="different shapes"):
        from_torch([tensors, TensorDataset(torch.ones(1, 3), torch.ones(1))])
    with pytest.raises(DataError, match="dataset 0 does not give"):
        from_torch([TensorDataset(torch.ones(1, 3))])
    with pytest.raises(DataError, match="labels run from"):
        from_torch([tensors], num_classes=2)


class InMemory:
    """The part of `datasets.Dataset` that is used: names, a numpy view, columns."""

    def __init__(self, columns: dict[str, list]) -> None:
        self.columns = columns

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def with_format(self, kind: str) -> "InMemory":
        assert kind == "numpy"
        return self

    def __getitem__(self, name: str) -> list:
        return [np.asarray(value) for value in self.columns[name]]


def test_a_hugging_face_dataset() -> None:
    images = [np.full((2, 2), value, np.uint8) for value in (1, 2, 3)]
    columns = {"image": images, "label": ["cat", "dog", "cat"], "user": ["b", "a", "b"]}
    rows = from_hugging_face(InMemory(columns), inputs="image", target="label", client="user")
    assert rows.inputs.dtype == torch.uint8
    assert rows.inputs[:, 0, 0].tolist() == [1, 2, 3]
    assert rows.labels.tolist() == [0, 1, 0]
    assert rows.groups.tolist() == [1, 0, 1]
    numbers = InMemory({"a": [1, 2], "b": [3.5, 4], "y": [0.5, 1.5]})
    several = from_hugging_face(numbers, inputs=["a", "b"], target="y", kind="numbers")
    assert several.inputs.tolist() == [[1, 3.5], [2, 4]]
    assert several.targets.tolist() == [0.5, 1.5]
    with pytest.raises(DataError, match="no column z"):
        from_hugging_face(numbers, inputs="z", target="y")
    with pytest.raises(DataError, match=r"needs a datasets\.Dataset"):
        from_hugging_face([1, 2], inputs="z", target="y")
    with pytest.raises(DataError, match="column 'a' is ragged"):
        from_hugging_face(InMemory({"a": [[1], [1, 2]], "y": [0, 1]}), inputs="a", target="y")
    with pytest.raises(DataError, match="expected numbers"):
        from_hugging_face(InMemory({"a": ["u", "v"], "y": [0, 1]}), inputs="a", target="y")


class Halves:
    """What flwr-datasets calls a partitioner; the second half has a class more."""

    num_partitions = 2

    def load_partition(self, partition_id: int) -> InMemory:
        labels = ([3, 7], [7, 9, 9])[partition_id]
        return InMemory({"x": [[partition_id, k] for k in range(len(labels))], "y": labels})


def test_the_partitions_of_a_partitioner_are_natural_clients() -> None:
    rows = from_partitioner(Halves(), inputs="x", target="y")
    assert rows.inputs.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2]]
    assert rows.labels.tolist() == [0, 1, 1, 2, 2]  # one numbering for all partitions
    assert rows.groups.tolist() == [0, 0, 1, 1, 1]
    problem = problems.from_data(rows)
    assert [client.num_samples for client in problem.clients] == [2, 3]
    with pytest.raises(DataError, match="got list, which has no num_partitions"):
        from_partitioner([1, 2], inputs="x", target="y")


def test_the_real_hugging_face_datasets() -> None:
    datasets = pytest.importorskip("datasets")
    real = datasets.Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0]], "y": ["n", "p"]})
    rows = from_hugging_face(real, inputs="x", target="y")
    assert rows.inputs.tolist() == [[1, 2], [3, 4]]
    assert rows.labels.tolist() == [0, 1]


def test_hold_out_takes_its_part_of_every_client() -> None:
    rows = from_torch([Squares(10), Squares(5), Squares(1)], num_classes=3)
    parts = hold_out(rows, 0.2, seed=4)
    assert parts.test is not None
    assert np.bincount(parts.test.groups, minlength=3).tolist() == [2, 1, 0]
    assert np.bincount(parts.train.groups).tolist() == [8, 4, 1]
    together = torch.cat([parts.train.inputs, parts.test.inputs])
    assert sorted(together.tolist()) == sorted(rows.inputs.tolist())
    with pytest.raises(DataError, match="no client has two samples"):
        hold_out(from_torch([Squares(1)], num_classes=3))
