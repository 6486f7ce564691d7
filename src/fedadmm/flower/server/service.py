"""A running server: the round loop over a network, resumable after every round."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

from fedadmm.core import atomic_files, clock, codec, trees
from fedadmm.core.capabilities import AbsentClientAlignment, ClientRemoval
from fedadmm.core.codec import DamageError
from fedadmm.core.errors import EngineError, ParameterError, StateError
from fedadmm.core.outputs import Iterate
from fedadmm.flower.federation import Federation, RemoteObjective
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.ledger import RefusalReason, RefusedError, by_client, restart
from fedadmm.flower.protocol.payloads import payload_template
from fedadmm.flower.protocol.wire import CONFIG, PLACE, Records, signer
from fedadmm.flower.server.checkpoint import (
    ServerCheckpoint,
    ServerState,
    fingerprint,
    new_run,
    read_summary,
)
from fedadmm.flower.server.engine import GridEngine
from fedadmm.flower.server.exchange import Exchange, Roster
from fedadmm.flower.server.run_recorder import WAITING, EventLog
from fedadmm.flower.server.site_evaluation import (
    SiteEvaluation,
    SiteMetrics,
    measured,
    outlying_metrics,
)
from fedadmm.run.callbacks import Callbacks, Run
from fedadmm.run.client import Job, message_template
from fedadmm.run.components import without_client
from fedadmm.run.evaluation import Evaluation
from fedadmm.run.loop import initial_state, output_model, run
from fedadmm.run.metrics import ModelSelector
from fedadmm.run.privacy import attach_privacy
from fedadmm.run.record import Record, numbers, value
from fedadmm.run.round_callbacks import (
    BEST,
    DIVERGENCE,
    EXPLOSION,
    FirstValues,
    RunPlan,
)
from fedadmm.run.state import Ending, RoundReport, RunState
from fedadmm.run.stores import MemoryStore
from fedadmm.run.stores.records import separate
from fedadmm.study.run_dir import CHECKPOINT, STATE_DICT, RunDir
from fedadmm.study.run_history import fitted

if TYPE_CHECKING:
    from flwr.serverapp import Grid

_logger = logging.getLogger("fedadmm")


class DeploymentResult(NamedTuple):
    """The result of a deployed run."""

    params: Tensor
    state: RunState
    ending: Ending
    counts: dict[str, int]
    """Number of events on the network, by reason."""
    fitted: dict[str, float]
    """Values of the penalties that were fitted to the local work."""
    buffers: Tensor | None = None


class Service:
    """One run of a federation on a server: connects the job, the network and the disk."""

    def __init__(
        self,
        federation: Federation,
        grid: Grid,
        folder: Path,
        callbacks: Callbacks,
        attachments: Records,
    ) -> None:
        known = read_summary(folder / CHECKPOINT)
        gone = [client for client, weight in enumerate(known.weights) if weight == 0]
        federation = replace(federation, take_out=sorted({*federation.take_out, *gone}))
        self.federation = federation
        patience, key = federation.patience, federation.operator_key
        sign = None if key is None else signer(Path(key))
        as_it_runs, length = federation, None
        if federation.per_work:
            length = known.length or _length(
                federation, Exchange(grid, patience.poll, sign), attachments
            )
            attachments = {**attachments, wire.WORK: {"length": length}}
            as_it_runs = federation.fitted(length)
        job = as_it_runs.server_job()
        self.job, self._privacy = attach_privacy(job, federation.experiment.sampler)
        self.callbacks = callbacks
        self._folder = folder
        self._simulated = PLACE in attachments
        self.journal = EventLog()
        site = federation.problem.clients[0]
        self._flat = site.flat if isinstance(site, RemoteObjective) else None
        self.remembers = _remembers(self.job)
        # With noise on the sum no client can be removed: the models would reveal its updates.
        on_disk = federation.ledger == "disk" and self.job.pipeline.noise is None
        self.disk = ServerState(
            folder / CHECKPOINT, on_disk and self.remembers, fingerprint(federation, self.job)
        )
        begun = initial_state(self.job, self._plan(federation.experiment.rounds))
        weights = [self.job.problem.weight(client) for client in range(federation.clients)]
        fresh = ServerCheckpoint(begun, new_run(), {}, length=length, weights=weights)
        saved = self.disk.load(fresh.state, accept_sites=federation.accept_sites) or fresh
        saved = saved._replace(weights=saved.weights or weights)
        if list(saved.weights) != weights:
            saved = self._with_sites(saved, weights, on_disk)
        self.saved = saved = saved._replace(boots=saved.boots + 1)
        self.disk.save(self.saved, {})
        self._first_values = FirstValues(*saved.state.components.get(DIVERGENCE, ()))
        # One exchange for each purpose, because an exchange waits for all of its messages.
        tasks, greeting, questions = (Exchange(grid, patience.poll, sign) for _ in range(3))
        self.roster = Roster(greeting, federation, saved.roster, saved.holders)
        self.site_evaluation = SiteEvaluation(
            self.job,
            questions,
            self.roster,
            self.journal,
            patience.round,
            {key: attachments[key] for key in attachments if key == PLACE}
            | {CONFIG: federation.evaluate_config},
            saved.ledger.run,
            self.saved.boots,
        )
        self.engine = GridEngine(
            federation,
            self.job,
            tasks,
            self.roster,
            saved.ledger,
            saved.norms,
            self.saved.boots,
            self.journal,
            attachments,
            can_repair=on_disk or not self.remembers,
            say_waiting=self._say_waiting,
        )

    def _with_sites(
        self, saved: ServerCheckpoint, weights: Sequence[float], on_disk: bool
    ) -> ServerCheckpoint:
        """Return the run with other sites, as if the present weights had always been used.

        The server's state is a weighted sum of the clients' updates, so that a change of weights
        changes it by the difference.  A client that leaves has weight 0.
        """
        if len(saved.weights) > len(weights):
            raise StateError(
                f"the run has {len(saved.weights)} clients, but the app {len(weights)}; a site "
                'leaves with take-out="…" in the --run-config, and the others keep their numbers'
            )
        before = [*saved.weights, *[0.0] * (len(weights) - len(saved.weights))]
        entries = {c: e for c, e in saved.ledger.entries.items() if e.version}
        if self.remembers and entries and not on_disk:
            raise StateError(
                "the sites of this run change, but without ledger='disk' the contribution of each "
                "site is not known"
            )
        state, ledger = saved.state, saved.ledger
        if self.remembers:
            for client, entry in entries.items():
                try:
                    past = self.disk.contribution(
                        ledger.run, client, entry, _message_template(self.job), before[client]
                    )
                except DamageError as error:
                    raise StateError(f"{error}, so the sites of this run cannot change") from None
                less = trees.scaled(past, 1 - weights[client] / before[client])
                state = self._removed(state, less)
        for client in (c for c in range(len(weights)) if weights[c] == 0 < before[c]):
            ledger = restart(ledger, client)
            state = without_client(state, client)
            _logger.warning("client %d leaves the federation", client)
        norms = {c: stored_norms for c, stored_norms in saved.norms.items() if weights[c]}
        return saved._replace(state=state, ledger=ledger, norms=norms, weights=weights)

    def _removed(self, state: RunState, past: Any) -> RunState:
        """Return the state without a contribution that was aggregated."""
        past = trees.map_tensors(lambda leaf: leaf.to(self.job.initial.dtype), past)
        method = self.job.algorithm
        assert isinstance(method, ClientRemoval)
        server = method.remove_client(state.server, past, self.job.problem.regularizer)
        return state._replace(server=server)

    def _say_waiting(self, index: int, clients: Sequence[int]) -> None:
        """Report missing clients in the log, and in a file for `deploy status`."""
        if not clients:
            atomic_files.remove(self._folder / WAITING)
            return
        named = ", ".join(map(str, clients))
        _logger.warning("round %d: waiting for client %s", index + 1, named)
        missing = {"round": index + 1, "clients": list(clients), "at": clock.timestamp()}
        codec.write_json(self._folder / WAITING, missing)

    def run(self) -> DeploymentResult:
        """Run the remaining rounds; repairs and rounds without updates restart the loop."""
        known = fingerprint(self.federation, self.job)
        places = (MemoryStore(), self.saved.state, self._folder)
        self.callbacks.begin(
            Run(known, self.job, self.federation.experiment.sampler, None, *places)
        )
        if self._simulated:
            self._check_nodes()
        initial = self.saved.state.round < 0
        everybody = initial or self.job.algorithm.requirements.full_participation
        self.roster.wait_for(len(self.federation.members) if everybody else 1)
        sampler, engine = self.federation.experiment.sampler, self.engine
        while self.saved.state.round < self.rounds:
            self.repair()
            state = self.saved.state
            plan = self._plan(self.rounds)
            for report in run(self.job, sampler, engine, MemoryStore(), plan, state):
                if engine.to_repair() and not report.infos:
                    break  # nothing was aggregated: the round is repeated after the repair
                report = self.observe(report)
                if report.ending is None or report.ending.code != "diverged":
                    self.settle(report.state)
                if report.ending is not None:
                    return self.outcome(report.ending)
                if engine.empty or engine.to_repair():
                    break
        return self.outcome(self._completed())

    def _check_nodes(self) -> None:
        """Check the number of simulated nodes, which is final when the first one answers."""
        self.roster.wait_for(1)
        nodes, clients = self.roster.nodes, self.federation.clients
        if nodes != clients:
            raise EngineError(
                f"{nodes} nodes are simulated, but the federation has {clients} clients; run it "
                f'with --federation-config "num-supernodes={clients}", or make it for {nodes}'
            )

    @property
    def rounds(self) -> int:
        """Number of rounds; a round without updates does not count."""
        return self.federation.experiment.rounds + self.saved.empty

    def _completed(self) -> Ending:
        empty = f", and {self.saved.empty} without an update" if self.saved.empty else ""
        rounds = self.federation.experiment.rounds
        made = "rounds" if self.federation.mode == "rounds" else "steps"
        return Ending("completed", f"completed all {rounds} {made}{empty}")

    def observe(self, report: RoundReport) -> RoundReport:
        """Evaluate and record a round; it is repeated if writing its checkpoint fails.

        The metrics of the sites do not reach the loop; criteria on them are checked here.
        """
        record, ending = report.record, report.ending
        if self.engine.staleness is not None:
            record["clock"]["staleness"] = self.engine.staleness
        if ending is None or ending.code in ("completed", "patience"):
            done = ending is not None and not self.engine.empty
            waited = ending if ending is not None and ending.code == "patience" else None
            ending = self._measure(report.state, record, done)
            ending = ending or waited or (self._completed() if done else None)
        if ending is not None and ending.code == "diverged":
            last = self.saved.state.round
            sentence = (
                f"{ending.sentence}{self.engine.largest()}; the model is that of round {last}, "
            )
            sentence += 'from which the run goes on, with leave-out="…" without these clients'
            ending = ending._replace(sentence=sentence)
        record["network"] = (
            record.get("network", {}) | self._training(record["round"]) | self.news()
        )
        record["network"] |= self.engine.influence()
        # The loss is measured by the sites, and the norm by the loop.
        found = report.state.components.get(DIVERGENCE, self._first_values)
        found = found._replace(loss=self._first_values.loss)
        state = report.state.with_component(DIVERGENCE, found)
        report = RoundReport(state, record, report.infos, ending)
        self.callbacks.round(report)
        return report

    def _training(self, number: int) -> dict[str, Any]:
        """Return the metrics of the sites' own training loops in a round, if they have any."""
        found = self.engine.training_metrics()
        for client, why in outlying_metrics(found).items():
            del found[client]
            self.journal.note(number - 1, client, why)
        means = measured(self.job, found).means()
        return {"training": {"answered": len(found), "metrics": means}} if means else {}

    def _measure(self, state: RunState, record: Record, done: bool) -> Ending | None:
        """Evaluate at the sites if it is due, and return the ending if that ends the run.

        Their metrics are recorded under `sites`, the usual ones also with the server's own metrics.
        In asynchronous mode the sites evaluate the final model only.
        """
        number, every = record["round"], self.federation.evaluate_every
        regular = self.federation.mode == "rounds" and every and number and number % every == 0
        if not every or not (done or regular):
            return self._reached(record, None, complete=not every)
        began = time.perf_counter()
        found = self.site_evaluation(*self._handed_out(state), number - 1)
        means = found.means()
        ending = self._reached(record, found, complete=True)
        sites: dict[str, Any] = {"answered": len(found.answers), "metrics": means}
        record["network"] = {
            "sites": sites | ({"declined": found.declined} if found.declined else {})
        }
        record["metrics"] = found.shown() | record["metrics"]
        spent, times = time.perf_counter() - began, record["clock"]
        times["evaluation_seconds"] = times.get("evaluation_seconds", 0.0) + spent
        first = self._first_values.loss
        if first is None:
            self._first_values = self._first_values._replace(loss=means.get("loss"))
        elif found.exceed(EXPLOSION * (1 + abs(first))):
            sentence = f"the loss of the global model is {means['loss']:g} at the sites"
            return Ending("diverged", f"diverged in round {number}: {sentence}")
        return ending

    def _reached(self, own: Record, measured: SiteMetrics | None, complete: bool) -> Ending | None:
        """Return the ending if the target is reached; `complete` if no more metrics will come."""
        target = self.federation.experiment.target
        if target is None or not target.end_run:
            return None
        if measured is None and "evaluation_seconds" not in own["clock"]:
            return None
        means = measured.means() if measured is not None else {}
        found = value(own, target.metric)
        by_sites = measured is not None and found is None and measured.reach(target)
        if by_sites or target.reached(found):
            shown = means[target.metric] if found is None else found
            sentence = f"{target.metric} {shown:.4g} reached the target in round {own['round']}"
            return Ending("target", sentence)
        unheard = measured is None or (measured.answers and not measured.has(target.metric))
        if complete and found is None and target.metric not in means and unheard:
            raise ParameterError(
                f"Federation: target waits for {target.metric!r}, which is not measured; there "
                f"are {', '.join(sorted(numbers(own) | means))}"
            )
        return None

    def settle(self, state: RunState) -> None:
        """Checkpoint what was aggregated, before the next task acknowledges it."""
        if state.round > self.saved.state.round:
            contributions = self.engine.settle(self._virtual(state), state.round - 1)
            self.saved = self.saved._replace(
                state=state,
                ledger=self.engine.ledger,
                roster=self.roster.known,
                holders=self.roster.holders,
                empty=self.saved.empty + self.engine.empty,
                norms=self.engine.norms,
            )
            unkept = self.disk.save(self.saved, contributions)
            self._write_model(state)
            for client, why in unkept.items():
                if self.engine.give_up(client):
                    detail = f"{why}; should this client lose its state, it cannot be removed"
                    self.journal.note(
                        state.round - 1, client, RefusedError(RefusalReason.LEDGER, detail)
                    )

    def _write_model(self, state: RunState) -> None:
        """Write the model, and for the module of an app also its named state dict."""
        last = Iterate(*self._handed_out(state))
        RunDir(self._folder).write_model(state.components.get(BEST), last)
        if self._flat is None:
            return
        best = state.components.get(BEST)
        chosen = last if best is None else best.model
        self._flat.load(chosen.params)
        if chosen.buffers is not None:
            self._flat.load_buffers(chosen.buffers)
        named = save(separate(self._flat.module.state_dict()), {"format": "pt"})
        atomic_files.write(self._folder / STATE_DICT, named)

    def _virtual(self, state: RunState) -> Tensor | None:
        """Return the virtual step of this round, for a method that aligns absent clients."""
        method = self.job.algorithm
        if not isinstance(method, AbsentClientAlignment):
            return None
        return method.virtual_steps(state.server) - method.virtual_steps(self.saved.state.server)

    def repair(self) -> None:
        """Remove clients that lost their state from the server's state, and restart them."""
        for client in self.engine.to_repair():
            state, round_index = self.saved.state, self.saved.state.round - 1
            if self.remembers:
                without = self._without(client, state)
                if without is None:
                    continue
                state = without
            state = without_client(state, client)
            self.engine.ledger = restart(self.engine.ledger, client)
            self.engine.drop(client)
            self.saved = self.saved._replace(
                state=state, ledger=self.engine.ledger, norms=self.engine.norms
            )
            self.disk.save(self.saved, {})
            detail = "it starts again from the beginning"
            self.journal.note(round_index, client, RefusedError(RefusalReason.REPAIRED, detail))

    def _without(self, client: int, state: RunState) -> RunState | None:
        """Return the state without a client; None if its contribution is not known."""
        entry = self.engine.ledger.entry(client)
        try:
            template, weight = _message_template(self.job), self.saved.weights[client]
            past = self.disk.contribution(self.engine.ledger.run, client, entry, template, weight)
        except DamageError as error:
            self.engine.give_up(client)
            detail = f"{error}; this client lost its state, and cannot be removed"
            self.journal.note(state.round - 1, client, RefusedError(RefusalReason.LEDGER, detail))
            return None
        return state if past is None else self._removed(state, past)

    def _plan(self, rounds: int) -> RunPlan:
        evaluation = Evaluation(
            every=max(1, self.federation.evaluate_every),
            objective=False,
            test=self.job.problem.test is not None,
        )
        # By the server's own metrics, so that no site can select a model or end a run.
        experiment = self.federation.experiment
        selector = ModelSelector(experiment.target, experiment.patience)
        return RunPlan(
            rounds, evaluation, output=experiment.output, privacy=self._privacy, selector=selector
        )

    def _handed_out(self, state: RunState) -> tuple[Tensor, Tensor | None]:
        """Return the output model after a round, and its buffers."""
        handed = output_model(self.job.algorithm, self.federation.experiment.output, state)
        return handed.params, handed.buffers

    def news(self) -> dict[str, Any]:
        """Return what is recorded of the network in a round."""
        events = [event._asdict() for event in self.journal.take()]
        return {
            "refused": sum(event["reason"] != RefusalReason.MISSING for event in events),
            "missing": sum(event["reason"] == RefusalReason.MISSING for event in events),
            "events": events,
        }

    def outcome(self, ending: Ending) -> DeploymentResult:
        """Return the result of the run."""
        params, buffers = self._handed_out(self.saved.state)
        counts = dict(self.journal.counts)
        numbers = fitted(self.federation.experiment.algorithm, self.job.algorithm)
        return DeploymentResult(params.clone(), self.saved.state, ending, counts, numbers, buffers)


def _length(federation: Federation, exchange: Exchange, attachments: Records) -> float:
    """Return the mean length of the sites' local work, for a penalty that is fitted to it."""
    roster, lengths = Roster(exchange, federation), dict[int, float]()
    refusals: dict[int, RefusedError] = {}
    try:
        roster.wait_for(len(set(federation.members) - set(federation.leave_out)))
    except EngineError as error:
        if not roster.online():
            raise
        _logger.warning("the penalty is fitted to the work of those who are there: %s", error)
    questions = {
        c: (seat.node, wire.identity_request(attachments)) for c, seat in roster.online().items()
    }
    exchange.send("train", "work", questions, federation.patience.round)
    for arrival in exchange.arrivals(exchange.now() + federation.patience.round):
        try:
            content = arrival.read()
            if wire.DECLINED in content:
                wire.read_measured(content)
            lengths[arrival.key] = wire.read_length(content)
        except RefusedError as refused:
            _logger.warning(
                "client %d did not send the length of its work: %s", arrival.key, refused
            )
            refusals[arrival.key] = refused
    # A single site must not set the penalty of all.
    for client, why in outlying_metrics({one: {"length": lengths[one]} for one in lengths}).items():
        _logger.warning("client %d: %s", client, why)
        del lengths[client]
    if not lengths:
        declined = any(one.reason is RefusalReason.DECLINED for one in refusals.values())
        advice = "; use a number as the penalty, such as rho=0.1" if declined else ""
        raise EngineError(
            "no site sent the length of its local work, to which the penalty is fitted "
            f"({by_client(refusals) or 'no reply'}){advice}"
        )
    return sum(lengths.values()) / len(lengths)


def _message_template(job: Job) -> Any:
    return message_template(job, payload_template(job).download.broadcast)


def _remembers(job: Job) -> bool:
    """Return whether the server's state depends on the past updates of every client."""
    if not isinstance(job.algorithm, ClientRemoval):
        return False
    server, message = job.algorithm.init_server(job.initial), _message_template(job)
    zero = trees.map_tensors(torch.zeros_like, message)
    return job.algorithm.remove_client(server, zero, job.problem.regularizer) is not None
