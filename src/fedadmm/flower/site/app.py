"""The client app of a site: answer a task from durable state, commit before the reply leaves."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fedadmm.core.codec import digest, encode, pack, unpack
from fedadmm.core.errors import ConfigError, StateError
from fedadmm.core.messages import ClientRecord
from fedadmm.core.objectives import Objective
from fedadmm.core.pipeline import UpdatePipeline
from fedadmm.core.pipeline.postprocessors import GaussianNoise
from fedadmm.core.problem import Evaluator
from fedadmm.core.solvers.private import RecordNoise
from fedadmm.data.problems.named_problem import HeldOut, HeldOutSets
from fedadmm.flower.federation import Federation
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.admission import seal
from fedadmm.flower.protocol.ledger import (
    Action,
    RefusedError,
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
from fedadmm.flower.site.gate import Gate, errors_stay, folders_stay
from fedadmm.flower.site.policy import POLICY, DeclinedError, SitePolicy
from fedadmm.flower.site.site_state import NoisedStep, OverBudgetError, SiteState
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
"""The largest accepted payload: this many vectors in double precision, and this many more bytes."""


class Site(NamedTuple):
    """The data of one site: its objective, and optionally metrics on its own held-out samples."""

    objective: Objective
    test: Evaluator | None = None


Load = Callable[["Context"], Objective | Site]
"""Makes a site's objective from its node configuration; called once per message that needs it."""


def client_app(federation: Federation, load: Load, policy: SitePolicy | None = None) -> ClientApp:
    """Return a Flower ClientApp that runs any algorithm of the package on a site's own data.

    The node's configuration must hold `partition-id`, the number of this client, and `state-dir`,
    a folder of this site that survives restarts.

    Args:
        federation: the same federation as the server's.
        load: returns the site's objective, or a `Site` with metrics, for a node's context.
        policy: what the site agrees to, where neither the node's configuration nor the file
            `site.toml` in `state-dir` (or the file that `policy` in the node's configuration names)
            specifies it.  The node's configuration has precedence over the file.
    """
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    def train(message: Message, context: Context) -> Message:
        site = TrainingSite(
            cache(lambda: _site(load, context).objective),
            lambda: federation.length(site.objective(), client_number(context)),
        )
        with folders_stay(context.node_config):
            reply = answer_training(federation, context, message.content, policy, site)
        return Message(reply, reply_to=message)

    def evaluate(message: Message, context: Context) -> Message:
        content = message.content

        def reply() -> RecordDict:
            if federation.experiment.aggregator.is_secure:
                site = partial(_site, load, context)
                return _masked_metrics(federation, site, context, content, gate)
            declined = gate.declines()
            if declined is not None:
                return wire.write_declined(declined)
            measured = _measure(federation, _site(load, context), wire.read_body(content), gate)
            return wire.write_metrics(measured)

        with folders_stay(context.node_config):
            gate = gate_of(federation, context, content, policy)
            return Message(gate.evaluate(content, reply), reply_to=message)

    app = ClientApp()
    app.train()(train)
    app.evaluate()(evaluate)
    return app


class TrainingSite(NamedTuple):
    """What a site contributes to the answer of a training message."""

    objective: Callable[[], Objective]
    """Loads the data; called only if something is computed."""
    length: Callable[[], float]
    """Returns the length of the local work of one round: learning rate * steps."""
    metrics: Callable[[], Mapping[str, float]] = dict
    """Returns what the local training itself measured."""


def gate_of(
    federation: Federation, context: Context, content: RecordDict, policy: SitePolicy | None
) -> Gate:
    """Return the gate that applies this site's policy."""
    base, client = state_base(context, content), client_number(context)
    return Gate(federation, context, base, client, policy or SitePolicy())


def answer_training(
    federation: Federation,
    context: Context,
    content: RecordDict,
    policy: SitePolicy | None,
    site: TrainingSite,
) -> RecordDict:
    """Return the reply to a training message: a task, or one of two questions before the first.

    The questions are which client this node is, and how long its local work is.  A task that the
    site's policy or privacy budget does not allow is answered by the reason.
    """
    if wire.HELLO in content and wire.WORK not in content:
        return wire.write_client(client_number(context))
    gate = gate_of(federation, context, content, policy)
    if wire.HELLO in content:
        return gate.work(content, site.length)
    task, body = wire.read_task(content)
    try:
        gate.check_task(content, task, body, site.objective)
        with errors_stay():
            reply = answer_task(federation, context, content, task, body, gate, site.objective)
            if metrics := site.metrics():
                reply.update(wire.write_metrics(gate.policy.leaving(metrics)))
    except (DeclinedError, OverBudgetError) as error:
        reply = gate.decline(task, error)
    gate.record_reply(task, reply)
    return reply


def answer_task(
    federation: Federation,
    context: Context,
    content: RecordDict,
    task: Task,
    body: bytes,
    gate: Gate,
    objective: Callable[[], Objective],
) -> RecordDict:
    """Return the reply to a task that the site's policy allows.

    The stored reply is repeated if the same task comes again; otherwise the local round is computed
    and its reply is on the disk before it leaves.  With secure aggregation the upload waits at the
    site until the task comes with the set of sites whose uploads are summed.
    """
    if client_number(context) != task.client:
        raise StateError(
            f"the task is for client {task.client}, but this node is client "
            f"{client_number(context)}"
        )
    releases, length = wire.SET in content, None
    if federation.per_work and not releases:
        length = wire.read_length(content)
        federation = federation.fitted(length)
    folder = state_folder(context, task.run, task.client, content)
    mask = site_masking(federation, context.node_config, gate.policy, folder, length)
    if not releases and digest(body) != task.broadcast_digest:
        raise StateError("the task's digest is not that of its content")
    state = SiteState(folder)
    with torch.no_grad(), state.locked():
        if mask is not None and releases:
            charge = partial(_charge_release, federation, gate, task, mask)
            return wire.write(*mask.release(state, task, content, charge))
        decision = decide(state.ledger(), task)
        if decision.forget:
            state.forget()
        if decision.promote:
            state.promote()
            if mask is not None:
                mask.pending().discard()
        if decision.action in (Action.LOST, Action.STALE):
            kind = ReplyKind.LOST if decision.action is Action.LOST else ReplyKind.STALE
            return wire.write(reply_to(task, kind, decision.reason), b"")
        if decision.action is Action.REPLAY:
            stored = state.pending()
            if stored is not None and mask is None:
                return wire.write(*stored)
            if stored is not None and mask is not None and mask.replays(task, stored[1]):
                return _ready(mask, task, state)
        gate.check_rounds(task)
        job, payload, record = _job_for(federation, objective(), state, body)
        done = counted_round(job, task, record, payload, gate)
        if mask is not None:
            mask.ready(job, state, task, payload, record, done)
            return _ready(mask, task, state)
        if done.record is None:
            reason = "the local result holds NaN or infinite entries"
            return wire.write(reply_to(task, ReplyKind.FAILED, reason), b"")
        sent = encode(pack(encode_result(done)))
        reply = seal(reply_to(task, ReplyKind.UPDATE), sent)
        state.commit(reply, sent, done.record)
        gate.count_upload(task)
        return wire.write(reply, sent)


def _ready(mask: SiteMasking, task: Task, state: SiteState) -> RecordDict:
    """Return the reply that an upload waits for its set: only a key leaves, and what is demanded.

    It is made from the disk, so that a repeated reply is the same as the first one.
    """
    stored = state.pending()
    assert stored is not None
    attachments = mask.attachments(task.id, acknowledged=last_acknowledged(state))
    return wire.write(stored[0], b"", attachments)


def _job_for(
    federation: Federation, objective: Objective, state: SiteState, body: bytes
) -> tuple[Job, TaskPayload, ClientRecord | None]:
    """Return the local job of a task, its decoded payload and the record to begin with."""
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
    payload = unpack(template, packed)
    job = job._replace(initial_buffers=payload.initial_buffers)
    record = state.acked(record_layout(job))
    if payload.missed is not None:
        record = moved_along(job, record or first_record(job), payload.missed)
    return job, payload, record


def counted_round(
    job: Job, task: Task, record: ClientRecord | None, payload: TaskPayload, gate: Gate
) -> ClientRound:
    """Compute the client's round, with its noised steps in the site's privacy account.

    With secure aggregation an error of the local work is not reported, because the server could
    learn from it: the site then contributes zero.
    """
    with _charged(job, task, gate) as charge:
        try:
            done = client_round(job, task.client, record, payload.download, payload.round_index)
        except Exception:
            if not job.aggregator.is_secure:
                raise
            _logger.exception("the local work failed; the server is not informed")
            done = failed_round(job, task.client, record, payload.download)
        return charge(done)


@contextmanager
def _charged(job: Job, task: Task, gate: Gate) -> Iterator[Callable[[ClientRound], ClientRound]]:
    """Check the budget before noised local work, and charge the account for the steps made.

    With secure aggregation nothing is charged here: only a key leaves the site before the set is
    known, whatever the local result is, and a result that never leaves consumes no privacy.
    `_charge_release` charges the account before the masked words leave.
    """
    noise = None if job.solver is None else job.solver.noise
    account, budget = gate.account, gate.policy.epsilon
    if noise is None:
        shared = job.pipeline.noise if job.aggregator.is_secure else None
        if shared is not None:
            with account.locked():
                account.check_budget(
                    _share(shared), NoisedStep(float(shared.multiplier), 1), 1, budget
                )
        yield lambda done: done
        return
    per_epoch = steps_per_epoch(job, task.client)
    kind = NoisedStep(float(noise.multiplier), per_epoch)
    most = job.stop.largest_budget(per_epoch, task.client)

    def charge(done: ClientRound) -> ClientRound:
        steps = done.info.solve.steps
        if job.aggregator.is_secure:
            made = account.made(task.run) + steps
        else:
            made = account.count_steps(task.run, kind, steps)
        return done._replace(info=done.info._replace(noised=made))

    with account.locked():
        account.check_budget(noise, kind, most, budget)
        try:
            yield charge
        except Exception:
            # How many steps were made before the error is unknown, so all of them count.
            account.count_steps(task.run, kind, most)
            raise


def _charge_release(federation: Federation, gate: Gate, task: Task, mask: SiteMasking) -> None:
    """Charge the account for an upload, before its masked words leave for the first time.

    The noise is that of the local steps (DP-SGD), or this site's share of the sum's noise.
    """
    gate.check_rounds(task)
    run = federation.experiment
    local = None if run.local.solver is None else run.local.solver.noise
    shared = UpdatePipeline.of(run.pipeline).noise
    noise, kind, steps = local, NoisedStep(1.0, 1), 0
    if local is not None:
        held = mask.pending().find(task.id)
        assert held is not None, "`release` has found the upload"
        steps = int(held.reported["steps"])
        per_epoch = max(1, round(steps / held.reported["epochs"])) if steps else 1
        kind = NoisedStep(float(local.multiplier), per_epoch)
    elif shared is not None:
        noise = _share(shared)
        kind, steps = NoisedStep(float(shared.multiplier), 1), 1
    if noise is not None:
        with gate.account.locked():
            gate.account.check_budget(noise, kind, steps, gate.policy.epsilon)
            gate.account.count_steps(task.run, kind, steps)
    gate.count_upload(task)


def _share(noise: GaussianNoise) -> RecordNoise:
    """Return the noise of a sum as the privacy account of one site has it."""
    return RecordNoise(noise.multiplier, 0.0, noise.delta, noise.budget)


def _masked_metrics(
    federation: Federation,
    load: Callable[[], Site],
    context: Context,
    content: RecordDict,
    gate: Gate,
) -> RecordDict:
    """Return masked metrics: first a key, then the words under the masks of a set of sites."""
    client, about = client_number(context), wire.read_record(content, wire.QUESTION)
    run, number, body = str(about.get("run")), about.get("number"), wire.read_body(content)
    folder = state_folder(context, run, client, content)
    mask, state = (
        site_masking(federation, context.node_config, gate.policy, folder),
        SiteState(folder),
    )
    if mask is None or type(number) is not int:
        raise StateError("the question does not say which it is")
    waiting = mask.pending("evaluate")
    with torch.no_grad(), state.locked():
        if wire.SET in content:
            task, shares = str(about.get("task")), read_set(content)
            words = waiting.release(mask.peers, task, shares, mask.part.minimum, "")
            return wire.write_body(to_body(words))
        task = digest(body, {"run": run, "number": number})
        if waiting.find(task) is None:
            reason = gate.declines()
            if reason is not None:
                return wire.write_declined(reason)
            found = gate.policy.leaving(_measure(federation, load(), body, gate))
            if not found:
                return wire.write_declined(f"no metric may leave by this site's {POLICY}")
            words = metric_words(mask.part, federation.problem.weight(client), found)
            reported = {"task": task, "names": sorted(found)}
            named, model = subject("evaluate", run, number, task), digest(body)
            waiting.store(mask.peers, task, named, words, reported, Origin(model, model))
        return wire.write_body(b"", mask.attachments(task, "evaluate"))


def _measure(federation: Federation, site: Site, body: bytes, gate: Gate) -> dict[str, float]:
    """Return a site's loss at a model, and its own metrics; or its accuracy with noise."""
    noise = gate.evaluation_noise()
    question = read_evaluation_request(body, site.objective.num_parameters)
    params = question.params
    job = federation.client_job(site.objective, params, str(params.dtype).removeprefix("torch."))
    converted: Any = job.problem.clients[0]
    with torch.no_grad():
        if question.buffers is not None:
            converted.flat.load_buffers(question.buffers)
        if noise is not None:
            return _noised_accuracy(site, converted, params, noise, gate)
        measured = {"loss": float(converted.value(params))}
        if site.test is not None:
            measured |= {name: float(value) for name, value in site.test(params).items()}
    return measured


def _noised_accuracy(
    site: Site, objective: Objective, params: torch.Tensor, noise: float, gate: Gate
) -> dict[str, float]:
    """Return the accuracy from a noised number of correct answers, charged to the account.

    One sample changes the number by at most one, so that this is a Gaussian mechanism with the
    multiplier `noise`; the number of samples is public, as for DP-SGD.  The noise is rounded, so
    that no digits of a floating-point sum show the number.
    """
    test = site.test.sets[-1] if isinstance(site.test, HeldOutSets) else site.test
    if isinstance(test, HeldOut) and len(test.targets) and not test.targets.is_floating_point():
        parts = [test.part(params, index) for index in range(test.num_parts)]
        name, count = f"{test.prefix}_accuracy", len(test.targets)
        correct = sum(part[1] for part in parts)
    elif objective.has_classes:
        name, count = "train_accuracy", objective.num_samples
        correct = objective.value_and_correct(params)[1]
    else:
        raise DeclinedError(
            "evaluation_noise is for numbers of correct answers, but this site's samples have no "
            "classes"
        )
    gate.charge_evaluation()
    noised = int(correct) + round(SystemRandom().gauss(0.0, noise))
    return {name: min(1.0, max(0.0, noised / count))}


def read_evaluation_request(body: bytes, size: int) -> EvaluationRequest:
    """Decode the model that is to be evaluated."""
    packed = decode(body)
    params = packed.tensors.get("params")
    if params is None or params.shape != (size,):
        raise StateError(f"the model to evaluate must be one vector of {size} numbers")
    return unpack(EvaluationRequest(params, None), packed)


def _site(load: Load, context: Context) -> Site:
    made = load(context)
    return made if isinstance(made, Site) else Site(made)


def client_number(context: Context) -> int:
    """Return the number of this node's client, from its own configuration."""
    return client_of(context.node_config)


def state_folder(context: Context, run: str, client: int, content: RecordDict) -> Path:
    """Return the folder of one client's state in one run."""
    if not re.fullmatch(r"[0-9a-zA-Z-]{1,64}", run):
        raise StateError(f"the run is called {run[:80]!r}, which is no name of a run")
    return state_base(context, content) / run / f"client-{client}"


def is_simulated() -> bool:
    """Return whether this process is a simulated node of `flwr run`."""
    return "flwr.simulation.ray_transport.ray_actor" in sys.modules


def state_base(context: Context, content: RecordDict) -> Path:
    """Return the folder of all state of this site; the server chooses it in simulations only."""
    reported = wire.read_record(content, wire.PLACE).get(STATE_DIR) if is_simulated() else None
    base = context.node_config.get(STATE_DIR, reported)
    if not isinstance(base, str) or not base:
        raise ConfigError(
            f"node-config: state-dir: got {base!r}, expected a folder of this site that survives "
            "restarts, because the client's state is kept there"
        )
    return Path(base)
