"""The Ray engine on several machines of a simulated cluster, one of which is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import fedadmm as fa
from fedadmm.run.engines import ray_engine
from fedadmm.run.engines.ray_engine import Ray
from fedadmm.run.state import RoundReport
from fedadmm.run.stores import DiskStore
from support.faulty import Waiting, federation_with
from support.resumable import run

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = [
    pytest.mark.release,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
PATIENCE = 120.0


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A head without a CPU for actors, and two machines with one each."""
    from ray.cluster_utils import Cluster

    ray_engine.imported()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    machines = [cluster.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster, machines
    ray.shutdown()
    cluster.shutdown()


@dataclass(frozen=True)
class Watched(Ray):
    """Keeps hold of the engine that it starts."""

    engines: list[Any] = field(default_factory=list)

    def start(self, job: Any, store: Any) -> Any:
        self.engines.append(super().start(job, store))
        return self.engines[-1]

    def machines(self) -> set[str]:
        """The machines on which actors run."""
        asked = [
            actor.handle.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
            for actor in self.engines[0]._actors
        ]
        return set(ray.get(asked))


def test_a_machine_that_is_lost_costs_its_round_only(nodes: Any, tmp_path: Path) -> None:
    """Two machines share the clients; one is taken away while round 3 waits for a client on it."""
    cluster, machines = nodes
    used: list[set[str]] = []

    def look(report: RoundReport) -> None:
        used.append(engine.machines())
        if report.record["round"] == 2:
            (tmp_path / "wait").touch()
            taker.start()

    def take() -> None:
        while not (tmp_path / "waiting").exists():
            time.sleep(0.01)
        host = (tmp_path / "waiting").read_text()
        cluster.remove_node(next(one for one in machines if one.node_id == host))
        (tmp_path / "wait").unlink()

    taker = threading.Thread(target=take)
    options: Any = {
        "problem": federation_with(5, Waiting, folder=tmp_path),
        "sampler": fa.FullParticipation(),
        "evaluate": False,
    }
    reference = run(6, **options)
    engine = Watched(workers=2, timeout=PATIENCE)
    store = DiskStore(tmp_path / "clients")
    result = run(6, engine=engine, store=store, callbacks=[look], **options)
    taker.join()
    assert len(used[0]) == 2, "both machines had an actor"
    assert len(used[-1]) == 1, "one was lost"
    assert len(result.history) == 6
    assert torch.allclose(result.params, reference.params, rtol=0, atol=1e-9)
    for client, state in reference.clients.items():
        assert torch.allclose(result.clients[client].y, state.y, rtol=0, atol=1e-9)
