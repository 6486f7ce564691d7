"""Which reward reaches a target at the lowest cost: the incentive game in front of FedAvg.

Every client trains as many epochs per round as pay best for it (the least equilibrium of the game
of Liu, Wang and Zuazua, arXiv 2411.11793). The server pays the reward times the mean effort for
each epoch, until the target accuracy is reached.
"""

import numpy as np

import fedadmm as fa
from fedadmm.theory.incentives import RationalEpochs, critical_reward, equilibrium, game

CLIENTS, TARGET = 10, 0.9
costs = [float(cost) for cost in np.linspace(0.5, 1.5, CLIENTS)]
clients = game(costs, least=1, most=10)
critical = critical_reward(clients)
problem = fa.problems.load("digits", clients=CLIENTS, partition="shards")
print(f"critical reward {critical:.3f}")
for factor in (0.8, 0.99, 1.01, 1.5):
    reward = factor * critical
    found = equilibrium(clients, reward)
    payment = reward * found.mean * float(found.efforts.sum())
    result = fa.simulate(
        fa.FedAvg(),
        problem,
        60,
        solver=fa.SGD(lr=0.3, batch_size=20),
        stop=RationalEpochs(reward, costs),
        target=fa.Target("test_accuracy", TARGET),
    )
    rounds = result.history[-1]["round"]
    cost = f"{rounds} rounds, cost {payment * rounds:.0f}"
    if result.code != "target":
        cost = "target not reached"
    print(f"reward {reward:.3f}: {found.mean:.2f} epochs, {payment:.1f} per round, {cost}")
