"""Keys set by hand over several runs: each goes to every run that has the key.

Methods of a comparison and cells of a sweep differ in their parts, and a part in its keys:
`algorithm.rho=7` is for those methods that have a rho.  A key that no run has is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

from fedadmm.core.errors import ConfigError
from fedadmm.core.parts import FAMILIES
from fedadmm.core.tables import Tree, UnknownKeyError, from_table, suggestion
from fedadmm.core.validation import shown
from fedadmm.run.experiment import Experiment
from fedadmm.study import config
from fedadmm.study.config import TABLES, completed

Setting = tuple[str, Any]
"""A dotted key and the value that it gets."""


def table_of(key: str) -> str:
    """The table of a part that a key belongs to; empty for other keys."""
    return next((table for table in TABLES if key.startswith(f"{table}.")), "")


def part_in(tree: Tree, key: str) -> str:
    """The name of the part that a key belongs to, in the tables of a complete run."""
    found: Any = tree
    for step in table_of(key).split("."):
        found = found[step]
    return str(found["name"])


def apply(tree: Tree, settings: Sequence[Setting]) -> list[Setting]:
    """Set what this run has the keys for, in order; what was set."""
    applied = []
    for key, value in settings:
        if _unknown(tree, key, value) is None:
            config.assign(tree, key, deepcopy(value))
            applied.append((key, value))
    return applied


def below(
    tree: Tree, settings: Sequence[Setting], varied: Iterable[str]
) -> tuple[Tree, list[Setting]]:
    """The configuration below the varied keys, and the settings that `apply` puts over them.

    Names come first, because another name starts its table afresh.
    """
    keys = list(varied)
    for key, value in settings:
        for other in keys:
            if f"{key}.".startswith(f"{other}."):
                raise ConfigError(
                    f"{key} is set to {shown(value)}, but {other} is varied; leave one of them out"
                )
    ground, above = deepcopy(tree), []
    for key, value in settings:
        if not table_of(key) or key.endswith(".name"):
            config.assign(ground, key, value)
        else:
            above.append((key, value))
    return ground, above


def check_reached(
    settings: Sequence[Setting], trees: Sequence[Tree], runs: Sequence[Sequence[Setting]]
) -> None:
    """Refuse a setting that none of these runs took; `trees` are the runs without it."""
    for setting in settings:
        if not any(setting in applied for applied in runs):
            raise _refused(*setting, trees)


def reach(setting: Setting, names: Sequence[str], runs: Sequence[Sequence[Setting]]) -> str:
    """Which of the runs of these names took a setting, in one line."""
    took = [setting in applied for applied in runs]
    sides = [
        "; ".join(dict.fromkeys(name for name, one in zip(names, took, strict=True) if one is side))
        for side in (True, False)
    ]
    key, value = setting
    return f"{key} = {shown(value)} for {sides[0]}" + (f"; not for {sides[1]}" if sides[1] else "")


def _unknown(tree: Tree, key: str, value: Any) -> UnknownKeyError | None:
    """What a run says to a key that it does not have.

    Whatever else is wrong does not matter here: the whole run is checked when all keys are set.
    """
    if not table_of(key):
        return None
    changed = deepcopy(tree)
    config.assign(changed, key, deepcopy(value))
    try:
        from_table(Experiment, completed(changed))
    except UnknownKeyError as error:
        return error if f"{key}.".startswith(f"{error.key}.") else None
    except ConfigError:
        return None
    return None


def _refused(key: str, value: Any, trees: Sequence[Tree]) -> ConfigError:
    """Names the key, what is like it in these runs, and where else there is such a key."""
    table = table_of(key)
    field = key.removeprefix(f"{table}.").partition(".")[0]
    refusals = [error for tree in trees if (error := _unknown(tree, key, value)) is not None]
    owners = ", ".join(dict.fromkeys(error.owner for error in refusals))
    known = dict.fromkeys(word for error in refusals for word in error.known)
    named = [name for name, part in FAMILIES[TABLES[table]].items() if field in _keys(part)]
    others = [f"{other}.{field}" for other in TABLES if other != table]
    elsewhere = named + [one for one in others if _unknown(trees[0], one, value) is None]
    hint = f"; found in {', '.join(elsewhere)}" if elsewhere else ""
    return ConfigError(
        f"{key} is set to {shown(value)}, but is not a key of {owners}; "
        f"{suggestion(field, known)}{hint}"
    )


def _keys(part: type[Any]) -> set[str]:
    return {name for name, field in part.__dataclass_fields__.items() if field.init}
