"""Tables and figures of the papers, run again: the paper's figure beside each reading of it.

A recipe (recipes/ID.toml) is data: base tables, settings (columns), methods with their readings
(rows), the paper's values, a declared search, and what changes with the scale.  Every cell is a
complete run configuration, found again by its hash.
"""

from __future__ import annotations

from fedadmm.reproduction.recipe import SCALES, Recipe, identifiers, load
from fedadmm.reproduction.running import reproduce

__all__ = ["SCALES", "Recipe", "identifiers", "load", "reproduce"]
