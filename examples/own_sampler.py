"""Your own sampler: one half of the clients is available by day, the other half by night."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedadmm import SGD, Epochs, FedADMM, Sampler, problems, simulate
from fedadmm.core.rng import derive, numpy_generator


@dataclass(frozen=True)
class DayAndNight(Sampler):
    """`size` of the available clients, drawn uniformly; day and night alternate.

    Args:
        size: the clients of a round.
        half_day: the rounds of a day, and of a night.
    """

    size: int
    half_day: int = 3

    def sample(self, seed: int, round_index: int, clients: int) -> Sequence[int]:
        night = round_index // self.half_day % 2
        available = range(night, clients, 2)
        rng = numpy_generator(derive(seed, "day-and-night", round_index))
        return sorted(int(i) for i in rng.choice(available, self.size, replace=False))


result = simulate(
    FedADMM(rho=0.1, members="seen"),
    problems.load("digits", clients=20, partition="shards"),
    rounds=30,
    sampler=DayAndNight(size=4),
    solver=SGD(lr=0.1, batch_size=20),
    stop=Epochs(3),
)
cohorts = [record["cohort"]["clients"] for record in result.history]
print("first day:", *cohorts[:3])
print("first night:", *cohorts[3:6])
print("clients seen:", len({client for cohort in cohorts for client in cohort}))
print(f"accuracy {result.history[-1]['metrics']['test_accuracy']:.1%}")
