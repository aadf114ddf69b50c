"""Objectives on pairs of responses: Bradley-Terry on a head, and the preference form of the implicit reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from assay.contracts.tensors import Forward, LossReport
from assay.protocols import Encoder, Example, ExampleTotals
from assay.steps import step_spans
from assay_prms.aggregate import Aggregation
from assay_prms.objective import RewardModelObjective, companion_loss, head_output, weight_total
from assay_prms.reading import RewardOptions, literal, pair_of, placed
from assay_prms.spec import ScorerSpec

if TYPE_CHECKING:
    from torch import Tensor

    from assay_prms.heads import ScoreHead


class PairOptions(RewardOptions):
    """What objectives on pairs share."""

    preference_within: tuple[float, float] = (0.0, 1.0)
    """Soft preferences are held within these two; 0.4 and 0.6 for a judge that thought aloud (arXiv 2212.08073)."""

    @field_validator("preference_within")
    @classmethod
    def _in_order(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= value[0] <= value[1] <= 1:
            raise ValueError(f"two numbers from 0 to 1 in rising order are expected; found {value[0]} and {value[1]}")
        return value


class BradleyTerryOptions(PairOptions):
    """Bradley-Terry: the chosen response's score above the rejected one's, one raw number at the end token."""

    centring: float = Field(default=0.0, ge=0)
    """Weight of (chosen + rejected)^2, which keeps scores around 0; 0.01 where it is used."""
    hidden: int = Field(default=0, ge=0)
    """Width of a hidden layer in the head; 0 is linear."""


class BradleyTerryObjective(RewardModelObjective[BradleyTerryOptions]):
    """Mean over pairs of -log sigma(r_w - r_l - margin) + c (r_w + r_l)^2; see `assay_prms.losses.bradley_terry`.

    The score stands after the response's end token, wherever padding is and whatever id it has.
    """

    layout: Literal["pairs", "responses", "steps"] = "pairs"

    def __init__(self, options: BradleyTerryOptions, head: ScoreHead) -> None:
        """The objective with its head."""
        self.options = options
        self.head = head

    def read_all(self, row: Mapping[str, Any], encode: Encoder) -> Sequence[Example]:
        """One pair, or none where a response is empty or both are equal."""
        return pair_examples(row, encode, self.options)

    def loss(
        self,
        examples: Sequence[Example],
        forward: Forward,
        reference: Tensor | None,
        *,
        totals: ExampleTotals | None = None,
    ) -> LossReport:
        """This slice's share."""
        from assay_prms.losses import bradley_terry

        output = head_output(forward)
        ends = [len(response) - 1 for example in examples for _, response in example.sequences]
        scores = output[output.new_tensor(range(len(ends))).long(), output.new_tensor(ends).long()]
        chosen, rejected = scores[0::2], scores[1::2]
        margins = scores.new_tensor([float(example.facts.get("margin", 0.0)) for example in examples])
        weights = scores.new_tensor([example.weight for example in examples]) / weight_total(examples, totals)
        preferences = _preferences(scores, examples)
        fit, centring = bradley_terry(chosen, rejected, margins, self.options.centring, preferences)
        loss = (weights * (fit + centring)).sum()
        gap = (chosen - rejected).detach()
        metrics = {
            "accuracy": float((weights * ((gap > 0) == (preferences >= 0.5))).sum()),
            "margin": float((weights * gap).sum()),
            "reward_mean": float((weights * (chosen + rejected).detach() / 2).sum()),
        }
        if self.companion > 0:
            nll = companion_loss(forward, examples, totals)
            loss = loss + self.companion * nll
            metrics["nll"] = float(nll.detach())
        return LossReport(loss, metrics)

    def spec(self) -> ScorerSpec:
        """A raw number at the end."""
        return self.shared(kind="head", at="end", score="raw")


class ImplicitDpoOptions(PairOptions):
    """Implicit process reward model by DPO on right and wrong responses to one prompt (arXiv 2412.01981)."""

    beta: float = Field(default=0.05, gt=0)
    """Factor of the log-ratio: 0.05 for answers of several hundred tokens, about 0.5 for thirty."""
    value: Literal["running", "step"] = "step"
    """What a step's score is; DPO's have no calibrated zero, so a threshold must be fitted."""
    aggregation: Aggregation = "sum"
    """The shares of all steps together are q of the response."""


class ImplicitDpoObjective(RewardModelObjective[ImplicitDpoOptions]):
    """Mean over pairs of -log sigma(q_w - q_l), q = beta sum_t log(pi / ref) over the response."""

    layout: Literal["pairs", "responses", "steps"] = "pairs"

    def __init__(self, options: ImplicitDpoOptions) -> None:
        """The objective; the model itself is the reward."""
        self.options = options

    @property
    def needs(self) -> Any:
        """The reference's log-probs."""
        return replace(super().needs, logp=True, logp_ref=True)

    def read_all(self, row: Mapping[str, Any], encode: Encoder) -> Sequence[Example]:
        """One pair, or none where a response is empty or both are equal."""
        return pair_examples(row, encode, self.options)

    def loss(
        self,
        examples: Sequence[Example],
        forward: Forward,
        reference: Tensor | None,
        *,
        totals: ExampleTotals | None = None,
    ) -> LossReport:
        """This slice's share."""
        from assay_prms.implicit import log_ratios
        from assay_prms.losses import bradley_terry

        ratios = log_ratios(forward, reference)
        q = self.options.beta * ratios
        weights = q.new_tensor([example.weight for example in examples]) / weight_total(examples, totals)
        preferences = _preferences(q, examples)
        fit, _ = bradley_terry(q[0::2], q[1::2], preference=preferences)
        gap = (q[0::2] - q[1::2]).detach()
        right = (gap > 0) == (preferences >= 0.5)
        metrics = {"accuracy": float((weights * right).sum()), "margin": float((weights * gap).sum())}
        return LossReport((weights * fit).sum(), metrics)

    def spec(self) -> ScorerSpec:
        """Each step's share of the log-ratio."""
        return self.shared(kind="implicit", beta=self.options.beta, value=self.options.value)


def pair_examples(row: Mapping[str, Any], encode: Encoder, options: PairOptions) -> list[Example]:
    """One pair, chosen first, or none where a response is empty or both are equal."""
    pair = pair_of(row)
    chosen, rejected = pair.chosen[1], pair.rejected[1]
    if not chosen.strip() or not rejected.strip() or chosen == rejected:
        return []
    low, high = options.preference_within
    facts = {"margin": pair.margin, "preference": min(max(pair.preference, low), high)}
    if options.marker is not None:
        cuts = [
            placed(encode, prompt, text, step_spans(text, options.splitter), options)
            for prompt, text in (pair.chosen, pair.rejected)
        ]
        return [Example(tuple((cut.prompt, cut.response) for cut in cuts), facts=facts)]
    whole = literal(encode)
    return [Example((whole(*pair.chosen), whole(*pair.rejected)), facts=facts)]


def _preferences(like: Tensor, examples: Sequence[Example]) -> Tensor:
    """(B,) chance of each pair that its chosen response is the better one."""
    return like.new_tensor([float(example.facts.get("preference", 1.0)) for example in examples])
