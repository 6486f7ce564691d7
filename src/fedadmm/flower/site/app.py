"""The site's half: answer a task from durable state, commit before the reply leaves."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fedadmm.core.codec import digest, encode, pack, unpack
from fedadmm.core.errors import ConfigError, StateError
from fedadmm.core.messages import ClientRecord
from fedadmm.core.objectives import Objective
from fedadmm.core.pipeline import UpdatePipeline
from fedadmm.core.problem import Evaluator
from fedadmm.core.solvers.private import RecordNoise
from fedadmm.flower.federation import Federation
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.admission import seal
from fedadmm.flower.protocol.ledger import (
    Action,
    RefusedError,
    Reply,
    ReplyKind,
    Task,
    decide,
    reply_to,
)
from fedadmm.flower.protocol.payloads import (
    EvaluationRequest,
    TaskPayload,
    check_like,
    decode,
    encode_result,
    payload_template,
)
from fedadmm.flower.secure_aggregation.masked_messages import (
    metric_words,
    read_set,
    subject,
    to_body,
)
from fedadmm.flower.secure_aggregation.pending_uploads import (
    Origin,
    SiteMasking,
    client_of,
    failed_round,
    last_acknowledged,
    site_masking,
)
from fedadmm.flower.site.gate import Gate
from fedadmm.flower.site.policy import POLICY, SitePolicy
from fedadmm.flower.site.state import SiteAccount, SiteState, Steps
from fedadmm.run.client import (
    ClientRound,
    Job,
    client_round,
    first_record,
    moved_along,
    record_layout,
)
from fedadmm.run.privacy import steps_per_epoch

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp

STATE_DIR = "state-dir"
_logger = logging.getLogger("fedadmm")
_VECTORS, _ROOM = 8, 2**20
"""The largest parcel that is let in: this many vectors of doubles, and this many bytes besides."""


class Site(NamedTuple):
    """What a site brings: its objective, and optionally metrics of a vector on its own rows."""

    objective: Objective
    test: Evaluator | None = None


Load = Callable[["Context"], Objective | Site]
"""Makes a site's objective from its node configuration; called once per message that needs it."""


def client_app(federation: Federation, load: Load, policy: SitePolicy | None = None) -> ClientApp:
    """A Flower ClientApp that runs any algorithm of the package on a site's own data.

    The node's configuration must hold `partition-id`, the number of this client, and `state-dir`,
    a folder of this site that survives restarts.  The site's policy is the file `site.toml` in that
    folder, or the one that `policy` of the node's configuration names; without it, `policy`.  What
    the node's configuration says of a `SitePolicy` comes before both.
    """
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    def train(message: Message, context: Context) -> Message:
        objective = cache(lambda: _site(load, context).objective)

        def length() -> float:
            return federation.length(objective(), client_number(context))

        found = trained(federation, context, message.content, policy, objective, length)
        return Message(found, reply_to=message)

    def evaluate(message: Message, context: Context) -> Message:
        content = message.content
        gate = gate_of(federation, context, content, policy)

        def reply() -> RecordDict:
            if federation.experiment.aggregator.is_secure:
                site = partial(_site, load, context)
                return _masked_metrics(federation, site, context, content, gate)
            declined = gate.declines()
            if declined is not None:
                return wire.write_declined(declined)
            measured = _measure(federation, _site(load, context), wire.read_body(content))
            return wire.write_metrics(measured)

        return Message(gate.evaluate(content, reply), reply_to=message)

    app = ClientApp()
    app.train()(train)
    app.evaluate()(evaluate)
    return app


def gate_of(
    federation: Federation, context: Context, content: RecordDict, policy: SitePolicy | None
) -> Gate:
    """What stands between this site's messages and its app."""
    base, client = state_base(context, content), client_number(context)
    return Gate(federation, context, base, client, policy or SitePolicy())


def trained(
    federation: Federation,
    context: Context,
    content: RecordDict,
    policy: SitePolicy | None,
    objective: Callable[[], Objective],
    length: Callable[[], float],
    measured: Callable[[], Mapping[str, float]] = dict,
) -> RecordDict:
    """The answer to what comes as training: who is there, how long its work is, or a task."""
    if wire.HELLO in content and wire.WORK not in content:
        return wire.present(client_number(context))
    gate = gate_of(federation, context, content, policy)
    if wire.HELLO in content:
        return gate.work(content, length)

    def work() -> RecordDict:
        found = answer(federation, objective, context, content, gate.policy)
        found.update(wire.write_metrics(measured()) if measured() else {})
        return found

    return gate.train(content, objective, work)


def answer(
    federation: Federation,
    objective: Callable[[], Objective],
    context: Context,
    content: RecordDict,
    agreed: SitePolicy,
) -> RecordDict:
    """The answer to a task."""
    number = client_number(context)
    task, body = wire.read_task(content)
    if number != task.client:
        raise StateError(f"the task is for client {task.client}, but this node is client {number}")
    asked, length = wire.SET in content, None
    if federation.per_work and not asked:
        length = wire.read_length(content)
        federation = federation.fitted(length)
    folder = state_folder(context, task.run, task.client, content)
    mask = site_masking(federation, context.node_config, agreed, folder, length)
    if not asked and digest(body) != task.broadcast_digest:
        raise StateError("the task's digest is not that of its content")
    state = SiteState(folder)
    account = SiteAccount(state_base(context, content), task.client)
    budget = agreed.epsilon
    with torch.no_grad(), state.locked():
        if mask is not None and asked:
            spend = partial(_spend, federation, account, task.run, budget)
            return wire.write(*mask.release(state, task, content, spend))
        reply, sent = work(federation, objective, state, task, body, account, budget, mask)
        if mask is None or reply.kind is not ReplyKind.READY:
            return wire.write(reply, sent)
        return wire.write(reply, b"", mask.beside(task.id, acknowledged=last_acknowledged(state)))


def work(
    federation: Federation,
    objective: Callable[[], Objective],
    state: SiteState,
    task: Task,
    body: bytes,
    account: SiteAccount,
    budget: float | None = None,
    mask: SiteMasking | None = None,
) -> tuple[Reply, bytes]:
    """Answer one task: replay, compute, or say why not; the data are loaded only to compute."""
    decision = decide(state.ledger(), task)
    if decision.forget:
        state.forget()
    if decision.promote:
        state.promote()
        if mask is not None:
            mask.waiting().settled()
    if decision.action is Action.LOST:
        return reply_to(task, ReplyKind.LOST, decision.reason), b""
    if decision.action is Action.STALE:
        return reply_to(task, ReplyKind.STALE, decision.reason), b""
    if decision.action is Action.REPLAY:
        stored = state.pending()
        if stored is not None and (mask is None or mask.replays(task, stored[1])):
            return stored
    counted = partial(_counted_round, account, budget)
    return _compute(federation, objective(), state, task, body, counted, mask)


def _compute(
    federation: Federation,
    objective: Objective,
    state: SiteState,
    task: Task,
    body: bytes,
    counted: Callable[[Job, Task, ClientRecord | None, TaskPayload], ClientRound],
    mask: SiteMasking | None,
) -> tuple[Reply, bytes]:
    most = _VECTORS * 8 * objective.num_parameters + _ROOM
    if len(body) > most:
        raise StateError(f"the task has {len(body)} bytes, but at most {most} may come")
    try:
        packed = decode(body)
        job = federation.client_job(
            objective, packed.tensors.get("initial"), str(packed.plain.get("precision"))
        )
        template = payload_template(job)
        check_like(template, packed, optional=True)
    except RefusedError as error:
        raise StateError(f"the task does not fit this site's model: {error}") from None
    parcel = unpack(template, packed)
    job = job._replace(initial_buffers=parcel.initial_buffers)
    record = state.acked(record_layout(job))
    if parcel.missed is not None:
        record = moved_along(job, record or first_record(job), parcel.missed)
    done = counted(job, task, record, parcel)
    if mask is not None:
        return mask.ready(job, state, task, parcel, record, done), b""
    if done.record is None:
        return reply_to(
            task, ReplyKind.FAILED, "the local result holds NaN or infinite entries"
        ), b""
    sent = encode(pack(encode_result(done)))
    reply = seal(reply_to(task, ReplyKind.UPDATE), sent)
    state.commit(reply, sent, done.record)
    return reply, sent


def _counted_round(
    account: SiteAccount,
    budget: float | None,
    job: Job,
    task: Task,
    record: ClientRecord | None,
    parcel: TaskPayload,
) -> ClientRound:
    """The client's round; noised steps are counted here, where none of them gets lost."""
    client = task.client
    noise = None if job.solver is None else job.solver.noise
    if noise is None:
        return _local_round(job, client, record, parcel)
    per_epoch = steps_per_epoch(job, client)
    kind, most = (
        Steps(float(noise.multiplier), per_epoch),
        job.stop.largest_budget(per_epoch, client),
    )
    with account.locked():
        account.check_budget(noise, kind, most, budget)
        try:
            done = _local_round(job, client, record, parcel)
        except Exception:
            # How many steps were made before the error is unknown, so all of them count.
            account.count_steps(task.run, kind, most)
            raise
        made = account.count_steps(task.run, kind, done.info.solve.steps)
    return done._replace(info=done.info._replace(noised=made))


def _local_round(
    job: Job, client: int, record: ClientRecord | None, parcel: TaskPayload
) -> ClientRound:
    """The client's round; where uploads are masked, an error of the local work is no answer."""
    try:
        return client_round(job, client, record, parcel.download, parcel.round_index)
    except Exception:
        if not job.aggregator.is_secure:
            raise
        _logger.exception("the local work failed; the server is not told")
        return failed_round(job, client, record, parcel.download)


def _spend(federation: Federation, account: SiteAccount, run: str, budget: float | None) -> None:
    """Count an upload whose noise is added in shares, before it leaves."""
    noise = UpdatePipeline.of(federation.experiment.pipeline).noise
    if noise is None:
        return
    kind = Steps(float(noise.multiplier), 1)
    with account.locked():
        spent = RecordNoise(noise.multiplier, 0.0, noise.delta, noise.budget)
        account.check_budget(spent, kind, 1, budget)
        account.count_steps(run, kind, 1)


def _masked_metrics(
    federation: Federation,
    load: Callable[[], Site],
    context: Context,
    content: RecordDict,
    gate: Gate,
) -> RecordDict:
    """An answer that is added up before anybody sees it: a key first, then words under masks."""
    client, about = client_number(context), wire.read_record(content, wire.QUESTION)
    run, number, body = str(about.get("run")), about.get("number"), wire.read_body(content)
    folder = state_folder(context, run, client, content)
    mask, state = (
        site_masking(federation, context.node_config, gate.policy, folder),
        SiteState(folder),
    )
    if mask is None or type(number) is not int:
        raise StateError("the question does not say which it is")
    waiting = mask.waiting("evaluate")
    with torch.no_grad(), state.locked():
        if wire.SET in content:
            task, shares = str(about.get("task")), read_set(content)
            words = waiting.release(mask.peers, task, shares, mask.part.minimum, "")
            return wire.write_body(to_body(words))
        task = digest(body, {"run": run, "number": number})
        if waiting.held(task) is None:
            reason = gate.declines()
            if reason is not None:
                return wire.write_declined(reason)
            found = gate.policy.leaving(_measure(federation, load(), body))
            if not found:
                return wire.write_declined(f"no metric may leave by this site's {POLICY}")
            words = metric_words(mask.part, federation.problem.weight(client), found)
            told = {"task": task, "names": sorted(found)}
            named, model = subject("evaluate", run, number, task), digest(body)
            waiting.hold(mask.peers, task, named, words, told, Origin(model, model))
        return wire.write_body(b"", mask.beside(task, "evaluate"))


def _measure(federation: Federation, site: Site, body: bytes) -> dict[str, float]:
    """A site's loss at a model, and its own metrics."""
    question = read_evaluation_request(body, site.objective.num_parameters)
    params = question.params
    job = federation.client_job(site.objective, params, str(params.dtype).removeprefix("torch."))
    converted: Any = job.problem.clients[0]
    with torch.no_grad():
        if question.buffers is not None:
            converted.flat.load_buffers(question.buffers)
        measured = {"loss": float(converted.value(params))}
        if site.test is not None:
            measured |= {name: float(value) for name, value in site.test(params).items()}
    return measured


def read_evaluation_request(body: bytes, size: int) -> EvaluationRequest:
    """The model that is to be measured."""
    packed = decode(body)
    params = packed.tensors.get("params")
    if params is None or params.shape != (size,):
        raise StateError(f"the model to evaluate must be one vector of {size} numbers")
    return unpack(EvaluationRequest(params, None), packed)


def _site(load: Load, context: Context) -> Site:
    made = load(context)
    return made if isinstance(made, Site) else Site(made)


def client_number(context: Context) -> int:
    """Which client this node is, from its own configuration."""
    return client_of(context.node_config)


def state_folder(context: Context, run: str, client: int, content: RecordDict) -> Path:
    """Where this site keeps the state of one client in one run."""
    if not re.fullmatch(r"[0-9a-zA-Z-]{1,64}", run):
        raise StateError(f"the run is called {run[:80]!r}, which is no name of a run")
    return state_base(context, content) / run / f"client-{client}"


def is_simulated() -> bool:
    """Whether this process is a node that `flwr run` made up: a real one never loads this."""
    return "flwr.simulation.ray_transport.ray_actor" in sys.modules


def state_base(context: Context, content: RecordDict) -> Path:
    """Where this site keeps all its state; only a simulated one lets the server choose."""
    told = wire.read_record(content, wire.PLACE).get(STATE_DIR) if is_simulated() else None
    base = context.node_config.get(STATE_DIR, told)
    if not isinstance(base, str) or not base:
        raise ConfigError(
            f"node-config: state-dir is {base!r}, but must be a folder of this site that survives "
            "restarts, because the client's state is kept there"
        )
    return Path(base)
