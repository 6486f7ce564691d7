"""The measures of heterogeneity, by definition; the picture; the description."""

import math
from pathlib import Path

import numpy as np
import pytest

from fedadmm.core.errors import DataError
from fedadmm.data import Dataset, FederatedData, partitions, summarise
from fedadmm.data.heterogeneity import describe, draw, gini
from fedadmm.data.problems import from_data, load


def test_gini_is_half_the_mean_absolute_difference_over_the_mean() -> None:
    sizes = np.random.default_rng(0).integers(1, 50, 40)
    by_definition = np.abs(sizes[:, None] - sizes[None, :]).mean() / (2 * sizes.mean())
    assert gini(sizes) == pytest.approx(by_definition)
    assert gini(np.array([7, 7, 7])) == pytest.approx(0)
    assert gini(np.array([0] * 99 + [5])) == pytest.approx(0.99)


def test_measures_of_two_extremes_and_of_a_case_by_hand() -> None:
    apart = summarise(np.array([5, 5]), np.array([[5, 0], [0, 5]]))
    assert (apart.label_entropy, apart.global_entropy) == (0, 1)
    assert (apart.tv_mean, apart.tv_max, apart.labels_per_client) == (0.5, 0.5, 1)
    alike = summarise(np.array([4, 8]), np.array([[1, 2], [3, 6]]))
    entropy = -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    assert alike.label_entropy == pytest.approx(entropy)
    assert alike.tv_max == pytest.approx(0)
    # Mixes (1, 0) and (1/4, 3/4) of 2 and 4 rows; pooled (1/2, 1/2); distances 1/2 and 1/4.
    mixed = summarise(np.array([2, 4]), np.array([[2, 1], [0, 3]]))
    assert mixed.tv_mean == pytest.approx(0.375)
    assert mixed.tv_max == pytest.approx(0.5)
    assert mixed.labels_per_client == 1.5


def test_more_concentrated_dirichlet_means_less_entropy_and_more_distance() -> None:
    labels = np.random.default_rng(0).integers(0, 10, 20_000)
    found = []
    for alpha in (0.05, 0.5, 5, 500):
        partition = partitions.dirichlet(labels, 50, 0, alpha=alpha)
        counts = np.stack([np.bincount(labels[rows], minlength=10) for rows in partition], axis=1)
        found.append(summarise(partition.sizes, counts))
    assert [s.label_entropy for s in found] == sorted(s.label_entropy for s in found)
    assert [s.tv_mean for s in found] == sorted((s.tv_mean for s in found), reverse=True)


@pytest.mark.parametrize("counts", [None, np.array([[1, 0, 3], [2, 2, 2]])])
def test_a_picture_is_a_png(tmp_path: Path, counts: np.ndarray | None) -> None:
    draw(tmp_path / "deep/split.png", "a split", np.array([3, 2, 5]), counts)
    assert (tmp_path / "deep/split.png").read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["split.png"]


def test_describe_a_named_problem(tmp_path: Path) -> None:
    found = describe(load("digits", clients=10, partition="iid"), tmp_path / "d.png")
    assert found.picture == tmp_path / "d.png"
    assert found.picture.is_file()
    assert found.summary is not None
    assert (found.summary.clients, found.summary.samples) == (10, 1437)
    table = dict(found.rows)
    assert table["clients"] == "10"
    assert {"size Gini", "label entropy (bits)", "TV distance to the global mix"} <= set(table)


def test_clients_on_demand_have_nothing_to_draw(tmp_path: Path) -> None:
    found = describe(load("quadratics"))
    assert found.rows == (("clients", "20"), ("parameters", "10"))
    with pytest.raises(DataError, match="drawn on demand"):
        describe(load("quadratics"), tmp_path / "q.png")
    assert list(tmp_path.iterdir()) == []


def test_a_regression_is_described_without_labels(tmp_path: Path) -> None:
    import torch

    rows = Dataset(torch.randn(9, 2), torch.randn(9))
    found = describe(from_data(rows, model="linear", clients=3), tmp_path / "r.png")
    assert found.summary is not None
    assert found.summary.label_entropy is None
    assert "label entropy (bits)" not in dict(found.rows)


def test_counts_match_the_rows_client_by_client() -> None:
    data = load("digits", clients=7, partition="dirichlet").data
    assert isinstance(data, FederatedData)
    for client in range(7):
        own = np.bincount(data.train(client)[1].numpy(), minlength=10)
        assert data.label_counts()[:, client].tolist() == own.tolist()
    assert data.client_names() == [str(i) for i in range(7)]
