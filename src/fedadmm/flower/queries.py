"""What the server asks besides training: who a node is, and what a model is worth at a site."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedadmm.errors import StateError
from fedadmm.flower.codec import Raw, from_raw, to_raw

if TYPE_CHECKING:
    from flwr.app import RecordDict

    from fedadmm.flower.federation import Federation
    from fedadmm.protocols import Evaluator, Objective

_CONTENT, _HELLO = "fedadmm", "fedadmm.hello"
_MOST_METRICS = 50


def hello() -> RecordDict:
    """The question who a node is; it comes as training, which every app can do."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({_HELLO: ConfigRecord({})})


def is_hello(content: RecordDict) -> bool:
    """Whether a message only asks who is there."""
    return _HELLO in content


def present(client: int) -> RecordDict:
    """A node's answer to who it is."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({_CONTENT: ConfigRecord({"client": client})})


def who(content: RecordDict, clients: int) -> int:
    """The number of the client that a node says it is."""
    record: Any = content.get(_CONTENT)
    number = record.get("client") if record is not None else None
    if type(number) is not int or not 0 <= number < clients:
        raise StateError(
            f"a node says that it is client {str(number)[:40]}, but there are clients 0 … "
            f"{clients - 1}"
        )
    return number


def question(params: Tensor, buffers: Tensor | None) -> RecordDict:
    """A model, to be measured at the sites."""
    from flwr.app import Array, ArrayRecord, RecordDict

    from fedadmm.flower.wire import STYPE

    arrays = ArrayRecord()
    for name, tensor in (("params", params), ("buffers", buffers)):
        if tensor is not None:
            raw = to_raw(tensor.detach().cpu().contiguous())
            arrays[name] = Array(raw.dtype, raw.shape, STYPE, raw.data)
    return RecordDict({_CONTENT: arrays})


def evaluate(
    federation: Federation, objective: Objective, test: Evaluator | None, content: RecordDict
) -> RecordDict:
    """A site's answer: its loss at the model, and its own metrics."""
    from flwr.app import MetricRecord, RecordDict

    tensors = _tensors(content)
    params = tensors["params"]
    if params.shape != (objective.num_parameters,):
        raise StateError(
            f"the model to evaluate has shape {tuple(params.shape)}, but must have "
            f"({objective.num_parameters},)"
        )
    job = federation.client_job(objective, params, str(params.dtype).removeprefix("torch."))
    converted: Any = job.problem.clients[0]
    if "buffers" in tensors:
        converted.flat.load_buffers(tensors["buffers"])
    metrics = {"loss": float(converted.value(params))}
    if test is not None:
        metrics |= {name: float(value) for name, value in test(params).items()}
    return RecordDict({_CONTENT: MetricRecord(metrics)})


def _tensors(content: RecordDict) -> dict[str, Tensor]:
    record: Any = content.get(_CONTENT)
    if record is None or "params" not in record:
        raise StateError("garbage: there is no model to evaluate")
    return {
        name: from_raw(Raw(record[name].dtype, tuple(record[name].shape), record[name].data))
        for name in ("params", "buffers")
        if name in record
    }


def metrics(content: RecordDict) -> dict[str, float]:
    """What a site measured; a StateError when it is not a few finite numbers."""
    record: Any = content.get(_CONTENT)
    values = dict(record) if record is not None else {}
    proper = all(isinstance(v, int | float) and math.isfinite(v) for v in values.values())
    if "loss" not in values or len(values) > _MOST_METRICS or not proper:
        raise StateError("garbage: a site's metrics are no finite numbers")
    return {str(name)[:80]: float(value) for name, value in values.items()}


def mean(answers: dict[int, dict[str, float]], weights: dict[int, float]) -> dict[str, float]:
    """Weighted means over the sites that answered, each metric over those that have it."""
    totals: dict[str, float] = {}
    shares: dict[str, float] = {}
    for client, values in answers.items():
        for name, value in values.items():
            totals[name] = totals.get(name, 0.0) + weights[client] * value
            shares[name] = shares.get(name, 0.0) + weights[client]
    return {name: total / shares[name] for name, total in totals.items()}
