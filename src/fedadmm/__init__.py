"""fedadmm: primal-dual federated learning, right, fast and safe.

Names are imported when they are first used, so that `fedadmm --help` need not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "fedadmm.core.adaptive_sampling": "EnergySampling LeastRecentlySeenSampling LossSampling",
    "fedadmm.algorithms": (
        "AsyncFedDR FedADMM FedADMMIn FedADMMInSa FedAvg FedDR FedDRII FedDyn FedPD FedProx FedSGD "
        "FedSplit Scaffold"
    ),
    "fedadmm.core.errors": (
        "ConfigError DataError EngineError FedADMMError PairingError ParameterError StateError"
    ),
    "fedadmm.run.evaluation": "Evaluation Target",
    "fedadmm.core.objectives.flat": "FlatModule",
    "fedadmm.core.objectives.closed_form": "LeastSquares LogisticRegression ModelObjective Quadratic",
    "fedadmm.core.outputs": "LastIterate RandomIterate",
    "fedadmm.core.penalties": "FixedPenalty ResidualBalancing",
    "fedadmm.core.problem": "Facts LazyClients Problem",
    "fedadmm.core.protocols": "Objective Sampler Seen",
    "fedadmm.core.regularizers": (
        "Box ElasticNet GroupLasso L1 L2Ball NonNegative PyProximal SquaredL2 Zero"
    ),
    "fedadmm.core.sampling": (
        "BernoulliSampling CyclicSampling DoublyUniformSampling FullParticipation "
        "NonOverlappingSampling TraceSampling UniformSampling WeightedSampling"
    ),
    "fedadmm.core.schedules": "Geometric Piecewise",
    "fedadmm.run.simulation": "Result simulate",
    "fedadmm.core.solvers": "LBFGS SGD AcceleratedGradient ExactSolver GradientDescent",
    "fedadmm.core.stopping": (
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
