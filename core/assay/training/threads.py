"""How many threads torch may use."""

from __future__ import annotations

import os

import psutil
import torch


def use_threads(count: int | None = None) -> int:
    """Set torch's threads and return their number.

    `count`, else `OMP_NUM_THREADS`, else the physical cores that this process may run on; never more than those cores,
    since two threads of one core share its arithmetic units and matrix products get slower.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))
    asked = count or int(os.environ.get("OMP_NUM_THREADS", "0") or 0) or cores
    threads = max(1, min(asked, cores))
    torch.set_num_threads(threads)
    return threads
