"""Sites that mask: identities on their disks, and a grid whose server may lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict

import fedadmm as fa
from fedadmm.core import pairwise_masks
from fedadmm.flower.federation import Federation

from .harness import FakeGrid, federation


def settings(algorithm: Any = None, rounds: int = 4, **changes: Any) -> Federation:
    """A small federation whose uploads are masked."""
    usual = {"aggregator": fa.MaskedSum(bound=50.0)}
    return federation(algorithm or fa.FedADMM(0.5), rounds, **(usual | changes))


class MaskedGrid(FakeGrid):
    """Every node has an identity and knows the others'.

    `lie(moment, content, client)` may change what the server sends on its way out.
    """

    def __init__(self, settings: Federation, folder: Path, *given: Any) -> None:
        super().__init__(settings, folder, *given)
        self.identities = {c: pairwise_masks.new_identity() for c in range(settings.clients)}
        public = {
            c: pairwise_masks.public_identity(key).hex() for c, key in self.identities.items()
        }
        for client, key in self.identities.items():
            (folder / f"identity-{client}").write_text(key.hex())
        (folder / "peers.json").write_text(json.dumps(public))
        self.lie: Callable[[RecordDict, int], RecordDict] | None = None
        self.seen: list[RecordDict] = []
        """Everything that the server got."""
        self.errors: list[str] = []

    def context(self, client: int) -> Context:
        made = super().context(client)
        made.node_config["identity"] = str(self.folder / f"identity-{client}")
        made.node_config["peers"] = str(self.folder / "peers.json")
        return made

    def _deliver(self, message: Message) -> Message | None:
        client = message.metadata.dst_node_id - 1000
        if self.lie is not None:
            message.content = self.lie(message.content, client)
        reply = super()._deliver(message)
        if reply is not None and reply.has_error():
            self.errors.append(str(reply.error.reason))
        elif reply is not None:
            self.seen.append(reply.content)
        return reply
