"""Partitions: disjoint, complete where promised, of the right sizes, reproducible."""

import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedadmm.core.errors import DataError, ParameterError
from fedadmm.data import partitions
from fedadmm.data.partitions import Partition
from support.rejections import naming

QUICK = settings(max_examples=60, deadline=None)


def random_labels(rows: int, classes: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, rows)


def assert_disjoint_and_complete(partition: Partition, rows: int) -> None:
    assert sorted(np.concatenate(list(partition)).tolist()) == list(range(rows))


def assert_same(first: Partition, second: Partition) -> None:
    assert np.array_equal(first.indices, second.indices)
    assert np.array_equal(first.offsets, second.offsets)


MAKERS = {
    "iid": lambda labels, n, seed: partitions.iid(len(labels), n, seed),
    "shards": lambda labels, n, seed: partitions.shards(labels, n, seed),
    "dirichlet": lambda labels, n, seed: partitions.dirichlet(labels, n, seed, alpha=0.3),
    "imbalanced": lambda labels, n, seed: partitions.imbalanced(
        labels, n, seed, shards=len(labels), members=1
    ),
    "lognormal": lambda labels, n, seed: partitions.lognormal(len(labels), n, seed),
    "natural": lambda labels, n, seed: partitions.natural(np.arange(len(labels)) % n, n, seed),
}


@pytest.mark.parametrize("name", MAKERS)
@QUICK
@given(st.integers(1, 12), st.integers(0, 200), st.integers(1, 8), st.integers(0, 2**40))
def test_every_partition_is_disjoint_complete_and_reproducible(
    name: str, clients: int, more: int, classes: int, seed: int
) -> None:
    rows = clients * (clients + 1) + more
    labels = random_labels(rows, classes, seed % 1000)
    partition = MAKERS[name](labels, clients, seed)
    assert len(partition) == clients
    assert partition.sizes.min() >= 1
    assert_disjoint_and_complete(partition, rows)
    assert_same(partition, MAKERS[name](labels, clients, seed))


@pytest.mark.parametrize("name", MAKERS)
def test_another_seed_gives_another_partition(name: str) -> None:
    labels = random_labels(200, 4, 0)
    first, second = (MAKERS[name](labels, 5, seed) for seed in (1, 2))
    assert not np.array_equal(first.indices, second.indices)


@QUICK
@given(st.integers(1, 40), st.integers(0, 500))
def test_iid_and_shards_are_as_even_as_possible(clients: int, more: int) -> None:
    rows = 3 * clients + more
    even = partitions.iid(rows, clients, 0).sizes
    assert even.max() - even.min() <= 1
    dealt = partitions.shards(random_labels(rows, 5, more), clients, 0, per_client=3).sizes
    assert dealt.max() - dealt.min() <= 3


@QUICK
@given(st.integers(2, 30), st.integers(1, 3), st.integers(0, 10**6))
def test_a_client_holds_k_runs_of_the_label_sorted_rows(clients: int, k: int, seed: int) -> None:
    """A shard of m samples meets at most two labels when every label has at least m rows."""
    labels = np.repeat(np.arange(5), 100 * k)
    partition = partitions.shards(labels, clients, seed, per_client=k)
    if len(labels) // (k * clients) + 1 <= 100 * k:
        assert max(len(np.unique(labels[rows])) for rows in partition) <= 2 * k


def test_two_shards_of_mnist_size_are_single_labels_when_they_divide() -> None:
    labels = np.repeat(np.arange(10), 6000)
    partition = partitions.shards(labels, 100, 7)
    assert set(partition.sizes.tolist()) == {600}
    assert max(len(np.unique(labels[rows])) for rows in partition) <= 2


@QUICK
@given(st.integers(1, 30), st.integers(1, 6), st.floats(0.01, 100), st.integers(0, 10**6))
def test_dirichlet_keeps_its_minimum(clients: int, least: int, alpha: float, seed: int) -> None:
    rows = clients * least + seed % 50
    labels = random_labels(rows, 6, seed)
    partition = partitions.dirichlet(labels, clients, seed, alpha=alpha, min_size=least)
    assert partition.sizes.min() >= least
    assert_disjoint_and_complete(partition, rows)


def test_dirichlet_proportions_have_the_mean_and_variance_of_the_distribution() -> None:
    """Share of one label at one client: mean 1/n, variance (1/n)(1 - 1/n) / (n alpha + 1)."""
    clients, alpha, rows = 5, 0.7, 2000
    labels = np.zeros(rows, np.int64)
    shares = np.array(
        [partitions.dirichlet(labels, clients, seed, alpha=alpha).sizes for seed in range(800)]
    )
    shares = shares / rows
    variance = 0.2 * 0.8 / (clients * alpha + 1)
    assert shares.mean(axis=0) == pytest.approx(np.full(clients, 0.2), abs=0.03)
    assert shares.var() == pytest.approx(variance, rel=0.1)


@pytest.mark.parametrize(("rows", "printed"), [(60_000, 171.03), (50_000, 142.52)])
def test_gongs_imbalanced_volumes_have_the_printed_statistics(rows: int, printed: float) -> None:
    labels = np.repeat(np.arange(10), rows // 10)
    partition = partitions.imbalanced(labels, 200, 3)
    sizes = partition.sizes.tolist()
    assert_disjoint_and_complete(partition, rows)
    assert statistics.mean(sizes) == rows / 200
    assert statistics.stdev(sizes) == pytest.approx(printed, abs=0.01)
    assert sizes[:4] == [rows // 10_000, rows // 10_000, 2 * rows // 10_000, 2 * rows // 10_000]
    assert sizes[-2:] == [50 * rows // 10_000] * 2


def test_lognormal_sizes_follow_the_law() -> None:
    sizes = partitions.lognormal(4_000_000, 4000, 5, sigma=0.8).sizes
    assert np.log(sizes).std() == pytest.approx(0.8, rel=0.05)
    assert partitions.lognormal(100, 7, 0, sigma=0.0, min_size=3).sizes.min() >= 13


def test_natural_groups_stay_together() -> None:
    groups = np.array([3, 1, 3, 7, 1, 7, 7])
    everyone = partitions.natural(groups, None, 0)
    assert [set(groups[rows].tolist()) for rows in everyone] == [{1}, {3}, {7}]
    assert everyone.sizes.tolist() == [2, 2, 3]
    some = partitions.natural(groups, 2, 0)
    assert all(len(set(groups[rows].tolist())) == 1 for rows in some)
    chosen = {int(groups[rows][0]) for rows in some}
    assert some.sizes.sum() == np.isin(groups, list(chosen)).sum()
    seen = {tuple(groups[r][0] for r in partitions.natural(groups, 2, s)) for s in range(40)}
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: partitions.iid(3, 4, 0), "iid clients 4 3"),
        (lambda: partitions.iid(3, 0, 0), "iid clients 0"),
        (
            lambda: partitions.shards([0, 1, 0, 1], 3, 0),
            "shards samples 4 6",
        ),
        (lambda: partitions.shards([0.5, 1.0], 1, 0), "shards labels"),
        (lambda: partitions.dirichlet([0, 1], 2, 0, alpha=0.0), "dirichlet alpha 0.0"),
        (lambda: partitions.dirichlet([0, 1], 2, 0, min_size=2), "dirichlet samples 2 4 min_size"),
        (lambda: partitions.imbalanced([0] * 9, 3, 0), "imbalanced clients 3 members"),
        (lambda: partitions.imbalanced([0] * 9, 4, 0), "imbalanced shards 9"),
        (lambda: partitions.imbalanced([0] * 9, 4, 0, shards=3), "imbalanced shards 3 4"),
        (lambda: partitions.lognormal(5, 3, 0, min_size=2), "lognormal samples 5 6"),
        (lambda: partitions.natural([1, 1, 2], 3, 0), "natural clients 3 2"),
    ],
)
def test_impossible_partitions_are_rejected(call, names: str) -> None:
    error = DataError if "labels" in names else ParameterError
    with pytest.raises(error, match=naming(names)):
        call()


def test_a_partition_survives_the_disk(tmp_path: Path) -> None:
    partition = partitions.shards(random_labels(100, 3, 0), 7, 1)
    partition.save(tmp_path / "split.npz")
    assert_same(partition, Partition.load(tmp_path / "split.npz"))
    assert [p.name for p in tmp_path.iterdir()] == ["split.npz"]


@pytest.mark.parametrize(
    "arrays",
    [
        {"indices": np.array([0, 0]), "offsets": np.array([0, 2])},
        {"indices": np.array([0, 1]), "offsets": np.array([0, 3])},
        {"indices": np.array([0, 1]), "offsets": np.array([0, 2, 1, 2])},
        {"indices": np.array([0, -1]), "offsets": np.array([0, 2])},
        {"indices": np.array([0.0, 1.0]), "offsets": np.array([0, 2])},
        {"indices": np.array([0, 1])},
    ],
)
def test_a_file_that_is_no_partition_is_refused(tmp_path: Path, arrays: dict) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=r"bad\.npz"):
        Partition.load(tmp_path / "bad.npz")


def test_indexing() -> None:
    partition = partitions.iid(10, 3, 0)
    assert np.array_equal(partition[-1], list(partition)[2])
    with pytest.raises(IndexError):
        partition[3]
    assert np.array_equal(partition.owners, np.repeat([0, 1, 2], partition.sizes))
