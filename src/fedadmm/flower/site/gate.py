"""The gate of a site: what its policy refuses never reaches the app, and what leaves is noted.

ledger_0/left.jsonl            what left, a line each, on the disk before it does
ledger_0/asked-RUN.json        a run that waits for approval, and its terms
ledger_0/approved-RUN.json     the terms that somebody at the site approved
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedadmm.core import clock, files
from fedadmm.core.errors import CompatibilityError, ConfigError, EngineError, StateError
from fedadmm.core.objectives import Objective
from fedadmm.core.parts import name_of
from fedadmm.core.pipeline import UpdatePipeline
from fedadmm.flower.federation import Federation
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.ledger import ReplyKind, reply_to
from fedadmm.flower.site.policy import POLICY, DeclinedError, SitePolicy, read_policy
from fedadmm.flower.site.state import FOLDER, OverBudgetError, SiteAccount

if TYPE_CHECKING:
    from flwr.app import Context, RecordDict

LEFT = "left.jsonl"
_ASKED, _APPROVED = "asked-{}.json", "approved-{}.json"
_RUN = re.compile(r"[0-9a-zA-Z-]{1,64}")
_logger = logging.getLogger("fedadmm")


@contextmanager
def errors_stay() -> Iterator[None]:
    """Keep what went wrong with a site's data or code in the site's own log.

    Flower sends the text of an exception to the server, and that of a loader or of torch may quote
    a row.  Errors of the protocol and of its configuration quote none and pass.
    """
    try:
        yield
    except (StateError, ConfigError, CompatibilityError, OverBudgetError):
        raise
    except Exception:
        _logger.exception("the site's app failed; the server learns that it did, and not why")
        raise EngineError("the site's app failed; its own log says why") from None


class Terms(NamedTuple):
    """What a run asks of a site, as the site's own app has it."""

    algorithm: str
    model: str
    uploads: list[str]
    clients: int
    rounds: int
    local: str
    noise: str
    """The noise that the site itself adds; empty without any."""

    @classmethod
    def of(cls, federation: Federation) -> Terms:
        """Those of a federation."""
        run, client = federation.experiment, federation.problem.clients[0]
        solver, stages = run.local.solver, UpdatePipeline.of(run.pipeline).stages
        module: Any = client if client.flat is None else client.flat.module
        noise = "" if solver is None or solver.noise is None else str(solver.noise)
        if run.aggregator.is_secure and UpdatePipeline.of(run.pipeline).noise is not None:
            noise = noise or str(UpdatePipeline.of(run.pipeline).noise)  # in shares, before the sum
        return cls(
            name_of(type(run.algorithm)),
            f"{type(module).__name__}-{client.num_parameters}",
            [name_of(type(stage)) for stage in stages],
            federation.clients,
            run.rounds,
            f"{solver}, {run.local.stop}",
            noise,
        )

    def written(self) -> bytes:
        """The file that somebody reads before approving."""
        return json.dumps(self._asdict(), indent=1).encode()


class Gate:
    """What stands between a site's messages and its app."""

    def __init__(
        self, federation: Federation, context: Context, base: Path, client: int, app: SitePolicy
    ) -> None:
        self._federation = federation
        self._account = SiteAccount(base, client)
        self._folder = base / FOLDER.format(client)
        self.policy = _own(context, base, app)

    def train(
        self,
        content: RecordDict,
        objective: Callable[[], Objective],
        answer: Callable[[], RecordDict],
    ) -> RecordDict:
        """The answer to a task, or a reply that says why there is none; either is noted."""
        task, body = wire.read_task(content)
        try:
            self._refuse(content, task.run)
            self.policy.refuse_size(len(body))
            with errors_stay():
                if self.policy.task_steps is not None:
                    self.policy.refuse_steps(_steps(self._federation, objective(), task.client))
                found = answer()
        except (DeclinedError, OverBudgetError) as error:
            _logger.warning("run %s, task %d: %s", task.run, task.sequence, error)
            found = wire.write(reply_to(task, ReplyKind.DECLINED, str(error)), b"")
        if wire.METRICS in found:  # of a training loop of the site's own
            found[wire.METRICS] = self._leaving(found)[wire.METRICS]
        kind = str(wire.read_record(found, wire.HEAD).get("kind"))
        self._note(task.run, task.sequence, kind, len(wire.read_body(found)))
        return found

    def evaluate(self, content: RecordDict, answer: Callable[[], RecordDict]) -> RecordDict:
        """The answer to a question for metrics, those that may leave; it is noted."""
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
        except DeclinedError as error:
            _logger.warning("a question for metrics: %s", error)
            found = wire.write_declined(str(error))
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
        """Why a question for metrics is not answered; None when it is, and it is counted.

        Never by what a message says: a server could ask until it knows every row.
        """
        noised = self._federation.has_noise
        if self.policy.evaluations == 0:
            return self.policy.declines(0, noised=noised)
        with self._account.locked():
            declined = self.policy.declines(self._account.answered(), noised=noised)
            if declined is None:
                self._account.count_answer()
        return declined

    def work(self, content: RecordDict, length: Callable[[], float]) -> RecordDict:
        """The answer to how long the site's local work is; it is noted."""
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
            return wire.write_declined(str(error))
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
        files.make_private_directory(self._folder)
        wanted = terms.written()
        found = files.read_if_there(self._folder / _APPROVED.format(run))
        if found == wanted:
            return
        asked = self._folder / _ASKED.format(run)
        if files.read_if_there(asked) != wanted:
            files.write(asked, wanted)
        changed = "" if found is None else " with other terms than those that were approved"
        raise DeclinedError(
            f"approval is true in this site's {POLICY}, but run {run} waits for it{changed}; "
            f"fedadmm deploy approve {self._folder.parent} {run}"
        )

    def _some_run_is_approved(self) -> bool:
        """Whether a run with the terms of now is; a question for metrics names no run."""
        wanted = Terms.of(self._federation).written()
        files.make_private_directory(self._folder)
        names = (n for n in files.names(self._folder) if n.startswith(_APPROVED.partition("{")[0]))
        return any(files.read_if_there(self._folder / name) == wanted for name in names)

    def _note(self, run: str, sequence: int, kind: str, size: int) -> None:
        """Write down what leaves, before it does; a refusal says nothing of the rows."""
        if kind == ReplyKind.DECLINED:
            return
        line: dict[str, Any] = {
            "at": clock.timestamp(),
            "run": run,
            "task": sequence,
            "kind": kind,
            "bytes": size,
        }
        with self._account.locked():
            delta = _delta(self._federation)
            if delta is not None:
                line |= {"epsilon": self._account.epsilon(delta), "delta": delta}
            # The break comes first: a line that a power cut tore does not spoil the next.
            data = b"\n" + json.dumps(line).encode()
            files.append(self._folder / LEFT, data, durable=True)


def _own(context: Context, base: Path, app: SitePolicy) -> SitePolicy:
    """The site's file comes before what the app says, and the node's configuration before both."""
    named = context.node_config.get("policy")
    path = base / POLICY if named is None else Path(str(named))
    if named is not None and not files.exists(path):
        raise ConfigError(f"node-config: policy is {str(named)!r}, but there is no such file")
    policy = read_policy(path) if files.exists(path) else app
    return policy.configured(context.node_config)


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
    """The runs that wait for approval at a site, with their terms."""
    found = {}
    for folder in _folders(base):
        for name in files.names(folder):
            match = re.fullmatch(r"asked-(.+)\.json", name)
            if match:
                data = files.read(folder / name)
                if files.read_if_there(folder / _APPROVED.format(match[1])) != data:
                    found[match[1]] = _object(folder / name, data)
    return found


def approve(base: Path, run: str) -> dict[str, Any]:
    """Allow a run that waits, with the terms that it has now; returns them."""
    found = waiting(base)
    if run not in found:
        listed = ", ".join(found) or "none"
        raise ConfigError(
            f"RUN is {run!r}, which does not wait for approval here; there are: {listed}"
        )
    for folder in _folders(base):
        data = files.read_if_there(folder / _ASKED.format(run))
        if data is not None:
            files.write(folder / _APPROVED.format(run), data)
    return found[run]


def left(base: Path) -> Iterator[dict[str, Any]]:
    """What has left a site, oldest first; a line that a power cut tore is left out."""
    for folder in _folders(base):
        lines = (files.read_if_there(folder / LEFT) or b"").split(b"\n")
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
    found = [base / name for name in files.names(base) if re.fullmatch(r"ledger_\d+", name)]
    if not found:
        raise ConfigError(f"STATE is '{base}', but must be the state-dir of a site that was asked")
    return found


def _object(path: Path, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise StateError(f"{path} is damaged; remove it, and the next task writes it again")
    return found
