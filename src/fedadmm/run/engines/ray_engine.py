"""Ray engine: clients on the actors of a Ray cluster, which can be a single machine.

Any actor can run any client.  In each round the clients are divided among the actors by the rows
that they train on; a client's data goes to an actor that runs it for the first time, and its state
is in the segments of a `DiskStore`, whose index the driver keeps.  The broadcast goes through the
object store once a round, every actor adds up what its clients send, and the driver adds up the
actors' sums.  The work of a lost actor, or of all actors of a lost machine, is run once more by
those that are left, from the states that the driver has seen; a new actor joins when there is room
for one.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from fedadmm.core.compatibility import Feature
from fedadmm.core.errors import CompatibilityError, EngineError, FedADMMError
from fedadmm.core.messages import (
    ClientInfo,
    ClientRecord,
    ClientRecords,
    Download,
    Engine,
    PartialSum,
    Upload,
)
from fedadmm.core.objectives import Objective
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.parts import Count, Positive, part
from fedadmm.core.problem import Lazy, LazyClients, Problem
from fedadmm.core.setup import Setup
from fedadmm.run.client import Job, run_client
from fedadmm.run.engines.choice import EngineChoice
from fedadmm.run.stores.disk import DiskStore
from fedadmm.run.stores.records import layout
from fedadmm.run.stores.segments import Place, Segments

ATTEMPTS = 3
"""Attempts of the same work before the run fails."""
CACHE_BYTES = 2**30
"""Bytes of memory for the records of all local actors."""

_logger = logging.getLogger("fedadmm")


@part("engine", "ray")
class Ray(EngineChoice):
    """Run clients on Ray actors, on one machine or on several.

    Args:
        address: a running cluster, as `ray.init` takes it ("auto" finds one); None starts Ray on
            this machine, unless it runs in this process already.
        workers: number of actors; by default one per CPU, and never more than there are clients.
        timeout: how many seconds an answer may take.
    """

    needs_disk: ClassVar[bool] = True

    address: str | None = None
    workers: Count | None = None
    timeout: Positive = 600.0

    def requires(self, run: Setup) -> Iterable[Feature]:
        """Actors send the sums of their clients' updates."""
        return (Feature.SUMMABLE_UPDATES,)

    def start(self, job: Job, store: ClientRecords) -> Engine:
        if not isinstance(store, DiskStore):
            raise CompatibilityError(
                f"the ray engine keeps client state in files that outlive its actors, but the "
                f"store is a {type(store).__name__}; use DiskStore, or leave the store out"
            )
        if job.initial.device.type != "cpu":
            raise CompatibilityError(
                f"the ray engine runs clients on CPUs, but the initial vector is on "
                f"{job.initial.device}"
            )
        return RayEngine(self, job, store)


class ClientTask(NamedTuple):
    """A client of a batch."""

    client: int
    place: Place | None
    """Location of its record; None before its first round."""
    share: float
    """Its weight a_i."""
    data: Any
    """Reference to its packed data as a list; empty if the actor has them."""


class Home(NamedTuple):
    """Folder and format of an actor's client records."""

    directory: Path
    primal_dtype: torch.dtype | None
    cache_bytes: int
    modules: list[str]
    """Import paths of the driver, in which a user's own modules may be."""


class CohortSum(NamedTuple):
    """Sum over some clients, and the locations of their committed records."""

    partial: PartialSum
    places: dict[int, Place]


def packed(value: Any, flat: FlatModule | None) -> bytes:
    """A job or a client's objective as bytes; the module that all clients share is left out."""
    from ray import cloudpickle

    class Packer(cloudpickle.Pickler):  # type: ignore[misc]
        """Leaves the rows of other clients behind, and binds modules to their vector again."""

        def persistent_id(self, obj: Any) -> str | None:
            return "flat" if flat is not None and obj is flat else None

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, FlatModule):
                return FlatModule, (obj.module,)
            if type(obj) is Tensor and obj.untyped_storage().nbytes() > obj.nbytes:
                own: Any = obj.clone()
                return own.__reduce_ex__(4)
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    Packer(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def unpacked(data: bytes, flat: FlatModule | None) -> Any:
    """Unpack an object, with this module in place of the omitted one."""

    class Unpacker(pickle.Unpickler):
        def persistent_load(self, name: str) -> Any:
            return flat

    return Unpacker(io.BytesIO(data)).load()


class _ActorStore:
    """Store of the records of an actor's clients.

    Which record counts is the driver's to say: what an actor wrote that died before it could
    report is written again.
    """

    def __init__(self, job: Job, home: Home) -> None:
        self._files = Segments(home.directory, layout(job), home.primal_dtype, home.cache_bytes)
        self.current: dict[int, Place | None] = {}
        self.segment, self._end = 0, 0

    def begin(self, segment: int) -> None:
        """Begin a new segment."""
        self.segment, self._end = segment, 0

    def get(self, client: int) -> ClientRecord | None:
        place = self.current[client]
        return None if place is None else self._files.read(place)

    def commit(self, client: int, record: ClientRecord, round_index: int) -> None:
        place = self._files.write(self.segment, self._end, client, record)
        self._end = max(self._end, place.begin + place.size)
        self._files.forget(self.current[client])
        self.current[client] = place


class ClientActor:
    """Actor that stores the data of its clients, runs them, and returns one sum."""

    def __init__(self, job: bytes, home: Home, marker: Path) -> None:
        torch.set_num_threads(1)
        if not marker.is_file():
            raise EngineError(
                f"the folder of the client state, {home.directory}, is not the same on every "
                "machine; give a DiskStore in a folder that all of them share"
            )
        sys.path.extend(path for path in home.modules if path not in sys.path)
        self._job, self._flat = cast(tuple[Job, FlatModule | None], unpacked(job, None))
        self._data: dict[int, Any] = {}
        problem = self._job.problem
        if not isinstance(problem.clients, LazyClients):
            known = Lazy(problem.num_clients, self._data.__getitem__)
            self._job = self._job._replace(problem=problem.with_clients(known))
        self._store = _ActorStore(self._job, home)

    def ready(self) -> bool:
        """Return when the actor is running."""
        return True

    def run(
        self, tasks: Sequence[ClientTask], download: Download, round_index: int, segment: int
    ) -> CohortSum:
        """Run some clients and return the sum of their updates."""
        import ray

        infos: list[ClientInfo] = []
        sent: list[int] = []
        self._store.begin(segment)
        for task in tasks:
            if task.data:
                self._data[task.client] = unpacked(ray.get(task.data[0]), self._flat)

        def updates() -> Iterator[tuple[float, Upload]]:
            for task in tasks:
                self._store.current[task.client] = task.place
                upload, info = self._run(task.client, download, round_index)
                infos.append(info)
                sent.append(upload.num_bytes)
                yield task.share, upload

        total = self._job.aggregator.aggregate(updates())
        assert total is not None
        weight = sum(task.share for task in tasks)
        finite = [info.client for info in infos if info.finite]
        places = {client: self._store.current[client] for client in finite}
        partial = PartialSum(total, weight, sum(sent), infos)
        return CohortSum(partial, cast(dict[int, Place], places))

    def _run(self, client: int, download: Download, round_index: int) -> tuple[Upload, ClientInfo]:
        try:
            with torch.no_grad():
                return run_client(self._job, self._store, client, download, round_index)
        except FedADMMError:
            raise
        except Exception as error:
            raise EngineError(
                f"client {client} failed in round {round_index + 1}: "
                f"{type(error).__name__}: {error}"
            ) from error


class _Actor:
    """The driver's view of an actor."""

    def __init__(self, number: int, handle: Any) -> None:
        self.number = number
        self.handle = handle
        self.has: set[int] = set()
        """Clients whose data the actor has."""
        self.started = handle.ready.remote()


class RayEngine(Engine):
    """Engine that runs clients on actors."""

    def __init__(self, choice: Ray, job: Job, store: DiskStore) -> None:
        self._choice = choice
        self._job = job
        self._store = store
        self._ray = imported()
        self._actors: list[_Actor] = []
        self._coming: list[_Actor] = []
        self._marker: Path | None = None
        self._data: dict[int, Any] = {}
        self._stop = connect(choice.address)
        try:
            self._start_actors()
        except BaseException:
            self.close()
            raise

    def _start_actors(self) -> None:
        ray, problem = self._ray, self._job.problem
        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        count = min(self._choice.workers or cpus, problem.num_clients)
        directory = self._store.directory.resolve()
        cache = CACHE_BYTES // count
        self._home = Home(directory, self._store.primal_dtype, cache, list(sys.path))
        self._flat = problem.clients[0].flat
        clients: Any = problem.clients
        self._travels = not isinstance(clients, LazyClients)  # else their recipe does
        if self._travels:
            clients = Lazy(problem.num_clients, _not_here)
        slim = Problem(clients, regularizer=problem.regularizer, buffers=problem.buffers)
        self._shell = ray.put(packed((self._job._replace(problem=slim), self._flat), None))
        # Spread over the machines, so that a lost one takes few of them with it.
        options = {"num_cpus": min(1.0, cpus / count), "scheduling_strategy": "SPREAD"}
        self._remote = ray.remote(ClientActor).options(**options)
        self._marker = directory / f"ray-{os.getpid()}.marker"
        self._marker.touch()
        self._actors = [self._new_actor(number) for number in range(count)]
        for actor in self._actors:
            self._answer(actor.started, actor)

    def _new_actor(self, number: int) -> _Actor:
        return _Actor(number, self._remote.remote(self._shell, self._home, self._marker))

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[PartialSum]:
        if download.missed is not None:
            download = download._replace(missed=download.missed.restrict(ids))
        self._welcome()
        broadcast = self._ray.put(download)
        batches = self._batches(ids)
        running = [self._submit(batch, broadcast, round_index) for batch in batches]
        for batch, (segment, answer) in zip(batches, running, strict=True):
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    reply: CohortSum = self._answer(answer, batch.actor)
                    break
                except self._ray.exceptions.RayActorError as error:
                    if attempt == ATTEMPTS:
                        raise EngineError(
                            f"the actors of {len(batch.clients)} clients were lost {ATTEMPTS} "
                            f"times in round {round_index + 1}: {error}"
                        ) from error
                    self._lost(batch.actor)
                    self._store.retire(segment)
                    batch = batch._replace(actor=self._actors[0])
                    segment, answer = self._submit(batch, broadcast, round_index)
            for client, where in reply.places.items():
                self._store.adopt(client, where)
            yield reply.partial

    def _batches(self, ids: Sequence[int]) -> list[_Batch]:
        """The largest client goes first, to the actor with the fewest rows so far.

        Among equal ones to one that has its data.
        """
        problem, data = self._job.problem, cast(Any, self._job.problem.data)
        sizes = {
            i: int(data.train_sizes[i]) if data else problem.clients[i].num_samples for i in ids
        }
        queues = [(actor, list[int]()) for actor in self._actors]
        loads = [0] * len(queues)
        for client in sorted(ids, key=lambda i: (-sizes[i], i)):
            free = [place for place, load in enumerate(loads) if load == min(loads)]
            place = next((one for one in free if client in queues[one][0].has), free[0])
            loads[place] += sizes[client]
            queues[place][1].append(client)
        return [_Batch(actor, sorted(clients)) for actor, clients in queues if clients]

    def _submit(self, batch: _Batch, broadcast: Any, round_index: int) -> tuple[int, Any]:
        """Send a batch to its actor, with the data of clients that it does not have."""
        actor, segment = batch.actor, self._store.new_segment()
        new = [client for client in batch.clients if self._travels and client not in actor.has]
        tasks = [
            ClientTask(
                client,
                self._store.place(client),
                self._job.problem.weight(client),
                [self._packed(client)] if client in new else [],
            )
            for client in batch.clients
        ]
        actor.has.update(new)
        return segment, actor.handle.run.remote(tasks, broadcast, round_index, segment)

    def _packed(self, client: int) -> Any:
        """Return the reference to a client's packed data, which are stored once."""
        if client not in self._data:
            self._data[client] = self._ray.put(
                packed(self._job.problem.clients[client], self._flat)
            )
        return self._data[client]

    def _lost(self, lost: _Actor) -> None:
        """Remove an actor; another one replaces it as soon as resources are free."""
        if lost in self._actors:
            _logger.warning("actor %d was lost; its clients go on from their state", lost.number)
            self._ray.kill(lost.handle)
            self._actors.remove(lost)
            self._coming.append(self._new_actor(lost.number))
        if not self._actors:
            self._answer(self._coming[0].started, self._coming[0])
            self._welcome()

    def _welcome(self) -> None:
        """Add actors that have started meanwhile."""
        for actor in list(self._coming):
            if self._ray.wait([actor.started], timeout=0)[0]:
                self._coming.remove(actor)
                self._actors.append(actor)
        self._actors.sort(key=lambda actor: actor.number)

    def _answer(self, reference: Any, actor: _Actor) -> Any:
        """Wait for an actor with a timeout."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference, timeout=self._choice.timeout)
        except errors.GetTimeoutError:
            raise EngineError(
                f"actor {actor.number} did not answer within {self._choice.timeout:g} seconds"
            ) from None
        except errors.RayTaskError as error:
            raise EngineError(f"{error.cause}") from error
        except errors.RayActorError as error:
            if "creation task" in str(error):
                reason = str(error).strip().splitlines()[-1]
                raise EngineError(f"actor {actor.number} could not start: {reason}") from error
            raise

    def close(self) -> None:
        for actor in [*self._actors, *self._coming]:
            self._ray.kill(actor.handle)
        self._actors, self._coming = [], []
        if self._marker is not None:
            self._marker.unlink(missing_ok=True)
        self._stop()
        self._stop = lambda: None


class _Batch(NamedTuple):
    """Clients that an actor runs in one round."""

    actor: _Actor
    clients: list[int]


def _not_here(client: int) -> Objective:
    raise EngineError(f"the data of client {client} did not travel")


def imported() -> Any:
    """Return the module ray, with usage reports disabled."""
    # Read when Ray is imported: no reports to its makers, and no warning about accelerators.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise EngineError("the ray engine needs Ray; install fedadmm[ray]") from None
    return ray


def connect(address: str | None) -> Callable[[], None]:
    """Connect to a cluster or start a local one, and return the inverse function."""
    ray = imported()
    if ray.is_initialized():
        return lambda: None
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is not None:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise EngineError(f"no Ray cluster answers at {address!r}: {error}") from error
        return lambda: ray.shutdown()
    folder = tempfile.mkdtemp(prefix="fedadmm-ray-")
    ray.init(
        num_cpus=os.cpu_count() or 1,
        include_dashboard=False,
        _temp_dir=folder,
        _node_ip_address="127.0.0.1",
        **quiet,
    )

    def stop() -> None:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)

    return stop
