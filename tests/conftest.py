"""Settings that every test shares."""

from __future__ import annotations

import torch
from hypothesis import settings

torch.set_num_threads(1)  # small problems; and several test processes may share the cores

settings.register_profile("suite", derandomize=True, deadline=None, max_examples=5, database=None)
settings.load_profile("suite")
