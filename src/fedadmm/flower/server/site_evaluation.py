"""What a model is worth at the sites: each measures on its own data and sends numbers.

What sites say has a place of its own in a round's record, and no single site can end a run by it:
whoever is far from all others is left out, and an early end must hold without any one of them.
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
"""A site's number is left out when it is this many times (1 +) what most sites say."""
_SHARES = ("accuracy", "auc", "f1")
"""What is at most 1 by its meaning."""
EXAMPLES = "num-examples"
"""What Flower's apps call the rows that a metric is the mean of."""
_SHOWN = re.compile(r"loss|test_[a-z0-9_]{1,60}")
"""Names that may stand beside the server's own metrics; the server's come first."""


class SiteMetrics(NamedTuple):
    """The sites' answers to one question, and their weights."""

    answers: Mapping[int, Mapping[str, float]]
    weights: Mapping[int, float]
    declined: Sequence[int] = ()
    """Who is there and does not evaluate models."""
    masked: bool = False
    """Whether the answers are means over sets: one site can then give them any value, unseen."""

    def means(self, without: int | None = None) -> dict[str, float]:
        """Weighted means of the metrics that most sites have, perhaps without one of them."""
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
        """Whether any site may measure this, if only one."""
        return self.masked or any(name in values for values in self.answers.values())

    def shown(self) -> dict[str, float]:
        """The means that may stand beside the server's own metrics."""
        return {name: v for name, v in self.means().items() if _SHOWN.fullmatch(name)}

    def reach(self, target: Target) -> bool:
        """Whether the means meet a target, and would without any single site; never if masked."""
        return self._hold(lambda means: target.reached(means.get(target.metric)))

    def exceed(self, loss: float) -> bool:
        """Whether the loss is larger than this, and would be without any single site."""
        return self._hold(lambda means: means.get("loss", -math.inf) > loss)

    def _hold(self, condition: Callable[[dict[str, float]], bool]) -> bool:
        if self.masked:
            return False
        alone = len(self.answers) == 1
        without = [None] if alone else [None, *self.answers]
        return bool(self.answers) and all(condition(self.means(one)) for one in without)


def measured(job: Job, answers: Mapping[int, Mapping[str, float]]) -> SiteMetrics:
    """Answers with their weights: a_i, or as in Flower the rows that each counted, if all say."""
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
    """Sends a model to everybody who is online and collects what they measure."""

    def __init__(
        self,
        job: Job,
        exchange: Exchange,
        roster: Roster,
        journal: EventLog,
        timeout: float,
        beside: wire.Records,
        run: str,
        boots: int,
    ) -> None:
        self._job = job
        self._exchange = exchange
        self._roster = roster
        self._journal = journal
        self._timeout = timeout
        self._beside = beside
        self._declined: dict[int, str] = {}
        self._part = as_masked_sum(job.aggregator)
        self._run, self._boots = run, boots

    def __call__(self, params: Tensor, buffers: Tensor | None, step: int) -> SiteMetrics:
        """What the sites say about a model after a step."""
        self._roster.refresh()
        config = {**self._beside.get(wire.CONFIG, {}), "server-round": step + 1}
        beside = {**self._beside, wire.CONFIG: config}
        # Another number after a restart: an answer leaves for one set only.
        which = {"run": self._run, "number": (self._boots << 32) + step + 1}
        if self._part is not None:
            beside[wire.QUESTION] = which
        content = wire.write_body(encode(pack(EvaluationRequest(params, buffers))), beside)
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
        """What is said of every site of a set: the means of the set, from masked sums."""
        names = Counter(one.names for one in ready.values()).most_common(1)
        shown = names[0][0] if names else ()
        same = (client for client in sorted(ready) if ready[client].names == shown)
        sets = choose_groups(part, {client: ready[client].requirement for client in same})
        contents = {}
        for group in sets:
            shares = write_set([ready[client].share._replace(client=client) for client in group])
            for client in group:
                asked = {**which, "task": ready[client].task}
                beside = {**self._beside, wire.QUESTION: asked, wire.SET: shares}
                contents[client] = wire.write_body(b"", beside)
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
        """The means to which every site of a set contributed; the others are noted."""
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
        """What clients answer; who declines is added to `declined`."""
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
                        continue  # said once, not after every question
                    self._declined[arrival.key] = refused.detail
                self._journal.note(step, arrival.key, refused)
        self._exchange.forget()
        return answers


class Ready(NamedTuple):
    """A site whose answer waits: its key, the metrics that it has, and what it calls the answer."""

    share: Share
    names: tuple[str, ...]
    task: str
    requirement: SetRequirement


def read_ready(content: RecordDict) -> Ready:
    """What a site says that has measured a model; a RefusedError when it declines."""
    if wire.DECLINED in content:
        wire.read_measured(content)
    found = wire.read_record(content, wire.SHARE)
    names, task = found.get("names"), found.get("task")
    proper = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not proper or not isinstance(task, str) or len(task) > LONGEST_TEXT:
        raise RefusedError(RefusalReason.GARBAGE, "it does not say what was measured")
    listed = dict.fromkeys(map(str, names or ()), 0.0)
    wire.read_metrics(wire.write_metrics(listed))  # plain names, and not too many
    return Ready(read_share(content, 0), tuple(sorted(listed)), task, read_requirement(content))


def outlying_metrics(answers: Mapping[int, Mapping[str, float]]) -> dict[int, RefusedError]:
    """Who says something that is out of all proportion to what the other sites say."""
    found = {}
    for client, values in answers.items():
        for name, value in values.items():
            others = sorted(
                abs(theirs[name]) for c, theirs in answers.items() if c != client and name in theirs
            )
            if not others:
                continue
            # The upper one of two: somebody who says next to nothing must not shut out the others.
            most = FURTHEST * (1 + others[len(others) // 2])
            if name.endswith(_SHARES):
                most = 1.0
            if abs(value) > most:
                found[client] = RefusedError(
                    RefusalReason.RANGE, f"{name} is {value:.3g}, but at most {most:.3g} is likely"
                )
    return found
