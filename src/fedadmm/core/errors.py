"""Every error that fedadmm raises on purpose.

    FedADMMError
    ├── ParameterError       a hyper-parameter or an argument is out of its range
    ├── CompatibilityError         two parts were combined that do not fit each other
    ├── DataError            a file or a data set is missing, damaged or unusable
    ├── ConfigError          a configuration cannot be understood
    ├── StateError           stored client or server state is missing or damaged
    └── EngineError          the machinery that runs clients failed

A message names the field, the value and what is allowed.
"""

from __future__ import annotations


class FedADMMError(Exception):
    """The root of everything that fedadmm raises on purpose."""


class ParameterError(FedADMMError, ValueError):
    """A hyper-parameter or an argument is out of its range."""


class CompatibilityError(FedADMMError, ValueError):
    """Two parts were combined that do not fit each other; says what is missing."""


class DataError(FedADMMError):
    """A file or a data set is missing, damaged or unusable; names the file."""


class ConfigError(FedADMMError, ValueError):
    """A configuration cannot be understood; names the key."""


class StateError(FedADMMError):
    """Stored client or server state is missing or damaged."""


class EngineError(FedADMMError, RuntimeError):
    """The machinery that runs clients failed (a worker died, a wait timed out)."""


ANOTHER_VERSION = (
    "it may be of another version of fedadmm: finish the run with that one, or begin it anew"
)
"""What to do about state that does not look like this version's."""
