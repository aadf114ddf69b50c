"""The loop: sample -> judge -> assemble -> update -> publish, five coroutines with bounded queues between them."""

from assay.pipeline.admission import Admission
from assay.pipeline.groups import Assembler, Batch
from assay.pipeline.loop import Loop, LoopSettings, StepReport
from assay.pipeline.tickets import Decided, Ticket, Tickets
from assay.pipeline.watchdog import Watchdog

__all__ = [
    "Admission",
    "Assembler",
    "Batch",
    "Decided",
    "Loop",
    "LoopSettings",
    "StepReport",
    "Ticket",
    "Tickets",
    "Watchdog",
]
