"""Memory that is free inside the process, given back to the system.

An update frees most of what it took, in thousands of pieces between others that stay; glibc keeps the pages for a next
time and seldom finds the same gaps again, so that a process grows from update to update. Measured with a model of 135
million parameters on a CPU, five steps of 32 rollouts: a peak of 7.2 GB without, 4.4 GB with this.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

import psutil

WORTHWHILE_BYTES = 256 * 2**20


class FreeMemory:
    """Gives free pages back once the process has grown enough to make that worth some milliseconds."""

    def __init__(self) -> None:
        """Growth counts from here."""
        self._process = psutil.Process()
        self._resident = self._process.memory_info().rss

    def release(self) -> bool:
        """Give free pages back where the C library can (glibc) and much may be free; whether that was tried."""
        trim = _malloc_trim()
        if trim is None or self._process.memory_info().rss < self._resident + WORTHWHILE_BYTES:
            return False
        trim(0)
        self._resident = self._process.memory_info().rss
        return True


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
