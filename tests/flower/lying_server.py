"""A server of a masked run that sends what it likes; the sites run the real code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from torch import Tensor

from fedadmm.core.codec import digest, encode, pack
from fedadmm.core.messages import ClientInfo, Download, Upload
from fedadmm.core.pairwise_masks import Share, summed
from fedadmm.flower.federation import Federation
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.ledger import Task
from fedadmm.flower.protocol.payloads import EvaluationRequest, create_payload
from fedadmm.flower.secure_aggregation.masked_messages import (
    as_masked_sum,
    from_body,
    length_of,
    read_share,
    read_sum,
    upload_template,
    write_set,
)
from fedadmm.run.client import this_round

from .masked import MaskedGrid

RUN = "0123456789abcdef" * 2


class LyingServer:
    """Makes tasks and sets of its own choice, and reads the sums that it gets by them."""

    def __init__(
        self, settings: Federation, folder: Path, job: Federation | None = None, **policy: Any
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.grid = MaskedGrid(settings, folder)
        self.grid.policy |= policy
        self.job = (job or settings).server_job()

    def download(self, model: Tensor, round_index: int = 0) -> Download:
        """The broadcast of a server whose first model this is."""
        algorithm = self.job.algorithm
        cast = algorithm.broadcast(algorithm.init_server(model), this_round(self.job, round_index))
        return Download(cast, self.job.initial_buffers)

    def task(
        self, client: int, model: Tensor, *, round_index: int = 0, sequence: int = 0, **head: Any
    ) -> RecordDict:
        """A task with this model; `head` changes what it says was folded."""
        made = create_payload(
            self.job, self.download(model, round_index), round_index, newcomer=True
        )
        body = encode(pack(made))
        usual = Task(RUN, client, sequence, 0, 0, "", digest(body))
        return wire.write(usual._replace(**head), body)

    def ask(self, client: int, content: RecordDict, kind: str = "train") -> RecordDict:
        """A site's answer; what its app raises is raised here."""
        message = Message(content, 1000 + client, kind)
        return self.grid._app(message, self.grid.context(client)).content

    def ready(self, tasks: Mapping[int, RecordDict]) -> dict[int, Share]:
        """The keys of the sites that these tasks were sent to."""
        return {c: read_share(self.ask(c, task), c) for c, task in tasks.items()}

    def release(
        self, task: RecordDict, shares: Mapping[int, Share], clients: Sequence[int]
    ) -> RecordDict:
        """A site's words under the keys of these clients."""
        head = wire.read_task(task)[0]
        attachments = {wire.SET: write_set([shares[client] for client in sorted(clients)])}
        return self.ask(head.client, wire.write(head, b"", attachments))

    def sum(
        self, tasks: Mapping[int, RecordDict], shares: Mapping[int, Share] | None = None
    ) -> tuple[Upload, list[ClientInfo]]:
        """The sum of the uploads to these tasks."""
        part = as_masked_sum(self.job.aggregator)
        assert part is not None
        shares = self.ready(tasks) if shares is None else shares
        template = upload_template(self.job, self.download(self.job.initial))
        length = length_of(self.job, template)
        words = [
            from_body(
                wire.read_body(self.release(task, shares, list(tasks))), part.fixed_point, length
            )
            for task in tasks.values()
        ]
        return read_sum(self.job, part, sorted(tasks), summed(words), template)

    def question(self, model: Tensor, number: int = 1) -> RecordDict:
        """A question for metrics of this model."""
        attachments = {wire.QUESTION: {"run": RUN, "number": number}}
        return wire.write_body(encode(pack(EvaluationRequest(model, None))), attachments)

    def metrics(self, models: Mapping[int, Tensor], number: int = 1) -> list[bytes]:
        """The words of the sites' metrics of these models, under one set."""
        answers = {
            c: self.ask(c, self.question(model, number), "evaluate") for c, model in models.items()
        }
        shares = [read_share(answers[c], c) for c in sorted(models)]
        found = []
        for client in sorted(models):
            named = {"run": RUN, "number": number, "task": answers[client][wire.SHARE]["task"]}
            attachments = {wire.QUESTION: named, wire.SET: write_set(shares)}
            content = self.ask(client, wire.write_body(b"", attachments), "evaluate")
            found.append(wire.read_body(content))
        return found
