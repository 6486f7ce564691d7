"""fedadmm: primal-dual federated learning, right, fast and safe.

Names are imported when they are first used, so that `fedadmm --help` need not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_EXPORTS = {
    "fedadmm.algorithms": (
        "AFedPD AdaBest AlignedADMM AsyncFedDR FedADMM FedADMMIn FedADMMInReleased FedADMMInSa "
        "FedADMMInSaReleased FedADMMPrinted FedADMMReleased FedADMMWangReleased "
        "FedAdagrad FedAdam FedAsync FedAvg FedAvgM FedBuff FedCM FedDR FedDRII FedDualAvg "
        "FedDyn FedExP FedMid FedNova FedPD FedProx FedSGD FedSplit FedYogi PFedMe "
        "Scaffnew Scaffold"
    ),
    "fedadmm.core.aggregation": "Aggregation MaskedSum Median Sum TrimmedMean",
    "fedadmm.core.errors": (
        "ConfigError DataError EngineError FedADMMError PairingError ParameterError StateError"
    ),
    "fedadmm.core.objectives": "Objective",
    "fedadmm.core.objectives.batches": "BatchMetrics BatchObjective",
    "fedadmm.core.objectives.closed_form": "LeastSquares LogisticRegression Quadratic",
    "fedadmm.core.objectives.flat": "FlatModule",
    "fedadmm.core.objectives.model": "ModelObjective",
    "fedadmm.core.outputs": "Averaged LastIterate ParticipantsMean RandomIterate TwoOutputs",
    "fedadmm.core.problem": "Facts LazyClients Problem",
    "fedadmm.core.protocols": "Algorithm Regularizer",
    "fedadmm.core.regularizers": (
        "Box ElasticNet GroupLasso L1 L2 L2Ball LInf NonNegative PyProximal SquaredL2 Zero"
    ),
    "fedadmm.core.sampling": (
        "BernoulliSampling CyclicSampling DoublyUniformSampling FullParticipation "
        "NonOverlappingSampling Sampler TraceSampling UniformSampling WeightedSampling"
    ),
    "fedadmm.core.schedules": "Geometric PerWork Piecewise",
    "fedadmm.core.solvers": "Adam DPSGD LBFGS SGD AcceleratedGradient ExactSolver GradientDescent",
    "fedadmm.core.pipeline.postprocessors": (
        "AdaptiveClip BFloat16 Clip GaussianNoise Quantise RandomK TopK Postprocessor"
    ),
    "fedadmm.core.stopping": (
        "Epochs GradientTolerance InSaCriterion ProxAccuracy RelativeAccuracy Steps StoppingRule "
        "UniformEpochs"
    ),
    "fedadmm.run.callbacks": "Callback",
    "fedadmm.run.diagnostics": "Diagnostics",
    "fedadmm.run.engines": "Auto Ray Sequential Vectorised VirtualTime Workers",
    "fedadmm.core.local_work": "LocalSolver LocalWork",
    "fedadmm.core.personal": "Ditto OwnLayers",
    "fedadmm.run.evaluation": "Evaluation Target",
    "fedadmm.run.experiment": "Checkpointing Experiment Storage",
    "fedadmm.run.simulation": "Result simulate",
    "fedadmm.run.checkpoint": "Checkpoints",
    "fedadmm.run.stores": "DiskStore MemoryStore",
    "fedadmm.study.estimator": "FederatedClassifier FederatedRegressor",
    "fedadmm.study.predicting": "Predictor",
    "fedadmm.study.trackers": "MLflow TensorBoard WeightsAndBiases",
    "fedadmm.theory.certificates": "Certificate",
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names.split()}
_MODULES = {
    "adapters": "fedadmm.core.objectives.adapters",
    "engines": "fedadmm.run.engines",
    "losses": "fedadmm.core.objectives.losses",
    "models": "fedadmm.data.models",
    "problems": "fedadmm.data.problems",
}
"""Parts of rooms that people go to by a short name."""

__all__ = sorted([*_HOME, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fedadmm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
