"""Clients that fail, for engines that run them in other processes."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fedadmm as fa
from support.resumable import problem


@dataclass(frozen=True, eq=False)
class Deadly(fa.LogisticRegression):
    """Takes its process down whenever it finds a file in `folder`; the file goes with it."""

    folder: Path | None = None

    def gradient(self, params: Tensor, rows: Tensor | None = None) -> Tensor:
        assert self.folder is not None
        for order in sorted(self.folder.glob("kill-*"))[:1]:
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().gradient(params, rows)

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Deadly:
        return replace(self, features=self.features.to(device, dtype))


@dataclass(frozen=True, eq=False)
class Waiting(fa.LogisticRegression):
    """Says on which Ray node it is when it finds a file `wait`, and waits until that is gone."""

    folder: Path | None = None

    def gradient(self, params: Tensor, rows: Tensor | None = None) -> Tensor:
        assert self.folder is not None
        if (self.folder / "wait").exists():
            import ray

            here = self.folder / "waiting.part"
            here.write_text(ray.get_runtime_context().get_node_id())
            here.rename(self.folder / "waiting")
        while (self.folder / "wait").exists():
            time.sleep(0.01)
        return super().gradient(params, rows)

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Waiting:
        return replace(self, features=self.features.to(device, dtype))


@dataclass(frozen=True, eq=False)
class Broken(fa.LogisticRegression):
    """Raises."""

    def gradient(self, params: Tensor, rows: Tensor | None = None) -> Tensor:
        raise ValueError("no such row")

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Broken:
        return replace(self, features=self.features.to(device, dtype))


def federation_with(client: int, kind: Any, **options: Any) -> fa.Problem:
    """The small federation with one client of another kind on the same rows."""
    healthy = problem()
    clients: list[Any] = list(healthy.clients)
    old = clients[client]
    clients[client] = kind(old.features, old.targets, old.ridge, **options)
    return fa.Problem(clients, initial=healthy.initial)
