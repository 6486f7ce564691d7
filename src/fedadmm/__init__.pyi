# Public names for type checkers and editors; at run time `__init__.py` imports them lazily.

from fedadmm import algorithms as algorithms
from fedadmm.algorithms import (
    AdaBest as AdaBest,
    AFedPD as AFedPD,
    AlignedADMM as AlignedADMM,
    AsyncFedDR as AsyncFedDR,
    ConsensusADMM as ConsensusADMM,
    FedAdagrad as FedAdagrad,
    FedAdam as FedAdam,
    FedADMM as FedADMM,
    FedADMMIn as FedADMMIn,
    FedADMMInSa as FedADMMInSa,
    FedAsync as FedAsync,
    FedAvg as FedAvg,
    FedAvgM as FedAvgM,
    FedBuff as FedBuff,
    FedCM as FedCM,
    FedDR as FedDR,
    FedDRII as FedDRII,
    FedDualAvg as FedDualAvg,
    FedDyn as FedDyn,
    FedExP as FedExP,
    FedMid as FedMid,
    FedNova as FedNova,
    FedPD as FedPD,
    FedProx as FedProx,
    FedSGD as FedSGD,
    FedSplit as FedSplit,
    FedYogi as FedYogi,
    PFedMe as PFedMe,
    Scaffnew as Scaffnew,
    Scaffold as Scaffold,
)
from fedadmm.core import (
    errors as errors,
    outputs as outputs,
    regularizers as regularizers,
    schedules as schedules,
    stopping as stopping,
)
from fedadmm.core.aggregation import (
    Aggregator as Aggregator,
    MaskedSum as MaskedSum,
    Median as Median,
    Sum as Sum,
    TrimmedMean as TrimmedMean,
)
from fedadmm.core.contracts import (
    Algorithm as Algorithm,
    Regularizer as Regularizer,
)
from fedadmm.core.errors import (
    FedADMMError as FedADMMError,
)
from fedadmm.core.local_work import (
    LocalSolver as LocalSolver,
    LocalWork as LocalWork,
)
from fedadmm.core.objectives import (
    Objective as Objective,
    adapters as adapters,
    losses as losses,
)
from fedadmm.core.objectives.batches import (
    BatchMetrics as BatchMetrics,
    BatchObjective as BatchObjective,
)
from fedadmm.core.objectives.closed_form import (
    LeastSquares as LeastSquares,
    LogisticRegression as LogisticRegression,
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
    PersonalLayers as PersonalLayers,
)
from fedadmm.core.pipeline.postprocessors import (
    AdaptiveClip as AdaptiveClip,
    BFloat16 as BFloat16,
    Clip as Clip,
    GaussianNoise as GaussianNoise,
    Postprocessor as Postprocessor,
    Quantise as Quantise,
    RandomK as RandomK,
    TopK as TopK,
)
from fedadmm.core.problem import (
    Facts as Facts,
    LazyClients as LazyClients,
    Problem as Problem,
)
from fedadmm.core.regularizers import (
    L1 as L1,
)
from fedadmm.core.sampling import (
    BernoulliSampling as BernoulliSampling,
    CyclicSampling as CyclicSampling,
    DoublyUniformSampling as DoublyUniformSampling,
    FullParticipation as FullParticipation,
    NonOverlappingSampling as NonOverlappingSampling,
    Sampler as Sampler,
    TraceSampling as TraceSampling,
    UniformSampling as UniformSampling,
    WeightedSampling as WeightedSampling,
)
from fedadmm.core.schedules import (
    PerWork as PerWork,
)
from fedadmm.core.solvers import (
    DPSGD as DPSGD,
    LBFGS as LBFGS,
    SGD as SGD,
    AcceleratedGradient as AcceleratedGradient,
    Adam as Adam,
    ExactSolver as ExactSolver,
    GradientDescent as GradientDescent,
)
from fedadmm.core.stopping import (
    Epochs as Epochs,
    Steps as Steps,
    StoppingRule as StoppingRule,
    UniformEpochs as UniformEpochs,
)
from fedadmm.data import models as models, problems as problems
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
    Target as Target,
)
from fedadmm.run.experiment import (
    Experiment as Experiment,
)
from fedadmm.run.simulate import (
    Result as Result,
    simulate as simulate,
)
from fedadmm.run.stores import (
    DiskStore as DiskStore,
    MemoryStore as MemoryStore,
)
from fedadmm.study import trackers as trackers
from fedadmm.study.estimator import (
    FederatedClassifier as FederatedClassifier,
    FederatedRegressor as FederatedRegressor,
)
from fedadmm.study.predict import (
    Predictor as Predictor,
)
from fedadmm.theory.certificates import (
    Certificate as Certificate,
)

__version__: str
