"""Choosing preference data by fused margins ("Less is More", arXiv 2502.14560)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import Field, model_validator

from assay.component import Options
from assay.protocols import Example

EDGE = 1e-6
"""Probabilities are kept this far from 0 and 1."""


class MarginSource(Options):
    """A margin that says how sure one source is of a pair: an external reward's, or DPO's implicit one."""

    column: str
    """The column that holds the margin; `gap` where the pairs are made of a run's rewards."""
    low: float = -1.0
    """Margin that counts as probability 0 (the paper does not print its range)."""
    high: float = 1.0
    """Margin that counts as probability 1."""

    @model_validator(mode="after")
    def _ordered(self) -> MarginSource:
        if self.high <= self.low:
            raise ValueError(f"high must be above low; found {self.low:g}..{self.high:g}")
        return self

    def probability(self, facts: Mapping[str, float]) -> float:
        """The linear map of the margin to [0, 1], not yet clipped."""
        return (facts[self.column] - self.low) / (self.high - self.low)


class MarginFusion(Options):
    """Which pairs are kept."""

    sources: tuple[MarginSource, ...] = Field(min_length=1)
    """The margins to fuse."""
    keep: float = Field(default=0.1, gt=0.0, le=1.0)
    """Share of the pairs that is kept, the surest."""


def fuse(probabilities: Sequence[float]) -> float:
    """Prod p / (prod p + prod (1 - p)), each p clipped to [1e-6, 1 - 1e-6]. check: 0.8, 0.6 give 0.857143."""
    logits = [math.log(p / (1 - p)) for p in (min(max(p, EDGE), 1 - EDGE) for p in probabilities)]
    return 1 / (1 + math.exp(-sum(logits)))


def keep_surest(examples: Sequence[Example], options: MarginFusion) -> list[Example]:
    """The surest share of `examples`, in their own order; at least one. Ties go to the earlier."""
    sure = [fuse([source.probability(example.facts) for source in options.sources]) for example in examples]
    count = max(round(options.keep * len(examples)), min(len(examples), 1))
    best = sorted(range(len(examples)), key=lambda index: (-sure[index], index))[:count]
    return [examples[index] for index in sorted(best)]
