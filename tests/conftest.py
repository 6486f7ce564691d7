"""Settings that every test shares."""

from __future__ import annotations

import signal

import torch
from hypothesis import settings

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # so begins what a shell starts with "&"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests press Ctrl-C

torch.set_num_threads(1)  # small problems; and several test processes may share the cores

settings.register_profile("suite", derandomize=True, deadline=None, max_examples=5, database=None)
settings.load_profile("suite")
