"""Settings that every test shares."""

from __future__ import annotations

import os
import shutil
import signal

import torch
from hypothesis import settings

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # so begins what a shell starts with "&"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests press Ctrl-C

MEMORY = "/dev/shm"
if os.path.isdir(MEMORY) and shutil.disk_usage(MEMORY).free > 4e9:
    # Every file that is written durably would wait for a disk, and no power is cut here.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

torch.set_num_threads(1)  # small problems; and several test processes may share the cores

settings.register_profile("suite", derandomize=True, deadline=None, max_examples=5, database=None)
settings.load_profile("suite")
