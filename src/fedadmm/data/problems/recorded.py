"""Named problems with recorded data: images, hospitals, and the user's tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from fedadmm.core.errors import DataError
from fedadmm.core.parts import Count, Fraction, Probability, part
from fedadmm.core.problem import Problem
from fedadmm.data.dataset import TrainTest, hold_out
from fedadmm.data.loaders.heart import (
    COLUMNS,
    HOSPITALS,
    flamby,
    heart,
    hospital_files,
    read_site,
)
from fedadmm.data.loaders.leaf import femnist
from fedadmm.data.loaders.pictures import (
    HALVES,
    NORMALISE,
    cifar10,
    cifar10_small,
    digits,
    fashion_mnist,
    mnist,
    mnist_writers,
)
from fedadmm.data.loaders.tabular import AUTO, prepared_table, tabular
from fedadmm.data.problems.named_problem import DatasetProblem, Sites, federate


@part("problem", "digits")
class DigitsOptions(DatasetProblem):
    """Digits: 50 clients with two label shards each, and a perceptron of 2,410 parameters."""

    summary: ClassVar[str] = "1,797 digits of 8×8 pixels, embedded"
    clients: Count | None = 50
    partition: str = "shards"
    model: str = "mlp-64-32-10"
    normalise: Literal["batch", "once"] = "once"

    def datasets(self) -> TrainTest:
        return digits()


@part("problem", "mnist")
class MnistOptions(DatasetProblem):
    """MNIST in the setting of Gong et al.: 100 clients, two label shards each, CNN 1."""

    costly_objective: ClassVar[bool] = True
    summary: ClassVar[str] = "MNIST digits"
    clients: Count | None = 100
    partition: str = "shards"
    model: str = "cnn1"

    def datasets(self) -> TrainTest:
        return mnist()


@part("problem", "fashion-mnist")
class FashionMnistOptions(MnistOptions):
    """Fashion-MNIST in the setting of Gong et al.: 100 clients, two label shards each, CNN 1."""

    summary: ClassVar[str] = "Fashion-MNIST clothes"

    def datasets(self) -> TrainTest:
        return fashion_mnist()


@part("problem", "mnist-writers")
class WritersOptions(DatasetProblem):
    """MNIST by writer: 539 clients with 19 to 131 digits each."""

    costly_objective: ClassVar[bool] = True
    summary: ClassVar[str] = "MNIST digits by writer"
    partition: str = "natural"
    model: str = "cnn1"

    def datasets(self) -> TrainTest:
        return mnist_writers()


@part("problem", "cifar10")
class CifarOptions(MnistOptions):
    """CIFAR-10 in the setting of Gong et al.: 100 clients, two label shards each, CNN 2."""

    summary: ClassVar[str] = "CIFAR-10 pictures"
    model: str = "cnn2"
    pixels: Literal["statistics", "halves"] = "statistics"
    """Normalise by mean and deviation of the channels, or by 0.5 and 0.5 as Gong's program."""

    def datasets(self) -> TrainTest:
        return cifar10(HALVES if self.pixels == "halves" else NORMALISE)


@part("problem", "cifar10-small")
class CifarSmallOptions(CifarOptions):
    """A tenth of CIFAR-10: 100 clients, two label shards each, CNN 2."""

    costly_objective: ClassVar[bool] = False
    summary: ClassVar[str] = "a tenth of CIFAR-10"

    def datasets(self) -> TrainTest:
        return cifar10_small(prepare=HALVES if self.pixels == "halves" else NORMALISE)


@part("problem", "femnist")
class FemnistOptions(DatasetProblem):
    """FEMNIST: one client per writer, with its own test samples.

    The npz subset is no random sample of LEAF's writers: 70 % of its training samples are digits.
    """

    costly_objective: ClassVar[bool] = True
    summary: ClassVar[str] = "characters by writer"
    partition: str = "natural"
    model: str = "femnist-cnn"
    subset: Literal["all", "digits", "upper", "lower"] = "all"
    """All 62 classes, the ten digits, or 26 letters."""
    path: str | None = None
    """An npz file or LEAF's data folder; None searches the folder of the data set."""

    def datasets(self) -> TrainTest:
        return femnist(self.path, self.subset)


def _hospital(options: HeartOptions, path: Path, client: int) -> Problem:
    if options.preparation == "flamby":
        raise DataError(
            "heart-disease: preparation is 'flamby', which needs the categories of all hospitals, "
            "but a site has its own samples only; use 'filled'"
        )
    samples = read_site(path, client, options.test_fraction, options.partition_seed or 0)
    return federate(samples, options, name=options.name)


@part("problem", "heart-disease")
class HeartOptions(DatasetProblem):
    """Four hospitals and logistic regression: 14 parameters."""

    summary: ClassVar[str] = "heart disease, four hospitals"
    sites: ClassVar[Sites | None] = Sites(HOSPITALS, len(COLUMNS), 2, hospital_files, _hospital)
    partition: str = "natural"
    model: str = "logistic"
    test_fraction: Fraction = 0.2
    """Held-out fraction of each hospital's patients, chosen by `partition_seed`."""
    preparation: Literal["filled", "flamby"] = "filled"
    """"filled" imputes missing values from the hospital's own values; "flamby" drops samples and
    columns with missing values and splits as the benchmark FLamby, ignoring other options."""

    def datasets(self) -> TrainTest:
        if self.preparation == "flamby":
            return flamby()
        return heart(self.test_fraction, self.partition_seed or 0)


@part("problem", "table")
class TableOptions(DatasetProblem):
    """Tables of the user: a CSV or npz file, or a folder of them."""

    summary: ClassVar[str] = "your own CSV or npz"
    path: str | Sequence[str] = "data.csv"
    """A file, a folder of files, or a list of both."""
    partition: str = "natural"
    model: str = "logistic"
    target: str = "target"
    """The column to predict."""
    client: str | None = AUTO
    """The column of clients; None makes each file one client.  "auto" is the column `client` if a
    file has one, otherwise one client per file."""
    kind: Literal["classes", "numbers"] = "classes"
    """Whether targets are class names, or numbers for a regression (with the model `linear`)."""
    test_fraction: Probability = 0.2
    """Held-out fraction of each client's samples, chosen by `partition_seed`; 0 for none."""
    preparation: Literal["as-is", "from-sums"] = "as-is"
    """Use numbers unchanged, without missing values; or impute, one-hot encode text and standardise
    numbers, from sums and lists that each client computes on its training samples."""
    leave_out: Sequence[str] = ()
    """from-sums: columns that are not features."""

    def datasets(self) -> TrainTest:
        target, client, kind = self.target, self.client, self.kind
        aside = (self.test_fraction, self.partition_seed or 0)
        if self.preparation == "from-sums":
            samples = prepared_table(self.path, target, client, kind, self.leave_out, *aside)
        else:
            samples = hold_out(tabular(self.path, target=target, client=client, kind=kind), *aside)
        if (
            self.client == AUTO
            and self.partition == "natural"
            and len(samples.train.group_names) == 1
        ):
            raise DataError(
                f"{samples.train.name}: is one client only; name the column of clients "
                "(problem.client, or --client), give a file per client, or split the samples: "
                "problem.partition = 'iid', problem.clients = 10"
            )
        return samples
