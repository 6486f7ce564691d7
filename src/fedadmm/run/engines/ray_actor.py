"""The half of the Ray engine that runs where the clients are."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fedadmm.core.errors import EngineError, FedADMMError
from fedadmm.core.messages import ClientInfo, ClientRecord, Download, Partial, Upload
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.problem import Lazy, LazyClients, Problem
from fedadmm.run.client import Job, run_client
from fedadmm.run.stores.record_files import NO_FILE, RecordFiles
from fedadmm.run.stores.records import layout


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
