"""What an update has freed goes back to the system."""

import gc
import sys

import psutil
import pytest
import torch

from assay.training.memory import WORTHWHILE_BYTES, FreeMemory


@pytest.mark.skipif(sys.platform != "linux", reason="malloc_trim is glibc's")
def test_pages_that_the_allocator_keeps_between_live_pieces_go_back():
    process = psutil.Process()
    gc.collect()  # what earlier tests left must not go in the middle
    memory = FreeMemory()
    before = process.memory_info().rss
    pieces = [torch.ones(16_000) for _ in range(3 * WORTHWHILE_BYTES // 64_000)]
    kept = pieces[:: len(pieces) // 50]
    assert process.memory_info().rss - before > 2 * WORTHWHILE_BYTES
    del pieces
    assert memory.release()
    assert process.memory_info().rss - before < WORTHWHILE_BYTES / 2
    assert len(kept) >= 50
    assert not memory.release(), "nothing has grown since"
