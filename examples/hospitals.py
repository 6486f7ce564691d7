"""Four hospitals predict heart disease together; no patient's row leaves its hospital.

The UCI heart disease files come with the package.  A hospital counts by its patients.  If all count
the same (`weights="uniform"`), a lower loss goes with a lower accuracy over all patients, probably
because Switzerland, where 94 % of 98 patients are sick, then counts as much as Cleveland with 242.
"""

from fedadmm import SGD, DataError, Epochs, FedADMM, FedAvg, problems, simulate

try:
    problem = problems.load("heart-disease", weights="samples")
except DataError as error:
    raise SystemExit(f"skipped: {error}") from None

local = {"solver": SGD(lr=0.1, batch_size=20), "stop": Epochs(5)}
for method in (FedAvg(), FedADMM()):
    result = simulate(method, problem, rounds=20, **local)
    found = result.history[-1]["metrics"]
    print(
        f"{type(method).__name__}: {found['test_accuracy']:.1%} of held-out patients, "
        f"loss {found['test_loss']:.3f}"
    )
for hospital, evaluate in zip(problem.data.client_names(), problem.client_tests, strict=True):
    print(f"  {hospital:14} {evaluate(result.params)['test_accuracy']:.1%}")
