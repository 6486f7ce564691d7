"""Four hospitals predict heart disease together; no patient's row leaves its hospital.

The UCI heart disease files come with the package.
"""

from fedadmm import SGD, DataError, Epochs, FedADMM, problems, simulate

try:
    problem = problems.load("heart-disease", weights="samples")
except DataError as error:
    raise SystemExit(f"skipped: {error}") from None

result = simulate(
    FedADMM(rho=0.1), problem, rounds=30, solver=SGD(lr=0.1, batch_size=20), stop=Epochs(3)
)
print(f"together: {result.history[-1]['metrics']['test_accuracy']:.1%} of held-out patients")
for hospital, evaluate in zip(problem.data.client_names(), problem.client_tests, strict=True):
    print(f"  {hospital:14} {evaluate(result.params)['test_accuracy']:.1%}")
