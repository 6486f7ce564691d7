"""fedadmm: verified primal-dual federated learning.

Names are imported when they are first used, so that `fedadmm --help` need not wait for torch.
`__init__.pyi` lists them for type checkers and editors.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_EXPORTS = {
    "algorithms": (
        "AFedPD AdaBest AlignedADMM AsyncFedDR ConsensusADMM FedADMM FedADMMIn "
        "FedADMMInSa FedAdagrad FedAdam FedAsync FedAvg FedAvgM FedBuff FedCM FedDR "
        "FedDRII FedDualAvg FedDyn FedExP FedMid FedNova FedPD FedProx FedSGD "
        "FedSplit FedYogi PFedMe Scaffnew Scaffold"
    ),
    "core.aggregation": "Aggregator MaskedSum Median Sum TrimmedMean",
    "core.contracts": "Algorithm Regularizer",
    "core.errors": "FedADMMError",
    "core.local_work": "LocalSolver LocalWork",
    "core.objectives": "Objective",
    "core.objectives.batches": "BatchMetrics BatchObjective",
    "core.objectives.closed_form": "LeastSquares LogisticRegression Quadratic",
    "core.objectives.flat": "FlatModule",
    "core.objectives.model": "ModelObjective",
    "core.personalisation": "Ditto PersonalLayers",
    "core.pipeline.postprocessors": (
        "AdaptiveClip BFloat16 Clip GaussianNoise Postprocessor Quantise RandomK TopK"
    ),
    "core.problem": "Facts LazyClients Problem",
    "core.regularizers": "L1",
    "core.sampling": (
        "BernoulliSampling CyclicSampling DoublyUniformSampling FullParticipation "
        "NonOverlappingSampling Sampler TraceSampling UniformSampling WeightedSampling"
    ),
    "core.schedules": "PerWork",
    "core.solvers": ("AcceleratedGradient Adam DPSGD ExactSolver GradientDescent LBFGS SGD"),
    "core.stopping": "Epochs Steps StoppingRule UniformEpochs",
    "run.callbacks": "Callback",
    "run.checkpoint": "Checkpoints",
    "run.diagnostics": "Diagnostics",
    "run.evaluation": "Evaluation Target",
    "run.experiment": "Experiment",
    "run.simulate": "Result simulate",
    "run.stores": "DiskStore MemoryStore",
    "study.estimator": "FederatedClassifier FederatedRegressor",
    "study.predict": "Predictor",
    "theory.certificates": "Certificate",
}
"""Module -> its public names."""
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names.split()}
_SUBMODULES = {
    "adapters": "core.objectives.adapters",
    "algorithms": "algorithms",
    "engines": "run.engines",
    "errors": "core.errors",
    "losses": "core.objectives.losses",
    "models": "data.models",
    "outputs": "core.outputs",
    "problems": "data.problems",
    "regularizers": "core.regularizers",
    "schedules": "core.schedules",
    "stopping": "core.stopping",
    "trackers": "study.trackers",
}
"""Namespaces with a short name."""

__all__ = sorted([*_MODULE_OF, *_SUBMODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"fedadmm.{_SUBMODULES[name]}")
    if name in _MODULE_OF:
        value = getattr(import_module(f"fedadmm.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fedadmm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
