# Public names for type checkers and editors; at run time `__init__.py` imports them lazily.

from fedadmm import algorithms as algorithms
from fedadmm.algorithms import (
    AdaBest as AdaBest,
)
from fedadmm.algorithms import (
    AFedPD as AFedPD,
)
from fedadmm.algorithms import (
    AlignedADMM as AlignedADMM,
)
from fedadmm.algorithms import (
    AsyncFedDR as AsyncFedDR,
)
from fedadmm.algorithms import (
    FedAdagrad as FedAdagrad,
)
from fedadmm.algorithms import (
    FedAdam as FedAdam,
)
from fedadmm.algorithms import (
    FedADMM as FedADMM,
)
from fedadmm.algorithms import (
    FedADMMIn as FedADMMIn,
)
from fedadmm.algorithms import (
    FedADMMInSa as FedADMMInSa,
)
from fedadmm.algorithms import (
    FedAsync as FedAsync,
)
from fedadmm.algorithms import (
    FedAvg as FedAvg,
)
from fedadmm.algorithms import (
    FedAvgM as FedAvgM,
)
from fedadmm.algorithms import (
    FedBuff as FedBuff,
)
from fedadmm.algorithms import (
    FedCM as FedCM,
)
from fedadmm.algorithms import (
    FedDR as FedDR,
)
from fedadmm.algorithms import (
    FedDRII as FedDRII,
)
from fedadmm.algorithms import (
    FedDualAvg as FedDualAvg,
)
from fedadmm.algorithms import (
    FedDyn as FedDyn,
)
from fedadmm.algorithms import (
    FedExP as FedExP,
)
from fedadmm.algorithms import (
    FedMid as FedMid,
)
from fedadmm.algorithms import (
    FedNova as FedNova,
)
from fedadmm.algorithms import (
    FedPD as FedPD,
)
from fedadmm.algorithms import (
    FedProx as FedProx,
)
from fedadmm.algorithms import (
    FedSGD as FedSGD,
)
from fedadmm.algorithms import (
    FedSplit as FedSplit,
)
from fedadmm.algorithms import (
    FedYogi as FedYogi,
)
from fedadmm.algorithms import (
    PFedMe as PFedMe,
)
from fedadmm.algorithms import (
    Scaffnew as Scaffnew,
)
from fedadmm.algorithms import (
    Scaffold as Scaffold,
)
from fedadmm.core import errors as errors
from fedadmm.core import outputs as outputs
from fedadmm.core import regularizers as regularizers
from fedadmm.core import schedules as schedules
from fedadmm.core import stopping as stopping
from fedadmm.core.aggregation import (
    Aggregator as Aggregator,
)
from fedadmm.core.aggregation import (
    MaskedSum as MaskedSum,
)
from fedadmm.core.aggregation import (
    Median as Median,
)
from fedadmm.core.aggregation import (
    Sum as Sum,
)
from fedadmm.core.aggregation import (
    TrimmedMean as TrimmedMean,
)
from fedadmm.core.contracts import (
    Algorithm as Algorithm,
)
from fedadmm.core.contracts import (
    Regularizer as Regularizer,
)
from fedadmm.core.errors import (
    FedADMMError as FedADMMError,
)
from fedadmm.core.local_work import (
    LocalSolver as LocalSolver,
)
from fedadmm.core.local_work import (
    LocalWork as LocalWork,
)
from fedadmm.core.objectives import (
    Objective as Objective,
)
from fedadmm.core.objectives import adapters as adapters
from fedadmm.core.objectives import losses as losses
from fedadmm.core.objectives.batches import (
    BatchMetrics as BatchMetrics,
)
from fedadmm.core.objectives.batches import (
    BatchObjective as BatchObjective,
)
from fedadmm.core.objectives.closed_form import (
    LeastSquares as LeastSquares,
)
from fedadmm.core.objectives.closed_form import (
    LogisticRegression as LogisticRegression,
)
from fedadmm.core.objectives.closed_form import (
    Quadratic as Quadratic,
)
from fedadmm.core.objectives.flat import (
    FlatModule as FlatModule,
)
from fedadmm.core.objectives.model import (
    ModelObjective as ModelObjective,
)
from fedadmm.core.personalisation import (
    Ditto as Ditto,
)
from fedadmm.core.personalisation import (
    PersonalLayers as PersonalLayers,
)
from fedadmm.core.pipeline.postprocessors import (
    AdaptiveClip as AdaptiveClip,
)
from fedadmm.core.pipeline.postprocessors import (
    BFloat16 as BFloat16,
)
from fedadmm.core.pipeline.postprocessors import (
    Clip as Clip,
)
from fedadmm.core.pipeline.postprocessors import (
    GaussianNoise as GaussianNoise,
)
from fedadmm.core.pipeline.postprocessors import (
    Postprocessor as Postprocessor,
)
from fedadmm.core.pipeline.postprocessors import (
    Quantise as Quantise,
)
from fedadmm.core.pipeline.postprocessors import (
    RandomK as RandomK,
)
from fedadmm.core.pipeline.postprocessors import (
    TopK as TopK,
)
from fedadmm.core.problem import (
    Facts as Facts,
)
from fedadmm.core.problem import (
    LazyClients as LazyClients,
)
from fedadmm.core.problem import (
    Problem as Problem,
)
from fedadmm.core.regularizers import (
    L1 as L1,
)
from fedadmm.core.sampling import (
    BernoulliSampling as BernoulliSampling,
)
from fedadmm.core.sampling import (
    CyclicSampling as CyclicSampling,
)
from fedadmm.core.sampling import (
    DoublyUniformSampling as DoublyUniformSampling,
)
from fedadmm.core.sampling import (
    FullParticipation as FullParticipation,
)
from fedadmm.core.sampling import (
    NonOverlappingSampling as NonOverlappingSampling,
)
from fedadmm.core.sampling import (
    Sampler as Sampler,
)
from fedadmm.core.sampling import (
    TraceSampling as TraceSampling,
)
from fedadmm.core.sampling import (
    UniformSampling as UniformSampling,
)
from fedadmm.core.sampling import (
    WeightedSampling as WeightedSampling,
)
from fedadmm.core.schedules import (
    PerWork as PerWork,
)
from fedadmm.core.solvers import (
    DPSGD as DPSGD,
)
from fedadmm.core.solvers import (
    LBFGS as LBFGS,
)
from fedadmm.core.solvers import (
    SGD as SGD,
)
from fedadmm.core.solvers import (
    AcceleratedGradient as AcceleratedGradient,
)
from fedadmm.core.solvers import (
    Adam as Adam,
)
from fedadmm.core.solvers import (
    ExactSolver as ExactSolver,
)
from fedadmm.core.solvers import (
    GradientDescent as GradientDescent,
)
from fedadmm.core.stopping import (
    Epochs as Epochs,
)
from fedadmm.core.stopping import (
    Steps as Steps,
)
from fedadmm.core.stopping import (
    StoppingRule as StoppingRule,
)
from fedadmm.core.stopping import (
    UniformEpochs as UniformEpochs,
)
from fedadmm.data import models as models
from fedadmm.data import problems as problems
from fedadmm.run import engines as engines
from fedadmm.run.callbacks import (
    Callback as Callback,
)
from fedadmm.run.checkpoint import (
    Checkpoints as Checkpoints,
)
from fedadmm.run.diagnostics import (
    Diagnostics as Diagnostics,
)
from fedadmm.run.evaluation import (
    Evaluation as Evaluation,
)
from fedadmm.run.evaluation import (
    Target as Target,
)
from fedadmm.run.experiment import (
    Experiment as Experiment,
)
from fedadmm.run.simulate import (
    Result as Result,
)
from fedadmm.run.simulate import (
    simulate as simulate,
)
from fedadmm.run.stores import (
    DiskStore as DiskStore,
)
from fedadmm.run.stores import (
    MemoryStore as MemoryStore,
)
from fedadmm.study import trackers as trackers
from fedadmm.study.estimator import (
    FederatedClassifier as FederatedClassifier,
)
from fedadmm.study.estimator import (
    FederatedRegressor as FederatedRegressor,
)
from fedadmm.study.predict import (
    Predictor as Predictor,
)
from fedadmm.theory.certificates import (
    Certificate as Certificate,
)

__version__: str
