"""Every experiment by name: `load("mnist", clients=100, partition="shards")`."""

from fedadmm.data.problems import generated as generated
from fedadmm.data.problems import recorded as recorded
from fedadmm.data.problems import theory as theory
from fedadmm.data.problems.federation import SplitOptions, from_data
from fedadmm.data.problems.registry import (
    Extras,
    NamedProblem,
    Sites,
    canonical,
    load,
    names,
    options,
)

__all__ = [
    "Extras",
    "NamedProblem",
    "Sites",
    "SplitOptions",
    "canonical",
    "from_data",
    "load",
    "names",
    "options",
]
