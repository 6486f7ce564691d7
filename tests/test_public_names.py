"""What `import fedadmm` offers, and that it costs next to nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fedadmm as fa

NAMES = [
    "Experiment",
    "LocalWork",
    "AlignedADMM",
    "FedSGD",
    "FedAvg",
    "FedProx",
    "FedAvgM",
    "FedAdagrad",
    "FedAdam",
    "FedYogi",
    "FedNova",
    "FedCM",
    "FedMid",
    "FedDualAvg",
    "Scaffnew",
    "AdaBest",
    "FedAsync",
    "FedBuff",
    "Scaffold",
    "FedDyn",
    "FedPD",
    "FedADMM",
    "FedADMMIn",
    "FedADMMInSa",
    "FedDR",
    "FedDRII",
    "FedSplit",
    "AsyncFedDR",
    "FullParticipation",
    "UniformSampling",
    "BernoulliSampling",
    "WeightedSampling",
    "NonOverlappingSampling",
    "DoublyUniformSampling",
    "CyclicSampling",
    "TraceSampling",
    "Sampler",
    "SGD",
    "GradientDescent",
    "AcceleratedGradient",
    "LBFGS",
    "ExactSolver",
    "Epochs",
    "UniformEpochs",
    "Steps",
    "GradientTolerance",
    "ProxAccuracy",
    "RelativeAccuracy",
    "InSaCriterion",
    "Zero",
    "L1",
    "SquaredL2",
    "ElasticNet",
    "GroupLasso",
    "Box",
    "NonNegative",
    "L2Ball",
    "PyProximal",
    "LastIterate",
    "RandomIterate",
    "TwoOutputs",
    "Averaged",
    "ParticipantsMean",
    "Problem",
    "Objective",
    "LazyClients",
    "Facts",
    "Quadratic",
    "LeastSquares",
    "LogisticRegression",
    "ModelObjective",
    "BatchObjective",
    "BatchMetrics",
    "FlatModule",
    "FederatedClassifier",
    "FederatedRegressor",
    "simulate",
    "Result",
    "Evaluation",
    "Target",
    "PerWork",
    "Piecewise",
    "Geometric",
    "FedADMMError",
    "ParameterError",
    "CompatibilityError",
    "DataError",
    "ConfigError",
    "StateError",
    "EngineError",
]


@pytest.mark.parametrize("name", NAMES)
def test_name(name):
    assert name in fa.__all__
    assert getattr(fa, name).__name__ == name
    assert getattr(fa, name).__doc__


def test_everything_offered_can_be_had():
    for name in fa.__all__:
        assert getattr(fa, name) is not None
    assert set(dir(fa)) == set(fa.__all__)
    assert len(set(fa.__all__)) == len(fa.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fedadmm' has no attribute 'FedMagic'"):
        fa.FedMagic  # noqa: B018


def test_everything_raised_on_purpose_has_one_root():
    errors = [getattr(fa, name) for name in fa.__all__ if name.endswith("Error")]
    assert len(errors) >= 7
    assert all(issubclass(error, fa.FedADMMError) for error in errors)


def test_importing_warns_of_nothing_and_does_not_import_torch():
    program = (
        "import sys, fedadmm; assert 'torch' not in sys.modules; assert 'numpy' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_parameters_carry_the_letters_of_the_papers():
    methods = [
        fa.FedADMM(rho=1.0, step="tracking", members="all"),
        fa.FedDR(eta=1.0, alpha=1.0, init="start"),
        fa.FedDRII(eta=1.0),
        fa.FedSplit(eta=1.0),
        fa.FedADMMIn(beta=1.0),
        fa.FedADMMInSa(beta=1.0, mu=5, tau=2),
        fa.FedDyn(eta=1.0),
        fa.FedPD(eta=1.0, skip_probability=0),
        fa.FedProx(rho=1.0),
        fa.Scaffold(option=2, step=1.0),
        fa.FedSGD(lr=1.0),
        fa.FedAvg(),
    ]
    assert len({method.name for method in methods}) == 12
    assert all(type(method).__doc__ and method.paper for method in methods)
    assert fa.FedADMM(1.0) == methods[0]
    assert fa.FedADMMInSa(1.0) == methods[5]


def test_an_experiment_is_what_keywords_describe() -> None:
    """`simulate(experiment)` and `simulate(method, problem, rounds, …)` are the same run."""
    problem = fa.problems.load("quadratics", clients=3, dimension=2)
    work = {"solver": fa.GradientDescent(0.1), "stop": fa.Steps(2), "start": "own"}
    experiment = fa.Experiment(problem, fa.FedADMM(1.0), 4, local=fa.LocalWork(**work), seed=3)
    one = fa.simulate(experiment)
    other = fa.simulate(fa.FedADMM(1.0), problem, 4, seed=3, **work)
    assert one.params.equal(other.params)
    assert one.history[-1]["metrics"] == other.history[-1]["metrics"]
