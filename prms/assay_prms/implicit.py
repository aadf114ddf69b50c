"""The implicit process reward model: a policy and a frozen reference, trained on outcomes alone (arXiv 2412.01981)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from assay.contracts.tensors import Forward, LossReport
from assay.errors import TrainingError
from assay.protocols import Encoder, Example, ExampleTotals
from assay_prms.aggregate import Aggregation
from assay_prms.objective import RewardModelObjective, weight_total
from assay_prms.reading import RewardOptions, judged, literal
from assay_prms.spec import ScorerSpec

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

LEAST_SPREAD = 0.5
"""Spread of beta x log-ratio under which the sigmoid is flat and little is learned."""


class ImplicitCeOptions(RewardOptions):
    """Implicit process reward model by cross entropy with the outcome: step rewards without step labels."""

    beta: float = Field(default=0.05, gt=0)
    """Factor of the log-ratio: 0.05 for answers of several hundred tokens, about 0.5 for thirty."""
    value: Literal["running", "step"] = "running"
    """What a step's score is: sigma(q) of everything up to its end, or its own share of q."""
    aggregation: Aggregation = "last"
    """The last running value is that of the whole response."""


class ImplicitCeObjective(RewardModelObjective[ImplicitCeOptions]):
    """Mean over responses of BCE(sigma(q_T), outcome), q_T = beta sum_t log(pi / ref) over the response.

    check: log-ratios .4, -.2, .6, .1, beta .05: .670900 for a right response, .715900 for a wrong one.
    """

    layout: Literal["pairs", "responses", "steps"] = "responses"

    def __init__(self, options: ImplicitCeOptions) -> None:
        """The objective; the model itself is the reward."""
        self.options = options
        self._seen = 0
        self._square = 0.0

    @property
    def needs(self) -> Any:
        """The reference's log-probs."""
        return replace(super().needs, logp=True, logp_ref=True)

    def read_all(self, row: Mapping[str, Any], encode: Encoder) -> Sequence[Example]:
        """Responses with an outcome."""
        return [
            Example((literal(encode)(one.prompt, one.text),), facts={"label": one.label, "domain": one.domain})
            for one in judged(row, self.options)
            if one.text.strip()
        ]

    def loss(
        self,
        examples: Sequence[Example],
        forward: Forward,
        reference: Tensor | None,
        *,
        totals: ExampleTotals | None = None,
    ) -> LossReport:
        """This slice's share; metrics tell the spread of q, which must be able to leave the sigmoid's flat middle."""
        from assay_prms.losses import yes_or_no

        q = self.options.beta * log_ratios(forward, reference)
        labels = q.new_tensor([float(example.facts["label"]) for example in examples])
        weights = q.new_tensor([example.weight for example in examples]) / weight_total(examples, totals)
        loss = (weights * yes_or_no(q, labels)).sum()
        found = q.detach()
        metrics = {
            "accuracy": float((weights * ((found > 0) == (labels > 0.5)).float()).sum()),
            "good_share": float((weights * labels).sum()),
            "q_mean": float((weights * found).sum()),
            "q_square": float((weights * found.square()).sum()),
        }
        if q.requires_grad:
            self._watch(found)
        return LossReport(loss, metrics)

    def spec(self) -> ScorerSpec:
        """sigma(q) at each step's end, or each step's own share."""
        return self.shared(kind="implicit", beta=self.options.beta, value=self.options.value)

    def _watch(self, q: Tensor) -> None:
        """One warning where the spread stays small for long."""
        if self._seen < 0:
            return
        self._seen += len(q)
        self._square = 0.98 * self._square + 0.02 * float(q.square().mean())
        if self._seen >= 4096:
            if math.sqrt(self._square) < LEAST_SPREAD:
                log.warning(
                    "implicit_ce: beta x log-ratio stays within +-%.2f after %d responses, where the sigmoid is flat; "
                    "raise beta (now %g): about 0.5 for answers of thirty tokens",
                    math.sqrt(self._square), self._seen, self.options.beta,
                )  # fmt: skip
            self._seen = -(2**62)


def log_ratios(forward: Forward, reference: Tensor | None) -> Tensor:
    """(N,) sum over the response of log pi - log ref; padding holds 0 in both."""
    if reference is None:
        raise TrainingError("implicit reward: it needs the reference's log-probs and was given none")
    return (forward.logp - reference).sum(dim=1)
