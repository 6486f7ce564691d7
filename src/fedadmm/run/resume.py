"""Saving and resuming a run between two rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedadmm.core.errors import ANOTHER_VERSION, CompatibilityError, ParameterError, StateError
from fedadmm.core.messages import ClientStateStore
from fedadmm.run.checkpoint import Checkpoint, Checkpoints, MemoryCheckpoints
from fedadmm.run.client import Job, this_round
from fedadmm.run.loop import initial_state
from fedadmm.run.round_callbacks import RunPlan
from fedadmm.run.state import Ending, RoundReport, RunState, pack_state, unpack_state
from fedadmm.run.stores.records import SnapshotStore, layout


class Begun(NamedTuple):
    """State in which a run begins, and its ending if it had ended already."""

    state: RunState
    ending: Ending | None = None


class Journal:
    """Saves a run between rounds and resumes it; without checkpoints it does nothing."""

    def __init__(
        self,
        job: Job,
        store: ClientStateStore,
        checkpoints: Checkpoints | MemoryCheckpoints | None,
        fingerprint: Mapping[str, Any] | None,
        plan: RunPlan,
    ) -> None:
        self._job = job
        self._plan = plan
        self._store = store
        self._checkpoints = checkpoints
        self._fingerprint = fingerprint if fingerprint is not None else _described(job)
        self._latest: Begun | None = None
        self._saved: int | None = None

    def begin(self, resume: bool) -> Begun:
        """Return the newest valid checkpoint of a resumed run, or else the initial state."""
        self._store.bind(*layout(self._job))
        if not resume and (held := self._store.clients()):
            raise StateError(
                f"the client state store already holds records of {len(held)} clients, but a run "
                "from round 0 needs an empty one; clear it, or resume the run from a checkpoint"
            )
        if self._checkpoints is None:
            if resume:
                raise ParameterError(
                    "simulate: resume is True, but checkpoints is None; it must say where they are"
                )
            return Begun(initial_state(self._job, self._plan))
        found = self._checkpoints.begin(resume, self._fingerprint, self._snapshots())
        self._store.mark()
        if found is None:
            start = Begun(initial_state(self._job, self._plan))
        else:
            start = restored(self._job, found, self._plan)
        self._saved = start.state.round
        return start

    def completed(self, report: RoundReport) -> None:
        """Called after the callbacks of a round: store its state, and write a due checkpoint."""
        if self._checkpoints is None:
            return
        if report.state.round == report.record["round"]:
            self._store.mark()
            self._latest = Begun(report.state, report.ending)
        else:
            # The round is undone: its clients are restored, and a resumed run repeats it.
            self._store.undo()
            self._latest = Begun(report.state)
        every = self._checkpoints.every
        if every and (report.ending is not None or report.state.round % every == 0):
            self._save()

    def interrupted(self) -> None:
        """Write a checkpoint of the last complete round."""
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
            raise CompatibilityError(
                f"checkpoints need a store that can be saved, but {type(self._store).__name__} "
                "cannot; use MemoryStore or DiskStore"
            )
        return self._store


def _described(job: Job) -> dict[str, Any]:
    """Return the fingerprint of a run whose caller gives none."""
    return {
        "algorithm": job.algorithm.name,
        "clients": job.problem.num_clients,
        "parameters": job.problem.num_parameters,
        "precision": str(job.initial.dtype).removeprefix("torch."),
        "seed": job.seed,
    }


def _pack(latest: Begun) -> Checkpoint:
    tensors, values = pack_state(latest.state)
    return Checkpoint(latest.state.round, tensors, values | {"ending": latest.ending})


def restored(job: Job, found: Checkpoint, plan: RunPlan) -> Begun:
    """Return where a checkpoint lets a run begin; reject one of another run."""
    template = initial_state(job, plan)
    broadcast = job.algorithm.broadcast(template.server, this_round(job, 0))
    try:
        state = unpack_state(template, broadcast, found.tensors, found.values)
        ending = found.values["ending"]
        return Begun(state, None if ending is None else Ending(*ending))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StateError(
            f"the checkpoint of round {found.round} cannot be understood; {ANOTHER_VERSION}"
        ) from error
