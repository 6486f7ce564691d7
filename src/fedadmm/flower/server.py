"""The server's half: the only training loop, over a network, resumable at every round."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from fedadmm import trees
from fedadmm.engines.job import Job
from fedadmm.errors import ConfigError, EngineError
from fedadmm.evaluation import Evaluation
from fedadmm.flower.asking import Asking
from fedadmm.flower.checkpoint import Saved, ServerVault, new_run
from fedadmm.flower.desk import Journal
from fedadmm.flower.engine import GridEngine
from fedadmm.flower.exchange import Exchange
from fedadmm.flower.federation import Federation
from fedadmm.flower.protocol import restart
from fedadmm.flower.roster import Roster
from fedadmm.round import (
    Ending,
    Record,
    RoundReport,
    RunState,
    Schedule,
    initial_state,
    remembered,
    run,
    run_round,
    with_memory,
)
from fedadmm.state import MemoryStore
from fedadmm.state.files import make_directory
from fedadmm.state.locks import locked

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

Observer = Callable[[RoundReport], None]

_PREDECESSOR = 60.0
"""Seconds that a server waits for the one before it to end."""


class Outcome(NamedTuple):
    """What a deployed run leaves behind."""

    params: Tensor
    state: RunState
    ending: Ending
    counts: dict[str, int]
    """How many replies were refused, missing, lost … by reason."""


def server_app(federation: Federation, observers: Sequence[Observer] = ()) -> ServerApp:
    """A Flower ServerApp that runs a federation, and resumes it when it is started again.

    The run configuration must hold `run-dir`, the folder that receives metrics.jsonl,
    summary.json, model.safetensors and the checkpoint.
    """
    from flwr.serverapp import ServerApp

    from fedadmm.flower.rundir import RunDirectory

    def main(grid: Grid, context: Context) -> None:
        with RunDirectory(run_folder(context)) as directory:
            outcome = serve(federation, grid, directory.path, [directory, *observers])
            directory.finish(outcome)

    app = ServerApp()
    app.main()(main)
    return app


def run_folder(context: Context) -> Path:
    """Where the server keeps the run."""
    folder = context.run_config.get("run-dir")
    if not isinstance(folder, str) or not folder:
        raise ConfigError(
            f"run-config: run-dir is {folder!r}, but must be a folder of the server, as in "
            "flwr run . NAME --run-config 'run-dir=\"/var/lib/fedadmm/run\"'"
        )
    return Path(folder)


def serve(
    federation: Federation, grid: Grid, folder: Path, observers: Iterable[Observer] = ()
) -> Outcome:
    """Run a federation over a grid, from its last checkpoint in `folder` if there is one.

    Two servers on one checkpoint would acknowledge what the other never folded: the second waits,
    and is refused.
    """
    make_directory(folder)
    with torch.no_grad(), locked(folder, _PREDECESSOR):
        service = Service(federation, grid, folder, list(observers))
        if federation.mode == "asynchronous":
            from fedadmm.flower.asynchronous import run_asynchronously

            return run_asynchronously(service)
        return service.run()


class Service:
    """A server that is under way: the job, the network, the disk."""

    def __init__(
        self, federation: Federation, grid: Grid, folder: Path, observers: list[Observer]
    ) -> None:
        self.federation = federation
        self.job = federation.server_job()
        self.observers = observers
        self.journal = Journal()
        self.remembers = _remembers(self.job)
        keep = federation.ledger == "disk" and self.remembers
        self.vault = ServerVault(folder / "checkpoint", keep, fingerprint(federation, self.job))
        fresh = Saved(initial_state(self.job), new_run(), {})
        saved = self.vault.load(fresh.state) or fresh
        self.saved = saved._replace(boots=saved.boots + 1)
        self.vault.save(self.saved, {})
        patience = federation.patience
        # An exchange each: waiting for one thing must not end the waiting for another.
        self.exchange = Exchange(grid, patience.poll)
        greeting, self._asking = Exchange(grid, patience.poll), Exchange(grid, patience.poll)
        self.roster = Roster(greeting, federation.clients, federation.names, saved.roster, patience)
        self.engine = GridEngine(
            federation, self.job, self.exchange, self.roster, saved.ledger, self.journal
        )

    def run(self) -> Outcome:
        """Rounds until the end; a repair interrupts the loop between two of them."""
        everybody = not self.job.algorithm.accepts_partial
        self.roster.wait_for(self.federation.clients if everybody else 1)
        self.open()
        job = self.job._replace(algorithm=cast(Any, _Opened(self.job.algorithm)))
        sampler, rounds = self.federation.sampler, self.federation.rounds
        while self.saved.state.round < rounds:
            self.repair()
            state = self.saved.state
            for report in run(job, sampler, self.engine, MemoryStore(), self._schedule(), state):
                self.observe(report)
                self.settle(report.state)
                if report.ending is not None:
                    return self.outcome(report.ending)
                if self.to_repair():
                    break
        return self.outcome(Ending("completed", f"completed all {rounds} rounds"))

    def observe(self, report: RoundReport) -> None:
        """Write the round down; should its checkpoint fail, it is made and written again."""
        report.record.update(self.news())
        for observer in self.observers:
            observer(report)

    def settle(self, state: RunState) -> None:
        """Checkpoint what was folded; only then may the next task acknowledge it."""
        if state.round > self.saved.state.round or not self.saved.opened:
            brought = self.engine.settle()
            self.saved = self.saved._replace(
                state=state, ledger=self.engine.ledger, roster=self.roster.known, opened=True
            )
            self.vault.save(self.saved, brought)

    def repair(self) -> None:
        """Take clients that lost their state out of the server's, and let them start again."""
        for client in self.to_repair():
            entry = self.engine.ledger.entry(client)
            state, round_index = self.saved.state, self.saved.state.round - 1
            if self.remembers:
                past = self.vault.contribution(client, entry, _message_template(self.job))
                if past is None:
                    continue
                past = trees.map_tensors(lambda leaf: leaf.to(self.job.initial.dtype), past)
                regularizer = self.job.problem.regularizer
                server = self.job.algorithm.without(state.server, past, regularizer)
                state = state._replace(server=server)
            self.engine.ledger = restart(self.engine.ledger, client)
            self.saved = self.saved._replace(state=state, ledger=self.engine.ledger)
            self.vault.save(self.saved, {})
            self.journal.note(round_index, client, "repaired: it starts again from the beginning")

    def to_repair(self) -> list[int]:
        """Who is lost and can be taken out; without a ledger, whoever is lost stays so."""
        if self.remembers and self.federation.ledger == "none":
            return []
        return [c for c, entry in self.engine.ledger.entries.items() if entry.lost]

    def open(self) -> None:
        """The initial round with everybody, checkpointed on its own."""
        if self.saved.opened or not self.job.algorithm.starts_with_everyone:
            return
        everybody = range(self.federation.clients)
        self.roster.wait_for(self.federation.clients)
        before = with_memory(self.federation.sampler, self.saved.state)
        state, _, infos = run_round(self.job, everybody, self.engine, before, -1)
        self.settle(remembered(state._replace(round=0), -1, everybody, infos))

    def _schedule(self) -> Schedule:
        federation = self.federation
        evaluation = Evaluation(
            every=max(1, federation.evaluate_every),
            objective=False,
            test=federation.test is not None,
            extra=self.asking() if federation.evaluate_every else None,
        )
        return Schedule(federation.rounds, evaluation, federation.target)

    def measure(self, state: RunState, record: Record) -> Ending | None:
        """Measure one asynchronous step on the server's own data; the sites only at the end."""
        federation, number = self.federation, state.round
        last = number >= federation.rounds
        due = last or number % max(1, federation.evaluate_every) == 0
        params = self.job.algorithm.global_params(state.server)
        if due and federation.test is not None:
            record.update(federation.test(params))
        if last and federation.evaluate_every:
            record.update(self.asking()(params))
        target = federation.target
        if target is not None and target.reached(record):
            return Ending("target", f"{target.metric} reached the target in step {number}")
        return Ending("completed", f"completed all {number} steps") if last else None

    def check_alive(self, since: float) -> None:
        """Stop, to be resumed later, when nothing was folded for as long as a round may take."""
        if self.exchange.now() - since > self.federation.patience.round:
            raise EngineError(
                f"no client brought an update for {self.federation.patience.round:g} s; the state "
                "is kept, run again to resume"
            )

    def asking(self) -> Asking:
        """What measures a vector at the sites."""
        return Asking(self.federation, self.job, self._asking, self.roster, self.journal)

    def news(self) -> dict[str, Any]:
        """What a round's record says about the network."""
        events = [event._asdict() for event in self.journal.take()]
        return {
            "refused": sum(event["word"] != "missing" for event in events),
            "missing": sum(event["word"] == "missing" for event in events),
            "events": events,
        }

    def outcome(self, ending: Ending) -> Outcome:
        """The end of the run."""
        params = self.job.algorithm.global_params(self.saved.state.server)
        return Outcome(params.clone(), self.saved.state, ending, dict(self.journal.counts))


class _Opened:
    """An algorithm whose initial round is done already."""

    starts_with_everyone = False

    def __init__(self, algorithm: Any) -> None:
        self._algorithm = algorithm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._algorithm, name)


def _message_template(job: Job) -> Any:
    from fedadmm.flower.parcels import answer_template, parcel_template

    return answer_template(job, parcel_template(job).download).upload.message


def _remembers(job: Job) -> bool:
    """Whether the server's state holds something of each client."""
    server, message = job.algorithm.init_server(job.initial), _message_template(job)
    zero = trees.map_tensors(torch.zeros_like, message)
    return job.algorithm.without(server, zero, job.problem.regularizer) is not None


def fingerprint(federation: Federation, job: Job) -> dict[str, str]:
    """What must not change between a run and its resumption."""
    parts = {
        "algorithm": federation.algorithm,
        "clients": federation.clients,
        "solver": federation.solver,
        "stop": job.stop,
        "sampler": federation.sampler,
        "seed": federation.seed,
        "regularizer": federation.regularizer,
        "mode": federation.mode,
        "ledger": federation.ledger,
        "vector": f"{job.initial.numel()} x {job.initial.dtype}",
    }
    return {key: json.dumps(repr(value))[1:-1] for key, value in parts.items()}
