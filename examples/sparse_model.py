"""A sparse model with FedDR: the server's prox of the l1 norm makes parameters exactly zero."""

from fedadmm import L1, SGD, Epochs, FedDR, UniformSampling, problems, simulate

for weight in (0.0005, 0.002, 0.008):
    problem = problems.load("digits", clients=20, model="logistic", regularizer=L1(weight))
    result = simulate(
        FedDR(eta=10.0),
        problem,
        rounds=40,
        sampler=UniformSampling(0.5),
        solver=SGD(lr=0.1, batch_size=20),
        stop=Epochs(3),
        seed=0,
    )
    last = result.history[-1]
    print(
        f"l1 weight {weight:<7} accuracy {last['metrics']['test_accuracy']:.1%}  "
        f"zeros {last['metrics']['sparsity']:.1%}  objective {last['metrics']['objective']:.3f}"
    )
