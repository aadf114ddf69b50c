"""Judging: from candidates to rewards, through guarded, batched, cached sources in killable workers."""

from assay.judging.guard import Judged
from assay.judging.panel import Panel, open_panel
from assay.judging.workers import WorkerPool

__all__ = ["Judged", "Panel", "WorkerPool", "open_panel"]
