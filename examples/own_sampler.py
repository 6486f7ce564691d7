"""Your own sampler: half of a round is whoever was away longest, half is whoever drifted most."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedadmm import SGD, Epochs, FedADMM, Sampler, problems, simulate
from fedadmm.core.sampling import Seen, SeenClients

NEVER = Seen(asked=-2, drift=0.0)


@dataclass(frozen=True)
class AwayOrAdrift(Sampler):
    """`pairs` clients that were not asked for longest, and as many that are furthest from theta."""

    looks_back = True  # so that `known` is there, and is what was known when the round begins

    pairs: int

    def sample(
        self, seed: int, round_index: int, clients: int, known: SeenClients | None = None
    ) -> Sequence[int]:
        assert known is not None
        everybody = [(client, known.get(client, NEVER)) for client in range(clients)]
        away = sorted(everybody, key=lambda pair: pair[1].asked)[: self.pairs]
        others = [pair for pair in everybody if pair not in away]
        adrift = sorted(others, key=lambda pair: -pair[1].drift)[: self.pairs]
        return sorted(client for client, _ in away + adrift)


result = simulate(
    FedADMM(rho=0.1, members="seen"),
    problems.load("digits", clients=20, partition="shards"),
    rounds=20,
    sampler=AwayOrAdrift(pairs=2),
    solver=SGD(lr=0.1, batch_size=20),
    stop=Epochs(3),
)
turns = [record["cohort"]["clients"] for record in result.history]
print("the first rounds took", *turns[:3])
print("clients seen:", len({client for clients in turns for client in clients}))
print(f"accuracy {result.history[-1]['metrics']['test_accuracy']:.1%}")
