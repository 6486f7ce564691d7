"""One seed from its first message to its end: a phase with faults, one without, and the checks."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from flwr.app import Context, RecordDict

import fedadmm as fa
from fedadmm.core import atomic_files, clock
from fedadmm.core.errors import EngineError, FedADMMError
from fedadmm.flower.federation import Federation
from fedadmm.flower.secure_aggregation import pending_uploads
from fedadmm.flower.server import checkpoint as server_checkpoint
from fedadmm.flower.server.run_recorder import read_events
from fedadmm.flower.server.server_app import server_app
from fedadmm.run.record import read
from fedadmm.study.run_dir import RunDir

from . import plan as planning
from .attack import attack
from .books import Violation, checkpoint
from .world import _SERVER_FILE, Crash, Process, Time, World

_STARTS = 8
"""How often the server is started before the faults stop."""


class Scenario:
    """An operator, who starts the server again whenever it ended."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.plan = planning.make(seed)
        self.world = World(seed, self.plan)
        self.settings = self.plan.federation
        self._accepts = False
        self._said = ""
        """The server's last error."""
        self._backup: Any = None
        self._newer: Any = None
        self._restored = False
        """Whether the server ever went to another time than the sites were in."""

    @property
    def _beyond_repair(self) -> bool:
        """Without a ledger, sites that are ahead of a restored server stay out."""
        return self._restored and self.settings.ledger == "none"

    def run(self) -> Counter[str]:
        """All of it; a Violation when something did not hold."""
        with self._prepared():
            for _ in range(_STARTS):
                if self._start():
                    break
                self._between()
            self._calm()
        return self.world.counts + self.world.audit.counts

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        names = Random(f"names {self.seed}")
        masked = pending_uploads.masked

        def listening(words: Any, client: int, private: bytes, subject: str, shares: Any) -> Any:
            if subject.startswith("update"):
                own = next(share.public for share in shares if share.client == client)
                self.world.audit.masking(client, own, words)
            return masked(words, client, private, subject, shares)

        fake = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{names.getrandbits(128):032x}"))
        loggers = [logging.getLogger(name) for name in ("fedadmm", "flwr.fedadmm")]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            with (
                atomic_files.using(self.world.disk),
                clock.using(Time(self.world)),
                mock.patch.object(server_checkpoint, "uuid", fake),
                mock.patch.object(pending_uploads, "masked", listening),
            ):
                yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)

    def _start(self, settings: Federation | None = None) -> bool:
        """Start the server; whether it came to its end."""
        world = self.world
        process = Process("server")
        config: Any = {"run-dir": "/server/run", "accept-rollback": self._accepts}
        config["accept-nodes"] = world.quiet  # whoever had a seat may be gone for good
        app = server_app(settings or self.settings)
        world.counts["server starts"] += 1

        def run() -> None:
            app(world, Context(1, 1, {}, RecordDict(), dict(config)))  # type: ignore[arg-type]

        world.intrude = lambda _: self._second_server(run)
        try:
            with world.running(process):
                run()
        except Crash:
            world.bury(process)
            return False
        except FedADMMError as error:
            world.counts["errors at the server"] += 1
            self._handle(error)
            return False
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"undeclared at the server: {error!r}") from error
        finally:
            world.check()
        return True

    def _second_server(self, run: Any) -> None:
        """It must be refused; that it can end otherwise is a matter of disks and kills."""
        world = self.world
        if not world.disk.is_locked("/server/run/.lock"):
            return  # it would not be the second one
        process = Process("server")
        saved = world.counts["checkpoints"]
        try:
            with world.running(process):
                run()
        except (Crash, FedADMMError):
            pass
        if world.counts["checkpoints"] != saved:
            raise Violation("two servers worked in one folder")

    def _handle(self, error: FedADMMError) -> None:
        """What an operator does about what the server said."""
        world, self._said = self.world, str(error)
        if "is damaged" in str(error) and world.flipped:
            self._replace_checkpoint()
        elif "metrics.jsonl: line" in str(error) and world.flipped:
            self._leave_out_lines()
        elif isinstance(error, EngineError) and "restored from a backup" in str(error):
            world.counts["rollbacks named"] += 1
            if self.settings.ledger == "disk" and world.chance.random() < 0.7:
                self._accepts = True
            elif self._newer is not None:
                self._restore(self._newer)
            else:
                self._accepts = True

    def _replace_checkpoint(self) -> None:
        """The server's file was damaged: bring back a copy of it, or begin again."""
        world = self.world
        world.counts["damaged checkpoints named"] += 1
        saved = self._backup and self._backup["checkpoint"]["server.safetensors"]
        if saved and not world.books.is_damaged(saved):
            self._restore(self._backup)
            self._accepts = self.settings.ledger == "disk"
        else:
            world.disk.wipe("server", "run")
            self._backup = None
        self._newer = None

    def _leave_out_lines(self) -> None:
        """The records were damaged: keep the lines that are none the worse for it."""
        path = "/server/run/metrics.jsonl"
        self.world.counts["damaged records named"] += 1
        lines = (self.world.disk.peek(path) or b"").splitlines(keepends=True)
        self.world.disk.put_back(path, b"".join(line for line in lines if _is_record(line)))

    def _restore(self, saved: Any) -> None:
        """The server goes to another time than the sites are in."""
        self.world.disk.restore("server", "run", saved)
        self._restored = True
        for client in range(self.plan.federation.clients):
            self.world.books.meddled(client, self.world.now)

    def _between(self) -> None:
        """Between two starts: time passes, and things happen to the folder."""
        world, chance = self.world, self.world.chance
        world.pass_time(chance.uniform(1, 60))
        begun = world.disk.peek(_SERVER_FILE) is not None
        if self.plan.has("restored servers") and begun:
            if self._backup is None:
                self._backup = world.disk.backup("server", "run")
            elif chance.random() < 0.3:
                world.counts["restored servers"] += 1
                self._newer = world.disk.backup("server", "run")
                self._restore(self._backup)
        if self.plan.has("wiped servers") and chance.random() < 0.1:
            world.counts["wiped servers"] += 1
            world.disk.wipe("server", "run")
            self._backup = self._newer = None
        if self.plan.has("changed settings") and chance.random() < 0.3:
            self._with_other_settings()

    def _with_other_settings(self) -> None:
        world = self.world
        other, allowed = planning.changed(self.settings, world.chance)
        if world.disk.peek(_SERVER_FILE) is None:
            return
        world.counts["changed settings"] += 1
        if allowed:
            self.settings = other
            return
        world.refuses_settings = True
        try:
            if self._start(other):
                raise Violation("a run went on with settings of another one")
        finally:
            world.refuses_settings = False

    # the end --------------------------------------------------------------------------------------

    def _calm(self) -> None:
        """No faults any more: whoever is honest takes part, and the sums are right."""
        world = self.world
        world.heal()
        data = world.disk.peek(_SERVER_FILE)
        done = 0 if data is None else world.books.checkpoint(data).round
        self.settings = planning.with_run(self.settings, rounds=max(done, 0) + self.plan.tail)
        if self._restored and self.settings.ledger == "disk":
            self._accepts = True  # the status names those who are ahead
        for attempt in range(6):
            if self._start():
                break
            if attempt == 2:
                world.lift_demands()  # a lost site, or a lie, left sets that do not agree
        else:
            if self._beyond_repair or "contribution" in world.flipped:
                world.counts["stopped, as sites are ahead"] += 1
                return
            if self._too_few_are_left():
                world.counts["stopped, as too few are left to be summed"] += 1
                return
            if self._everybody_is_lost():
                world.counts["stopped, as all sites lost their state"] += 1
                return
            if world.misled and self._saved().round < 0:
                # In a round with everybody the only set that is left to a site is that of the lie.
                world.counts["stopped, as a server lied in the first round"] += 1
                return
            if world.books.swallowed_a_lie:  # what honest sites then send is far from what it was
                world.counts["stopped, as a lie within the bound was folded"] += 1
                return
            raise Violation("the run does not end although nothing fails any more")
        if self._diverged_by_a_lie():
            world.counts["diverged, as a lie within the bound was folded"] += 1
            return
        self._check_records()
        self._check_participation()
        self._check_folders()
        self._compare()
        if self.plan.lying_server:
            attack(world, world.recorder)

    def _everybody_is_lost(self) -> bool:
        """Without a ledger nobody who lost its state comes back, unless its folder does."""
        entries, meddled = self._saved().entries, self.world.books.ever_tampered
        clients = range(self.plan.federation.clients)
        lost = all(c == self.plan.liar or (c in entries and entries[c].lost) for c in clients)
        lost = lost or f"{len(clients)} clients lost their state" in self._said
        touched = all(c == self.plan.liar or c in meddled for c in clients)
        return self.settings.ledger == "none" and lost and touched

    def _too_few_are_left(self) -> bool:
        """Masked sums of three need three who have their state among those who are drawn."""
        sampler = self.plan.federation.experiment.sampler
        drawn = getattr(sampler, "size", self.plan.federation.clients)
        entries, meddled = self._saved().entries, self.world.books.ever_tampered
        lost = {c for c, entry in entries.items() if entry.lost}
        touched = all(c == self.plan.liar or c in meddled for c in lost)
        fewest = max(agreed.get("minimum_sites", 3) for agreed in self.plan.policies)
        return self.plan.masked and touched and drawn - len(lost) < fewest

    def _diverged_by_a_lie(self) -> bool:
        """The bound is wide here: what passes it can ruin the model, and the run may say so."""
        with self._reading():
            code = RunDir(_path("/server/run")).summary()["code"]
        return code == "diverged" and self.world.books.swallowed_a_lie

    def _check_records(self) -> None:
        with self._reading():
            summary = RunDir(_path("/server/run")).summary()
            records = RunDir(_path("/server/run")).records()
            numbers = [record["round"] for record in records]
            read_events(_path("/server/run"))
        for record in records:
            self.world.audit.metrics(record)
        if summary["code"] != "completed":
            raise Violation(f"the run ended as {summary['status']}")
        saved = self._saved()
        first = (
            0
            if self.plan.federation.experiment.algorithm.requirements.initial_round is not None
            else 1
        )
        whole = "metrics.jsonl" not in self.world.flipped
        if whole and numbers != list(range(first, saved.round + 1)):
            raise Violation(f"the records are of rounds {numbers}, but {saved.round} were done")

    def _reading(self) -> Any:
        return self.world.running(Process("server"))

    def _saved(self) -> Any:
        data = self.world.disk.peek(_SERVER_FILE)
        assert data is not None
        return checkpoint(data)

    def _records(self) -> list[dict[str, Any]]:
        data = self.world.disk.peek("/server/run/metrics.jsonl")
        assert data is not None
        return [json.loads(line) for line in data.splitlines()]

    def _check_participation(self) -> None:
        """Whoever is honest and has its state takes part in the calm."""
        ledger = self._saved().entries
        if self.plan.federation.experiment.sampler != fa.FullParticipation() or self._beyond_repair:
            return
        last = self._records()[-self.plan.tail :]
        seen = {client for record in last for client in record["cohort"]["clients"]}
        lost_clients = {client for client, entry in ledger.items() if entry.lost}
        able = summable([one.get("minimum_sites", 3) for one in self.plan.policies], lost_clients)
        for client in range(self.plan.federation.clients):
            lost = client in lost_clients
            honest = client != self.plan.liar
            waited = client in self.world.late and self.plan.federation.mode != "rounds"
            waited = waited or (self.plan.masked and client not in able)
            if honest and not lost and not waited and client not in seen:
                raise Violation(f"client {client} takes no part although nothing fails")
            if honest and lost and client not in self.world.books.ever_tampered:
                raise Violation(f"client {client} is called lost, but nobody touched its disk")

    def _check_folders(self) -> None:
        left = [p for p in self.world.disk.below("/server") if p.endswith(".tmp")]
        if left:
            raise Violation(f"{left} were left behind")

    def _compare(self) -> None:
        """The model is that of a run without faults in which the same clients took part."""
        saved, settings = self._saved(), self.plan.federation
        run = settings.experiment
        restarted = any(entry.incarnation for entry in saved.entries.values())
        lost = any(entry.lost for entry in saved.entries.values())
        theta = saved.arrays[_model_name(run.algorithm)]
        trace = []
        if "metrics.jsonl" not in self.world.flipped:
            rounds = (record for record in self._records() if record["round"] > 0)
            trace = [record["cohort"]["clients"] for record in rounds]
        everybody = len({client for ids in trace for client in ids}) == settings.clients
        comparable = settings.mode == "rounds" and everybody  # a trace without somebody is refused
        comparable = comparable and self.plan.exact
        if comparable and self.plan.liar is None and not (restarted or self._restored):
            result = fa.simulate(
                run.algorithm,
                settings.problem.with_clients(self.plan.objectives),
                len(trace),
                sampler=fa.TraceSampling(trace),
                local=self.plan.local,
                seed=run.seed,
                pipeline=run.pipeline,
                engine="sequential",  # as sites are
                evaluate=False,
            )
            off = float(np.abs(result.params.numpy() - theta).max())
            if off > 1e-12:
                raise Violation(f"the model is {off:.3g} from that of the run without faults")
            self.world.counts["equal to the run without faults"] += 1
        if (
            self.plan.exact
            and self.plan.tail >= 30
            and self.plan.liar is None
            and not (lost or self._beyond_repair)
        ):
            self._check_optimum(theta)

    def _check_optimum(self, theta: Any) -> None:
        weights, objectives = self.plan.weights, self.plan.objectives
        if isinstance(self.plan.federation.experiment.algorithm, fa.FedAvg):
            return  # its limit is another one
        matrix = sum(w * one.A for w, one in zip(weights, objectives, strict=True))
        right = sum(w * one.b for w, one in zip(weights, objectives, strict=True))
        optimum = torch.linalg.solve(torch.as_tensor(matrix), torch.as_tensor(right)).numpy()
        off = float(np.abs(optimum - theta).max())
        if off > 1e-3:
            raise Violation(f"the model is {off:.3g} from the optimum")
        self.world.counts["at the optimum"] += 1


def summable(minimums: list[int], lost: set[int]) -> set[int]:
    """Whose own minimum of sites in a masked sum can be met by those who have their state."""
    able = set(range(len(minimums))) - lost
    while able != (fewer := {client for client in able if minimums[client] <= len(able)}):
        able = fewer
    return able


def _model_name(algorithm: Any) -> str:
    return "server.xbar" if algorithm.name == "feddr" else "server.theta"


def _is_record(line: bytes) -> bool:
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and not isinstance(read(found), str)


def _path(text: str) -> Any:
    from pathlib import Path

    return Path(text)


def run_seed(seed: int) -> Counter[str]:
    """One seed; a Violation when something did not hold."""
    return Scenario(seed).run()
