"""The site's half: answer a task from durable state, commit before the reply leaves."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fedadmm.engines.job import run_client
from fedadmm.errors import ConfigError, StateError
from fedadmm.flower.codec import Packed, digest, misfit, pack, unpack
from fedadmm.flower.door import seal
from fedadmm.flower.federation import Federation
from fedadmm.flower.parcels import (
    Answer,
    Kept,
    Parcel,
    answer_template,
    parcel_template,
    record_template,
)
from fedadmm.flower.protocol import Action, Kind, Reply, Task, receive, reply_to
from fedadmm.flower.vault import Vault
from fedadmm.protocols import Evaluator, Objective
from fedadmm.state import MemoryStore

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

NOTHING_TO_SEND = Packed({}, {})
_VECTORS, _ROOM = 8, 2**20
"""The largest parcel that is let in: so many vectors of doubles, and so many bytes besides."""


class Site(NamedTuple):
    """What a site brings: its objective, and optionally metrics of a vector on its own rows."""

    objective: Objective
    test: Evaluator | None = None


Load = Callable[["Context"], Objective | Site]
"""Makes a site's objective from its node configuration; called in every new process."""


def client_app(federation: Federation, load: Load) -> ClientApp:
    """A Flower ClientApp that runs any algorithm of the package on a site's own data.

    The node's configuration must hold `partition-id`, the number of this client, and `state-dir`,
    a folder of this site that survives restarts (the run configuration may hold it instead).
    """
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    from fedadmm.flower import queries, wire

    def train(message: Message, context: Context) -> Message:
        if queries.is_hello(message.content):
            return Message(queries.present(client_number(context)), reply_to=message)
        site = _site(load, context)
        most = _VECTORS * 8 * site.objective.num_parameters + _ROOM
        task, packed = wire.read_task(message.content, most)
        _check_number(context, task)
        vault = Vault(vault_folder(context, task.run, task.client))
        with torch.no_grad():
            reply, answer = work(federation, site.objective, vault, task, packed)
        return Message(wire.write(reply, answer), reply_to=message)

    def evaluate(message: Message, context: Context) -> Message:
        site = _site(load, context)
        with torch.no_grad():
            content = queries.evaluate(federation, site.objective, site.test, message.content)
        return Message(content, reply_to=message)

    app = ClientApp()
    app.train()(train)
    app.evaluate()(evaluate)
    return app


def work(
    federation: Federation, objective: Objective, vault: Vault, task: Task, packed: Packed
) -> tuple[Reply, Packed]:
    """Answer one task: replay, compute, or say why not."""
    if digest(packed, {}) != task.cast_digest:
        raise StateError("the task's digest is not that of its content")
    with vault.locked():
        decision = receive(vault.ledger(), task)
        if decision.forget:
            vault.forget()
        if decision.promote:
            vault.promote()
        if decision.action is Action.LOST:
            return reply_to(task, Kind.LOST, decision.reason), NOTHING_TO_SEND
        if decision.action is Action.STALE:
            return reply_to(task, Kind.STALE, decision.reason), NOTHING_TO_SEND
        job = federation.client_job(
            objective, packed.tensors.get("initial"), str(packed.plain["precision"])
        )
        parcel = _open(parcel_template(job), packed)
        job = job._replace(initial_buffers=parcel.initial_buffers)
        template = Kept(record_template(job), answer_template(job, parcel.download))
        if decision.action is Action.REPLAY:
            reply, kept = vault.pending(template)
            return reply, pack(kept.answer)
        store = MemoryStore()
        record = vault.acked(template.record)
        if record is not None:
            store.commit(task.client, record, parcel.round_index)
        upload, info = run_client(job, store, task.client, parcel.download, parcel.round_index)
        after = store.get(task.client)
        if not info.finite or after is None:
            reason = "the local result holds NaN or infinite entries"
            return reply_to(task, Kind.FAILED, reason), NOTHING_TO_SEND
        answer = Answer(upload, info)
        reply = seal(reply_to(task, Kind.UPDATE), pack(answer))
        vault.commit(reply, Kept(after, answer))
        return reply, pack(answer)


def _open(template: Parcel, packed: Packed) -> Parcel:
    wrong = misfit(template, packed, optional=True)
    if wrong is not None:
        raise StateError(f"the task does not fit this site's model: {wrong}")
    return unpack(template, packed)


def _site(load: Load, context: Context) -> Site:
    made = load(context)
    return made if isinstance(made, Site) else Site(made)


def client_number(context: Context) -> int:
    """Which client this node is, from its own configuration."""
    number: Any = context.node_config.get("partition-id")
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigError(
            f"node-config: partition-id is {number!r}, but must be the number of this client, as "
            "in --node-config 'partition-id=0 state-dir=\"/var/lib/fedadmm\"'"
        )
    return number


def _check_number(context: Context, task: Task) -> None:
    number = client_number(context)
    if number != task.client:
        raise StateError(f"the task is for client {task.client}, but this node is client {number}")


def vault_folder(context: Context, run: str, client: int) -> Path:
    """Where this site keeps the state of one client in one run."""
    base = context.node_config.get("state-dir", context.run_config.get("state-dir"))
    if not isinstance(base, str) or not base:
        raise ConfigError(
            f"node-config: state-dir is {base!r}, but must be a folder of this site that survives "
            "restarts, because the client's state is kept there"
        )
    if not re.fullmatch(r"[0-9a-zA-Z-]{1,64}", run):
        raise StateError(f"the run is called {run[:80]!r}, which is no name of a run")
    return Path(base) / run / f"client-{client}"
