"""What a run came to: summary.json from its records, and the partition that it ran on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import fedadmm
from fedadmm.evaluation import Target
from fedadmm.problem import Problem
from fedadmm.round import Ending, Record
from fedadmm.study.config import RunConfig

Summary = dict[str, Any]

MOST_CLIENTS = 200
"""So many clients are listed one by one in partition.json."""

_BOOKKEEPING = frozenset(
    (
        *("round", "participants", "clients", "epochs", "steps"),
        *("primal_residual", "dual_residual"),
        *("penalty_mean", "penalty_min", "penalty_max", "penalty_quartiles"),
        *("bytes_up", "bytes_down", "seconds", "evaluation_seconds"),
        *("refused", "missing", "staleness", "evaluated"),
        *("virtual_time", "steps_per_second", "idle", "in_flight", "dropped", "intervals"),
        *("certificate_measured", "certificate_bound"),
        *("kkt_residual", "stationarity", "consensus", "dual_sum", "dual_norm", "dual_norm_max"),
        *("lagrangian", "mean_drift", "warnings", "diagnostics_seconds"),
        *("delays", "staleness_mean", "staleness_max", "staleness_quantiles", "longest_absence"),
    )
)


def metrics_of(record: Record) -> dict[str, Any]:
    """What was measured in a round, without what is known about every round."""
    return {key: value for key, value in record.items() if key not in _BOOKKEEPING}


def last_measured(records: Sequence[Record]) -> dict[str, Any]:
    """The metrics of the last round that was measured."""
    return next((found for record in reversed(records) if (found := metrics_of(record))), {})


def first_reached(records: Sequence[Record], target: Target | None) -> Record | None:
    """The first round that meets the target."""
    if target is None:
        return None
    return next((record for record in records if target.reached(record)), None)


def bytes_until(records: Sequence[Record], last: Record | None) -> int | None:
    """All bytes, up and down, until a round; None when there is no such round."""
    if last is None:
        return None
    counted = (record for record in records if record["round"] <= last["round"])
    return int(sum(record["bytes_up"] + record["bytes_down"] for record in counted))


def summarise(
    config: RunConfig,
    records: Sequence[Record],
    ending: Ending,
    params_sha256: str | None,
    label: str | None,
) -> Summary:
    """The content of summary.json."""
    target = config.target.build() if config.target is not None else None
    reached = first_reached(records, target)
    return {
        "status": ending.sentence,
        "code": ending.code,
        "algorithm": config.algorithm.name,
        "label": label or config.algorithm.name,
        "seed": config.seed,
        "rounds": len(records),
        "final": last_measured(records),
        "target": config.target.model_dump() if config.target is not None else None,
        "rounds_to_target": reached["round"] if reached is not None else None,
        "bytes_to_target": bytes_until(records, reached),
        "bytes_up": sum(record["bytes_up"] for record in records),
        "bytes_down": sum(record["bytes_down"] for record in records),
        "seconds": sum(record["seconds"] for record in records),
        **_clock(records, reached),
        "warnings": [text for record in records for text in record.get("warnings", ())],
        "params_sha256": params_sha256,
        "fedadmm_version": fedadmm.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _clock(records: Sequence[Record], reached: Record | None) -> Summary:
    """Virtual time, for runs that have any."""
    if not records or "virtual_time" not in records[-1]:
        return {}
    return {
        "virtual_time": records[-1]["virtual_time"],
        "virtual_time_to_target": reached["virtual_time"] if reached is not None else None,
    }


def partition_of(problem: Problem) -> Mapping[str, Any] | None:
    """The content of partition.json; None for problems that were not split from rows."""
    if problem.data is None:
        return None
    data = problem.data
    sizes = [int(size) for size in data.partition.sizes]
    shown: dict[str, Any] = {
        "clients": len(sizes),
        "names": data.client_names()[:MOST_CLIENTS],
        "sizes": sizes[:MOST_CLIENTS],
        "total_size": sum(sizes),
    }
    if data.rows.num_classes is None:
        return shown
    counts = data.label_counts()
    return shown | {
        "labels": list(range(len(counts))),
        "counts": counts.T[:MOST_CLIENTS].tolist(),
        "total_counts": counts.sum(axis=1).tolist(),
    }
