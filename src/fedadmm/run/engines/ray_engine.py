"""Clients on the actors of a Ray cluster, which may be this machine alone.

A client belongs to the actor id % actors, which keeps its data and its state: neither travels from
round to round.  The broadcast goes through the object store once a round, every actor adds up what
its clients send, and the driver adds up the actors' sums.  State is committed to the files of a
`DiskStore`, whose index the driver keeps; a lost actor is started again, its clients continue
from the versions that the driver has seen, and their round is run once more.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from fedadmm.core.errors import EngineError, FedADMMError, PairingError
from fedadmm.core.messages import (
    ClientInfo,
    ClientRecord,
    ClientRecords,
    Download,
    Engine,
    Partial,
    Upload,
)
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.parts import Count, Positive, part
from fedadmm.core.problem import Lazy, LazyClients, Problem
from fedadmm.core.setup import Setup
from fedadmm.run.client import Job, run_client
from fedadmm.run.engines.choice import EngineChoice
from fedadmm.run.stores.disk import DiskStore
from fedadmm.run.stores.record_files import NO_FILE, RecordFiles
from fedadmm.run.stores.records import layout

ATTEMPTS = 3
"""How often the same work is given to a new actor before the run is given up."""
CACHE_BYTES = 2**30
"""How much memory the records of all local actors may take together."""

_logger = logging.getLogger("fedadmm")


@part("engine", "ray")
class Ray(EngineChoice):
    """The choice of the Ray engine.

    Args:
        address: a running cluster, as `ray.init` takes it ("auto" finds one); None starts Ray on
            this machine, unless it runs in this process already.
        actors: how many; by default one a CPU, and never more than there are clients.
        cohort: how many clients an actor runs before it sends their sum; all of them by default.
        timeout: how many seconds an answer may take.
    """

    needs_disk: ClassVar[bool] = True

    address: str | None = None
    actors: Count | None = None
    cohort: Count | None = None
    timeout: Positive = 600.0

    def refuses(self, setup: Setup) -> Iterator[str]:
        """An aggregation of single replies: actors send the sums of their clients."""
        yield from super().refuses(setup)
        if setup.aggregate.needs != "sum" or setup.aggregate.hides:
            yield (
                "the ray engine adds up replies where the clients are, but "
                f"{type(setup.aggregate).__name__} needs each by itself; use Sequential, "
                "Vectorised or Workers"
            )

    def start(self, job: Job, store: ClientRecords) -> Engine:
        if not isinstance(store, DiskStore):
            raise PairingError(
                f"the ray engine keeps client state in files that outlive its actors, but the "
                f"store is a {type(store).__name__}; use DiskStore, or leave the store out"
            )
        if job.initial.device.type != "cpu":
            raise PairingError(
                f"the ray engine runs clients on CPUs, but the initial vector is on "
                f"{job.initial.device}"
            )
        return RayEngine(self, job, store)


class _Batch(NamedTuple):
    """Some clients of one actor in one round."""

    actor: int
    tasks: list[Task]


class RayEngine(Engine):
    """Runs clients on actors."""

    def __init__(self, choice: Ray, job: Job, store: DiskStore) -> None:
        self._choice = choice
        self._job = job
        self._store = store
        self._ray = _imported()
        self._actors: list[Any] = []
        self._marker: Path | None = None
        self._stop = connect(choice.address)
        try:
            self._start_actors()
        except BaseException:
            self.close()
            raise

    def _start_actors(self) -> None:
        ray, clients = self._ray, self._job.problem.num_clients
        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        count = min(self._choice.actors or cpus, clients)
        directory = self._store.directory.resolve()
        dtype, cache = self._store.primal_dtype, CACHE_BYTES // count
        self._place = Place(directory, dtype, cache, list(sys.path))
        self._jobs = [ray.put(pack_job(self._job, actor, count)) for actor in range(count)]
        self._remote = ray.remote(ClientActor).options(num_cpus=min(1.0, cpus / count))
        self._marker = directory / f"ray-{os.getpid()}.marker"
        self._marker.touch()
        self._actors = [self._new_actor(actor) for actor in range(count)]
        for actor, handle in enumerate(self._actors):
            self._answer(handle.ready.remote(), actor)

    def _new_actor(self, actor: int) -> Any:
        return self._remote.remote(self._jobs[actor], self._place, self._marker)

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[Partial]:
        if download.missed is not None:
            download = download._replace(missed=download.missed.of(ids))
        broadcast = self._ray.put(download)
        batches = self._batches(ids)

        def submit(number: int) -> Any:
            actor, tasks = batches[number]
            return self._actors[actor].run.remote(tasks, broadcast, round_index)

        answers = {number: submit(number) for number in range(len(batches))}
        for number, batch in enumerate(batches):
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    reply: Reply = self._answer(answers.pop(number), batch.actor)
                    break
                except self._ray.exceptions.RayActorError as error:
                    if attempt == ATTEMPTS:
                        raise EngineError(
                            f"actor {batch.actor} was lost {ATTEMPTS} times in round "
                            f"{round_index + 1}: {error}"
                        ) from error
                    self._replace(batch.actor)
                    lost = [n for n in range(number, len(batches)) if batches[n][0] == batch.actor]
                    answers.update({n: submit(n) for n in lost})
            for client, version in reply.versions.items():
                self._store.adopt(client, version)
            yield reply.partial

    def _batches(self, ids: Sequence[int]) -> list[_Batch]:
        """Every actor's clients in pieces; the first piece of each actor comes first."""
        queues: list[list[Task]] = [[] for _ in self._actors]
        for client in ids:
            share, version = self._job.problem.weight(client), self._store.version(client)
            queues[client % len(queues)].append(Task(client, version, share))
        size = self._choice.cohort or max(1, len(ids))
        pieces = [
            (begin, actor, queue[begin : begin + size])
            for actor, queue in enumerate(queues)
            for begin in range(0, len(queue), size)
        ]
        return [_Batch(actor, tasks) for _, actor, tasks in sorted(pieces, key=lambda p: p[:2])]

    def _replace(self, actor: int) -> None:
        _logger.warning("actor %d was lost; its clients go on from their stored state", actor)
        self._ray.kill(self._actors[actor])
        self._actors[actor] = self._new_actor(actor)

    def _answer(self, reference: Any, actor: int) -> Any:
        """Wait for an actor, but not for ever."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference, timeout=self._choice.timeout)
        except errors.GetTimeoutError:
            raise EngineError(
                f"actor {actor} did not answer within {self._choice.timeout:g} seconds"
            ) from None
        except errors.RayTaskError as error:
            raise EngineError(f"{error.cause}") from error
        except errors.RayActorError as error:
            if "creation task" in str(error):
                reason = str(error).strip().splitlines()[-1]
                raise EngineError(f"actor {actor} could not start: {reason}") from error
            raise

    def close(self) -> None:
        for handle in self._actors:
            self._ray.kill(handle)
        self._actors = []
        if self._marker is not None:
            self._marker.unlink(missing_ok=True)
        self._stop()
        self._stop = lambda: None


def _imported() -> Any:
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
    """Join a cluster or start one here; a function that undoes exactly that."""
    ray = _imported()
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


class Task(NamedTuple):
    """One client's turn: the version of its record (None before the first), and its weight a_i."""

    client: int
    version: int | None
    share: float


class Reply(NamedTuple):
    """The sum over an actor's clients and the versions that they committed."""

    partial: Partial
    versions: dict[int, int]


class Place(NamedTuple):
    """Where and how an actor's clients keep their state."""

    directory: Path
    primal_dtype: torch.dtype | None
    cache_bytes: int
    modules: list[str]
    """Where the driver finds its modules: a user's own model may be in any of them."""


def pack_job(job: Job, actor: int, actors: int) -> bytes:
    """The job with the data of one actor's clients (id % actors == actor) and no others.

    Lazy clients travel as the recipe that builds them.
    """
    clients = job.problem.clients
    if not isinstance(clients, LazyClients):
        mine = {index: clients[index] for index in range(actor, len(clients), actors)}
        clients = Lazy(len(clients), mine.__getitem__)
    problem = Problem(clients, regularizer=job.problem.regularizer, buffers=job.problem.buffers)
    return _packed(job._replace(problem=problem))


def _packed(job: Job) -> bytes:
    from ray import cloudpickle

    class Packer(cloudpickle.Pickler):  # type: ignore[misc]
        """Leaves the rows of other clients behind, and binds modules to their vector again."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, FlatModule):
                return FlatModule, (obj.module,)
            if type(obj) is Tensor and obj.untyped_storage().nbytes() > obj.nbytes:
                own: Any = obj.clone()
                return own.__reduce_ex__(4)
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    Packer(buffer, protocol=5).dump(job)
    return buffer.getvalue()


class _ActorStore:
    """Records of this actor's clients.

    Which version counts is the driver's to say; a version committed by an actor that died before
    it could report is simply written again.
    """

    def __init__(self, job: Job, place: Place) -> None:
        self._files = RecordFiles(
            place.directory, layout(job), place.primal_dtype, place.cache_bytes
        )
        self.current: dict[int, int | None] = {}

    def get(self, client: int) -> ClientRecord | None:
        version = self.current[client]
        return None if version is None else self._files.read(client, version)

    def commit(self, client: int, record: ClientRecord, round_index: int) -> None:
        before = self.current[client]
        number = (NO_FILE if before is None else before) + 1
        version, kept = self._files.write(client, number, record, round_index)
        self._files.forget(client, before)
        self.current[client] = version
        self._files.remember(client, version, kept)


class ClientActor:
    """Keeps its clients' data and state, runs them, and answers with one sum."""

    def __init__(self, job: bytes, place: Place, marker: Path) -> None:
        from ray import cloudpickle

        torch.set_num_threads(1)
        if not marker.is_file():
            raise EngineError(
                f"the folder of the client state, {place.directory}, is not the same on every "
                "machine; give a DiskStore in a folder that all of them share"
            )
        sys.path.extend(path for path in place.modules if path not in sys.path)
        self._job = cast(Job, cloudpickle.loads(job))
        self._store = _ActorStore(self._job, place)

    def ready(self) -> bool:
        """Answer when the data has arrived."""
        return True

    def run(self, tasks: Sequence[Task], download: Download, round_index: int) -> Reply:
        """Run some clients and add up what they send."""
        infos: list[ClientInfo] = []
        sent: list[int] = []

        def replies() -> Iterator[tuple[float, Upload]]:
            for task in tasks:
                self._store.current[task.client] = task.version
                upload, info = self._run(task.client, download, round_index)
                infos.append(info)
                sent.append(upload.num_bytes)
                yield task.share, upload

        total = self._job.aggregate.fold(replies())
        assert total is not None
        weight = sum(task.share for task in tasks)
        finite = [info.client for info in infos if info.finite]
        versions = {client: self._store.current[client] for client in finite}
        return Reply(Partial(total, weight, sum(sent), infos), cast(dict[int, int], versions))

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
