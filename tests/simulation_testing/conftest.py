"""Flower is imported once, here: its own dependencies warn while they load, ours do not."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import flwr.app
    import flwr.clientapp
    import flwr.serverapp  # noqa: F401
