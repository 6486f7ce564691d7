"""Exceptions of fedadmm.

    FedADMMError
    ├── ParameterError       a hyper-parameter or an argument is out of its range
    ├── CompatibilityError   two components of a run are incompatible
    ├── DataError            a file or a data set is missing, damaged or unusable
    ├── ConfigError          a configuration is invalid
    ├── StateError           stored client or server state is missing or damaged
    └── EngineError          an engine failed to run clients

A message has the form `<field>: got <value>, expected <allowed values>.`
"""

from __future__ import annotations


class FedADMMError(Exception):
    """Base class of all exceptions that fedadmm raises.

    Example:
        >>> import fedadmm as fa
        >>> try:
        ...     fa.FedProx(rho=-1.0)
        ... except fa.FedADMMError as error:
        ...     print(type(error).__name__)
        ParameterError
    """


class ParameterError(FedADMMError, ValueError):
    """A hyper-parameter or an argument is out of its range."""


class CompatibilityError(FedADMMError, ValueError):
    """Two components of a run are incompatible; the message names the missing feature."""


class DataError(FedADMMError):
    """A file or a data set is missing, damaged or unusable; the message names it."""


class ConfigError(FedADMMError, ValueError):
    """A configuration is invalid; the message names the key."""


class StateError(FedADMMError):
    """Stored client or server state is missing or damaged."""


class EngineError(FedADMMError, RuntimeError):
    """An engine failed to run clients, for example because a worker process died or timed out."""


ANOTHER_VERSION = (
    "it may be of another version of fedadmm: finish the run with that one, or begin it anew"
)
"""Advice in messages about state in an unexpected format."""
