"""Facts about a method for lists and pages, found out by trying it on a small vector."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING
from functools import cache
from typing import Any, NamedTuple

import torch

from fedadmm.core import trees
from fedadmm.core.capabilities import fit_penalties
from fedadmm.core.catch_up import initial_catch_up
from fedadmm.core.compatibility import default_requirements
from fedadmm.core.config_tree import suggestion
from fedadmm.core.contracts import AnyAlgorithm, LocalNeeds, LocalResult, Round
from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import FAMILIES, annotations_of, config_fields, is_external, part_of
from fedadmm.core.validation import allowed
from fedadmm.run.engines import VirtualTime

_LENGTH = 1000
"""Length of the vectors of a trial client, so long that scalars in a message hardly count."""
_SECTION = re.compile(r"^(?:Args|Returns|Raises|Example):$", re.MULTILINE)
"""Heading of a section of a docstring."""
_REFERENCE = re.compile(r" \([^()]*(?:et al\.|\d{4})[^()]*\)$")
"""The paper in parentheses at the end of a summary."""


class Card(NamedTuple):
    """One method for `fedadmm algorithms`."""

    name: str
    paper: str
    summary: str
    details: str
    """The rest of the method's own description."""
    meanings: dict[str, str]
    """Key -> what it is, as the method's description has it."""
    state: list[str]
    """What a client keeps between rounds, with its size in model vectors."""
    up: float
    """What one client sends in a round, in model vectors."""
    down: float
    """What one client receives in a round, in model vectors."""
    accepts: list[str]
    keys: list[str]
    """Every key of its table, with what it may hold and its default."""

    @property
    def line(self) -> str:
        """The summary for a list: without the method's own name and without the reference."""
        head, _, rest = self.summary.removesuffix(".").partition(": ")
        own = rest and head.lower().replace(" ", "-") in (self.name, self.name.replace("-", ""))
        text = _REFERENCE.sub("", rest if own else head + (f": {rest}" if rest else ""))
        return text[:1].upper() + text[1:]


def own_engine(name: str | None) -> dict[str, str]:
    """Keys of the table engine that a method without rounds brings along; none for all others."""
    if not is_external(name) and name not in _known():
        return {}
    method = part_of("algorithm", str(name))
    if not default_requirements(method).asynchronous:
        return {}
    return {"name": VirtualTime.name, "mode": "async"}


def _known() -> dict[str, type[Any]]:
    from fedadmm import algorithms

    assert algorithms  # its import fills the family
    return FAMILIES["algorithm"]


def named_method(name: str) -> AnyAlgorithm:
    """The method with its usual hyper-parameters."""
    known = _known()
    if not is_external(name) and name not in known:
        raise ParameterError(f"method is {name!r}, which is not known; {suggestion(name, known)}")
    kind = part_of("algorithm", name)
    missing = _required(kind)
    if missing:
        asked = ", ".join(f"{key}=…" for key in missing)
        raise ParameterError(
            f"method is {name!r}, which has no usual {' and '.join(missing)}; give the method "
            f"itself: {kind.__name__}({asked})"
        )
    made: AnyAlgorithm = kind()
    return made


def _required(kind: type[Any]) -> list[str]:
    return [
        field.name
        for field in config_fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    ]


GROUPS = {
    "Primal-dual methods": "aligned a-fedpd async-feddr consensus fedadmm feddr fedpd feddyn "
    "fedsplit",
    "Corrections at the client": "scaffold scaffnew adabest fedcm fednova",
    "Averaging, server optimisers, asynchronous and personalised": "",
    "Variants that follow a paper's text or program": "",
}
"""Group -> beginnings of the names of its methods; others are in the last but one."""


def group(name: str) -> str:
    """Return the group of a method in lists.

    Example:
        >>> group("fedyogi")
        'Averaging, server optimisers, asynchronous and personalised'
    """
    titles = list(GROUPS)
    if name.endswith(("-released", "-printed")):
        return titles[-1]
    found = (t for t, names in GROUPS.items() if any(name.startswith(n) for n in names.split()))
    return next(found, titles[-2])


def cards() -> list[Card]:
    """All methods."""
    return [card(name) for name in _known()]


@cache
def card(name: str) -> Card:
    """One method."""
    known = _known()
    if name not in known:
        raise ParameterError(
            f"algorithm is {name!r}, which is not known; {suggestion(name, known)}"
        )
    method: AnyAlgorithm = _tried(name)
    vector = torch.zeros(_LENGTH)
    client = method.init_client(vector)
    server = method.init_server(vector)
    broadcast = method.broadcast(server, Round(0, 0))
    catch_up = initial_catch_up(method, server)
    result = LocalResult.like(vector)
    _, message = method.client_update(broadcast, client, result)
    summary, _, details = inspect.cleandoc(type(method).__doc__ or "").partition("\n")
    return Card(
        name=name,
        paper=method.paper,
        summary=summary,
        details=_SECTION.split(details)[0].strip(),
        meanings=_meanings(details),
        state=_state(client),
        up=_vectors(message),
        down=_vectors(broadcast) + (0 if catch_up is None else _vectors(catch_up.total)),
        accepts=_accepts(method),
        keys=_keys(name),
    )


def _meanings(details: str) -> dict[str, str]:
    """The entries under `Args:`, each in one line."""
    section = _SECTION.split(details.partition("Args:\n")[2])[0]
    entries = re.split(r"^    (?=\w+: )", section, flags=re.MULTILINE)
    pairs = (" ".join(entry.split()).partition(": ") for entry in entries if entry.strip())
    return {key: meaning for key, _, meaning in pairs}


def _tried(name: str) -> AnyAlgorithm:
    """The method with its defaults; what has none gets a one, which is in every range."""
    kind = _known()[name]
    made: AnyAlgorithm = kind(**dict.fromkeys(_required(kind), 1.0))
    return fit_penalties(made, lambda: 1.0)


def _vectors(tree: Any) -> float:
    return round(trees.num_bytes(tree) / (4 * _LENGTH), 2)


def _state(client: Any) -> list[str]:
    fields = getattr(client, "_fields", ())
    sizes = {field: getattr(client, field) for field in fields}
    return [
        field if value.numel() == _LENGTH else f"{field} (a number)"
        for field, value in sizes.items()
        if isinstance(value, torch.Tensor)
    ]


def _accepts(method: AnyAlgorithm) -> list[str]:
    requirements = method.requirements
    needs, partial = requirements.local, not requirements.full_participation
    return [
        "partial participation" if partial else "full participation only",
        *(["stale updates"] if partial and requirements.stale_updates else []),
        "any convex regulariser g" if requirements.regularizer else "g = 0 only",
        *(["any local solver"] if needs.local_solve and not _counts(needs) else []),
        *(["solvers with gradient steps"] if _counts(needs) else []),
        *(["no local solver: one gradient"] if not needs.local_solve else []),
    ]


def _counts(needs: LocalNeeds) -> bool:
    return needs.mean_gradient or needs.step_sum


def _keys(name: str) -> list[str]:
    kind: Any = _known()[name]
    known, required = annotations_of(kind), _required(kind)
    keys = []
    for field in config_fields(kind):
        default = "required" if field.name in required else f"default {field.default!r}"
        keys.append(f"{field.name}: {allowed(known[field.name])}; {default}")
    return keys
