"""Every experiment by name: `load("mnist", clients=100, partition="shards")`."""

from fedadmm.problems import digits as _digits
from fedadmm.problems.federation import SplitOptions, from_data
from fedadmm.problems.registry import Entry, Extras, entry, load, names, options, register

__all__ = [
    "Entry",
    "Extras",
    "SplitOptions",
    "entry",
    "from_data",
    "load",
    "names",
    "options",
    "register",
]

del _digits
