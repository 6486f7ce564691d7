"""The old address of `fedadmm.study.summary`."""

from __future__ import annotations

from collections.abc import Sequence

from fedadmm.round import Ending, Record
from fedadmm.study import summary as study
from fedadmm.study.config import RunConfig, resolve
from fedadmm.study.summary import Summary, partition_of


def summarise(
    config: RunConfig,
    records: Sequence[Record],
    ending: Ending,
    params_sha256: str | None,
    label: str | None,
) -> Summary:
    """The content of summary.json."""
    return study.summarise(resolve(config.tree()), records, ending, params_sha256, label)


__all__ = ["Summary", "partition_of", "summarise"]
