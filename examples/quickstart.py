"""FedAvg against FedADMM on digits: 20 clients that know two or three digits each."""

from fedadmm import SGD, Epochs, FedADMM, FedAvg, Target, UniformSampling, problems, simulate

problem = problems.load("digits", clients=20, partition="shards")

for method in (FedAvg(), FedADMM(rho=0.1, members="seen")):
    result = simulate(
        method,
        problem,
        rounds=30,
        sampler=UniformSampling(0.25),
        solver=SGD(lr=0.1, batch_size=10),
        stop=Epochs(5),
        target=Target("test_accuracy", 0.85),
        seed=0,
    )
    last = result.history[-1]
    print(f"{method.name:8} {last['metrics']['test_accuracy']:.1%}  {result.status}")
