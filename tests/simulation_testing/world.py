"""Server, sites, disks, network and clock as one program that a seed decides.

The production code runs in this thread: the server's app calls the grid and the clock, and while it
waits, whatever is due happens: messages arrive, sites answer them, machines fail.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import fedadmm as fa
from fedadmm.core import clock, pairwise_masks
from fedadmm.core.errors import FedADMMError
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.ledger import RefusedError, ReplyKind
from fedadmm.flower.site import gate
from fedadmm.flower.site.app import Site, client_app

from .apps import app_of
from .attack import Recorder
from .books import Books, Violation
from .byzantine_site import Liar
from .disk import SimulatedDisk, refusal
from .double_entry import DoubleEntry
from .plan import Plan, with_run

_CHANGES = ("create", "write", "sync", "replace", "remove", "make", "lock")
_SERVER_FILE = "/server/run/checkpoint/server.safetensors"


class Crash(BaseException):
    """A process dies; not an Exception, so that nothing in between can handle it."""


class Process:
    """Whoever is running now."""

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.dead = False


class Node:
    """A SuperNode: its client, its machine, and whether it can be reached."""

    def __init__(self, number: int, client: int, machine: str) -> None:
        self.number, self.client, self.machine = number, client, machine
        self.online = True
        self.starts = 0


class Shown(NamedTuple):
    """What the grid says about a node."""

    node_id: int
    name: str
    last_activated_at: str


class World:
    """All machines, and what lies between them."""

    def __init__(self, seed: int, plan: Plan) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.plan = plan
        self.chance = Random(f"world {seed}")
        self._entropy = Random(f"entropy {seed}")
        """Of the sites' machines, which no repetition of a task gives again."""
        self.recorder = Recorder()
        self.attacked = False
        """Whether the sites moved since by what no honest server sent."""
        self.counts: Counter[str] = Counter()
        self.quiet = False
        self.now = 0.0
        self.date = datetime(2026, 11, 16, tzinfo=UTC)
        """The wall clock, when `now` is 0."""
        self._expired = 0
        self.flipped: set[str] = set()
        """Files of the server that somebody meddled with, up to the first dash of their names."""
        self.disk = SimulatedDisk(self._before_call)
        self.disk.replaced = self._replaced
        self.process: Process | None = None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._depth = 0
        self._intruders = 0
        self._troubles: dict[str, tuple[str, float]] = {}
        self._copies: dict[str, Any] = {}
        self._replies: dict[str, list[Message]] = {}
        self._answered: dict[str, tuple[str, int]] = {}
        self._told: Counter[str] = Counter()
        self._meddled: set[str] = set()
        """The sites whose folders were lost or put back: they no longer know what they said."""
        self._withdrawn: dict[str, float] = {}
        """Until when a site takes part in no run with this method."""
        self._approved: set[tuple[str, str]] = set()
        """The runs that somebody allowed, with the site's machine."""
        self.misled: set[int] = set()
        """The clients that a lying server asked for words under a set which they may allow."""
        self.late: set[int] = set()
        """The clients that were not allowed to take part when the faults had stopped."""
        self.refuses_settings = False
        """Whether the server was started with settings that it must refuse."""
        self.nodes = {1000 + c: Node(1000 + c, c, f"site-{c}") for c in range(self.clients)}
        if plan.has("second nodes"):
            twin = self.chance.randrange(self.clients)
            self.nodes[2000 + twin] = Node(2000 + twin, twin, f"twin-{twin}")
        self.machines: dict[int, list[str]] = {client: [] for client in range(self.clients)}
        """Those that have a client's name."""
        for node in self.nodes.values():
            self.machines[node.client].append(node.machine)
        for machine in ["server", *(node.machine for node in self.nodes.values())]:
            self._install(machine)
        self._identify()
        self.books = Books(plan, self.disk.peek, self.disk.survivor)
        self.books.ever_tampered |= {n.client for n in self.nodes.values() if n.number >= 2000}
        self.touched: set[int] = set()
        """The clients whose disks somebody wiped, restored or damaged."""
        self.audit = DoubleEntry(plan, self.disk.survivor, self.touched)
        self.liar = None if plan.liar is None else Liar(plan.liar, self.chance)
        # Rounds are repeated many times here, which an approved run may do only so often.
        rounds = 10 * (plan.tail + 10)
        own = with_run(plan.federation, rounds=rounds)
        self._app: Any = client_app(own, self._load)
        if plan.drop_in is not None:
            self._app = app_of(plan.drop_in, own, self._load)
            self.counts["seeds with DropIn"] += 1

    @property
    def clients(self) -> int:
        return self.plan.federation.clients

    def _load(self, context: Context) -> Any:
        """A site's data, as its app loads them for every message."""
        client, plan = _number(context), self.plan
        objective = plan.objectives[client]
        if plan.random_work:
            noise = [self._entropy.gauss(0, 0.01) for _ in range(objective.num_parameters)]
            shift = torch.tensor(noise, dtype=torch.float64)
            objective = fa.Quadratic(objective.A, objective.b + shift)
        return Site(objective, self._accuracy if plan.odd_metrics else None)

    def _accuracy(self, params: torch.Tensor) -> dict[str, float]:
        """A site's own metric, which is no number now and then."""
        if self._entropy.random() < 0.3:
            self.counts["odd metrics"] += 1
            odd = [math.nan, math.inf, -math.inf, 1e9, -1e9]
            return {"accuracy": self._entropy.choice(odd)}
        return {"accuracy": self._entropy.random()}

    def _install(self, machine: str) -> None:
        """A machine with its folders, as an operator leaves it."""
        below = "run" if machine == "server" else "state"
        for path in (f"/{machine}", f"/{machine}/{below}"):
            self.disk.make_directory(Path(path))
            self.disk.sync(Path(path).parent)
        if machine != "server":
            path = Path(f"/{machine}/site.toml")
            self.disk.create(path)
            self.disk.sync(path.parent)
            self._agree(machine)

    def _agree(self, machine: str, **otherwise: Any) -> None:
        """What the site's file says from now on."""
        agreed = self.plan.policies[int(machine.rpartition("-")[2])] | otherwise
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in agreed.items()]
        self.disk.put_back(f"/{machine}/site.toml", "".join(lines).encode())

    def _identify(self) -> None:
        """Identities, and the list of them, as `fedadmm deploy init` leaves them."""
        own = {client: pairwise_masks.new_identity() for client in range(self.clients)}
        listed = {client: pairwise_masks.public_identity(key).hex() for client, key in own.items()}
        for node in self.nodes.values() if self.plan.masked else ():
            for name, data in (
                ("identity", own[node.client].hex()),
                ("peers.json", json.dumps(listed)),
            ):
                path = Path(f"/{node.machine}/{name}")
                self.disk.create(path)
                self.disk.put_back(str(path), data.encode())
                self.disk.sync(path.parent)

    def check(self, client: int | None = None) -> None:
        """What must hold between any two steps, of everybody or of the one that made the step."""
        data = self.disk.peek(_SERVER_FILE)
        if data is not None:
            machines = self.machines if client is None else {client: self.machines[client]}
            self.books.sites(data, machines, self.plan.liar)

    # processes ----------------------------------------------------------------------------------

    @contextmanager
    def running(self, process: Process) -> Iterator[None]:
        """This process runs, until it ends or dies; its machine then lets go of its locks."""
        before, self.process = self.process, process
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.process = before

    def _before_call(self, call: str, path: str) -> float | None:
        """Every call to a disk comes by here: what a process can suffer, it suffers here."""
        process = self.process
        if process is None:
            return None
        if process.dead:
            raise Crash
        if call == "die":
            self._die(process)
        if self.quiet:
            return None
        plan, chance = self.plan, self.chance
        trouble, until = self._troubles.get(process.machine, ("", 0.0))
        if self.now < until:
            self._suffer(trouble, call, path)
        lot = chance.random()
        if lot < 0.004 and (plan.has("kills") or plan.has("power cuts")):
            if call == "write" and plan.has("torn writes"):
                self.counts["torn writes"] += 1
                return chance.random()
            self._die(process)
        if 0.004 <= lot < 0.008 and plan.has("transient errors"):
            self.counts["transient errors"] += 1
            raise refusal(chance.choice([errno.EIO, errno.EMFILE]), path)
        if 0.008 <= lot < 0.012:
            self._second_process(process)
        return None

    def _suffer(self, trouble: str, call: str, path: str) -> None:
        if trouble == "full disks" and call in ("create", "write", "make"):
            self.counts[trouble] += 1
            raise refusal(errno.ENOSPC, path)
        if trouble == "read-only disks" and call in _CHANGES:
            self.counts[trouble] += 1
            raise refusal(errno.EROFS, path)
        if trouble == "slow disks":
            self.counts[trouble] += 1
            self.now += self.chance.uniform(0, 5)

    def _die(self, process: Process) -> None:
        process.dead = True
        raise Crash

    def bury(self, process: Process) -> None:
        """After a death: perhaps the whole machine lost its power."""
        self.disk.release(process.machine)
        cut = self.plan.has("power cuts") and (
            not self.plan.has("kills") or self.chance.random() < 0.5
        )
        self.counts["power cuts" if cut else "kills"] += 1
        if cut:
            self.disk.cut_power(process.machine, self.chance)

    def _second_process(self, process: Process) -> None:
        """Another process on the same machine, with the same key, wants the same folder now."""
        if not self.plan.has("second processes") or self._intruders:
            return
        self._intruders += 1
        self.counts["second processes"] += 1
        try:
            self.intrude(process)
        finally:
            self._intruders -= 1

    intrude: Callable[[Process], None]
    """Starts what is running once more; set by whoever started it."""

    # time ---------------------------------------------------------------------------------------

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Something that will happen."""
        heapq.heappush(self._events, (self.now + seconds, next(self._serial), action))

    def pass_time(self, seconds: float) -> None:
        """Let time pass; what is due happens, unless a process deeper down is waiting."""
        until = self.now + seconds
        if self._depth <= 1 and not self._intruders:
            self._weather()
            while self._events and self._events[0][0] <= until:
                at, _, action = heapq.heappop(self._events)
                self.now = max(self.now, at)
                action()
        self.now = max(self.now, until)

    def _weather(self) -> None:
        """What befalls machines and wires, whatever runs."""
        plan, chance = self.plan, self.chance
        if self.quiet or chance.random() > 0.15:
            return
        node = chance.choice(list(self.nodes.values()))
        machine = chance.choice(["server", node.machine])
        kind = chance.choice(sorted(plan.kinds) or ["none"])
        if kind == "partitions":
            node.online = not node.online
            node.starts += node.online
        elif kind in ("full disks", "read-only disks", "slow disks"):
            self._troubles[machine] = kind, self.now + chance.uniform(5, 60)
            return
        elif kind == "withdrawals":
            self._withdraw(node.machine, chance.uniform(5, 60))
        elif kind == "clock leaps":
            self.now += chance.choice([10.0, 1000.0, 1e6])
        elif kind == "wiped sites":
            self._meddled.add(node.machine)
            self.disk.wipe(node.machine, "state")
            self.books.meddled(node.client, self.now)
            self.touched.add(node.client)
        elif kind == "restored sites":
            if node.machine not in self._copies or chance.random() < 0.5:
                self._copies[node.machine] = self.disk.backup(node.machine, "state")
                return
            self._meddled.add(node.machine)
            self.disk.restore(node.machine, "state", self._copies[node.machine])
            self.books.meddled(node.client, self.now)
            self.touched.add(node.client)
        elif kind == "wall clock leaps":
            self.date += timedelta(days=chance.choice([-7000, -1, 1, 7000]))
            self._expired = next(self._serial)
        elif kind == "flipped bits":
            if not (self._flip_server() if machine == "server" else self._flip(node)):
                return
        else:
            return
        self.counts[kind] += 1

    def _withdraw(self, machine: str, seconds: float) -> None:
        """Somebody changes the site's file, and changes it back."""
        until = self._withdrawn[machine] = self.now + seconds
        self._agree(machine, algorithms=["another"])

        def come_back() -> None:
            if self._withdrawn.get(machine) == until:
                self._return(machine)

        self.later(seconds, come_back)

    def lift_demands(self) -> None:
        """The operators of sites that ask for the sets of before do so no longer."""
        for agreed in self.plan.policies:
            self.counts["lifted demands"] += agreed.get("sets_apart", False)
            agreed["sets_apart"] = False
        for node in self.nodes.values():
            self._agree(node.machine)

    def _return(self, machine: str) -> None:
        del self._withdrawn[machine]
        self._agree(machine)

    def _approve(self, machine: str) -> None:
        """Somebody at the site allows what waits there, by the command."""
        process = Process(machine)
        try:
            with self.running(process):
                for run in gate.waiting(Path(f"/{machine}/state")):
                    self._approved.add((machine, run))  # also if the process dies in the middle
                    gate.approve(Path(f"/{machine}/state"), run)
                    self.counts["approved runs"] += 1
        except FedADMMError:
            pass  # a disk refused; the next task asks again
        except Crash:
            self.bury(process)

    def _flip(self, node: Node) -> bool:
        below = [p for p in self.disk.below(f"/{node.machine}/state") if p.endswith(".safetensors")]
        if not below:
            return False
        self.disk.flip(self.chance.choice(below), self.chance)
        self.books.meddled(node.client, self.now)
        self.touched.add(node.client)
        return True

    def _flip_server(self) -> bool:
        below = [p for p in self.disk.below("/server/run") if not p.endswith((".lock", ".tmp"))]
        if not below:
            return False
        path = self.chance.choice(below)
        before = self.disk.peek(path)
        self.disk.flip(path, self.chance)
        after = self.disk.peek(path)
        if path == _SERVER_FILE and before is not None and after is not None:
            self.books.flipped(before, after)
            self.audit.flipped(before, after)
        self.counts["flipped bits at the server"] += 1
        self.flipped.add(path.rsplit("/", 1)[1].split("-")[0])
        return True

    def heal(self) -> None:
        """From here on nothing fails any more."""
        self.quiet = True
        self._troubles.clear()
        for machine in list(self._withdrawn):
            self._return(machine)
        for node in self.nodes.values():
            if node.number >= 2000:
                node.online = False
            elif not node.online:
                node.online, node.starts = True, node.starts + 1

    # the network: what Flower's grid is to the server --------------------------------------------

    def get_nodes(self) -> list[Shown]:
        """Who is online."""
        return [
            Shown(node.number, f"client-{node.client}", str(node.starts))
            for node in self.nodes.values()
            if node.online
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Messages leave the server; some arrive, later, once or more often."""
        identities = []
        for message in messages:
            identity = f"m{next(self._serial)}"
            message.metadata.__dict__["_message_id"] = identity
            identities.append(identity)
            self._look_at(message)
            for delay in self._fate():
                self.later(delay, lambda m=message: self._deliver(m, 6))  # type: ignore[misc]
        return identities

    def _look_at(self, message: Message) -> None:
        self.counts["messages"] += 1
        if wire.HEAD in message.content:
            if self.refuses_settings:
                raise Violation("a task left a server whose settings are another run's")
            self.books.task(*wire.read_task(message.content))
            if self.plan.lying_server:
                self.recorder.sent(message.content)

    def _fate(self) -> list[float]:
        """When a message arrives, if it does."""
        plan, chance = self.plan, self.chance
        if self.quiet:
            return [0.1]
        if plan.has("loss") and chance.random() < 0.1:
            self.counts["lost messages"] += 1
            return []
        late = plan.has("delay") and chance.random() < 0.2
        self.counts["late messages"] += late
        delays = [chance.uniform(5, 60) if late else chance.uniform(0, 1)]
        if plan.has("duplicates") and chance.random() < 0.1:
            self.counts["doubled messages"] += 1
            delays.append(chance.uniform(0, 30))
        return delays

    def _deliver(self, message: Message, attempts: int) -> None:
        node = self.nodes[message.metadata.dst_node_id]
        if self._is_expired(message):
            return
        if not node.online:
            if attempts:
                self.later(10.0, lambda: self._deliver(message, attempts - 1))
            return
        if self.plan.drop_in is not None and not self.quiet and self.chance.random() < 0.1:
            self._ask_without_task(node, message)
        lies = self.plan.lying_server and wire.SET in message.content and not self.quiet
        if lies and self.chance.random() < 0.4:
            self._ask_for_more(node, message)
        reply = self.answer(node, message)
        if lies and self.chance.random() < 0.4:
            self._ask_for_more(node, message)
        if reply is None:
            return
        if not reply.has_error():
            self.audit.arrived(node.client, message.content, reply.content)
            self.recorder.answered(reply.content)
        for delay in self._fate():
            self.later(delay, lambda: self._arrive(message, reply))

    def _ask_without_task(self, node: Node, message: Message) -> None:
        """A message in the form of Flower's own strategies reaches no function of the app."""
        self.counts["messages of other strategies"] += 1
        arrays = ArrayRecord({"weight": torch.zeros(self.plan.objectives[0].num_parameters)})
        plain = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})})
        kind = self.chance.choice(["train", "evaluate"])
        asked = Message(plain, node.number, kind)
        asked.metadata.__dict__["_message_id"] = message.metadata.message_id
        reply = self.answer(node, asked)
        if reply is not None and not reply.has_error():
            raise Violation(f"{node.machine} answered a message without a task")

    def _ask_for_more(self, node: Node, message: Message) -> None:
        """A server that lies asks the site to be summed with others; nothing comes of it."""
        self.counts["lies of the server"] += 1
        found = dict(message.content[wire.SET])  # type: ignore[call-overload]
        clients = list(found["clients"])
        others = [k for k, client in enumerate(clients) if client != node.client]
        keep = set(range(len(clients))) - set(
            self.chance.sample(others, self.chance.randint(0, len(others)))
        )
        publics = [found["publics"][32 * k : 32 * k + 32] for k in sorted(keep)]
        signatures = [found["signatures"][64 * k : 64 * k + 64] for k in sorted(keep)]
        if self.chance.random() < 0.3:
            publics[-1] = self.chance.randbytes(32)
        content = RecordDict(dict(message.content.items()))
        content[wire.SET] = ConfigRecord(
            {
                "clients": [clients[k] for k in sorted(keep)],
                "publics": b"".join(publics),
                "signatures": b"".join(signatures),
            }
        )
        asked = Message(content, node.number, message.metadata.message_type)
        asked.metadata.__dict__.update(message.metadata.__dict__)
        self.answer(node, asked)
        if 3 <= len(keep) < len(clients):
            self.misled.add(node.client)

    def _is_expired(self, message: Message) -> bool:
        """Flower drops messages by the wall clock, and tells the server that nothing will come."""
        identity = message.metadata.message_id
        expired = int(identity[1:]) < self._expired
        if expired:
            self.counts["expired messages"] += 1
            reply = Message(Error(code=0, reason="the message expired"), reply_to=message)
            self._replies.setdefault(identity, []).append(reply)
        return expired

    def _arrive(self, message: Message, reply: Message) -> None:
        if self._is_expired(message):
            return
        self._replies.setdefault(message.metadata.message_id, []).append(reply)

    def pull_messages(self, identities: Iterable[str]) -> list[Message]:
        """What came back."""
        waiting = [i for i in identities if i in self._replies]
        return [reply for identity in waiting for reply in self._replies.pop(identity)]

    # a site -------------------------------------------------------------------------------------

    def answer(self, node: Node, message: Message) -> Message | None:
        process = Process(node.machine)
        before = self.__dict__.get("intrude")
        self.intrude = lambda _: self._intruder(node, message)
        try:
            with self.running(process):
                return self._reply(node, message)
        except Crash:
            self.bury(process)
            node.starts += 1
            return None
        finally:
            self.intrude = before  # type: ignore[assignment]
            if not self.attacked:
                self.check(node.client)

    def _intruder(self, node: Node, message: Message) -> None:
        """The same message reaches another process of the site; what it says is lost."""
        process = Process(node.machine)
        try:
            with self.running(process):
                self._reply(node, message)
        except Crash:
            self.counts["kills"] += 1

    def _reply(self, node: Node, message: Message) -> Message:
        """What a site's app says, or what its process's end is reported as."""
        config: Any = {"partition-id": node.client, "state-dir": f"/{node.machine}/state"}
        config["policy"] = f"/{node.machine}/site.toml"
        arrived = Message(message.content, node.number, message.metadata.message_type)
        arrived.metadata.__dict__.update(message.metadata.__dict__)
        try:
            content = self._app(arrived, Context(1, node.number, config, RecordDict(), {})).content
        except FedADMMError as error:
            self.counts["errors at sites"] += 1
            return Message(Error(code=0, reason=str(error)), reply_to=message)
        except Exception as error:
            raise Violation(f"undeclared at {node.machine}: {error!r}") from error
        if wire.SET in message.content and wire.HEAD in content and not self.attacked:
            self.books.masked(message.content, content, node.machine)
            self.counts["masked uploads"] += 1
        self.audit.answered(node.client, node.machine, message.content, content)
        self._check_policy(node, content)
        lies = self.liar is not None and node.client == self.liar.client and not self.quiet
        if lies and self.liar is not None and wire.HEAD in message.content:
            content = self.liar.instead(message.content, content)
            self.counts["lies"] += 1
        if wire.HEAD in content:
            self._note(content, None if lies else node.machine, node.machine)
        self._check_metrics(node, content)
        return Message(content, reply_to=message)

    def _check_policy(self, node: Node, content: RecordDict) -> None:
        """Nothing of a run leaves without the site's agreement."""
        machine, agreed = node.machine, self.plan.policies[node.client]
        reply = wire.read_reply(content, 10**9)[0] if wire.HEAD in content else None
        kind = None if reply is None else reply.kind
        leaves = (
            kind in (ReplyKind.UPDATE, ReplyKind.READY, ReplyKind.MASKED) or wire.METRICS in content
        )
        if leaves and machine in self._withdrawn:
            raise Violation(f"{machine} takes part although its file excludes the method")
        if kind is ReplyKind.DECLINED and agreed.get("approval"):
            self.counts["declined tasks"] += 1
            self.late |= {node.client} if self.quiet else set()
            seconds = 0.1 if self.quiet else self.chance.uniform(1, 60)
            self.later(seconds, lambda: self._approve(machine))
        runs = {run for at, run in self._approved if at == machine}
        allowed = bool(runs) if reply is None else reply.run in runs
        if leaves and agreed.get("approval") and not allowed:
            raise Violation(f"{machine} takes part in a run that was not approved")

    def _check_metrics(self, node: Node, content: RecordDict) -> None:
        """No more questions a day than the site's file says, and every answer written down."""
        if wire.METRICS not in content or node.machine in self._meddled:
            return
        allowed = self.plan.policies[node.client].get("metrics")
        if allowed is not None and not wire.read_metrics(content).keys() <= set(allowed):
            raise Violation(f"{node.machine} told {sorted(wire.read_metrics(content))}")
        today = f"{clock.timestamp():.10}"
        day, answered = self._answered.get(node.machine, ("", 0))
        answered = answered + 1 if day >= today else 1  # a clock that went back gives no new day
        self._answered[node.machine] = max(day, today), answered
        if answered > self.plan.policies[node.client]["evaluations"]:
            raise Violation(f"{node.machine} answered {answered} questions in a day")
        written = (
            self.disk.survivor(f"/{node.machine}/state/ledger_{node.client}/left.jsonl") or b""
        )
        self._told[node.machine] += 1
        if written.count(b'"metrics"') < self._told[node.machine]:
            raise Violation(f"{node.machine} told more than its ledger says")
        self.counts["answers"] += 1

    def _note(self, content: RecordDict, machine: str | None, holder: str) -> None:
        try:
            reply, body = wire.read_reply(content, 10**9)
        except RefusedError:
            return
        if reply.kind is ReplyKind.READY:  # which is sealed over the key beside it
            body = bytes(wire.read_record(content, wire.SHARE).get("public", b""))
        self.books.reply(reply, body, self.now, machine, holder)

    def _replaced(self, path: str, old: bytes | None, new: bytes) -> None:
        if path == _SERVER_FILE:
            self.books.saved(old, new)
            self.audit.checkpoint(old, new)
            self.counts["checkpoints"] += 1


class Time(clock.Clock):
    """The world's clock."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> float:
        return self._world.now

    def sleep(self, seconds: float) -> None:
        process = self._world.process
        if process is not None and process.dead:
            raise Crash
        self._world.pass_time(seconds)

    def date(self) -> datetime:
        return self._world.date + timedelta(seconds=self._world.now)


def _number(context: Context) -> int:
    number = context.node_config["partition-id"]
    assert isinstance(number, int)
    return number
