"""A round of CNN 1 on machines of a simulated Ray cluster, one CPU each: prints its seconds."""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

import fedadmm as fa
from fedadmm.core.objectives import losses
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.data import models
from fedadmm.run.engines.ray_engine import Ray, imported
from fedadmm.run.stores import DiskStore


def problem(clients: int = 40, rows: int = 60) -> fa.Problem:
    """Clients with random pixels."""
    draws = torch.Generator().manual_seed(0)
    flat = FlatModule(models.build("cnn1"))
    made = [
        fa.ModelObjective(
            flat,
            losses.cross_entropy,
            torch.rand(rows, 1, 28, 28, generator=draws),
            torch.randint(0, 10, (rows,), generator=draws),
        )
        for _ in range(clients)
    ]
    return fa.Problem(made, initial=flat.vector.clone())


def main() -> None:
    """Time the rounds behind the first."""
    ray, count = imported(), int(sys.argv[1])
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(count):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    ends = [time.perf_counter()]
    with tempfile.TemporaryDirectory() as folder:
        fa.simulate(
            fa.FedADMM(rho=0.01),
            problem(),
            4,
            solver=fa.SGD(0.01, batch_size=10),
            stop=fa.Epochs(2),
            sampler=fa.UniformSampling(10),
            evaluate=False,
            engine=Ray(workers=count),
            store=DiskStore(Path(folder) / "state"),
            callbacks=[lambda report: ends.append(time.perf_counter())],
        )
    seconds = [after - before for before, after in itertools.pairwise(ends[1:])]
    print(statistics.median(seconds), flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
