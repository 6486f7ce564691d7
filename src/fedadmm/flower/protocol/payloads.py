"""The payloads of tasks and replies, and the validation of what is received."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedadmm.core import codec, trees
from fedadmm.core.catch_up import initial_catch_up
from fedadmm.core.codec import FormatError, Packed, pack
from fedadmm.core.errors import ParameterError
from fedadmm.core.local_work import SolveInfo
from fedadmm.core.messages import ClientInfo, Download, Upload
from fedadmm.core.pipeline.postprocessors import joint_norm, vectors_of
from fedadmm.flower.protocol.ledger import LONGEST_TEXT, RefusalReason, RefusedError
from fedadmm.run.client import (
    ClientRound,
    Job,
    message_template,
    this_round,
)

_REPEATS = 8
"""How many times an honest site may repeat the steps of a round whose replies are lost."""


class TaskPayload(NamedTuple):
    """The payload of a task: the broadcast, its round, and the initial vector for a new client."""

    download: Download
    round_index: int
    precision: str
    """The data type of all vectors; some broadcasts have no vector that shows it."""
    initial: Tensor | None = None
    initial_buffers: Tensor | None = None
    missed: Tensor | None = None
    """The catch-up vector of this client, for a method that aligns absent clients."""


class ClientResult(NamedTuple):
    """The payload of a reply: the upload and statistics of the local work."""

    upload: Upload
    info: ClientInfo


class EvaluationRequest(NamedTuple):
    """The payload of a request for metrics: the model that the sites evaluate."""

    params: Tensor
    buffers: Tensor | None


def create_payload(
    job: Job, download: Download, round_index: int, newcomer: bool, missed: Tensor | None = None
) -> TaskPayload:
    """Create the payload for one client; only a new client needs the initial vector."""
    precision = str(job.initial.dtype).removeprefix("torch.")
    shared = download._replace(missed=None)
    if not newcomer:
        return TaskPayload(shared, round_index, precision, missed=missed)
    return TaskPayload(shared, round_index, precision, job.initial, job.initial_buffers, missed)


def payload_template(job: Job) -> TaskPayload:
    """Template of payloads: types only, because some fields are absent in some rounds."""
    algorithm = job.algorithm
    server = algorithm.init_server(job.initial)
    download = Download(algorithm.broadcast(server, this_round(job, 0)), job.initial_buffers)
    download = download._replace(pipeline=job.pipeline.broadcast(job.pipeline.init_state()))
    catch_up = initial_catch_up(algorithm, server)
    return create_payload(job, download, 0, True, None if catch_up is None else catch_up.missed(0))


def result_template(job: Job, download: Download) -> ClientResult:
    """Template of every result for this broadcast: names, shapes and types."""
    message = message_template(job, download.broadcast)
    averaged = job.problem.buffers == "average"
    info = ClientInfo(0, SolveInfo(0, 0.0, 0.0, "", math.nan), 0.0, 0.0, 0.0, True)
    buffers = job.initial_buffers if averaged else None
    if not job.pipeline.changes_messages:
        return ClientResult(Upload(message, buffers), info)
    sent = job.pipeline.on_client(job.algorithm, message, None, 0)
    return ClientResult(Upload(sent.encoded, buffers, sent.statistics), info)


def encode_result(done: ClientRound) -> ClientResult:
    """Encode the result of a client's round as it is sent."""
    if done.encoded is None:
        return ClientResult(done.upload, done.info)
    upload = done.upload._replace(message=done.encoded, encoded_bytes=None)
    return ClientResult(upload, done.info)


def decode_result(
    job: Job, message: Any, bound: Tensor | None, answer: ClientResult
) -> ClientResult:
    """Decode the result of a client.

    Args:
        job: the job of the server.
        message: a template of the message without compression.
        bound: the clip norm of this round, if it is adaptive.
        answer: the result as it was sent.

    Raises:
        RefusedError: the message cannot be decoded, or was not clipped.  The noise is calibrated to
            the clip, so that it would not cover a larger update.
    """
    if not job.pipeline.changes_messages:
        return answer
    encoded = answer.upload.message
    try:
        decoded = job.pipeline.decode_message(encoded, message)
    except ParameterError as error:
        raise RefusedError(RefusalReason.RANGE, str(error)) from None
    if job.pipeline.clip is not None:
        largest = job.pipeline.clip.norm if bound is None else float(bound)
        _check_clipped(job, decoded, answer.upload.statistics, largest)
    size = trees.num_bytes(encoded)
    return answer._replace(upload=answer.upload._replace(message=decoded, encoded_bytes=size))


def _check_clipped(job: Job, message: Any, within: Tensor | None, bound: float) -> None:
    vectors = vectors_of(job.algorithm, message)
    length = joint_norm({name: vector.double() for name, vector in vectors.items()})
    # No later stage increases the norm; the tolerance is for the rounding of the clip itself.
    rounding = max(1e-4, 4 * torch.finfo(job.initial.dtype).eps)
    if not length <= bound * (1 + rounding):
        raise RefusedError(
            RefusalReason.NORM, f"the upload has norm {length:.6g}, but the clip allows {bound:.6g}"
        )
    if within is not None and abs(float(within)) != 0.5:
        raise RefusedError(
            RefusalReason.RANGE, f"upload.statistics: got {float(within):g}, expected -0.5 or 0.5"
        )


def check_work(job: Job, info: ClientInfo, step: int) -> None:
    """Raise a RefusedError for more steps, or noised steps, than the tasks so far request."""
    steps, epochs = info.solve[:2]
    if job.solver is None or math.isnan(epochs):  # a training loop of the site's own app
        return
    per_epoch = max(1, round(steps / epochs)) if epochs > 0 else 1
    each = job.stop.largest_budget(per_epoch, info.client)
    if steps > each:
        raise RefusedError(
            RefusalReason.RANGE, f"info.solve.steps is {steps}, but a round has at most {each}"
        )
    if job.solver.noise is None:
        return
    most = _REPEATS * (step + 2) * each
    if info.noised > most:
        raise RefusedError(
            RefusalReason.RANGE,
            f"info.noised is {info.noised} after a round of {steps} steps, but at most {most} can "
            f"have been made, {each} in a round",
        )


def decode(body: bytes) -> Packed:
    """Decode a message, or raise a RefusedError."""
    try:
        return codec.decode(body, codec.MESSAGE)
    except FormatError as error:
        raise RefusedError(RefusalReason(error.kind), error.detail) from None


def check_like(template: object, packed: Packed, *, optional: bool = False) -> None:
    """Raise a RefusedError unless a message fits its template; `optional` fields may be absent."""
    wanted = pack(template)
    names = set(packed.tensors)
    if not names <= wanted.tensors.keys() or not (optional or names >= wanted.tensors.keys()):
        held, must = _listed(packed.tensors), _listed(wanted.tensors)
        raise RefusedError(RefusalReason.SHAPE, f"it holds {held}, expected {must}")
    for name, got in packed.tensors.items():
        like = wanted.tensors[name]
        if got.dtype != like.dtype:
            raise RefusedError(
                RefusalReason.DTYPE, f"{name}: got {got.dtype}, expected {like.dtype}"
            )
        if got.shape != like.shape:
            raise RefusedError(
                RefusalReason.SHAPE,
                f"{name}: got {tuple(got.shape)}, expected {tuple(like.shape)}",
            )
    if packed.plain.keys() != wanted.plain.keys():
        held, must = _listed(packed.plain), _listed(wanted.plain)
        raise RefusedError(RefusalReason.SHAPE, f"it says {held}, but must say {must}")
    for name, value in packed.plain.items():
        kind = type(wanted.plain[name])
        if type(value) is not kind:
            raise RefusedError(
                RefusalReason.DTYPE,
                f"{name}: got {type(value).__name__}, expected {kind.__name__}",
            )
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            raise RefusedError(
                RefusalReason.SIZE,
                f"{name} has {len(value)} characters, but at most {LONGEST_TEXT} may come",
            )


def _listed(names: Mapping[str, object]) -> str:
    shown = [name[:80] for name in sorted(names)]
    return ", ".join(shown[:8]) + (" …" if len(shown) > 8 else "") or "nothing"
