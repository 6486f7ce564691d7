"""The gate of a site: applies its policy before the app runs, and records what leaves.

ledger_0/left.jsonl            what left, one line each, on the disk before it leaves
ledger_0/asked-RUN.json        a run that waits for approval, and its terms
ledger_0/approved-RUN.json     the terms that were approved at the site
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedadmm.core import atomic_files, clock
from fedadmm.core.aggregation import MaskedSum
from fedadmm.core.errors import CompatibilityError, ConfigError, EngineError, StateError
from fedadmm.core.objectives import Objective
from fedadmm.core.parts import name_of
from fedadmm.core.pipeline import UpdatePipeline
from fedadmm.core.solvers.private import RecordNoise
from fedadmm.flower.federation import Federation
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.ledger import ReplyKind, Task, reply_to
from fedadmm.flower.site.policy import POLICY, DeclinedError, SitePolicy, read_policy
from fedadmm.flower.site.site_state import FOLDER, NoisedStep, OverBudgetError, SiteAccount

if TYPE_CHECKING:
    from flwr.app import Context, RecordDict

LEFT = "left.jsonl"
APP_HASH = "FEDADMM_APP_SHA256"
"""The environment variable in which `deploy node` passes the hash of the app that it starts."""
_ASKED, _APPROVED = "asked-{}.json", "approved-{}.json"
_UPLOADS_PER_ROUND = 2
"""An approved run gets this many uploads per round, because some rounds have to be repeated."""
_RUN = re.compile(r"[0-9a-zA-Z-]{1,64}")
_FOLDERS = re.compile(
    r"""(?:(?<=[\s'"(=:])|^)~?/(?=[\w.])(?:[^\s'":,;()/]+/)*|(?<=['"])/(?:[^'"/]+/)*"""
)
_logger = logging.getLogger("fedadmm")


@contextmanager
def errors_stay() -> Iterator[None]:
    """Keep errors of a site's data or code in the site's own log.

    Flower sends the text of an exception to the server, and that of a loader or of torch may quote
    a sample.  Errors of the protocol and of its configuration quote none and pass.
    """
    try:
        yield
    except (StateError, ConfigError, CompatibilityError, OverBudgetError):
        raise
    except Exception as error:
        _logger.exception("the site's app failed; the reason is not sent to the server")
        kind = type(error).__name__  # the class is code, and quotes no sample
        raise EngineError(f"the site's app failed with {kind}; its own log says why") from None


@contextmanager
def folders_stay(node: Mapping[str, Any]) -> Iterator[None]:
    """Remove the site's folders from the text of an error, which Flower sends to the server."""
    try:
        yield
    except Exception as error:
        text = without_folders(str(error), node)
        if text == str(error):
            raise
        _logger.error("%s", error)
        if isinstance(error, OSError):
            raise StateError(text) from None
        error.args = (text,)
        raise


def without_folders(text: str, node: Mapping[str, Any]) -> str:
    """Return a text in which absolute paths are shortened to what follows the last folder.

    Args:
        text: what is about to leave the site.
        node: the node's configuration; paths in it may contain spaces.
    """
    for value in node.values():
        if isinstance(value, str) and Path(value).is_absolute():
            text = text.replace(f"{Path(value).parent}/", "")
    return _FOLDERS.sub("", text)


class Terms(NamedTuple):
    """What a run asks of a site, as the site's own copy of the app defines it."""

    app: str
    """The SHA-256 hash of the app; empty if `fedadmm deploy node` did not start it."""
    algorithm: str
    model: str
    uploads: list[str]
    clip: str
    """The clip of every upload with its norm; empty without one."""
    aggregator: str
    minimum_sites: int
    """With secure aggregation, the fewest sites of a sum; 0 if the server sees single uploads."""
    clients: int
    rounds: int
    local: str
    personal: str
    """The part of the model that stays at the site; empty if all of it is shared."""
    noise: str
    """The noise that the site itself adds; empty without any."""

    @classmethod
    def of(cls, federation: Federation) -> Terms:
        """Return the terms of a federation."""
        run, client = federation.experiment, federation.problem.clients[0]
        solver, pipeline = run.local.solver, UpdatePipeline.of(run.pipeline)
        module: Any = client if client.flat is None else client.flat.module
        noise = "" if solver is None or solver.noise is None else str(solver.noise)
        if run.aggregator.is_secure and pipeline.noise is not None:
            noise = noise or str(pipeline.noise)  # added in shares, before the sum
        aggregator = run.aggregator.fitted(pipeline)
        return cls(
            app=os.environ.get(APP_HASH, ""),
            algorithm=name_of(type(run.algorithm)),
            model=f"{type(module).__name__}-{client.num_parameters}",
            uploads=[name_of(type(stage)) for stage in pipeline.stages],
            clip="" if pipeline.clip is None else str(pipeline.clip),
            aggregator=str(aggregator),
            minimum_sites=aggregator.minimum if isinstance(aggregator, MaskedSum) else 0,
            clients=federation.clients,
            rounds=run.rounds,
            local=f"{solver}, {run.local.stop}",
            personal="" if run.local.personal is None else str(run.local.personal),
            noise=noise,
        )

    def written(self) -> bytes:
        """Return the file that is read at the site before the run is approved."""
        return json.dumps(self._asdict(), indent=1).encode()


class Gate:
    """Applies a site's policy to its messages.

    Args:
        federation: the site's own copy of the federation.
        context: Flower's context of the node, whose configuration has precedence.
        base: the state folder of the site.
        client: the number of this client.
        app: the policy of the app, for a site without `site.toml`.
    """

    def __init__(
        self, federation: Federation, context: Context, base: Path, client: int, app: SitePolicy
    ) -> None:
        self._federation = federation
        self._folder = base / FOLDER.format(client)
        self._node = context.node_config
        self.account = SiteAccount(base, client)
        self.policy = node_policy(context.node_config, base, app)

    def check_task(
        self, content: RecordDict, task: Task, body: bytes, objective: Callable[[], Objective]
    ) -> None:
        """Check a task before anything is computed for it.

        Raises:
            DeclinedError: the site's policy does not allow it.
        """
        self._refuse(content, task.run)
        self.policy.refuse_size(len(body))
        if self.policy.task_steps is not None:
            with errors_stay():
                steps = _steps(self._federation, objective(), task.client)
            self.policy.refuse_steps(steps)

    def check_rounds(self, task: Task) -> None:
        """Check that an approved run gets no more updates of this site than it has rounds.

        An honest server aggregates at most one update per round, and rounds without any are not
        counted.  A server that never acknowledges an update is limited by the number of uploads.

        Raises:
            DeclinedError: the rounds that were approved are over.
        """
        if not self.policy.approval:
            return
        run = self._federation.experiment
        rounds = run.rounds + (run.algorithm.requirements.initial_round is not None)
        with self.account.locked():
            count = self.account.uploads(task.run, additional=task.id)
        if task.acked_version >= rounds or count >= _UPLOADS_PER_ROUND * rounds:
            raise DeclinedError(
                f"rounds is {run.rounds} in the terms that were approved, but {task.acked_version} "
                f"updates of run {task.run} were aggregated, and {count} uploads have left"
            )

    def count_upload(self, task: Task) -> None:
        """Count an upload of an approved run, before it leaves."""
        if self.policy.approval:
            with self.account.locked():
                self.account.count_upload(task.run, task.id)

    def decline(self, task: Task, error: Exception) -> RecordDict:
        """Return the reply that a task is declined; the whole reason is in the site's log."""
        _logger.warning("run %s, task %d: %s", task.run, task.sequence, error)
        reason = without_folders(str(error), self._node)
        return wire.write(reply_to(task, ReplyKind.DECLINED, reason), b"")

    def record_reply(self, task: Task, reply: RecordDict) -> None:
        """Record what leaves in answer to a task, before it does."""
        kind = str(wire.read_record(reply, wire.HEAD).get("kind"))
        self._note(task.run, task.sequence, kind, len(wire.read_body(reply)))

    def evaluate(self, content: RecordDict, answer: Callable[[], RecordDict]) -> RecordDict:
        """Return the reply to an evaluation, with the metrics that may leave; it is recorded."""
        try:
            self._refuse(content, None)
            if self.policy.approval and not self._some_run_is_approved():
                raise DeclinedError(
                    f"approval is true in this site's {POLICY}, but no run with these terms is "
                    "approved, and metrics leave only after that"
                )
            self.policy.refuse_size(len(wire.read_body(content)))
            with errors_stay():
                found = answer()
        except (DeclinedError, OverBudgetError) as error:
            _logger.warning("a question for metrics: %s", error)
            found = wire.write_declined(without_folders(str(error), self._node))
        if wire.METRICS in found:
            found = self._leaving(found)
            if not wire.read_metrics(found):
                found = wire.write_declined(f"no metric may leave by this site's {POLICY}")
        size = 8 * len(wire.read_record(found, wire.METRICS)) + len(wire.read_body(found))
        kind = (
            "metrics" if size else str(ReplyKind.READY)
        )  # a key: the words leave when a set is known
        self._note("", 0, ReplyKind.DECLINED if wire.DECLINED in found else kind, size)
        return found

    def declines(self) -> str | None:
        """Return why no model is evaluated; None if one is, and it is counted.

        The limit is the site's own: a server without one could reconstruct every sample.
        """
        noised = self._federation.has_noise
        self.evaluation_noise()  # declines what its noise does not protect
        if self.policy.evaluations == 0:
            return self.policy.declines(0, noised=noised)
        with self.account.locked():
            declined = self.policy.declines(self.account.answered(), noised=noised)
            if declined is None:
                self.account.count_answer()
        return declined

    def evaluation_noise(self) -> float | None:
        """Return the noise of an answer to an evaluation; None for exact metrics.

        Raises:
            DeclinedError: the run protects clients with all their samples, and the noise a sample.
        """
        if not self._federation.has_noise or self.policy.evaluation_noise is None:
            return None
        if self._example_noise() is None:
            if self.policy.evaluations_with_noise:
                return None
            raise DeclinedError(
                f"evaluation_noise is {self.policy.evaluation_noise:g} in this site's {POLICY}, "
                "but protects single samples only, and this run's noise protects whole sites"
            )
        return self.policy.evaluation_noise

    def charge_evaluation(self) -> None:
        """Charge the privacy account for an evaluation with noise, before its result leaves.

        Raises:
            OverBudgetError: the budget of the site or of the run does not allow it.
        """
        noise, run = self.evaluation_noise(), self._example_noise()
        assert noise is not None
        assert run is not None
        with self.account.locked():
            kind = NoisedStep(noise, 1)
            self.account.check_budget(run, kind, 1, self.policy.epsilon, "an evaluation")
            self.account.count_evaluation(noise)

    def _example_noise(self) -> RecordNoise | None:
        solver = self._federation.experiment.local.solver
        return None if solver is None else solver.noise

    def work(self, content: RecordDict, length: Callable[[], float]) -> RecordDict:
        """Return the reply to the question how long the site's local work is; it is recorded."""
        try:
            self._refuse(content, None)
            if self.policy.approval:
                raise DeclinedError(
                    f"approval is true in this site's {POLICY}, so that it says nothing of its "
                    "work before a run is approved; the server must give the penalty as a number"
                )
            with errors_stay():
                found = wire.write_length(length())
        except DeclinedError as error:
            _logger.warning("a question for the local work: %s", error)
            return wire.write_declined(without_folders(str(error), self._node))
        self._note("", 0, "work", 8)
        return found

    def _leaving(self, content: RecordDict) -> RecordDict:
        return wire.write_metrics(self.policy.leaving(wire.read_metrics(content)))

    def _refuse(self, content: RecordDict, run: str | None) -> None:
        key = self.policy.server_key
        if key is not None and not wire.is_signed(content, key):
            raise DeclinedError(
                f"server_key is {key[:16]}… in this site's {POLICY}, but the message is not signed "
                'with it; the operator starts runs with operator-key="keys/operator"'
            )
        terms = Terms.of(self._federation)
        self.policy.refuse(terms)
        if self.policy.approval and run is not None:
            self._check_approved(run, terms)

    def _check_approved(self, run: str, terms: Terms) -> None:
        if not _RUN.fullmatch(run):
            raise StateError(f"the run is called {run[:80]!r}, which is no name of a run")
        atomic_files.make_private_directory(self._folder)
        wanted = terms.written()
        found = atomic_files.read_if_there(self._folder / _APPROVED.format(run))
        if found == wanted:
            return
        asked = self._folder / _ASKED.format(run)
        if atomic_files.read_if_there(asked) != wanted:
            atomic_files.write(asked, wanted)
        changed = "" if found is None else " with other terms than those that were approved"
        raise DeclinedError(
            f"approval is true in this site's {POLICY}, but run {run} waits for it{changed}; "
            f"fedadmm deploy approve {self._folder.parent} {run}"
        )

    def _some_run_is_approved(self) -> bool:
        """Return whether a run with these terms is approved; an evaluation names no run."""
        wanted = Terms.of(self._federation).written()
        atomic_files.make_private_directory(self._folder)
        begin = _APPROVED.partition("{")[0]
        names = (n for n in atomic_files.names(self._folder) if n.startswith(begin))
        return any(atomic_files.read_if_there(self._folder / name) == wanted for name in names)

    def _note(self, run: str, sequence: int, kind: str, size: int) -> None:
        """Record what leaves, before it does; a declined task reveals nothing of the samples."""
        if kind == ReplyKind.DECLINED:
            return
        line: dict[str, Any] = {
            "at": clock.timestamp(),
            "run": run,
            "task": sequence,
            "kind": kind,
            "bytes": size,
        }
        with self.account.locked():
            delta = _delta(self._federation)
            if delta is not None:
                line |= {"epsilon": self.account.epsilon(delta), "delta": delta}
            # The break comes first: a line that a power cut tore does not spoil the next.
            data = b"\n" + json.dumps(line).encode()
            atomic_files.append(self._folder / LEFT, data, durable=True)


def node_policy(
    node: Mapping[str, Any], base: Path | None = None, app: SitePolicy | None = None
) -> SitePolicy:
    """Return the policy of a node.

    Args:
        node: the node's configuration; it has precedence, and may name the policy's file.
        base: the state folder, by default that of the configuration; it may hold `site.toml`.
        app: the policy of the app, for a site without a file.
    """
    if base is None and isinstance(node.get("state-dir"), str):
        base = Path(str(node["state-dir"]))
    named = node.get("policy")
    path = None if base is None else base / POLICY
    if named is not None:
        path = Path(str(named))
        if not atomic_files.exists(path):
            raise ConfigError(f"node-config: policy is {str(named)!r}, but there is no such file")
    found = path is not None and atomic_files.exists(path)
    policy = read_policy(path) if path is not None and found else app or SitePolicy()
    return policy.configured(node)


def _steps(federation: Federation, objective: Objective, client: int) -> int:
    local = federation.experiment.local
    size = None if local.solver is None else local.solver.batch_size
    per_epoch = 1 if size is None else -(-objective.num_samples // size)
    return 0 if local.stop is None else local.stop.largest_budget(per_epoch, client)


def _delta(federation: Federation) -> float | None:
    run = federation.experiment
    noise: Any = None if run.local.solver is None else run.local.solver.noise
    noise = noise or UpdatePipeline.of(run.pipeline).noise
    return None if noise is None else float(noise.delta)


def waiting(base: Path) -> dict[str, dict[str, Any]]:
    """Return the runs that wait for approval at a site, with their terms."""
    found = {}
    for folder in _folders(base):
        for name in atomic_files.names(folder):
            match = re.fullmatch(r"asked-(.+)\.json", name)
            if match:
                data = atomic_files.read(folder / name)
                if atomic_files.read_if_there(folder / _APPROVED.format(match[1])) != data:
                    found[match[1]] = _object(folder / name, data)
    return found


def approve(base: Path, run: str) -> dict[str, Any]:
    """Approve a run that waits, with exactly its present terms; return them."""
    found = waiting(base)
    if run not in found:
        listed = ", ".join(found) or "none"
        raise ConfigError(
            f"RUN is {run!r}, which does not wait for approval here; there are: {listed}"
        )
    for folder in _folders(base):
        data = atomic_files.read_if_there(folder / _ASKED.format(run))
        if data is not None:
            atomic_files.write(folder / _APPROVED.format(run), data)
    return found[run]


def left(base: Path) -> Iterator[dict[str, Any]]:
    """Yield what has left a site, oldest first, without a line that a power cut tore."""
    for folder in _folders(base):
        lines = (atomic_files.read_if_there(folder / LEFT) or b"").split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                _logger.warning("%s: line %d is torn, and left out", folder / LEFT, number)
                continue
            if isinstance(found, dict):
                yield {"client": int(folder.name.rpartition("_")[2])} | found


def _folders(base: Path) -> list[Path]:
    found = [base / name for name in atomic_files.names(base) if re.fullmatch(r"ledger_\d+", name)]
    if not found:
        raise ConfigError(f"STATE: got '{base}', expected the state-dir of a site that was asked")
    return found


def _object(path: Path, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise StateError(f"{path} is damaged; remove it, and the next task writes it again")
    return found
