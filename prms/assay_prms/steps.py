"""Objectives on steps: classifier (`step`, `multi_domain`), outcomes at step ends (`outcome`), ranking (`pqm`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from assay.contracts.tensors import Forward, LossReport
from assay.errors import ConfigError
from assay.protocols import Encoder, Example, ExampleTotals
from assay_prms.aggregate import Aggregation
from assay_prms.objective import (
    OptionsT,
    RewardModelObjective,
    companion_loss,
    head_output,
    weight_total,
    with_batch_counts,
)
from assay_prms.reading import RewardOptions, Targets, join, judged, placed, solutions, targets_of
from assay_prms.spec import ScorerSpec

if TYPE_CHECKING:
    from torch import Tensor

    from assay_prms.heads import ScoreHead


class StepOptions(RewardOptions):
    """Classifier at each step's end: PRM800K labels, Math-Shepherd hard or soft."""

    targets: Targets = "label"
    """`label`: the row's label, else any-correct of its counts; `hard`: 0 or 1; `soft`: the share of continuations."""
    outputs: Literal[1, 2] = 1
    """One logit, or two classes (bad, good), which is the same loss."""
    hidden: int = Field(default=0, ge=0)
    """Width of a hidden layer in the head; 0 is linear."""
    balance: Literal["none", "domain"] = "none"
    """`domain`: every domain of a batch has the same share of the loss (VersaPRM)."""


class MultiDomainOptions(StepOptions):
    """Step classifier over several domains, each with the same share (VersaPRM, arXiv 2502.06737)."""

    balance: Literal["none", "domain"] = "domain"
    """Every domain of a batch has the same share of the loss."""


class OutcomeOptions(RewardOptions):
    """Outcome reward model: the label of the whole response, at its end or at every step's end."""

    at: Literal["end", "steps", "tokens"] = "end"
    """Where the outcome is the label: at the last token, at every step's end (the model then ranks prefixes too), or at
    every token (Cobbe et al., arXiv 2110.14168)."""
    hidden: int = Field(default=0, ge=0)
    """Width of a hidden layer in the head; 0 is linear."""
    aggregation: Aggregation = "last"
    """With `at = "steps"`: how step scores become the response's."""


class PqmOptions(RewardOptions):
    """PQM: right steps are ranked above wrong ones, along the response (arXiv 2410.11287)."""

    targets: Targets = "label"
    """Labels must be 0 or 1; `hard` makes them so."""
    zeta: float = Field(default=4.0, ge=0)
    """Gap between right and wrong steps (paper 4, also 2)."""
    hidden: int = Field(default=0, ge=0)
    """Width of a hidden layer in the head; 0 is linear."""


class _HeadObjective(RewardModelObjective[OptionsT]):
    def __init__(self, options: OptionsT, head: ScoreHead) -> None:
        """The objective with its head."""
        self.options = options
        self.head = head

    def _with_companion(
        self, loss: Tensor, forward: Forward, examples: Sequence[Example], totals: ExampleTotals | None,
        metrics: dict[str, float],
    ) -> LossReport:  # fmt: skip
        if self.companion > 0:
            nll = companion_loss(forward, examples, totals)
            loss = loss + self.companion * nll
            metrics["nll"] = float(nll.detach())
        return LossReport(loss, metrics)


class StepObjective(_HeadObjective[StepOptions]):
    """Mean over the batch's labelled steps of the cross entropy at the step's end; unlabelled steps do not count.

    PRM800K (arXiv 2305.20050), Math-Shepherd (arXiv 2312.08935), VersaPRM (arXiv 2502.06737: mean within each domain,
    then over domains). Labels after the first wrong step are unknown unless `after_first_error` says otherwise.
    """

    def read_all(self, row: Mapping[str, Any], encode: Encoder) -> Sequence[Example]:
        """Every solution with at least one labelled step."""
        return step_examples(row, encode, self.options, self.options.targets)

    def prepare(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Labelled examples, each with the factor of its steps."""
        return with_batch_counts(examples, by_domain=self.options.balance == "domain")

    def loss(
        self,
        examples: Sequence[Example],
        forward: Forward,
        reference: Tensor | None,
        *,
        totals: ExampleTotals | None = None,
    ) -> LossReport:
        """This slice's share."""
        from assay_prms.losses import yes_or_no

        if any("step_weight" not in example.facts for example in examples):
            examples = self.prepare(examples)
        logits, labels, weights, _ = gathered(head_output(forward), examples)
        losses = yes_or_no(logits, labels)
        right = ((logits > 0) == (labels >= 0.5)).float()
        metrics = {
            "step_accuracy": float((weights * right).sum()),
            "step_good_share": float((weights * labels).sum()),
        }
        return self._with_companion((weights * losses).sum(), forward, examples, totals, metrics)

    def spec(self) -> ScorerSpec:
        """A probability at every step's end."""
        return self.shared(kind="head", at="steps", score="probability")


class OutcomeObjective(_HeadObjective[OutcomeOptions]):
    """Cross entropy with the response's outcome; mean over places of a response, then over responses by weight."""

    layout: Literal["pairs", "responses", "steps"] = "responses"

    def read_all(self, row: Mapping[str, Any], encode: Encoder) -> Sequence[Example]:
        """Responses with an outcome."""
        found: list[Example] = []
        for one in judged(row, self.options):
            if not one.text.strip():
                continue
            cut = placed(encode, one.prompt, one.text, one.spans, self.options)
            end = len(cut.response) - 1
            places = {"end": (end,), "steps": cut.places, "tokens": tuple(range(end + 1))}[self.options.at]
            facts = {"label": one.label, "places": places, "labels": (float(one.label),) * len(places)}
            found.append(Example(((cut.prompt, cut.response),), facts={**facts, "domain": one.domain}))
        return found

    def loss(
        self,
        examples: Sequence[Example],
        forward: Forward,
        reference: Tensor | None,
        *,
        totals: ExampleTotals | None = None,
    ) -> LossReport:
        """This slice's share."""
        from assay_prms.losses import yes_or_no

        whole = weight_total(examples, totals)
        shares = [example.weight / whole / len(example.facts["places"]) for example in examples]
        logits, labels, weights, _ = gathered(head_output(forward), examples, shares)
        losses = yes_or_no(logits, labels)
        metrics = {
            "accuracy": float((weights * ((logits > 0) == (labels > 0.5)).float()).sum()),
            "good_share": float((weights * labels).sum()),
        }
        return self._with_companion((weights * losses).sum(), forward, examples, totals, metrics)

    def spec(self) -> ScorerSpec:
        """A probability at the end, or at every step's end."""
        return self.shared(kind="head", at="steps" if self.options.at == "steps" else "end", score="probability")


class PqmObjective(_HeadObjective[PqmOptions]):
    """Mean over responses of the ranking loss of their step values; see `assay_prms.losses.pqm`."""

    def read_all(self, row: Mapping[str, Any], encode: Encoder) -> Sequence[Example]:
        """Every solution with at least one labelled step; soft labels are refused."""
        return step_examples(row, encode, self.options, self.options.targets, hard_only=True)

    def prepare(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Examples with at least one labelled step: the loss of others is 0/0."""
        return [example for example in examples if any(label is not None for label in example.facts["labels"])]

    def loss(
        self,
        examples: Sequence[Example],
        forward: Forward,
        reference: Tensor | None,
        *,
        totals: ExampleTotals | None = None,
    ) -> LossReport:
        """This slice's share."""
        import torch

        from assay_prms.losses import pqm

        logits, labels, _, rows = gathered(head_output(forward), examples)
        count, width = len(examples), max((len(example.facts["places"]) for example in examples), default=0)
        starts = torch.searchsorted(rows.contiguous(), torch.arange(count, device=rows.device))
        column = torch.arange(len(rows), device=rows.device) - starts[rows]
        q = logits.new_zeros(count, width).index_put((rows, column), logits)
        known = logits.new_full((count, width), torch.nan).index_put((rows, column), labels)
        weights = logits.new_tensor([example.weight for example in examples]) / weight_total(examples, totals)
        loss = (weights * pqm(q, known, self.options.zeta)).sum()
        metrics = {"ranked_right": float((weights * _ranked(q.detach(), known)).sum())}
        return self._with_companion(loss, forward, examples, totals, metrics)

    def spec(self) -> ScorerSpec:
        """A raw value at every step's end: it ranks, and a threshold must be fitted."""
        return self.shared(kind="head", at="steps", score="raw")


def step_examples(
    row: Mapping[str, Any], encode: Encoder, options: RewardOptions, targets: Targets, *, hard_only: bool = False
) -> list[Example]:
    """The labelled solutions of a row, with `labels` and `places` of their steps in `facts`.

    Raises:
        ConfigError: a blank step has a label, or the row cannot be read.
    """
    found: list[Example] = []
    for solution in solutions(row, options):
        labels = targets_of(solution, targets, hard_only=hard_only)
        if all(label is None for label in labels):
            continue
        for number, (step, label) in enumerate(zip(solution.steps, labels, strict=True), 1):
            if label is not None and not step.strip():
                raise ConfigError(f"step {number}: it has a label and is blank, which is no step; leave both out")
        text, spans = join(solution, options.splitter)
        cut = placed(encode, solution.prompt, text, spans, options)
        facts = {"labels": tuple(labels), "places": cut.places, "domain": solution.domain}
        found.append(Example(((cut.prompt, cut.response),), facts=facts))
    return found


def gathered(
    output: Tensor, examples: Sequence[Example], shares: Sequence[float] | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, labels, weights and row numbers (n,) of all labelled places; rows are those of (N, T) `output`."""
    at: list[tuple[int, int]] = []
    labels: list[float] = []
    weights: list[float] = []
    for row, example in enumerate(examples):
        share = shares[row] if shares is not None else float(example.facts.get("step_weight", example.weight))
        for place, label in zip(example.facts["places"], example.facts["labels"], strict=True):
            if label is not None:
                at.append((row, place))
                labels.append(float(label))
                weights.append(share)
    where = output.new_tensor(at).long().reshape(-1, 2)
    rows, columns = where[:, 0], where[:, 1]
    return output[rows, columns], output.new_tensor(labels), output.new_tensor(weights), rows


def _ranked(q: Tensor, labels: Tensor) -> Tensor:
    """(B,) whether every right step stands above every wrong one; true where one kind is missing."""
    right, wrong = labels >= 0.5, labels < 0.5
    lowest = q.where(right, float("inf")).amin(dim=1)
    highest = q.where(wrong, float("-inf")).amax(dim=1)
    return (lowest > highest).float()
