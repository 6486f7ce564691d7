"""fedadmm: primal-dual federated learning, right, fast and safe.

Names are imported when they are first used, so that `fedadmm --help` need not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "fedadmm.adaptive_sampling": "EnergySampling LeastRecentlySeenSampling LossSampling",
    "fedadmm.algorithms": (
        "AsyncFedDR FedADMM FedADMMIn FedADMMInSa FedAvg FedDR FedDRII FedDyn FedPD FedProx FedSGD "
        "FedSplit Scaffold"
    ),
    "fedadmm.errors": (
        "ConfigError DataError EngineError FedADMMError PairingError ParameterError StateError"
    ),
    "fedadmm.evaluation": "Evaluation Target",
    "fedadmm.flat": "FlatModule",
    "fedadmm.objective": "LeastSquares LogisticRegression ModelObjective Quadratic",
    "fedadmm.outputs": "LastIterate RandomIterate",
    "fedadmm.penalties": "FixedPenalty ResidualBalancing",
    "fedadmm.problem": "Facts LazyClients Problem",
    "fedadmm.protocols": "Objective Sampler Seen",
    "fedadmm.regularizers": (
        "Box ElasticNet GroupLasso L1 L2Ball NonNegative PyProximal SquaredL2 Zero"
    ),
    "fedadmm.sampling": (
        "BernoulliSampling CyclicSampling DoublyUniformSampling FullParticipation "
        "NonOverlappingSampling TraceSampling UniformSampling WeightedSampling"
    ),
    "fedadmm.schedules": "Geometric Piecewise",
    "fedadmm.simulation": "Result simulate",
    "fedadmm.solvers": "LBFGS SGD AcceleratedGradient ExactSolver GradientDescent",
    "fedadmm.stopping": (
        "Epochs GradientTolerance InSaCriterion ProxAccuracy RelativeAccuracy Steps UniformEpochs"
    ),
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names.split()}

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fedadmm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
