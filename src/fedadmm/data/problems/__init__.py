"""Every experiment by name: `load("mnist", clients=100, partition="shards")`."""

from fedadmm.data.problems import generated as generated
from fedadmm.data.problems import recorded as recorded
from fedadmm.data.problems import theory as theory
from fedadmm.data.problems.federation import SplitOptions as SplitOptions
from fedadmm.data.problems.federation import from_data as from_data
from fedadmm.data.problems.registry import NamedProblem as NamedProblem
from fedadmm.data.problems.registry import Sites as Sites
from fedadmm.data.problems.registry import canonical as canonical
from fedadmm.data.problems.registry import load as load
from fedadmm.data.problems.registry import names as names
from fedadmm.data.problems.registry import options as options
