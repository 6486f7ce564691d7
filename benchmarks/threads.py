"""Where further threads start to pay: gradients of growing work with one thread and with all.

python benchmarks/threads.py                    # about a minute; OMP_NUM_THREADS sets "all"

`fedadmm.run.engines.choice.WORTH_SPLITTING` is read off this table.  Times are the best of many
turns that the two settings take alternately, so that what else the machine does meets them alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch

import fedadmm as fa
from fedadmm.core.objectives import losses
from fedadmm.data import models
from fedadmm.run.engines.choice import WORTH_SPLITTING, torch_threads

TURNS, SECONDS_A_TURN = 12, 0.05


def best(objective: fa.Objective, params: torch.Tensor, rows: int) -> dict[int, float]:
    """Seconds of one gradient, for each number of threads."""
    counts = (1, torch.get_num_threads())
    chosen, found = torch.arange(rows), dict.fromkeys(counts, math.inf)
    live = objective.workspace(params)
    for _ in range(TURNS):
        for count in counts:
            with torch_threads(count):
                objective.gradient(live, chosen)  # the threads wake up
                began = time.perf_counter()
                while time.perf_counter() < began + SECONDS_A_TURN / len(counts):
                    start = time.perf_counter()
                    objective.gradient(live, chosen)
                    found[count] = min(found[count], time.perf_counter() - start)
    return found


def problems() -> Iterator[tuple[str, fa.Objective, torch.Tensor, int]]:
    """Perceptrons and CNN 1 over batches of growing size, and linear models."""
    for hidden in (32, 128, 512):
        flat = fa.FlatModule(models.mlp(784, hidden, 10))
        inputs, targets = torch.randn(800, 784), torch.randint(0, 10, (800,))
        objective = fa.ModelObjective(flat, losses.cross_entropy, inputs, targets)
        for rows in (10, 50, 200, 800):
            yield f"784-{hidden}-10, {rows} rows", objective, flat.vector.clone(), rows
    flat = fa.FlatModule(models.cnn1())
    inputs, targets = torch.randn(50, 1, 28, 28), torch.randint(0, 10, (50,))
    cnn = fa.ModelObjective(flat, losses.cross_entropy, inputs, targets)
    for rows in (1, 2, 5, 10, 50):
        yield f"CNN 1, {rows} rows", cnn, flat.vector.clone(), rows
    for width, rows in ((1000, 1000), (2000, 2000), (3000, 8000)):
        linear = fa.LeastSquares(torch.randn(rows, width), torch.randn(rows))
        yield f"least squares, {rows} rows of {width}", linear, torch.randn(width), rows


def main() -> None:
    if torch.get_num_threads() == 1:
        raise SystemExit("torch has one thread here, so there is nothing to compare")
    print(f"speed-up of {torch.get_num_threads()} threads over one, by the work of a gradient")
    table = []
    for name, objective, params, rows in problems():
        one, several = best(objective, params, rows).values()
        table.append((objective.work(rows), one / several, one, name))
    for work, gain, one, name in sorted(table):
        chosen = "threads" if work >= WORTH_SPLITTING else "one"
        print(f"{work:10.3g}  {gain:5.2f}  {1e3 * one:8.3f} ms  {chosen:8}{name}", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
