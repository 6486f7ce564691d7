"""Train on your own table: python bring_your_own_data.py hospitals.csv."""

import sys

from fedadmm import SGD, FedADMM, data, problems, simulate

rows = data.tabular(sys.argv[1], target="sick", client="hospital")
parts = data.hold_out(rows, 0.2)
problem = problems.from_data(parts.train, parts.test, model="logistic")
result = simulate(FedADMM(rho=0.1), problem, rounds=30, solver=SGD(lr=0.5, batch_size=20))
print(problem.num_clients, "clients", problem.test(result.params))
