"""A script that uses every public name; `make check` runs mypy over it in strict mode.

It is not executed: the assertions are those of the type checker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import torch
from torch import nn

import fedadmm as fa

version: str = fa.__version__
methods: list[fa.Algorithm[Any, Any, Any, Any]] = [
    fa.AFedPD(rho=0.5),
    fa.AdaBest(),
    fa.AlignedADMM(rho=fa.PerWork(0.25)),
    fa.AsyncFedDR(eta=0.5),
    fa.ConsensusADMM(rho=0.5),
    fa.FedADMM(rho=0.5, step="tracking"),
    fa.FedADMMIn(beta=0.5),
    fa.FedADMMInSa(beta=0.5),
    fa.FedAdagrad(),
    fa.FedAdam(),
    fa.FedAsync(),
    fa.FedAvg(),
    fa.FedAvgM(momentum=0.9),
    fa.FedBuff(size=2),
    fa.FedCM(),
    fa.FedDR(eta=0.5, alpha=1.0),
    fa.FedDRII(eta=0.5),
    fa.FedDualAvg(),
    fa.FedDyn(eta=0.5),
    fa.FedExP(),
    fa.FedMid(),
    fa.FedNova(),
    fa.FedPD(eta=0.5),
    fa.FedProx(rho=0.1),
    fa.FedSGD(lr=0.1),
    fa.FedSplit(eta=0.5),
    fa.FedYogi(),
    fa.PFedMe(rho=0.5),
    fa.Scaffnew(p=0.5),
    fa.Scaffold(),
]
assert_type(fa.FedADMM(rho=0.5), fa.FedADMM)

solvers: list[fa.LocalSolver] = [
    fa.SGD(lr=0.1, batch_size=10),
    fa.Adam(lr=0.01),
    fa.DPSGD(lr=0.1, clip=1.0, multiplier=1.0, batch_size=10),
    fa.GradientDescent(lr=0.1),
    fa.AcceleratedGradient(),
    fa.LBFGS(),
    fa.ExactSolver(),
]
rules: list[fa.StoppingRule] = [fa.Epochs(5), fa.Steps(10), fa.UniformEpochs(5)]
rules.append(fa.stopping.GradientTolerance(0.1))
samplers: list[fa.Sampler] = [
    fa.FullParticipation(),
    fa.UniformSampling(0.1),
    fa.BernoulliSampling(0.1),
    fa.CyclicSampling(2),
    fa.DoublyUniformSampling(),
    fa.NonOverlappingSampling(2),
    fa.TraceSampling([[0, 1], [2]]),
    fa.WeightedSampling([1.0, 2.0], size=1),
]
pipeline: list[fa.Postprocessor] = [
    fa.Clip(1.0),
    fa.AdaptiveClip(),
    fa.TopK(0.1),
    fa.RandomK(0.1),
    fa.Quantise(8),
    fa.BFloat16(),
    fa.GaussianNoise(multiplier=1.0),
]
aggregators: list[fa.Aggregator] = [
    fa.Sum(),
    fa.Median(),
    fa.TrimmedMean(0.1),
    fa.MaskedSum(bound=50.0),
]
regularizer: fa.Regularizer = fa.L1(0.1)
box: fa.Regularizer = fa.regularizers.Box(-1.0, 1.0)
local = fa.LocalWork(fa.SGD(lr=0.1), fa.Epochs(5), personal=fa.Ditto(0.1))
layers = fa.PersonalLayers(["2.bias"])

flat = fa.FlatModule(nn.Sequential(nn.Linear(4, 3)))
inputs, labels = torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)
objectives: list[fa.Objective] = [
    fa.Quadratic(torch.eye(2), torch.zeros(2)),
    fa.LeastSquares(torch.eye(2), torch.zeros(2)),
    fa.LogisticRegression(torch.eye(2), torch.zeros(2)),
    fa.ModelObjective(flat, fa.losses.cross_entropy, inputs, labels),
]
problem = fa.Problem(objectives, initial=torch.zeros(2))
named: fa.Problem = fa.problems.load("digits", clients=50, partition="shards")
model: nn.Module = fa.models.build("mlp-64-32-10")

result = fa.simulate(
    fa.FedADMM(),
    problem,
    rounds=30,
    solver=fa.SGD(lr=0.1, batch_size=10),
    stop=fa.Epochs(5),
    sampler=fa.UniformSampling(0.1),
    evaluate=fa.Evaluation(every=5),
    target=fa.Target("test_accuracy", 0.9),
    engine=fa.engines.Sequential(),
    output=fa.outputs.ParticipantsMean(),
    callbacks=[fa.Diagnostics(), fa.Certificate()],
    checkpoints=fa.Checkpoints(Path("runs")),
    seed=1,
)
assert_type(result, fa.Result)
assert_type(result.params, torch.Tensor)
experiment = fa.Experiment(problem, fa.FedAvg(), rounds=10, local=local)
assert_type(fa.simulate(experiment), fa.Result)
memory, disk = fa.MemoryStore(), fa.DiskStore(Path("states"))
fa.simulate(fa.FedAvg(), problem, 3, store=memory)

schedule = fa.schedules.Piecewise({0: 1.0, 10: 0.5})
classifier = fa.FederatedClassifier(fa.AlignedADMM(), rounds=10)
regressor = fa.FederatedRegressor(fa.FedAvg(), rounds=10)
callbacks: list[fa.Callback] = [fa.trackers.MLflow()]
predictor: fa.Predictor = fa.Predictor(Path("runs/quickstart"))
facts: fa.Facts = problem.facts
lazy: fa.LazyClients
batch: fa.BatchObjective
metrics: fa.BatchMetrics
modules = (fa.adapters, fa.algorithms, fa.errors)

try:
    fa.simulate(fa.FedADMM(), problem, 1)
except fa.errors.ParameterError as error:
    root: fa.FedADMMError = error
