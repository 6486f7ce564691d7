"""Real federations on Flower, with client state that is never lost and never counted twice.

Names are imported when they are first used: the protocol itself needs no Flower.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "Admission": "fedadmm.flower.protocol.admission",
    "DropIn": "fedadmm.flower.dropin",
    "Federation": "fedadmm.flower.federation",
    "Patience": "fedadmm.flower.federation",
    "Site": "fedadmm.flower.site.app",
    "SitePolicy": "fedadmm.flower.site.policy",
    "client_app": "fedadmm.flower.site.app",
    "server_app": "fedadmm.flower.server.server_app",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fedadmm.flower' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
