"""Objectives on pairs (chosen, rejected): the PsiPO family and ORPO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import Field, model_validator

from assay.contracts.tensors import Forward, LossReport
from assay.errors import TrainingError
from assay.protocols import Encode, Example, ExampleTotals, Needs, RowLayout, Sidecar
from assay_optim.options import PartSpec, spec, spelled_out
from assay_optim.preference.data import PairColumns, number, read_pair
from assay_optim.preference.links import Link, softplus
from assay_optim.preference.selection import MarginFusion, keep_surest
from assay_optim.preference.sequences import Sequences, firsts, sequences_of, totals_of, weights_of

if TYPE_CHECKING:
    from torch import Tensor


Reference = Literal["frozen", "iterate", "none"]


class PairOptions(PairColumns):
    """A member of the PsiPO family: link(h), h = score(chosen) - score(rejected) - margin."""

    link: PartSpec = spec("logistic", beta=0.1)
    """What is made of h."""
    length_norm: bool = False
    """Scores per token instead of whole log-ratios."""
    reference: Reference = "frozen"
    """Scores are log-ratios to the model at the start, to the policy of the last iteration, or no ratios at all."""
    iteration: int = Field(default=64, ge=1)
    """Updates per iteration where the reference is `iterate`."""
    nll: float = Field(default=0.0, ge=0.0)
    """Weight of the chosen responses' negative log-likelihood per token, added to the loss."""
    select: MarginFusion | None = None
    """Learn from the surest pairs only (arXiv 2502.14560), by columns with margins."""

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "link" not in data:
            return cast("Any", data)
        table = dict(cast("Mapping[str, Any]", data))
        return {**table, "link": spelled_out(cls.model_fields["link"].default, table["link"])}


class Prepared:
    """What the pair objectives share: reading, and leaving out pairs that teach nothing."""

    kind: Literal["sft", "preference", "prm"] = "preference"
    layout: RowLayout = "pairs"
    sidecars: Sequence[Sidecar] = ()

    def prepare(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Examples whose responses are all non-empty and not all equal, with the batch's chosen tokens in `facts`."""
        kept = [example for example in examples if _usable(example)]
        chosen = float(sum(len(example.sequences[0][1]) for example in kept))
        return [replace(example, facts={**example.facts, "chosen_tokens": chosen}) for example in kept]

    def rescore(self, examples: Sequence[Example], logp: Tensor, reference: Tensor | None) -> Sequence[Example]:
        """The examples themselves."""
        return examples


@dataclass
class PairObjective(Prepared):
    """Mean over pairs of weight x link(h); see `PairOptions`."""

    options: PairOptions
    link: Link

    @property
    def needs(self) -> Needs:
        """The reference, unless there is none."""
        moving = self.options.reference == "iterate"
        return Needs(
            logp_old=False,
            logp_ref=self.options.reference != "none",
            reference_every=self.options.iteration if moving else 0,
        )

    def read(self, row: Mapping[str, Any], encode: Encode) -> Example | None:
        """A pair, with the margins that choose among pairs in its facts."""
        pair, select = read_pair(row, self.options, encode), self.options.select
        if pair is None or select is None:
            return pair
        margins = {source.column: number(row, source.column) for source in select.sources}
        return replace(pair, facts={**pair.facts, **margins})

    def choose(self, examples: Sequence[Example]) -> Sequence[Example]:
        """The surest pairs, where the options say so."""
        select = self.options.select
        return examples if select is None else keep_surest(examples, select)

    def loss(
        self,
        examples: Sequence[Example],
        forward: Forward,
        reference: Tensor | None,
        *,
        totals: ExampleTotals | None = None,
    ) -> LossReport:
        """This slice's share."""
        found = sequences_of(examples, forward.logp, _reference(reference, self.needs, "the pair objective"))
        scores = found.scores(length_norm=self.options.length_norm)
        first = firsts(examples, forward.logp)
        weights = weights_of(examples, forward.logp) / max(totals_of(examples, totals).examples, 1e-12)
        margins = forward.logp.new_tensor([float(example.facts.get("margin", 0.0)) for example in examples])
        h = scores[first] - scores[first + 1] - margins
        loss = (weights * self.link.loss(h)).sum()
        metrics = _pair_metrics(scores, first, weights)
        if self.options.nll:
            nll = chosen_nll(examples, found, first)
            loss = loss + self.options.nll * nll
            metrics["nll"] = float(nll.detach())
        return LossReport(loss, metrics)


class OrpoOptions(PairColumns):
    """ORPO (arXiv 2403.07691): likelihood of the chosen response and an odds-ratio term, no reference."""

    lam: float = Field(default=0.1, ge=0.0)
    """Weight of the odds-ratio term (paper 0.1; the repository's flag defaults to 1)."""


@dataclass
class OrpoObjective(Prepared):
    """NLL of chosen tokens - lam log sigma(lo), lo = (Lw - Ll) - (log(1 - e^Lw) - log(1 - e^Ll)), L = mean logp.

    The likelihood is over response tokens, all of the batch (the authors' also covers the prompt, by a flag).
    check: Lw = -1, Ll = -1.5 gives lo 0.706193, term 0.401135, total 1.040114.
    """

    options: OrpoOptions

    @property
    def needs(self) -> Needs:
        """Nothing but the policy."""
        return Needs(logp_old=False)

    def read(self, row: Mapping[str, Any], encode: Encode) -> Example | None:
        """A pair."""
        return read_pair(row, self.options, encode)

    def loss(
        self,
        examples: Sequence[Example],
        forward: Forward,
        reference: Tensor | None,
        *,
        totals: ExampleTotals | None = None,
    ) -> LossReport:
        """This slice's share."""
        found = sequences_of(examples, forward.logp, None)
        first = firsts(examples, forward.logp)
        weights = weights_of(examples, forward.logp) / max(totals_of(examples, totals).examples, 1e-12)
        odds = log_odds(found.means)
        term = (weights * softplus(odds[first + 1] - odds[first])).sum()
        nll = chosen_nll(examples, found, first)
        metrics = _pair_metrics(found.means, first, weights)
        return LossReport(
            nll + self.options.lam * term, {**metrics, "nll": float(nll.detach()), "odds_term": float(term.detach())}
        )


def log_odds(mean_logp: Tensor) -> Tensor:
    """log(p / (1 - p)) of p = exp(mean_logp); the log-prob is kept below -1e-6, so that the odds stay finite."""
    clamped = mean_logp.clamp(max=-1e-6)
    near = (-clamped.clamp(min=-0.693).expm1()).log()
    far = (-clamped.clamp(max=-0.693).exp()).log1p()
    return clamped - near.where(clamped > -0.693, far)


def chosen_nll(examples: Sequence[Example], found: Sequences, first: Tensor) -> Tensor:
    """This slice's share of the mean negative log-likelihood over the batch's chosen tokens."""
    counted = float(examples[0].facts.get("chosen_tokens", 0.0)) if examples else 0.0
    tokens = counted or float(found.lengths[first].sum())
    return -found.sums[first].sum() / max(tokens, 1.0)


def _usable(example: Example) -> bool:
    responses = [response for _, response in example.sequences]
    return all(responses) and len(set(responses)) > 1


def _reference(reference: Tensor | None, needs: Needs, who: str) -> Tensor | None:
    if not needs.logp_ref:
        return None
    if reference is None:
        raise TrainingError(f"{who}: it needs the reference's log-probs and was given none")
    return reference


def _pair_metrics(scores: Tensor, first: Tensor, weights: Tensor) -> dict[str, float]:
    gap = (scores[first] - scores[first + 1]).detach()
    return {
        "chosen_above": float((weights * (gap > 0)).sum()),
        "margin": float((weights * gap).sum()),
        "chosen_score": float((weights * scores[first].detach()).sum()),
        "rejected_score": float((weights * scores[first + 1].detach()).sum()),
    }
