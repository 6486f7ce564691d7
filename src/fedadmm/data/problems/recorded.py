"""Named problems from recorded data: pictures, hospitals, plays, and tables of your own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedadmm.core.errors import check_choice, check_count, check_range
from fedadmm.core.problem import Problem
from fedadmm.data.dataset import TrainTest, hold_out
from fedadmm.data.loaders.cifar import HALVES, NORMALISE, cifar10, cifar10_small
from fedadmm.data.loaders.digits import digits
from fedadmm.data.loaders.femnist import femnist
from fedadmm.data.loaders.heart import COLUMNS, heart, hospital_files, hospital_names, read_site
from fedadmm.data.loaders.idx import fashion_mnist, mnist, mnist_writers
from fedadmm.data.loaders.tabular import tabular
from fedadmm.data.loaders.text import shakespeare
from fedadmm.data.problems.federation import SplitOptions, federate
from fedadmm.data.problems.registry import Entry, Extras, Sites, register


@dataclass(frozen=True, kw_only=True)
class DigitsOptions(SplitOptions):
    """50 clients with two label shards each, and a perceptron of 2,410 parameters."""

    clients: int | None = 50
    partition: str = "shards"
    model: str = "mlp-64-32-10"
    normalise: Literal["batch", "once"] = "once"


def _digits(options: DigitsOptions, extras: Extras) -> Problem:
    return federate(digits(), options, name="digits", **extras._asdict())


@dataclass(frozen=True, kw_only=True)
class MnistOptions(SplitOptions):
    """Gong's setting: 100 clients, two label shards each, CNN 1."""

    clients: int | None = 100
    partition: str = "shards"
    model: str = "cnn1"


def _mnist(options: MnistOptions, extras: Extras) -> Problem:
    return federate(mnist(), options, name="mnist", **extras._asdict())


def _fashion_mnist(options: MnistOptions, extras: Extras) -> Problem:
    return federate(fashion_mnist(), options, name="fashion-mnist", **extras._asdict())


@dataclass(frozen=True, kw_only=True)
class WritersOptions(SplitOptions):
    """One client a writer: 539 of them, 19 to 131 digits each."""

    partition: str = "natural"
    model: str = "cnn1"


def _writers(options: WritersOptions, extras: Extras) -> Problem:
    return federate(mnist_writers(), options, name="mnist-writers", **extras._asdict())


@dataclass(frozen=True, kw_only=True)
class CifarOptions(SplitOptions):
    """Gong's setting: 100 clients, two label shards each, CNN 2."""

    clients: int | None = 100
    partition: str = "shards"
    model: str = "cnn2"
    pixels: Literal["statistics", "halves"] = "statistics"
    """Normalise by the channels' mean and deviation, or by 0.5 and 0.5 as Gong's program does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "pixels", self.pixels, ("statistics", "halves"))


def _cifar(options: CifarOptions, extras: Extras) -> Problem:
    prepare = HALVES if options.pixels == "halves" else NORMALISE
    return federate(cifar10(prepare), options, name="cifar10", **extras._asdict())


def _cifar_small(options: CifarOptions, extras: Extras) -> Problem:
    prepare = HALVES if options.pixels == "halves" else NORMALISE
    rows = cifar10_small(prepare=prepare)
    return federate(rows, options, name="cifar10-small", **extras._asdict())


@dataclass(frozen=True, kw_only=True)
class FemnistOptions(SplitOptions):
    """One client a writer, each with its own test rows.

    The npz subset is no random sample of LEAF's writers: 70 % of its training rows are digits.
    """

    partition: str = "natural"
    model: str = "femnist-cnn"
    subset: Literal["all", "digits", "upper", "lower"] = "all"
    """All 62 classes, the ten digits, or 26 letters."""
    path: str | None = None
    """An npz file or LEAF's data folder, instead of the one that is found."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "subset", self.subset, ("all", "digits", "upper", "lower"))


def _femnist(options: FemnistOptions, extras: Extras) -> Problem:
    rows = femnist(options.path, options.subset)
    return federate(rows, options, name="femnist", **extras._asdict())


@dataclass(frozen=True, kw_only=True)
class HeartOptions(SplitOptions):
    """Four hospitals and logistic regression: 14 parameters."""

    partition: str = "natural"
    model: str = "logistic"
    test_fraction: float = 0.2
    """Which part of each hospital's patients is held out, chosen by `partition_seed`."""


def _heart(options: HeartOptions, extras: Extras) -> Problem:
    rows = heart(options.test_fraction, options.partition_seed)
    return federate(rows, options, name="heart-disease", **extras._asdict())


def _hospital(options: HeartOptions, path: Path, client: int) -> Problem:
    rows = read_site(path, client, options.test_fraction, options.partition_seed)
    return federate(rows, options, name="heart-disease")


@dataclass(frozen=True, kw_only=True)
class ShakespeareOptions(SplitOptions):
    """One client a speaker, each with the last part of its text for testing."""

    partition: str = "natural"
    model: str = "char-lstm"
    length: int = 80
    """Characters the next one is predicted from."""
    stride: int = 8
    """Characters between the beginnings of two rows."""
    min_rows: int = 2
    """Speakers with fewer training rows are left out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("length", "stride", "min_rows"):
            check_count(self, field, getattr(self, field))


def _shakespeare(options: ShakespeareOptions, extras: Extras) -> Problem:
    rows = shakespeare(length=options.length, stride=options.stride, min_rows=options.min_rows)
    return federate(rows, options, name="shakespeare", **extras._asdict())


@dataclass(frozen=True, kw_only=True)
class TableOptions(SplitOptions):
    """Your own CSV, Parquet or npz file, or a folder of them."""

    path: str = "data.csv"
    partition: str = "natural"
    model: str = "logistic"
    target: str = "target"
    """The column to predict."""
    client: str | None = "client"
    """The column that names the client; None makes every file one client."""
    kind: Literal["classes", "numbers"] = "classes"
    """Whether targets are class names or numbers to regress on (with the model `linear`)."""
    test_fraction: float = 0.2
    """Which part of each client's rows is held out, chosen by `partition_seed`; 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "kind", self.kind, ("classes", "numbers"))
        check_range(self, "test_fraction", self.test_fraction, 0.0, 1.0, open_high=True)


def _table(options: TableOptions, extras: Extras) -> Problem:
    rows = tabular(options.path, target=options.target, client=options.client, kind=options.kind)
    if options.test_fraction == 0:
        parts = TrainTest(rows)
    else:
        parts = hold_out(rows, options.test_fraction, options.partition_seed)
    return federate(parts, options, name="table", **extras._asdict())


for _entry in (
    Entry("digits", DigitsOptions, _digits, "1,797 digits of 8×8 pixels, embedded"),
    Entry("mnist", MnistOptions, _mnist, "MNIST digits"),
    Entry("fashion-mnist", MnistOptions, _fashion_mnist, "Fashion-MNIST clothes"),
    Entry("cifar10", CifarOptions, _cifar, "CIFAR-10 pictures"),
    Entry("cifar10-small", CifarOptions, _cifar_small, "a tenth of CIFAR-10"),
    Entry("femnist", FemnistOptions, _femnist, "characters by writer"),
    Entry("mnist-writers", WritersOptions, _writers, "MNIST digits by writer"),
    Entry(
        "heart-disease",
        HeartOptions,
        _heart,
        "heart disease, four hospitals",
        Sites(hospital_names(), len(COLUMNS), 2, hospital_files, _hospital),
    ),
    Entry("shakespeare", ShakespeareOptions, _shakespeare, "plays by speaker"),
    Entry("table", TableOptions, _table, "your own CSV, Parquet or npz"),
):
    register(_entry)
