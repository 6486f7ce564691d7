"""What masked sums cost: bytes and seconds, beside the plain upload and one client's local work.

    python -m benchmarks.masked_sums

A site encodes its upload, makes a key, checks everybody's signatures and adds its masks; the server
adds up all words and decodes the sums.  Nothing travels here: the network's part are the bytes.
Each time is the median of nine, in seconds of the processor, so that other programs do not count.
The local work is one epoch of SGD on 600 rows, batches of
20, in one thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

import fedadmm as fa
from fedadmm.core import pairwise_masks
from fedadmm.core.codec import encode, pack
from fedadmm.core.messages import Upload
from fedadmm.data import models
from fedadmm.flower.secure_aggregation.masked_messages import Body, as_tensor

MODELS = {"logistic regression": "logistic", "CNN 1": "cnn1"}
SITES = (4, 10, 50)
REPEATS = 9
OPTIONS: dict[str, dict[str, int]] = {"logistic": {"inputs": 784, "classes": 10}, "cnn1": {}}


def first_vector(model: str) -> torch.Tensor:
    """Where training starts; its length is that of an upload."""
    return models.initial_vector(model, 0, **OPTIONS[model])


def seconds(work: Callable[[], object]) -> float:
    """The median over the repeats."""
    found = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return statistics.median(found)


def local_work(model: str) -> float:
    """One epoch of a client."""
    draws = torch.Generator().manual_seed(0)
    shape = (600, 784) if model == "logistic" else (600, 1, 28, 28)
    rows = torch.rand(*shape, generator=draws)
    labels = torch.randint(0, 10, (600,), generator=draws)
    module, start = models.build(model, **OPTIONS[model]), first_vector(model)
    objective = fa.ModelObjective(module, torch.nn.functional.cross_entropy, rows, labels)
    federation = fa.Problem([objective], initial=start)
    settings = {"solver": fa.SGD(lr=0.01, batch_size=20), "stop": fa.Epochs(1), "threads": 1}

    def one() -> object:
        return fa.simulate(
            fa.FedAvg(), federation, 1, engine="sequential", evaluate=False, **settings
        )

    one()
    return seconds(one)


def cost(length: int, sites: int) -> tuple[float, float, int, int]:
    """Seconds at a site and at the server; bytes up, masked and plain."""
    part = fa.MaskedSum(bound=1.0)
    point, subject = part.fixed_point, "update\nrun\n0"
    upload = Upload((torch.rand(length) - 0.5,))
    identities = [pairwise_masks.new_identity() for _ in range(sites)]
    pinned = {client: pairwise_masks.public_identity(one) for client, one in enumerate(identities)}
    made = [pairwise_masks.new_share(c, subject, one) for c, one in enumerate(identities)]
    group = pairwise_masks.groups(range(sites), part.group)[0]
    shares = [made[client][0] for client in group]

    def site() -> pairwise_masks.Words:
        words = point.encode(upload, 1 / sites)
        pairwise_masks.new_share(0, subject, identities[0])
        pairwise_masks.check_shares(subject, shares, pinned)
        return pairwise_masks.masked(words, 0, made[0][1], subject, shares)

    words = site()

    def server() -> None:
        for some in pairwise_masks.groups(range(sites), part.group):
            point.decode(pairwise_masks.summed([words] * len(some)), upload)

    masked = len(encode(pack(Body(as_tensor(words)))))
    return seconds(site), seconds(server), masked, len(encode(pack(upload)))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows for a Markdown page."""
    head = (
        "",
        "sites",
        "bytes up, masked",
        "times the plain",
        "a site",
        "the server",
        "of a round",
    )
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    rows = []
    for title, model in MODELS.items():
        length = first_vector(model).numel()
        work = local_work(model)
        for sites in SITES:
            site, server, masked, plain = cost(length, sites)
            share = (site + server) / (work + site + server)
            rows.append(
                [
                    f"{title}, {length:,} parameters",
                    str(sites),
                    f"{masked:,}",
                    f"{masked / plain:.3f}",
                    f"{1000 * site:.1f} ms",
                    f"{1000 * server:.1f} ms",
                    f"{100 * share:.1f} % of {work:.2f} s",
                ]
            )
    print(table(rows))


if __name__ == "__main__":
    main()
