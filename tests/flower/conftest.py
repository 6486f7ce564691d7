"""Flower is imported once, here: its own dependencies warn while they load, ours do not."""

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import flwr.app
    import flwr.clientapp
    import flwr.serverapp  # noqa: F401


@pytest.fixture
def quick(monkeypatch):
    """The server waits in made-up time, and nobody waits for the disk: no power is cut here."""
    from fedadmm.core import clock

    from .harness import Clock

    monkeypatch.setattr("os.fsync", lambda _: None)
    with clock.using(Clock()):
        yield
