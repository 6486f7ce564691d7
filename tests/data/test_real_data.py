"""The real files, where FEDADMM_DATA has them: counts, class histograms, checksums."""

import os

import numpy as np
import pytest
import torch

from fedadmm import data
from fedadmm.data import download
from fedadmm.data.loaders.heart import flamby

pytestmark = pytest.mark.skipif(
    not os.environ.get("FEDADMM_DATA"), reason="FEDADMM_DATA is not set, so there are no real files"
)


def need(*names: str) -> None:
    for name in names:
        if not {i.name: i for i in download.list_datasets()}[name].present:
            pytest.skip(f"{name} is not in FEDADMM_DATA")


@pytest.mark.parametrize("name", sorted(download.SOURCES))
def test_checksums(name: str) -> None:
    rows = download.check(name)
    if all(row.status == "missing" for row in rows):
        pytest.skip(f"{name} is not in FEDADMM_DATA")
    assert {row.status for row in rows} == {"ok"}


# The class counts that LeCun's page and the data sets' papers give.
MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_mnist() -> None:
    need("mnist")
    rows = data.mnist()
    assert rows.train.inputs.shape == (60_000, 1, 28, 28)
    assert np.bincount(rows.train.labels).tolist() == MNIST_TRAIN
    assert rows.test is not None
    assert np.bincount(rows.test.labels).tolist() == MNIST_TEST
    prepared = rows.train.prepared().inputs
    assert float(prepared.mean()) == pytest.approx(0, abs=1e-3)
    assert float(prepared.std()) == pytest.approx(1, abs=1e-3)


def test_fashion_mnist() -> None:
    need("fashion-mnist")
    rows = data.fashion_mnist()
    assert np.bincount(rows.train.labels).tolist() == [6000] * 10
    assert rows.test is not None
    assert np.bincount(rows.test.labels).tolist() == [1000] * 10
    prepared = rows.train.prepared().inputs
    assert float(prepared.mean()) == pytest.approx(0, abs=1e-3)
    assert float(prepared.std()) == pytest.approx(1, abs=1e-3)


def test_mnist_writers() -> None:
    need("mnist", "mnist-writers")
    rows = data.mnist_writers().train
    sizes = np.bincount(rows.groups)
    assert (len(sizes), sizes.min(), sizes.max(), sizes.sum()) == (539, 19, 131, 60_000)


def test_cifar10() -> None:
    need("cifar10")
    rows = data.cifar10()
    assert np.bincount(rows.train.labels).tolist() == [5000] * 10
    assert rows.test is not None
    assert np.bincount(rows.test.labels).tolist() == [1000] * 10


def test_cifar10_small() -> None:
    need("cifar10-small")
    rows = data.cifar10_small()
    assert np.bincount(rows.train.labels).tolist() == [500] * 10
    assert rows.test is not None
    assert np.bincount(rows.test.labels).tolist() == [100] * 10
    # The first training image of CIFAR-10 is a frog whose first pixel is (59, 62, 63).
    assert rows.train.inputs[0, :, 0, 0].tolist() == [59, 62, 63]


def test_femnist() -> None:
    need("femnist")
    rows = data.femnist()
    assert rows.train.num_classes == 62
    assert len(np.unique(rows.train.groups)) == 300
    assert (rows.train.labels < 10).mean() == pytest.approx(0.7, abs=0.05)
    assert rows.test is not None
    both = np.isin(rows.test.groups, rows.train.groups)
    assert 4000 < both.sum() <= 4763
    # Inverted, most of a picture is background, and the background is zero.
    assert float((rows.train.prepared().inputs == 0).float().mean()) > 0.5
    assert data.femnist(subset="digits").train.num_classes == 10


def test_heart_as_flamby_prepares_it() -> None:
    """The benchmark's own numbers of patients, and columns scaled by each hospital's own."""
    rows = data.problems.load("heart-disease", preparation="flamby").data
    assert rows.partition.sizes.tolist() == [199, 172, 30, 85]
    train, test = flamby()
    assert np.bincount(test.groups).tolist() == [104, 89, 16, 45]
    assert train.inputs.shape[1] == 13
    for hospital in range(4):
        own = train.inputs[torch.from_numpy(train.groups == hospital)].double()
        torch.testing.assert_close(own.mean(0), torch.zeros(13).double(), rtol=0, atol=1e-6)
        spread = own.std(0)
        assert ((spread - 1).abs() < 1e-5).logical_or(spread < 1e-6).all()


def test_heart() -> None:
    rows = data.heart()
    assert rows.test is not None
    sizes = np.bincount(rows.train.groups) + np.bincount(rows.test.groups)
    assert sizes.tolist() == [303, 294, 123, 200]
    sick = np.concatenate([rows.train.labels, rows.test.labels])
    groups = np.concatenate([rows.train.groups, rows.test.groups])
    # heart-disease.names: 164, 188, 8 and 51 patients have no disease.
    assert [int((sick[groups == g] == 0).sum()) for g in range(4)] == [164, 188, 8, 51]
