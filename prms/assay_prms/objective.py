"""What every reward-model objective has in common: its head, its description, its scorer, its slices and shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from assay.contracts.tensors import Forward
from assay.errors import TrainingError
from assay.protocols import Encoder, Example, ExampleTotals, Needs, RewardSource, Sidecar
from assay_prms.reading import RewardOptions
from assay_prms.spec import ScorerSpec, written

if TYPE_CHECKING:
    from pydantic import JsonValue
    from torch import Tensor

    from assay.training.model import PolicyModel
    from assay_prms.heads import ScoreHead

OptionsT = TypeVar("OptionsT", bound=RewardOptions)
SMALL_HIDDEN = 1280
"""Hidden size up to which a model is taken to have fewer than a billion parameters."""


class RewardModelObjective(Generic[OptionsT]):
    """Reading, describing and scoring; subclasses say what a row is and what the loss is."""

    kind: Literal["sft", "preference", "prm"] = "prm"
    layout: Literal["pairs", "responses", "steps"] = "steps"
    options: OptionsT
    head: ScoreHead | None = None

    @property
    def sidecars(self) -> Sequence[Sidecar]:
        """The head, where there is one."""
        return () if self.head is None else (self.head,)

    @property
    def needs(self) -> Needs:
        """The head's states; log-probs for the companion loss alone."""
        return Needs(logp_old=False, states=self.head is not None, logp=self.companion > 0)

    @property
    def companion(self) -> float:
        """Weight of the language-model loss; known once the head is bound to a model."""
        if self.options.companion is not None:
            return self.options.companion
        if self.head is None or self.head.layers is None:
            return 0.0
        return 1.0 if self.head.width <= SMALL_HIDDEN else 0.0

    def read(self, row: Mapping[str, Any], encode: Encoder) -> Example | None:
        """The first example of a row, or None."""
        return next(iter(self.read_all(row, encode)), None)

    def read_all(self, row: Mapping[str, Any], encode: Encoder) -> Sequence[Example]:
        """All examples of a row."""
        raise NotImplementedError

    def prepare(self, examples: Sequence[Example]) -> Sequence[Example]:
        """The examples themselves."""
        return examples

    def rescore(self, examples: Sequence[Example], logp: Tensor, reference: Tensor | None) -> Sequence[Example]:
        """The examples themselves."""
        return examples

    def spec(self) -> ScorerSpec:
        """How the trained model is to be read."""
        raise NotImplementedError

    def describe(self, policy: PolicyModel, reference: PolicyModel | None = None) -> Mapping[str, JsonValue]:
        """What is saved beside the weights; see `assay_prms.spec.ScorerSpec`."""
        from assay.training.encoder import TextEncoder

        spec = self.spec().model_copy(update={"tokenizer": TextEncoder(policy.tokenizer).fingerprint})
        if spec.kind == "implicit":
            spec = spec.model_copy(update={"reference": (reference or policy).path})
        return written(spec)

    def source(self, policy: PolicyModel, reference: PolicyModel | None = None) -> RewardSource:
        """The scorer of the model in memory."""
        from assay_prms.critique import scorer_of
        from assay_prms.source import RewardModelSource

        return RewardModelSource(scorer_of(policy, self.spec(), head=self.head, reference=reference))

    def shared(self, **changes: Any) -> ScorerSpec:
        """A description with the options that all objectives have."""
        options = self.options
        return ScorerSpec(
            splitter=options.splitter,
            marker=options.marker,
            aggregation=options.aggregation,
            threshold=options.threshold,
            **changes,
        )


def head_output(forward: Forward, name: str = "reward") -> Tensor:
    """(N, T) logits of the head; of two classes their difference, good minus bad."""
    found = forward.extra.get(f"head_{name}")
    if found is None:
        raise TrainingError("reward model: its head was not read; pass the objective to Trainer")
    return found if found.ndim == 2 else found[..., 1] - found[..., 0]


def companion_loss(forward: Forward, examples: Sequence[Example], totals: ExampleTotals | None) -> Tensor:
    """This slice's share of the mean negative log-likelihood per response token."""
    tokens = totals.tokens if totals is not None else float(sum(len(r) for e in examples for _, r in e.sequences))
    return -forward.logp.sum() / max(tokens, 1.0)


def weight_total(examples: Sequence[Example], totals: ExampleTotals | None) -> float:
    """Sum of the examples' weights over the whole batch."""
    return max(totals.examples if totals is not None else sum(example.weight for example in examples), 1e-12)


def with_batch_counts(examples: Sequence[Example], *, by_domain: bool) -> list[Example]:
    """The examples with at least one label, each with the factor of its steps in the batch's mean over steps.

    Without domains the factor is weight / labelled steps of the batch. By domain every domain has the same share:
    weight / (domains x labelled steps of the domain).
    """
    kept = [example for example in examples if any(label is not None for label in example.facts["labels"])]
    counts: dict[Any, float] = {}
    for example in kept:
        domain = example.facts.get("domain") if by_domain else None
        labelled = sum(label is not None for label in example.facts["labels"])
        counts[domain] = counts.get(domain, 0.0) + labelled * example.weight
    return [
        replace(
            example,
            facts={
                **example.facts,
                "step_weight": example.weight
                / max(counts[example.facts.get("domain") if by_domain else None] * len(counts), 1e-12),
            },
        )
        for example in kept
    ]
