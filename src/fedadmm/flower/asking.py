"""The loss of the global model at the sites: each measures on its own data and sends numbers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedadmm.engines.job import Job
from fedadmm.errors import StateError
from fedadmm.flower import queries
from fedadmm.flower.desk import Journal
from fedadmm.flower.exchange import Exchange
from fedadmm.flower.federation import Federation
from fedadmm.flower.roster import Roster


class Asking:
    """A function of the global vector that returns the sites' weighted mean metrics."""

    def __init__(
        self,
        federation: Federation,
        job: Job,
        exchange: Exchange,
        roster: Roster,
        journal: Journal,
    ) -> None:
        self._federation = federation
        self._job = job
        self._exchange = exchange
        self._roster = roster
        self._journal = journal

    def __call__(self, params: Tensor) -> dict[str, float]:
        """Ask everybody who is online; `evaluated` says how many answered."""
        self._roster.refresh()
        client: Any = self._job.problem.clients[0]
        averaged = self._job.problem.buffers == "average"
        content = queries.question(params, client.flat.buffers() if averaged else None)
        online = self._roster.online()
        timeout = self._federation.patience.round
        questions = {client: (seat.node, content) for client, seat in online.items()}
        self._exchange.send("evaluate", "evaluate", questions, timeout)
        answers: dict[int, dict[str, float]] = {}
        for arrival in self._exchange.arrivals(self._exchange.now() + timeout):
            if arrival.content is None:
                self._journal.note(-1, arrival.key, f"error: {arrival.error}")
                continue
            try:
                answers[arrival.key] = queries.metrics(arrival.content)
            except StateError as error:
                self._journal.note(-1, arrival.key, str(error))
        self._exchange.forget()
        weights = {client: self._job.problem.weight(client) for client in answers}
        return queries.mean(answers, weights) | {"evaluated": float(len(answers))}
