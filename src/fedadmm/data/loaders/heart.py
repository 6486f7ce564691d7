"""UCI heart disease: patients of four hospitals, the natural clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedadmm.core.errors import DataError
from fedadmm.core.parts import Fraction, checked_arguments
from fedadmm.core.rng import derive, numpy_generator
from fedadmm.data.checked_files import read_csv
from fedadmm.data.dataset import Dataset, TrainTest
from fedadmm.data.download import source

NUMBERS = ("age", "trestbps", "chol", "thalach", "oldpeak")
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal"),
)
_FILES = {
    "Cleveland": "processed.cleveland.data",
    "Hungary": "processed.hungarian.data",
    "Switzerland": "processed.switzerland.data",
    "Long Beach VA": "processed.va.data",
}
HOSPITALS = tuple(_FILES)
"""The names of the hospitals, in the order of the clients."""

Table = NDArray[np.float64]


@checked_arguments
def heart(test_fraction: Fraction = 0.2, seed: int = 0) -> TrainTest:
    """Load 13 measurements of each patient and the diagnosis; the clients are hospitals.

    Missing values are imputed by the hospital's median (categories: by the most frequent value),
    then columns are standardised.  Both are fitted on the hospital's own training samples, without
    test samples and data of other hospitals.  A column that a hospital never measured is 0.

    Args:
        test_fraction: The held-out fraction of each hospital's patients.
        seed: The seed of the split.
    """
    paths = dict(zip(_FILES, hospital_files(), strict=True))
    return read_hospitals(paths, test_fraction, seed)


def flamby() -> TrainTest:
    """Load the samples as prepared and split in Fed-Heart-Disease of the benchmark FLamby.

    Three rarely measured columns and all samples with missing values are dropped.  Chest pain and
    ECG are one-hot encoded with the categories of all hospitals.  66 % of each hospital's patients
    (seed 43) are training samples, which also determine mean and standard deviation.
    (Ogier du Terrail et al.: FLamby, NeurIPS Datasets and Benchmarks 2022.)
    """
    from sklearn.model_selection import train_test_split

    tables = [np.delete(read_hospital(path), (10, 11, 12), axis=1) for path in hospital_files()]
    tables = [table[~np.isnan(table).any(axis=1)] for table in tables]
    categories = {c: np.unique(np.concatenate([t[:, c] for t in tables]))[1:] for c in (2, 6)}
    sites = []
    for table in tables:
        ones = [table[:, c : c + 1] == values for c, values in categories.items()]
        features = np.hstack([np.delete(table[:, :-1], list(categories), axis=1), *ones])
        sick = (table[:, -1] > 0).astype(np.float64)
        stratify = sick if np.unique(sick, return_counts=True)[1].min() > 2 else None
        train, test = train_test_split(
            np.arange(len(table)), train_size=0.66, random_state=43, stratify=stratify
        )
        fitted = features[train]
        scaled = (features - fitted.mean(axis=0)) / (fitted.std(axis=0, ddof=1) + 1e-9)
        whole = np.column_stack([scaled, sick])
        sites.append((whole[train], whole[test]))
    return _train_test(sites, HOSPITALS)


def read_hospitals(paths: dict[str, Path], test_fraction: float, seed: int) -> TrainTest:
    """Load the hospitals' files, with a stratified split into training and test samples."""
    files = enumerate(paths.values())
    sites = [_prepared(path, index, test_fraction, seed) for index, path in files]
    return _train_test(sites, tuple(paths))


def read_site(path: str | Path, index: int, test_fraction: float, seed: int) -> TrainTest:
    """Load the file of one hospital, with the split and the scaling of `heart`."""
    return _train_test([_prepared(Path(path), index, test_fraction, seed)], (HOSPITALS[index],))


def hospital_files() -> list[Path]:
    """Return the paths of the hospitals' files, in the order of the clients."""
    return [source("heart-disease").locate(file) for file in _FILES.values()]


def _prepared(path: Path, index: int, test_fraction: float, seed: int) -> tuple[Table, Table]:
    """Return standardised training and test samples of a hospital; diagnosis in last column."""
    table = read_hospital(path)
    train, test = _split(table[:, -1] > 0, test_fraction, derive(seed, "heart", index))
    fill, mean, deviation = _fit(table[train, :-1])
    scaled = (np.where(np.isnan(table[:, :-1]), fill, table[:, :-1]) - mean) / deviation
    whole = np.hstack([scaled, table[:, -1:] > 0])
    return whole[train], whole[test]


def _train_test(sites: list[tuple[Table, Table]], names: tuple[str, ...]) -> TrainTest:
    """Combine the training and test samples of all sites; the last column is the diagnosis."""
    parts = (np.concatenate(tables) for tables in zip(*sites, strict=True))
    sizes = np.array([[len(table) for table in site] for site in sites])
    datasets = [
        Dataset(
            torch.from_numpy(rows[:, :-1].astype(np.float32)),
            torch.from_numpy(rows[:, -1].astype(np.int64)),
            num_classes=2,
            groups=np.repeat(np.arange(len(sites)), own),
            group_names=names,
            name="heart-disease",
        )
        for rows, own in zip(parts, sizes.T, strict=True)
        if len(rows)
    ]
    return TrainTest(*datasets)


def read_hospital(path: str | Path) -> Table:
    """Read the 14 columns of a hospital's file, with NaN for `?`.

    Raises:
        DataError: The file is damaged, or a diagnosis (the last column) is missing.
    """
    path = Path(path)
    lines = read_csv(path)
    if not lines:
        raise DataError(f"{path}: is empty")
    for number, row in enumerate(lines, 1):
        if len(row) != len(COLUMNS) + 1:
            raise DataError(
                f"{path}: line {number} has {len(row)} values, expected {len(COLUMNS) + 1}"
            )
    try:
        values = [[np.nan if v.strip() == "?" else float(v) for v in row] for row in lines]
    except ValueError as error:
        raise DataError(
            f"{path}: holds something that is neither a number nor ? ({error})"
        ) from None
    table = np.array(values)
    written = np.array([[v.strip() != "?" for v in row] for row in lines])
    if not bool(np.isfinite(table[written]).all()):
        raise DataError(f"{path}: holds a NaN or an infinity; a missing value is written ?")
    if not bool(np.isfinite(table[:, -1]).all()):
        raise DataError(f"{path}: a row has no diagnosis (the last column)")
    return table


def _split(
    sick: NDArray[np.bool_], fraction: float, key: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    generator = numpy_generator(key)
    train, test = [], []
    for value in (False, True):
        rows = generator.permutation(np.flatnonzero(sick == value))
        cut = int(np.floor(len(rows) * fraction + 0.5))
        test.append(rows[:cut])
        train.append(rows[cut:])
    return np.concatenate(train), np.concatenate(test)


def _fit(table: Table) -> tuple[Table, Table, Table]:
    """Return imputed value, mean and standard deviation of each column of a table with NaN."""
    fill = np.zeros(table.shape[1])
    for column in range(table.shape[1]):
        seen = table[~np.isnan(table[:, column]), column]
        if len(seen) == 0:
            continue
        if COLUMNS[column] in NUMBERS:
            fill[column] = np.median(seen)
        else:
            values, counts = np.unique(seen, return_counts=True)
            fill[column] = values[counts.argmax()]
    filled = np.where(np.isnan(table), fill, table)
    deviation = filled.std(axis=0)
    return fill, filled.mean(axis=0), np.where(deviation > 0, deviation, 1.0)
