"""Between two rounds: what a run must leave behind to be taken up again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from fedadmm.core import missed as away
from fedadmm.core import trees
from fedadmm.core.codec import Packed, unpack
from fedadmm.core.errors import ANOTHER_VERSION, PairingError, ParameterError, StateError
from fedadmm.core.missed import Missed
from fedadmm.core.outputs import AnyOutput, Iterate
from fedadmm.core.protocols import ClientStateStore, Download, Engine, EngineState, Known, Seen
from fedadmm.run.best import Best
from fedadmm.run.checkpoint import Checkpoint, Checkpoints, SnapshotStore
from fedadmm.run.client import Job, bound_tensor, this_round
from fedadmm.run.loop import initial_state, offered
from fedadmm.run.plan import Ending, Noised, RoundReport, RunState
from fedadmm.run.stores.records import layout, separate

Tree = TypeVar("Tree")


class Begun(NamedTuple):
    """Where a run begins, how it had ended if it was over already, and what its engine chose."""

    state: RunState
    ending: Ending | None = None
    choice: str | None = None


@runtime_checkable
class Choosing(Protocol):
    """An engine that chooses between ways which agree up to rounding, not to the last bit."""

    choice: str | None


class Journal:
    """Saves a run between rounds and takes it up again; without checkpoints it does nothing."""

    def __init__(
        self,
        job: Job,
        store: ClientStateStore,
        checkpoints: Checkpoints | None,
        fingerprint: Mapping[str, Any] | None,
        output: AnyOutput,
    ) -> None:
        self._job = job
        self._output = output
        self._store = store
        self._checkpoints = checkpoints
        self._fingerprint = fingerprint if fingerprint is not None else _described(job)
        self._latest: Begun | None = None
        self._saved: int | None = None
        self._engine: Engine | None = None

    def begin(self, resume: bool) -> Begun:
        """The newest good checkpoint when the run is resumed, or else the beginning."""
        self._store.bind(*layout(self._job))
        if self._checkpoints is None:
            if resume:
                raise ParameterError(
                    "simulate: resume is True, but checkpoints is None; it must say where they are"
                )
            if self._store.clients():
                raise StateError(
                    f"the client state store already holds records of "
                    f"{len(self._store.clients())} clients, but a run from round 0 needs an empty "
                    "one; clear it"
                )
            return Begun(initial_state(self._job))
        found = self._checkpoints.begin(resume, self._fingerprint, self._snapshots())
        self._store.mark()
        if found is None:
            start = Begun(initial_state(self._job))
        else:
            start = restored(self._job, found, self._output)
        self._saved = start.state.round
        return start

    def attach(self, engine: Engine, start: Begun) -> None:
        """Let a resumed engine go on the way it began."""
        self._engine = engine
        if isinstance(engine, Choosing) and start.choice is not None:
            engine.choice = start.choice

    def completed(self, report: RoundReport) -> None:
        """A round is over and callbacks have seen it: remember it, and save it when it is time."""
        if self._checkpoints is None:
            return
        choice = self._engine.choice if isinstance(self._engine, Choosing) else None
        if report.state.round == report.record["round"]:
            self._store.mark()
            self._latest = Begun(report.state, report.ending, choice)
        else:
            # The round was refused: its clients go back, and a resumed run meets it again.
            self._store.undo()
            self._latest = Begun(report.state, None, choice)
        every = self._checkpoints.every
        if every and (report.ending is not None or report.state.round % every == 0):
            self._save()

    def interrupted(self) -> None:
        """Save the last complete round, whatever the current one has done already."""
        self._store.undo()
        self._save()

    def _save(self) -> None:
        latest = self._latest
        if self._checkpoints is None or latest is None or latest.state.round == self._saved:
            return
        self._checkpoints.save(_pack(latest), self._fingerprint, self._snapshots())
        self._saved = latest.state.round

    def _snapshots(self) -> SnapshotStore:
        if not isinstance(self._store, SnapshotStore):
            raise PairingError(
                f"checkpoints need a store that can be saved, but {type(self._store).__name__} "
                "cannot; use MemoryStore or DiskStore"
            )
        return self._store


def _described(job: Job) -> dict[str, Any]:
    """What can be said about a run whose caller gives no fingerprint."""
    return {
        "algorithm": job.algorithm.name,
        "clients": job.problem.num_clients,
        "parameters": job.problem.num_parameters,
        "precision": str(job.initial.dtype).removeprefix("torch."),
        "seed": job.seed,
    }


def _pack(latest: Begun) -> Checkpoint:
    state = latest.state
    named = dict(trees.named_tensors(state.server, "server"))
    if state.buffers is not None:
        named["buffers"] = state.buffers
    named |= dict(trees.named_tensors(state.output, "output"))
    if state.missed is not None:
        named |= state.missed.tensors()
    if state.best is not None:
        named |= dict(trees.named_tensors(state.best.model, "best"))
    values: dict[str, Any] = {
        "first_loss": state.first_loss,
        "first_norm": state.first_norm,
        "ending": latest.ending,
        "choice": latest.choice,
        "notes": state.notes,
        "known": plain_rows(state.known),
        "noised": plain_rows(state.noised),
        "clip_bound": state.clip_bound,
        "missed": None if state.missed is None else state.missed.rows(),
        "best": None if state.best is None else state.best[:-1],
    }
    if state.engine is not None:
        values["engine"] = state.engine.values
        values["downloads"] = sorted(state.engine.downloads)
        for step, download in state.engine.downloads.items():
            named |= dict(trees.named_tensors(download, f"download.{step}"))
    return Checkpoint(state.round, separate(named), values)


def restored(job: Job, found: Checkpoint, output: AnyOutput) -> Begun:
    """Where a checkpoint lets a run begin; one that says something else is refused."""
    try:
        return _unpack(job, found, output)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StateError(
            f"the checkpoint of round {found.round} cannot be understood; {ANOTHER_VERSION}"
        ) from error


def _unpack(job: Job, found: Checkpoint, output: AnyOutput) -> Begun:
    template = job.algorithm.init_server(job.initial)
    server = _filled(job, found, template, "server")
    buffers = found.tensors.get("buffers")
    if buffers is not None:
        buffers = buffers.to(job.initial.device)
    bound = found.values.get("clip_bound", job.uploads.first_bound)  # older checkpoints have none
    cast = job.algorithm.broadcast(template, this_round(job, 0))
    engine = _unpack_engine(job, found, Download(cast, buffers, clip_bound=bound_tensor(bound)))
    first_loss, notes = found.values["first_loss"], found.values["notes"]
    first_norm = found.values.get("first_norm")  # older checkpoints have none
    known = known_from(found.values.get("known"))  # older checkpoints have none
    noised = noised_from(found.values.get("noised"))
    state = RunState(found.round, server, buffers, first_loss, first_norm, engine, notes, known)
    state = state._replace(
        clip_bound=bound,
        output=_unpack_output(job, found, state, output),
        missed=_unpack_missed(job, found, server),
        best=_unpack_best(job, found),
        noised=noised,
    )
    ending = found.values["ending"]
    return Begun(state, None if ending is None else Ending(*ending), found.values["choice"])


def plain_rows(known: Mapping[int, Iterable[Any]] | None) -> list[list[Any]] | None:
    """What is known of the clients as JSON can hold it."""
    return None if known is None else [[client, *seen] for client, seen in known.items()]


def known_from(rows: list[list[Any]] | None) -> Known | None:
    """The inverse of `plain_rows` for what a sampler knows."""
    return None if rows is None else {client: Seen(*seen) for client, *seen in rows}


def noised_from(rows: list[list[Any]] | None) -> dict[int, Noised] | None:
    """The inverse of `plain_rows` for noised steps."""
    return None if rows is None else {client: Noised(*made) for client, *made in rows}


def _unpack_output(job: Job, found: Checkpoint, state: RunState, output: AnyOutput) -> Any:
    template = output.begin(offered(job.algorithm, state))
    needed = {name for name, _ in trees.named_tensors(template, "output")}
    held = {name for name in found.tensors if name.partition(".")[0] == "output"}
    if needed != held:
        raise StateError(
            f"the checkpoint of round {found.round} was not made with {type(output).__name__} as "
            "its output, but what is handed out must be made from the first round on; resume with "
            "the output that it began with"
        )
    return _filled(job, found, template, "output")


def _unpack_best(job: Job, found: Checkpoint) -> Best | None:
    told = found.values.get("best")  # older checkpoints have none
    if told is None:
        return None
    params, buffers = found.tensors["best.params"], found.tensors.get("best.buffers")
    device = job.initial.device
    model = Iterate(params.to(device), None if buffers is None else buffers.to(device))
    metric, value, number, since, loss = told
    return Best(metric, value, number, since, loss, model)


def _unpack_missed(job: Job, found: Checkpoint, server: Any) -> Missed | None:
    if job.algorithm.virtual_steps(server) is None:
        return None
    rows = found.values.get("missed")
    if rows is None:
        raise StateError(
            f"the checkpoint of round {found.round} does not say what absent clients have missed, "
            f"but {job.algorithm.name} moves them along; {ANOTHER_VERSION}"
        )
    return away.restored(rows, found.tensors, job.initial.device)


def _unpack_engine(job: Job, found: Checkpoint, template: Download) -> EngineState | None:
    if "engine" not in found.values:
        return None
    downloads = {
        step: _filled(job, found, template, f"download.{step}")
        for step in found.values["downloads"]
    }
    return EngineState(found.values["engine"], downloads)


def _filled(job: Job, found: Checkpoint, template: Tree, prefix: str) -> Tree:
    """The template with the checkpoint's tensors."""
    named = {}
    for name, like in trees.named_tensors(template, prefix):
        if name not in found.tensors:
            raise StateError(
                f"the checkpoint of round {found.round} holds {', '.join(sorted(found.tensors))}, "
                f"but {job.algorithm.name} needs {name}; {ANOTHER_VERSION}"
            )
        named[name] = found.tensors[name].to(like.device)
    return unpack(template, Packed(named, {}), prefix)
