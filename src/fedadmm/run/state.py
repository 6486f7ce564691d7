"""The state of a run, its checkpoint form, and the reason why a run ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.catch_up import CatchUp
from fedadmm.core.codec import Packed, pack, unpack
from fedadmm.core.errors import ANOTHER_VERSION, StateError
from fedadmm.core.messages import ClientInfo, Download, EngineState
from fedadmm.core.outputs import Iterate
from fedadmm.run.metrics import Best
from fedadmm.run.privacy import NoisedSteps
from fedadmm.run.record import Record

_PREFIX = "components"
_TYPES: tuple[type[Any], ...] = (CatchUp, NoisedSteps, Best, Iterate)
"""NamedTuples that component states contain, in addition to those of their initial states."""


class RunState(NamedTuple):
    """Everything a run needs to continue, except the records of its clients."""

    round: int
    """Index of the next round, which is the number of completed ones; -1 before an initial
    round."""
    server: Any
    """State of the algorithm's server."""
    buffers: Tensor | None
    """Averaged buffers of the model."""
    engine: EngineState | None = None
    """Clock and work in flight of an engine that has them."""
    components: Mapping[str, Any] = {}
    """State of every stateful component, by its key."""

    def with_component(self, key: str, value: Any) -> RunState:
        """Return the state with another state of one component."""
        return self._replace(components={**self.components, key: value})


def pack_state(state: RunState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a state by name, and the rest as JSON values."""
    engine = state.engine or EngineState({}, {})
    downloads = tuple(engine.downloads.values())
    packed = pack(state._replace(engine=downloads, components=()))  # type: ignore[arg-type]
    tensors = dict(packed.tensors)
    values = {
        "plain": packed.plain,
        "engine": None if state.engine is None else engine.values,
        "downloads": list(engine.downloads),
        "components": {
            key: _flatten(value, f"{_PREFIX}.{key}", tensors)
            for key, value in state.components.items()
        },
    }
    return tensors, values


def unpack_state(
    template: RunState, broadcast: Any, tensors: Mapping[str, Tensor], values: Mapping[str, Any]
) -> RunState:
    """Return the state that `pack_state` has packed.

    Args:
        template: initial state of the run, whose components name the expected types.
        broadcast: a broadcast of the method, for the downloads of an engine with work in flight.
        tensors: first result of `pack_state`.
        values: second result of `pack_state`.

    Raises:
        StateError: the checkpoint is of another method, or of a run with other components.
    """
    device = trees.tensors(template.server)[0].device
    moved = {name: tensor.to(device) for name, tensor in tensors.items()}
    packed = Packed(moved, values["plain"])
    number, steps = packed.plain["round"], values["downloads"]
    for name, _ in trees.named_tensors(template.server, "server"):
        if name not in tensors:
            raise StateError(
                f"the checkpoint of round {number} holds {', '.join(sorted(tensors))}, but this "
                f"method needs {name}; {ANOTHER_VERSION}"
            )
    downloads = (Download(broadcast),) * len(steps)
    tree: Any = template._replace(engine=downloads, components=())  # type: ignore[arg-type]
    state: Any = unpack(tree, packed)
    types = {kind.__name__: kind for kind in (*_TYPES, *_types_in(template.components))}
    components = {key: _restore(value, moved, types) for key, value in values["components"].items()}
    for key, initial in template.components.items():
        _check_same_form(number, key, initial, components.get(key))
    engine = None
    if values["engine"] is not None:
        engine = EngineState(values["engine"], dict(zip(steps, state.engine, strict=True)))
    read: RunState = state._replace(engine=engine, components=components)
    return read


def _check_same_form(number: object, key: str, initial: Any, found: Any) -> None:
    """Reject a component state whose tensors are not those of the component of this run."""
    if isinstance(initial, CatchUp):  # it grows with the clients that have participated
        return
    needed = [name for name, _ in trees.named_tensors(initial, key)]
    held = [name for name, _ in trees.named_tensors(found, key)]
    if needed != held:
        raise StateError(
            f"the checkpoint of round {number} holds {', '.join(held) or 'nothing'} of the "
            f"component {key}, but this run needs {', '.join(needed) or 'nothing'}, computed from "
            "the first round on; resume with the components that the run began with"
        )


def _flatten(tree: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return a component state as JSON values, and add its tensors by name to `tensors`."""
    if isinstance(tree, Tensor):
        tensors[path] = tree.detach().cpu().contiguous()
        return {"tensor": path}
    if isinstance(tree, Mapping):
        items = [[k, _flatten(v, f"{path}.{k}", tensors)] for k, v in tree.items()]
        return {"mapping": items}
    if isinstance(tree, list | tuple):
        parts = [_flatten(part, f"{path}.{i}", tensors) for i, part in enumerate(tree)]
        kind = type(tree).__name__ if hasattr(tree, "_fields") else "list"
        return {"sequence": parts, "type": kind}
    return tree


def _restore(plain: Any, tensors: Mapping[str, Tensor], types: Mapping[str, type[Any]]) -> Any:
    """Return the component state that `_flatten` has flattened."""
    if not isinstance(plain, Mapping):
        return plain
    if "tensor" in plain:
        return tensors[plain["tensor"]]
    if "mapping" in plain:
        return {key: _restore(value, tensors, types) for key, value in plain["mapping"]}
    parts = [_restore(part, tensors, types) for part in plain["sequence"]]
    kind = types.get(plain["type"])
    return parts if kind is None else kind(*parts)


def _types_in(tree: Any) -> Iterator[type[Any]]:
    """Yield the NamedTuples in a tree."""
    if isinstance(tree, Mapping):
        tree = tuple(tree.values())
    if isinstance(tree, tuple | list):
        if hasattr(tree, "_fields"):
            yield type(tree)
        for part in tree:
            yield from _types_in(part)


Code = Literal[
    "completed",
    "target",
    "tolerance",
    "patience",
    "budget",
    "diverged",
    "interrupted",
    "running",
    "failed",
]


class Ending(NamedTuple):
    """Why a run ended: a code for programs and a sentence for people."""

    code: Code
    sentence: str
    measured: Mapping[str, float] | None = None
    """Metrics that met the target or the tolerance, by name; None for other endings."""


class RoundReport(NamedTuple):
    """What callbacks receive after every round."""

    state: RunState
    record: Record
    infos: Sequence[ClientInfo]
    ending: Ending | None
