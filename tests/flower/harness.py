"""The real server and client code over a grid in this process that loses what it is told to."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

import fedadmm as fa
from fedadmm.core import clock
from fedadmm.core.messages import ClientRecord
from fedadmm.core.objectives import Objective
from fedadmm.flower.federation import Federation, Patience
from fedadmm.flower.protocol import wire
from fedadmm.flower.server.checkpoint import ServerCheckpoint, ServerState, fingerprint
from fedadmm.flower.server.server_app import serve
from fedadmm.flower.server.service import DeploymentResult
from fedadmm.flower.site.app import client_app
from fedadmm.flower.site.site_state import ACKED, PENDING, SiteState
from fedadmm.run.client import record_layout
from fedadmm.run.components import CATCH_UP
from fedadmm.run.loop import initial_state
from fedadmm.run.privacy import attach_privacy
from fedadmm.run.round_callbacks import RunPlan
from fedadmm.run.state import RoundReport

CLIENTS = 4
FILES = (ACKED, PENDING)
DIMENSION = 6


class Crash(BaseException):
    """A process dies; not an Exception, so that nothing in between can handle it."""


def objectives(clients: int = CLIENTS) -> list[Objective]:
    """Logistic regression on rows that differ from site to site."""
    made: list[Objective] = []
    for client in range(clients):
        generator = torch.Generator().manual_seed(100 + client)
        rows = torch.randn(30, DIMENSION, generator=generator) + 0.4 * client
        truth = torch.randn(DIMENSION, generator=torch.Generator().manual_seed(client))
        made.append(fa.LogisticRegression(rows, (rows @ truth > 0).float(), ridge=0.05))
    return made


def federation(algorithm: Any, rounds: int = 6, **changes: Any) -> Federation:
    """A small federation in float32, quick to lose its patience."""
    settings: dict[str, Any] = {
        "algorithm": algorithm,
        "clients": CLIENTS,
        "rounds": rounds,
        "initial": torch.linspace(-1, 1, DIMENSION),
        "solver": fa.SGD(lr=0.1, batch_size=10),
        "stop": fa.Epochs(2),
        "patience": Patience(start=60.0, round=60.0, resend=10.0, poll=1.0, empty=4),
    }
    return Federation(**(settings | changes))


class Clock(clock.Clock):
    """Time that passes only when somebody waits for it: tests neither hurry nor dawdle."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


class Node(NamedTuple):
    """What the grid says about a node."""

    node_id: int
    name: str
    last_activated_at: str = ""
    public_key: bytes = b""


class FlowerRun(NamedTuple):
    """What the grid says about the run of Flower."""

    run_id: int = 7
    fab_id: str = "somebody/quickstart"


class FakeGrid:
    """Delivers messages to client apps in this process; `fault` may interfere at every step.

    `fault(moment, message, client)` is asked at "deliver" and "reply"; it answers "drop", "late"
    (a reply then comes only after the task was sent again) or nothing.
    """

    def __init__(
        self,
        settings: Federation,
        folder: Path,
        fault: Callable[[str, Message, int], str | None] = lambda *_: None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.folder = folder
        self.fault = fault
        self.run = FlowerRun()
        self.policy: dict[str, Any] = {"evaluations": 1000}
        self.offline: set[int] = set()
        self.counts: Counter[str] = Counter()
        self.spoil: Callable[[RecordDict, int], RecordDict] | None = None
        self._sites = objectives(settings.clients)
        self._app = client_app(settings, lambda context: self._sites[_number(context)])
        self._clients = settings.clients
        self._waiting: dict[str, Message] = {}
        self._late: dict[str, Message] = {}
        self._serial = 0

    def get_nodes(self) -> list[Node]:
        return [
            Node(1000 + client, f"client-{client}")
            for client in range(self._clients)
            if client not in self.offline
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        identities = []
        for message in messages:
            self._serial += 1
            identity = f"m{self._serial}"
            message.metadata.__dict__["_message_id"] = identity
            self._waiting[identity] = message
            identities.append(identity)
        return identities

    def pull_messages(self, identities: Iterable[str]) -> list[Message]:
        replies = []
        identities = list(identities)
        for identity in identities:
            message = self._waiting.pop(identity, None)
            if message is not None:
                reply = self._deliver(message)
                if reply is not None:
                    replies.append(reply)
        answered = {reply.metadata.src_node_id for reply in replies}
        late = [i for i in identities if i in self._late]
        due = [i for i in late if self._late[i].metadata.src_node_id in answered]
        return replies + [self._late.pop(identity) for identity in due]

    def _deliver(self, message: Message) -> Message | None:
        client = (message.metadata.dst_node_id - 1000) % 1000  # 2002 is a second node of client 2
        if client in self.offline or self.fault("deliver", message, client):
            return None
        arrived = Message(_through_the_wire(message.content), client + 1000, "train")
        arrived.metadata.__dict__.update(message.metadata.__dict__)
        self.counts[message.metadata.message_type] += 1
        try:
            reply = self._app(arrived, self.context(client))
        except Crash:
            self.counts["client crash"] += 1
            return None
        except Exception as error:
            return Message(Error(code=0, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
        disturbance = self.fault("reply", message, client)
        content = _through_the_wire(reply.content)
        if self.spoil is not None and (
            message.metadata.group_id.isdigit() or wire.WORK in message.content
        ):
            content = self.spoil(content, client)
        answer = Message(content, reply_to=message)
        if disturbance == "late":
            self._late[message.metadata.message_id] = answer
        return None if disturbance else answer

    def context(self, client: int) -> Context:
        config = {"partition-id": client, "state-dir": str(self.folder / f"site-{client}")}
        config |= self.policy
        return Context(1, 1000 + client, config, RecordDict(), {})

    def wipe(self, client: int) -> None:
        shutil.rmtree(self.folder / f"site-{client}")


def _number(context: Context) -> int:
    number = context.node_config["partition-id"]
    assert isinstance(number, int)
    return number


def _through_the_wire(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(content))


class History(NamedTuple):
    """A run to its end, whatever happened on the way."""

    outcome: DeploymentResult
    trace: list[list[int]]
    records: list[dict[str, Any]]
    crashes: int


def run_through(
    settings: Federation,
    grid: FakeGrid,
    folder: Path,
    observe: Callable[[RoundReport], None] = lambda report: None,
    most_crashes: int = 20,
) -> History:
    """Serve, and start again after every crash, as an operator would."""
    records: dict[int, dict[str, Any]] = {}

    def remember(report: RoundReport) -> None:
        records[report.record["round"]] = report.record
        observe(report)

    for crashes in range(most_crashes):
        try:
            outcome = serve(settings, grid, folder / "server", [remember])
        except Crash:
            continue
        ordered = [records[number] for number in sorted(records)]
        return History(outcome, [list(r["cohort"]["clients"]) for r in ordered], ordered, crashes)
    raise AssertionError("the run did not end")


def simulated(settings: Federation, trace: list[list[int]] | None = None) -> fa.Result:
    """The same federation in one process, with the given participation."""
    run = settings.experiment
    problem = settings.problem.with_clients(objectives(settings.clients))
    sampler = run.sampler if trace is None else fa.TraceSampling(trace)
    nothing = fa.Evaluation(objective=False, test=False)
    one_by_one = replace(run, engine=fa.engines.Sequential())  # as sites are
    return fa.simulate(replace(one_by_one, problem=problem, sampler=sampler, evaluate=nothing))


def server_on_disk(settings: Federation, folder: Path) -> ServerCheckpoint:
    """What the server's checkpoint says."""
    job = settings.server_job()
    disk = ServerState(folder / "server" / "checkpoint", False, fingerprint(settings, job))
    job, privacy = attach_privacy(job, settings.experiment.sampler)
    nothing = fa.Evaluation(objective=False, test=False)
    plan = RunPlan(1, nothing, output=settings.experiment.output, privacy=privacy)
    saved = disk.load(initial_state(job, plan))
    assert saved is not None
    return saved


def states_on_disk(settings: Federation, folder: Path) -> dict[int, Any]:
    """Each client's state of the version that the server folded, from the client's own disk."""
    return {client: one.state for client, one in records_on_disk(settings, folder).items()}


def records_on_disk(settings: Federation, folder: Path) -> dict[int, ClientRecord]:
    """The same with all that a client keeps."""
    job, saved = settings.server_job(), server_on_disk(settings, folder)
    template = record_layout(job)
    records = {}
    for client in range(settings.clients):
        entry = saved.ledger.entry(client)
        records[client] = template
        if entry.version == 0:
            continue
        site = SiteState(folder / f"site-{client}" / saved.ledger.run / f"client-{client}")
        ledger = site.ledger()
        slots = {slot.digest: name for slot, name in zip(ledger, FILES, strict=True) if slot}
        assert entry.digest in slots, f"client {client} does not hold version {entry.version}"
        if slots[entry.digest] == PENDING:
            site.promote()
        record = site.acked(template)
        assert record is not None
        records[client] = record
    return records


def is_aligned(algorithm: Any) -> bool:
    """Whether the server moves absent clients, and holds the mean of all duals."""
    return isinstance(algorithm, fa.AlignedADMM)


def contribution(algorithm: Any, state: Any) -> list[Tensor]:
    """What each client stands for at the server, written down independently of the code."""
    name = algorithm.name
    if is_aligned(algorithm):
        return [state.y]
    if name == "fedadmm":
        return [state.w + state.y / state.rho]
    if name.startswith("fedadmm-in"):
        return [state.sent * state.w + state.y, state.sent]
    if name in ("feddr", "async-feddr", "fedsplit"):
        return [2 * state.x - state.v]
    if name == "feddr-ii":
        return [state.x + state.w]
    if name == "scaffold":
        return [state.c_i]
    if name == "feddyn":
        return [state.y]
    return []


def tracked(algorithm: Any, server: Any) -> list[Tensor]:
    """Where the server keeps the mean of those."""
    fields = {
        "fedadmm": ["mean"],
        "fedadmm-in": ["numerator", "denominator"],
        "fedadmm-insa": ["numerator", "denominator"],
        "fedadmm-in-released": ["numerator", "denominator"],
        "fedadmm-insa-released": ["numerator", "denominator"],
        "feddr": ["xtilde"],
        "async-feddr": ["xtilde"],
        "fedsplit": ["xtilde"],
        "feddr-ii": ["xtilde"],
        "scaffold": ["c"],
        "feddyn": ["h"],
    }
    names = ["h"] if is_aligned(algorithm) else fields.get(algorithm.name, [])
    return [getattr(server, field) for field in names]


def check_invariant(settings: Federation, folder: Path, tolerance: float = 1e-6) -> None:
    """The server's mean is the mean of what stands on the clients' disks.

    Aligned clients have not been told yet what they missed since.
    """
    saved, algorithm = server_on_disk(settings, folder), settings.experiment.algorithm
    states = states_on_disk(settings, folder)
    missed = saved.state.components.get(CATCH_UP)
    assert (missed is not None) == is_aligned(algorithm)
    if missed is not None:
        states = {
            client: algorithm.catch_up(state, missed.missed(client))
            for client, state in states.items()
        }
    sums: list[Tensor] = []
    for client, state in states.items():
        weight = settings.server_job().problem.weight(client)
        parts = [weight * part.double() for part in contribution(algorithm, state)]
        sums = [a + b for a, b in zip(sums, parts, strict=True)] if sums else parts
    for held, wanted in zip(tracked(algorithm, saved.state.server), sums, strict=True):
        assert float((held.double() - wanted).abs().max()) < tolerance


def check_versions(settings: Federation, folder: Path, trace: list[list[int]]) -> None:
    """Nothing was folded twice or lost: versions count the rounds a client took part in."""
    ledger = server_on_disk(settings, folder).ledger
    for client in range(settings.clients):
        assert ledger.entry(client).version == sum(client in ids for ids in trace)
