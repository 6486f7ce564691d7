"""Engine that runs the clients over a network, for the round loop of `fedadmm.run.loop`.

In synchronous mode, a call sends the tasks of the round and yields all client results.  In
asynchronous mode, a call sends the current model to every client without a task, and yields the
next result: the loop then makes one server step per result, whatever model it was computed from.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from fedadmm.core import trees
from fedadmm.core.aggregation import cosines_to_others
from fedadmm.core.errors import EngineError
from fedadmm.core.messages import ClientInfo, Download, Engine, PartialSum, Upload
from fedadmm.flower.federation import Federation
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.admission import Sizes, UploadHistory, vectors
from fedadmm.flower.protocol.ledger import (
    RefusalReason,
    RefusedError,
    ServerLedger,
    by_client,
    mark_lost,
    record_aggregated,
)
from fedadmm.flower.secure_aggregation.masked_messages import as_masked_sum
from fedadmm.flower.secure_aggregation.masked_sums import ReadyRequest
from fedadmm.flower.server.exchange import Exchange, OnlineNode, Roster
from fedadmm.flower.server.run_recorder import EventLog
from fedadmm.flower.server.tasks import (
    AcceptedReply,
    ClientRequest,
    TaskDispatcher,
    TrainingRequest,
)
from fedadmm.run.client import Job, aligned

_SINGLE_CLIENT_FACTOR = 8
"""Retry multiplier while the same single client is sampled."""
_MAX_BACKOFF_ROUNDS = 8
"""Largest number of rounds until a client is asked again that did not answer, or was ready and sent
no masked upload; the number doubles from 1."""
_NOTICE_SECONDS = 10.0
"""Seconds after which the clients are logged that a round waits for."""
REFRESH_SECONDS = 5.0
"""Seconds between two updates of the list of nodes."""

_logger = logging.getLogger("fedadmm")
RoundResult = tuple[int, Upload, ClientInfo]


class Unresponsiveness(NamedTuple):
    """Consecutive rounds without an answer, or without the masked upload, of a client."""

    rounds: int
    """Number of consecutive rounds."""
    last: int
    """The last of these rounds."""
    seat: OnlineNode
    """The node that was asked; after a restart it is asked immediately."""

    @property
    def until(self) -> int:
        """Index of the round in which it is asked again."""
        return self.last + min(1 << (self.rounds - 1), _MAX_BACKOFF_ROUNDS)


class WaitingNotice:
    """Reports the clients that a round waits for, at doubling intervals."""

    def __init__(self, say: Callable[[int, Sequence[int]], None], index: int, now: float) -> None:
        self._say, self._index = say, index
        self._began, self._next = now, _NOTICE_SECONDS
        self._said = False

    def look(self, left: Sequence[int], now: float) -> None:
        """Report the missing clients if it is time."""
        if left and now - self._began >= self._next:
            self._next, self._said = 2 * self._next, True
            self._say(self._index, left)

    def over(self) -> None:
        """Report that the round waits no longer."""
        if self._said:
            self._say(self._index, [])


class GridEngine(Engine):
    """Sends tasks and yields the validated client results.

    `ledger` and `norms` describe what was aggregated *and checkpointed*; `settle` updates them
    after a round.
    """

    def __init__(
        self,
        federation: Federation,
        job: Job,
        exchange: Exchange,
        roster: Roster,
        ledger: ServerLedger,
        norms: Mapping[int, UploadHistory],
        boots: int,
        journal: EventLog,
        attachments: wire.Records,
        *,
        can_repair: bool,
        say_waiting: Callable[[int, Sequence[int]], None],
    ) -> None:
        self._say_waiting = say_waiting
        self._patience = federation.patience
        self._gone: dict[int, float] = {}
        """When the nodes of clients that a round waits for went offline."""
        self.is_asynchronous = federation.mode != "rounds"
        self._federation = federation
        self._job = job
        self._exchange = exchange
        self._roster = roster
        self._journal = journal
        self._attachments = attachments
        self._part = as_masked_sum(job.aggregator)
        resend, masks = federation.patience.resend, self._part is not None
        self._tasks = TaskDispatcher(exchange, roster, journal, resend, boots, afresh=masks)
        self._answers: dict[int, AcceptedReply] = {}
        self._empty_rounds = 0
        self._void: list[str] = []
        """Why masked sums of the last round are void."""
        self._asked_in_vain: set[int] = set()
        """Clients that were asked in the last rounds without any update."""
        self._silent: dict[int, Unresponsiveness] = {}
        self._without_upload: dict[int, Unresponsiveness] = {}
        """Clients that were ready and sent no masked upload, which made their sum void."""
        self._behind: dict[int, RefusedError] = {}
        self._can_repair = can_repair
        self._beyond_repair: set[int] = set()
        self.ledger = ledger
        self.norms = norms
        self.empty = False
        """Whether clients were asked in the last round and none returned an update."""
        self.staleness: int | None = None
        """In asynchronous mode, how many steps old the model of the last update was."""

    def run_clients(
        self, ids: Sequence[int], download: Download, round_index: int
    ) -> Iterator[RoundResult | PartialSum]:
        ids = [client for client in ids if client not in self._federation.take_out]
        admission = self._federation.admission
        kind = TrainingRequest if self._part is None else ReadyRequest
        broadcast = kind(self._job, download, admission, round_index, self._attachments)
        if self._federation.mode == "rounds" or round_index < 0:
            yield from self._round(ids, broadcast, round_index)
        else:
            yield from self._step(broadcast, round_index)

    def training_metrics(self) -> dict[int, Mapping[str, float]]:
        """Return the metrics that clients of the last step measured during training."""
        return {c: accepted.metrics for c, accepted in self._answers.items() if accepted.metrics}

    def broadcasts(self, ids: Sequence[int]) -> int:
        return self._tasks.take_count()

    def settle(self, virtual: Tensor | None, step: int) -> dict[int, Any]:
        """Record that the updates of a step were aggregated; return each client's contribution.

        A contribution is the weighted message, minus the virtual step of this round if there was
        one.
        """
        contributions, norms = {}, dict(self.norms)
        for client, (reply, admitted, *_) in self._answers.items():
            self.ledger = record_aggregated(self.ledger, reply)
            if self._part is not None:
                continue  # single uploads are not known
            share = self._job.problem.weight(client)
            message = admitted.answer.upload.message
            if virtual is not None:
                message = aligned(self._job.algorithm).contribution(message, virtual)
            contributions[client] = trees.scaled(message, share)
            norms[client] = UploadHistory.after(norms.get(client), step, admitted.sizes)
        self.norms, self._answers = norms, {}
        return contributions

    def to_repair(self) -> list[int]:
        """Return the clients that lost their state and can be removed; none without a ledger."""
        if not self._can_repair:
            return []
        lost = (client for client, entry in self.ledger.entries.items() if entry.lost)
        return [client for client in lost if client not in self._beyond_repair]

    def give_up(self, client: int) -> bool:
        """Note that a client cannot be removed any more; return False if that was known."""
        news = client not in self._beyond_repair
        self._beyond_repair.add(client)
        return news

    def drop(self, client: int) -> None:
        """Forget the task and the norms of a client that starts again."""
        self._tasks.outstanding.pop(client, None)
        self._behind.pop(client, None)
        self.norms = {c: stored for c, stored in self.norms.items() if c != client}

    def largest(self) -> str:
        """Describe the clients with the largest updates, as a possible cause of a divergence."""
        sizes = {client: stored.recent[-1] for client, stored in self.norms.items()}
        shares = self._shares(sizes | self._sizes())
        most = sorted(shares, key=lambda client: -shares[client])[:3]
        each = ", ".join(f"client {c} ({100 * shares[c]:.0f} %)" for c in most)
        return f"; the largest shares of the last updates are those of {each}" if each else ""

    def influence(self) -> dict[str, Any]:
        """Return the client with the largest share of the last step, and each client's agreement.

        The agreement is the cosine of its update to the sum of the others.  Both are measured only
        if single updates are visible, and change nothing.
        """
        shares = self._shares(self._sizes())
        if not shares:
            return {}
        client = max(shares, key=lambda one: shares[one])
        messages = {
            c: (self._job.problem.weight(c), accepted.admitted.answer.upload.message)
            for c, accepted in self._answers.items()
        }
        found = {"influence": {"client": client, "share": shares[client]}}
        if agreement := {str(c): one for c, one in cosines_to_others(messages).items()}:
            found["agreement"] = agreement
        return found

    def _sizes(self) -> dict[int, Sizes]:
        return {client: accepted.admitted.sizes for client, accepted in self._answers.items()}

    def _shares(self, sizes: Mapping[int, Sizes]) -> dict[int, float]:
        """Return the weighted norms of updates as fractions of their sum."""
        lengths = {
            c: self._job.problem.weight(c) * math.hypot(*vectors(s).values())
            for c, s in sizes.items()
        }
        total = sum(lengths.values())
        right = total > 0 and math.isfinite(total)
        return {client: length / total for client, length in lengths.items()} if right else {}

    def close(self) -> None:
        self._exchange.forget()

    def _round(
        self, ids: Sequence[int], broadcast: TrainingRequest, index: int
    ) -> Iterator[RoundResult | PartialSum]:
        algorithm = self._job.algorithm
        with_all = algorithm.requirements.full_participation or index < 0
        self._answers, why = self._collect(ids, broadcast, index, with_all)
        sums = None
        # A site releases one set per round: request no sum that could not be used.
        if isinstance(broadcast, ReadyRequest) and not (with_all and len(self._answers) < len(ids)):
            sums = self._sums(broadcast, index)
        missing = [client for client in ids if client not in self._answers]
        if with_all and missing and self.to_repair():
            self._answers = {}  # the round is repeated after the repair
            return
        if with_all and missing:
            reason = why.get(missing[0]) or "; ".join(self._void) or "no answer"
            raise EngineError(
                f"{type(algorithm).__name__} needs all clients, but {len(missing)} did not bring "
                f"an update in round {index + 1} (first: {missing[0]}, {reason}); {self._advice()}"
            )
        self._count_empty(ids, why)
        if self._gives_up:
            yield self._diverged(broadcast, why)
        if isinstance(broadcast, ReadyRequest):
            yield from sums or ()
            return
        for client in ids:
            if client in self._answers:
                answer = self._answers[client].admitted.answer
                yield client, answer.upload, answer.info

    def _sums(self, broadcast: ReadyRequest, index: int) -> list[PartialSum]:
        """Return the masked sums of the clients that are ready; the others did not take part."""
        assert self._part is not None
        sets = broadcast.sets(self._part, self._answers)
        ready, made, aggregated = self._answers, list[PartialSum](), dict[int, AcceptedReply]()
        void = {client: sets.left_out(client) for client in ready if client not in sets.members}
        answers, why_not = self._collect(sets.members, sets, index, with_all=True)
        for group in sets.groups:
            self._count_missing_uploads(group, answers, why_not, index)
        for clients, partial, why in sets.sums(answers):
            if partial is None:
                named = ", ".join(map(str, clients))
                void[clients[0]] = f"the sum of clients {named} is void: {why}"
                continue
            if not any(bool(leaf.any()) for leaf in trees.tensors(partial.total.message)):
                # Sites log a failure of their local work, and do not report it.
                _logger.warning(
                    "round %d: the sum of clients %s is zero; if that lasts, the local work may "
                    "have no usable result, which the sites' logs then say",
                    *(index + 1, ", ".join(map(str, clients))),
                )
            made.append(partial)
            aggregated |= {client: ready[client] for client in clients}
        for client, detail in void.items():
            self._journal.note(index, client, RefusedError(RefusalReason.VOID, detail))
        self._answers, self._void = aggregated, sorted(set(void.values()))
        return made

    def _count_missing_uploads(
        self,
        group: Sequence[int],
        answers: Mapping[int, AcceptedReply],
        why: Mapping[int, RefusedError],
        index: int,
    ) -> None:
        """Pause clients that made the sum of their set void, so that no single site ends a run."""
        missing = [client for client in group if client not in answers]
        refusing = [client for client in missing if why[client].reason is RefusalReason.ERROR]
        if 2 * len(refusing) > len(group):
            missing = []  # most refuse the set itself, for example because of an invalid key
        for client in group:
            before, seat = self._without_upload.get(client), self._roster.online().get(client)
            if client in answers:
                self._without_upload.pop(client, None)
            elif client in missing and seat is not None:
                rounds = 1 if before is None else before.rounds + 1
                self._without_upload[client] = Unresponsiveness(rounds, index, seat)

    def _count_empty(self, ids: Sequence[int], why: Mapping[int, RefusedError]) -> None:
        """Count rounds without any update; several in a row end the run."""
        self.empty = bool(ids) and not self._answers
        self._empty_rounds = self._empty_rounds + 1 if self.empty else 0
        self._asked_in_vain = self._asked_in_vain | set(ids) if self.empty else set()
        reasons_given = {refused.reason for refused in why.values()}
        most = self._federation.patience.empty
        # Two clients are required: a single one that claims to be ahead does not end the run.
        several = len(self._behind) >= min(2, self._federation.clients)
        way_out = self._federation.accept_rollback and self._can_repair
        if self.empty and reasons_given == {RefusalReason.ROLLBACK} and several and not way_out:
            raise EngineError(self._advice())
        if self._gives_up and RefusalReason.FINITE not in reasons_given:
            reported = (RefusalReason.DECLINED, RefusalReason.ERROR)
            reasons = by_client({c: one for c, one in why.items() if one.reason in reported})
            details = "; ".join(filter(None, [reasons, *self._void]))
            details = f" ({details})" if details else ""
            raise EngineError(
                f"no client returned an update in {most} rounds in a row{details}; {self._advice()}"
            )

    @property
    def _gives_up(self) -> bool:
        """Return whether the run ends because too many rounds had no update."""
        most = self._federation.patience.empty
        several = len(self._asked_in_vain) >= min(2, self._federation.clients)
        return self._empty_rounds >= (most if several else _SINGLE_CLIENT_FACTOR * most)

    def _diverged(self, broadcast: TrainingRequest, why: Mapping[int, RefusedError]) -> Any:
        """Return a client result that is not finite, which makes the loop end the run."""
        client = next(
            client for client, refused in why.items() if refused.reason is RefusalReason.FINITE
        )
        return client, None, broadcast.failed(client)

    def _advice(self) -> str:
        """Return advice for the operator, in particular after a rollback of the server."""
        lost = [client for client, entry in self.ledger.entries.items() if entry.lost]
        if lost and not self._behind:
            return (
                f"{len(lost)} clients lost their state (first: {lost[0]}), and their contributions "
                "cannot be taken out; bring their folders back and run again to resume, or begin a "
                "new run"
            )
        if not self._behind:
            return "the state is kept, run again to resume"
        client, refused = next(iter(self._behind.items()))
        return (
            f"{len(self._behind)} clients are ahead of this server (client {client}: "
            f"{refused.detail}), as after its folder was restored from a backup; bring back the "
            "newer checkpoint, or run with accept-rollback=true (and ledger='disk'), which takes "
            "these clients out exactly and starts them again"
        )

    def _collect(
        self, ids: Sequence[int], broadcast: ClientRequest, index: int, with_all: bool
    ) -> tuple[dict[int, AcceptedReply], dict[int, RefusedError]]:
        """Send tasks and collect replies until all clients answered or the round times out."""
        exchange = self._exchange
        deadline = exchange.now() + self._federation.patience.round
        left, why = dict.fromkeys(ids), dict[int, RefusedError]()
        answers: dict[int, AcceptedReply] = {}
        self._tasks.clear()
        self._roster.refresh()
        resting = {} if with_all else self._resting(ids, index)
        for client, sentence in resting.items():
            del left[client]
            why[client] = RefusedError(RefusalReason.MISSING, sentence)
        enough = len(ids) if with_all else math.ceil(self._federation.patience.enough * len(ids))
        waiting = WaitingNotice(self._say_waiting, index, exchange.now())
        while left and len(answers) < enough and exchange.now() < deadline:
            self._roster.refresh()
            if not with_all:
                for client, reason in self._absent(left).items():
                    del left[client]
                    why[client] = RefusedError(RefusalReason.MISSING, reason)
            waiting.look(list(left), exchange.now())
            self._tasks.send(
                left, broadcast, self.ledger, index, deadline - exchange.now(), rounds=True
            )
            until = min(deadline, exchange.now() + REFRESH_SECONDS)
            for client, outcome in self._tasks.judged_replies(self.ledger, until):
                if client not in left:
                    self._journal.count(RefusalReason.DUPLICATE)
                elif isinstance(outcome, AcceptedReply):
                    answers[client] = outcome
                    del left[client]
                else:
                    why[client] = outcome
                    if not self._tasks.outstanding[client].failed:
                        del left[client]
            if left and len(answers) < enough:
                exchange.pause()
        waiting.over()
        exchange.forget()
        slow = len(answers) >= enough  # slower than the others, which is not a failure to answer
        self._count_unanswered(ids, {} if slow else left, resting, index)
        self._tasks.clear()
        for client in left:
            text = why[client].detail if client in why else "no answer in time"
            text = f"{len(answers)} others had answered, which is enough" if slow else text
            why[client] = RefusedError(RefusalReason.MISSING, text)
        for client, outlier in self._outliers(answers, broadcast, index).items():
            del answers[client]
            why[client] = outlier
        for client, refused in why.items():
            if client not in answers:
                self._note(index, client, refused)
        return answers, why

    def _resting(self, ids: Sequence[int], index: int) -> dict[int, str]:
        """Return the clients that are not asked, and why; enough clients always remain."""
        online = self._roster.online()
        found = {
            client: f"it left {silence.rounds} tasks unanswered, and is asked again in round "
            f"{silence.until + 1}"
            for client, silence in self._silent.items()
            if client in ids and index < silence.until and online.get(client) == silence.seat
        }
        found |= {
            client: f"it was ready and sent no masked upload {silence.rounds} times, and is asked "
            f"again in round {silence.until + 1}"
            for client, silence in self._without_upload.items()
            if client in ids and index < silence.until  # also after a restart, which it can cause
        }
        others = [client for client in ids if client in online and client not in found]
        fewest = 1 if self._part is None else self._part.minimum
        return found if len(others) >= fewest else {}

    def _count_unanswered(
        self, ids: Sequence[int], left: Mapping[int, None], resting: Collection[int], index: int
    ) -> None:
        for client in ids:
            task_out = self._tasks.outstanding.get(client)
            if client in left and task_out is not None:
                before = self._silent.get(client)
                rounds = 1 if before is None else before.rounds + 1
                self._silent[client] = Unresponsiveness(rounds, index, task_out.seat)
            elif client not in resting:
                self._silent.pop(client, None)

    def _step(self, broadcast: TrainingRequest, step: int) -> Iterator[RoundResult]:
        """Yield the next valid update; none if a client has to be repaired first."""
        exchange, patience = self._exchange, self._federation.patience
        deadline = exchange.now() + patience.round
        self._answers, self.empty, self.staleness = {}, False, None
        while True:
            self._roster.refresh()
            online = self._roster.online()
            self._tasks.send(online, broadcast, self.ledger, step, patience.round, rounds=False)
            for client, outcome in self._tasks.judged_replies(
                self.ledger, exchange.now() + REFRESH_SECONDS
            ):
                if isinstance(outcome, AcceptedReply):
                    outlier = self._outliers({client: outcome}, broadcast, step).get(client)
                    if outlier is None:
                        begun = self._tasks.outstanding.pop(client).step
                        self.staleness = step - begun
                        self._answers = {client: outcome}
                        answer = outcome.admitted.answer
                        yield client, answer.upload, answer.info
                        return
                    self._tasks.refuse(client, outlier)
                    outcome = outlier
                self._note(step, client, outcome)
                if client in self.to_repair():
                    return
            if exchange.now() > deadline:
                raise EngineError(
                    f"no client returned an update for {patience.round:g} s; {self._advice()}"
                )
            exchange.pause()

    def _absent(self, left: Iterable[int]) -> dict[int, str]:
        """Return the offline clients and the reason; one that was asked may return for a while."""
        online, now, most = self._roster.online(), self._exchange.now(), self._patience.gone
        away = [client for client in left if client not in online]
        self._gone = {client: self._gone.get(client, now) for client in away}
        found = dict.fromkeys(
            (c for c in away if c not in self._tasks.outstanding), "its node is not online"
        )
        late = (c for c in away if c not in found and now - self._gone[c] > most)
        return found | dict.fromkeys(late, f"its node has been gone for {most:g} s")

    def _outliers(
        self, answers: Mapping[int, AcceptedReply], broadcast: ClientRequest, step: int
    ) -> dict[int, RefusedError]:
        arrived = {client: accepted.admitted.sizes for client, accepted in answers.items()}
        return self._federation.admission.outliers(arrived, self.norms, step, broadcast.scale)

    def _note(self, step: int, client: int, refused: RefusedError) -> None:
        self._journal.note(step, client, refused)
        accepted = refused.reason is RefusalReason.ROLLBACK and self._federation.accept_rollback
        if refused.reason is RefusalReason.ROLLBACK:
            self._behind[client] = refused
        if refused.reason is RefusalReason.LOST or accepted:
            self.ledger = mark_lost(self.ledger, client)
