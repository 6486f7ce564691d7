"""Evaluation of a model at the sites, each on its own data.

The metrics of the sites are separate in the record of a round, and no single site can end a run by
them: outliers are left out, and a criterion must also hold without any one site.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from torch import Tensor

from fedadmm.core.aggregation import MaskedSum
from fedadmm.core.codec import encode, pack
from fedadmm.core.pairwise_masks import Share, Words, summed
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.ledger import LONGEST_TEXT, RefusalReason, RefusedError
from fedadmm.flower.protocol.payloads import EvaluationRequest
from fedadmm.flower.secure_aggregation.masked_messages import (
    MetricSum,
    SetRequirement,
    as_masked_sum,
    from_body,
    metrics_length,
    read_metrics,
    read_requirement,
    read_share,
    write_set,
)
from fedadmm.flower.secure_aggregation.masked_sums import choose_groups
from fedadmm.flower.server.exchange import Exchange, Roster
from fedadmm.flower.server.run_recorder import EventLog
from fedadmm.run.client import Job
from fedadmm.run.evaluation import Target

if TYPE_CHECKING:
    from flwr.app import RecordDict

Answered = TypeVar("Answered")
FURTHEST = 100.0
"""A metric of a site is left out if it exceeds this many times 1 + the median of the others."""
_SHARES = ("accuracy", "auc", "f1")
"""Suffixes of metrics that are at most 1 by definition."""
EXAMPLES = "num-examples"
"""The name in Flower apps of the number of samples of a metric."""
_SHOWN = re.compile(r"loss|(test|train)_[a-z0-9_]{1,60}")
"""Names that may be shown with the server's own metrics, which have precedence."""


class SiteMetrics(NamedTuple):
    """The metrics of the sites for one model, and their weights."""

    answers: Mapping[int, Mapping[str, float]]
    weights: Mapping[int, float]
    declined: Sequence[int] = ()
    """Sites that are online and decline."""
    masked: bool = False
    """Whether the answers are means over sets, which one site can set to any value unnoticed."""

    def means(self, without: int | None = None) -> dict[str, float]:
        """Return weighted means of the metrics that most sites have, `without` one of them."""
        asked = {c: values for c, values in self.answers.items() if c != without}
        names = sorted({name for values in asked.values() for name in values})
        means = {}
        for name in names:
            having = [client for client, values in asked.items() if name in values]
            if 2 * len(having) > len(asked):
                total = sum(self.weights[c] for c in having)
                means[name] = sum(self.weights[c] * asked[c][name] for c in having) / total
        return means

    def has(self, name: str) -> bool:
        """Return whether any site may have this metric."""
        return self.masked or any(name in values for values in self.answers.values())

    def shown(self) -> dict[str, float]:
        """Return the means that may be shown with the server's own metrics."""
        return {name: v for name, v in self.means().items() if _SHOWN.fullmatch(name)}

    def reach(self, target: Target) -> bool:
        """Return whether the means reach a target, also without any one site; never if masked."""
        return self._hold(lambda means: target.reached(means.get(target.metric)))

    def exceed(self, loss: float) -> bool:
        """Return whether the loss exceeds this value, also without any one site."""
        return self._hold(lambda means: means.get("loss", -math.inf) > loss)

    def _hold(self, condition: Callable[[dict[str, float]], bool]) -> bool:
        if self.masked:
            return False
        alone = len(self.answers) == 1
        without = [None] if alone else [None, *self.answers]
        return bool(self.answers) and all(condition(self.means(one)) for one in without)


def measured(job: Job, answers: Mapping[int, Mapping[str, float]]) -> SiteMetrics:
    """Return answers with their weights: a_i, or the numbers of samples if all sites send them."""
    if answers and all(values.get(EXAMPLES, 0.0) > 0 for values in answers.values()):
        weights = {client: values[EXAMPLES] for client, values in answers.items()}
    else:
        weights = {client: job.problem.weight(client) for client in answers}
    plain = {
        client: {name: value for name, value in values.items() if name != EXAMPLES}
        for client, values in answers.items()
    }
    return SiteMetrics(plain, weights)


class SiteEvaluation:
    """Sends a model to all clients that are online and collects their metrics."""

    def __init__(
        self,
        job: Job,
        exchange: Exchange,
        roster: Roster,
        journal: EventLog,
        timeout: float,
        attachments: wire.Records,
        run: str,
        boots: int,
    ) -> None:
        self._job = job
        self._exchange = exchange
        self._roster = roster
        self._journal = journal
        self._timeout = timeout
        self._attachments = attachments
        self._declined: dict[int, str] = {}
        self._part = as_masked_sum(job.aggregator)
        self._run, self._boots = run, boots

    def __call__(self, params: Tensor, buffers: Tensor | None, step: int) -> SiteMetrics:
        """Return the sites' metrics of a model after a step."""
        self._roster.refresh()
        config = {**self._attachments.get(wire.CONFIG, {}), "server-round": step + 1}
        attachments = {**self._attachments, wire.CONFIG: config}
        # A new number after a restart: an answer is released for one set only.
        which = {"run": self._run, "number": (self._boots << 32) + step + 1}
        if self._part is not None:
            attachments[wire.QUESTION] = which
        content = wire.write_body(encode(pack(EvaluationRequest(params, buffers))), attachments)
        declined: list[int] = []
        everybody = dict.fromkeys(self._roster.online(), content)
        if self._part is None:
            answers = self._asked(everybody, wire.read_measured, step, declined)
            for client, why in outlying_metrics(answers).items():
                del answers[client]
                self._journal.note(step, client, why)
        else:
            ready = self._asked(everybody, read_ready, step, declined)
            answers = self._means(self._part, ready, which, step)
        found = measured(self._job, answers)._replace(declined=sorted(declined))
        return found if self._part is None else found._replace(masked=True)

    def _means(
        self, part: MaskedSum, ready: Mapping[int, Ready], which: Mapping[str, Any], step: int
    ) -> dict[int, dict[str, float]]:
        """Return the means of every set, from masked sums, for each of its sites."""
        names = Counter(one.names for one in ready.values()).most_common(1)
        shown = names[0][0] if names else ()
        same = (client for client in sorted(ready) if ready[client].names == shown)
        sets = choose_groups(part, {client: ready[client].requirement for client in same})
        contents = {}
        for group in sets:
            shares = write_set([ready[client].share._replace(client=client) for client in group])
            for client in group:
                asked = {**which, "task": ready[client].task}
                attachments = {**self._attachments, wire.QUESTION: asked, wire.SET: shares}
                contents[client] = wire.write_body(b"", attachments)
        point, length = part.fixed_point, metrics_length(shown)

        def read(content: RecordDict) -> Words:
            return from_body(wire.read_body(content), point, length)

        words = self._asked(contents, read, step, [])
        found: dict[int, dict[str, float]] = {}
        for group in sets:
            if all(client in words for client in group):
                weight = sum(self._job.problem.weight(client) for client in group)
                total = summed([words[client] for client in group])
                sums = dict(zip(shown, read_metrics(part, total, weight, len(group)), strict=True))
                found |= dict.fromkeys(group, self._complete(sums, group, step))
        return found

    def _complete(
        self, sums: Mapping[str, MetricSum], group: Sequence[int], step: int
    ) -> dict[str, float]:
        """Return the means to which every site of a set contributed; log the others."""
        for name, one in sums.items():
            if one.missing:
                named = ", ".join(map(str, group))
                why = f"{one.missing} of {len(group)} sites have no value that fits into the sum"
                detail = f"{name} of clients {named} is left out: {why}"
                self._journal.note(step, group[0], RefusedError(RefusalReason.RANGE, detail))
        return {name: one.mean for name, one in sums.items() if not one.missing}

    def _asked(
        self,
        contents: Mapping[int, RecordDict],
        read: Callable[[RecordDict], Answered],
        step: int,
        declined: list[int],
    ) -> dict[int, Answered]:
        """Send a message per client and return the answers; extend `declined`."""
        online = self._roster.online()
        questions = {c: (online[c].node, one) for c, one in contents.items() if c in online}
        self._exchange.send("evaluate", "evaluate", questions, self._timeout)
        answers: dict[int, Answered] = {}
        for arrival in self._exchange.arrivals(self._exchange.now() + self._timeout):
            try:
                answers[arrival.key] = read(arrival.read())
            except RefusedError as refused:
                if refused.reason is RefusalReason.DECLINED:
                    declined.append(arrival.key)
                    if self._declined.get(arrival.key) == refused.detail:
                        continue  # logged once
                    self._declined[arrival.key] = refused.detail
                self._journal.note(step, arrival.key, refused)
        self._exchange.forget()
        return answers


class Ready(NamedTuple):
    """A READY to a request for metrics: the key, the names of the metrics, the id of the answer."""

    share: Share
    names: tuple[str, ...]
    task: str
    requirement: SetRequirement


def read_ready(content: RecordDict) -> Ready:
    """Read the READY of a site, or raise a RefusedError if it declines."""
    if wire.DECLINED in content:
        wire.read_measured(content)
    found = wire.read_record(content, wire.SHARE)
    names, task = found.get("names"), found.get("task")
    proper = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not proper or not isinstance(task, str) or len(task) > LONGEST_TEXT:
        raise RefusedError(RefusalReason.GARBAGE, "the names of the metrics are missing")
    listed = dict.fromkeys(map(str, names or ()), 0.0)
    wire.read_metrics(wire.write_metrics(listed))  # plain names, and not too many
    return Ready(read_share(content, 0), tuple(sorted(listed)), task, read_requirement(content))


def outlying_metrics(answers: Mapping[int, Mapping[str, float]]) -> dict[int, RefusedError]:
    """Return the clients with a metric far larger than those of the others."""
    found = {}
    for client, values in answers.items():
        for name, value in values.items():
            others = sorted(
                abs(theirs[name]) for c, theirs in answers.items() if c != client and name in theirs
            )
            if not others:
                continue
            # The upper median: a client with a tiny value must not exclude the others.
            most = FURTHEST * (1 + others[len(others) // 2])
            if name.endswith(_SHARES):
                most = 1.0
            if abs(value) > most:
                found[client] = RefusedError(
                    RefusalReason.RANGE, f"{name} is {value:.3g}, but at most {most:.3g} is likely"
                )
    return found
