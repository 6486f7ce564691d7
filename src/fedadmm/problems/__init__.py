"""Every experiment by name: `load("mnist", clients=100, partition="shards")`."""

from fedadmm.problems import generated as generated
from fedadmm.problems import recorded as recorded
from fedadmm.problems import theory as theory
from fedadmm.problems.federation import SplitOptions, from_data
from fedadmm.problems.registry import (
    Entry,
    Extras,
    Sites,
    canonical,
    entry,
    load,
    names,
    options,
    register,
)

__all__ = [
    "Entry",
    "Extras",
    "Sites",
    "SplitOptions",
    "canonical",
    "entry",
    "from_data",
    "load",
    "names",
    "options",
    "register",
]
