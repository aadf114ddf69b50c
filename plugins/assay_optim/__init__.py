"""Policy optimizers as compositions of small parts, and supervised and preference objectives."""

from assay_optim.compose import compose
from assay_optim.options import CompositionOptions, PartSpec
from assay_optim.plugin import (
    assay_objectives,
    assay_optimizer_parts,
    assay_policy_optimizers,
    objective,
    optimizer,
)

__all__ = [
    "CompositionOptions",
    "PartSpec",
    "assay_objectives",
    "assay_optimizer_parts",
    "assay_policy_optimizers",
    "compose",
    "objective",
    "optimizer",
]
