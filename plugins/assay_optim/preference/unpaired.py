"""Objectives on single judged responses: KTO and BNF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from assay.contracts.tensors import Forward, LossReport
from assay.errors import TrainingError
from assay.protocols import Encode, Example, ExampleTotals, Needs, RowLayout, Sidecar
from assay_optim.preference.data import PairColumns, SingleColumns, read_pair, read_single
from assay_optim.preference.sequences import firsts, sequences_of, totals_of, weights_of

if TYPE_CHECKING:
    from torch import Tensor


class KtoOptions(SingleColumns):
    """KTO (arXiv 2402.01306, authors' code HALOs)."""

    beta: float = Field(default=0.1, gt=0.0)
    """b."""
    desirable_weight: float = Field(default=1.0, ge=0.0)
    """Weight of desirable responses."""
    undesirable_weight: float = Field(default=1.0, ge=0.0)
    """Weight of undesirable responses."""


@dataclass
class KtoObjective:
    """lam_D (1 - sigma(b (u - z0))) if desirable, lam_U (1 - sigma(b (z0 - u))) if not; u = log pi/ref of the response.

    z0 = max(0, mean over the batch of log pi/ref on mismatched pairs (x_i, y_j)), detached, no b inside; y_j is the
    next response in the batch that answers another prompt. Where there is none, z0 is 0.
    check: u 1, 0.4 | -0.5 and mismatched 0.3, -0.1, 0.2 give z0 0.133333 and 0.478347, 0.493334, 0.484172.
    """

    options: KtoOptions
    kind: Literal["sft", "preference", "prm"] = "preference"
    layout: RowLayout = "responses"
    sidecars: Sequence[Sidecar] = ()

    @property
    def needs(self) -> Needs:
        """The reference, and the whole batch's log-probs for z0."""
        return Needs(logp_old=False, logp_ref=True, batch_logp=True)

    def read(self, row: Mapping[str, Any], encode: Encode) -> Example | None:
        """A judged response."""
        return read_single(row, self.options, encode)

    def prepare(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Examples with their mismatched pair as a second sequence; empty responses are left out."""
        kept = [example for example in examples if example.sequences[0][1]]
        return [_with_mismatch(kept, index) for index in range(len(kept))]

    def rescore(self, examples: Sequence[Example], logp: Tensor, reference: Tensor | None) -> Sequence[Example]:
        """Examples with the batch's z0 in `facts`."""
        z0 = float(self._z0(examples, logp, reference))
        return [replace(example, facts={**example.facts, "z0": z0}) for example in examples]

    def loss(
        self,
        examples: Sequence[Example],
        forward: Forward,
        reference: Tensor | None,
        *,
        totals: ExampleTotals | None = None,
    ) -> LossReport:
        """This slice's share."""
        logp = forward.logp
        first = firsts(examples, logp)
        u = sequences_of(examples, logp, _given(reference)).log_ratios[first]
        known = [example.facts["z0"] for example in examples if "z0" in example.facts]
        z0 = logp.new_tensor(known[0]) if known else self._z0(examples, logp.detach(), reference)
        good = logp.new_tensor([bool(example.facts["label"]) for example in examples]) > 0
        signed = (u - z0).where(good, z0 - u)
        options = self.options
        scale = logp.new_tensor(options.desirable_weight).where(good, options.undesirable_weight)
        weights = weights_of(examples, logp) / max(totals_of(examples, totals).examples, 1e-12)
        losses = scale * (1 - (options.beta * signed).sigmoid())
        right = (u.detach() > 0) == good
        metrics = {"judged_right": float((weights * right).sum()), "kl_z0": float((weights * z0).sum())}
        return LossReport((weights * losses).sum(), metrics)

    def _z0(self, examples: Sequence[Example], logp: Tensor, reference: Tensor | None) -> Tensor:
        ratios = sequences_of(examples, logp, _given(reference)).log_ratios.detach()
        first = firsts(examples, logp)
        rows = [int(row) + 1 for row, example in zip(first, examples, strict=True) if len(example.sequences) > 1]
        if not rows:
            return logp.new_zeros(())
        return ratios[rows].mean().clamp(min=0)


class BnfOptions(PairColumns):
    """BNF (bidirectional negative feedback, oat): no reference pairs needed; a label per response."""

    layout: Literal["pairs", "single"] = "pairs"
    """Whether a row holds a pair, or one response with a label."""
    response_column: str = "response"
    """The response of a single row."""
    label_column: str = "label"
    """The label of a single row."""


@dataclass
class BnfObjective:
    """loss = -(sum over chosen - sum over rejected tokens of the term) / min(tokens of either side).

    term = sg(t) logp_y + sg(s) sum_{j != y} sg(p_j) logp_j for the target y, with t = min(1, p_y / (ref_y + 1e-6)) and
    s = (1 - t + 1e-6) / (1 - p_y + 1e-6).
    check: p = [0.2, 0.5, 0.3], ref_y = 0.4, y = 0: term -1.247072, d/dlogits 0.299999, -0.187499, -0.112500.
    Oracle: oat `BNFLoss`.
    """

    options: BnfOptions
    kind: Literal["sft", "preference", "prm"] = "preference"
    sidecars: Sequence[Sidecar] = ()

    @property
    def layout(self) -> RowLayout:
        """Pairs, or judged responses."""
        return "pairs" if self.options.layout == "pairs" else "responses"

    @property
    def needs(self) -> Needs:
        """The reference, and logits over the whole vocabulary."""
        return Needs(logp_old=False, logp_ref=True, logits=True)

    def read(self, row: Mapping[str, Any], encode: Encode) -> Example | None:
        """A pair, or a judged response."""
        options = self.options
        if options.layout == "pairs":
            return read_pair(row, options, encode)
        columns = SingleColumns(
            prompt_column=options.prompt_column,
            response_column=options.response_column,
            label_column=options.label_column,
        )
        return read_single(row, columns, encode)

    def prepare(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Examples with the batch's denominator, the smaller token count of the two sides, in `facts`."""
        kept = [example for example in examples if all(response for _, response in example.sequences)]
        counts = {True: 0, False: 0}
        for example in kept:
            for (_, response), good in zip(example.sequences, _labels(example), strict=True):
                counts[good] += len(response)
        smaller = float(min(count for count in counts.values() if count) if any(counts.values()) else 1)
        return [replace(example, facts={**example.facts, "bnf_tokens": smaller}) for example in kept]

    def rescore(self, examples: Sequence[Example], logp: Tensor, reference: Tensor | None) -> Sequence[Example]:
        """The examples themselves."""
        return examples

    def loss(
        self,
        examples: Sequence[Example],
        forward: Forward,
        reference: Tensor | None,
        *,
        totals: ExampleTotals | None = None,
    ) -> LossReport:
        """This slice's share."""
        if forward.logits is None:
            raise TrainingError("BNF: it needs logits and was given none; the trainer must fill `Forward.logits`")
        prepared = examples if all("bnf_tokens" in example.facts for example in examples) else self.prepare(examples)
        found = sequences_of(prepared, forward.logp, _given(reference))
        assert found.reference is not None
        terms = bnf_terms(forward.logits, found.logp, found.reference)
        signs = forward.logp.new_tensor([1.0 if good else -1.0 for example in prepared for good in _labels(example)])
        total = (signs.unsqueeze(1) * terms * found.mask).sum()
        loss = -total / (float(prepared[0].facts["bnf_tokens"]) if prepared else 1.0)
        return LossReport(loss, {"bnf_loss": float(loss.detach())})


def bnf_terms(logits: Tensor, logp: Tensor, reference: Tensor) -> Tensor:
    """(N, T) terms from logits (N, T, V) and the target's log-probs (N, T) under policy and reference."""
    everything = logits.float().log_softmax(dim=-1)
    p, target = everything.detach().exp(), logp.detach().exp()
    t = (target / (reference.exp() + 1e-6)).clamp(max=1.0)
    s = (1 - t + 1e-6) / (1 - target + 1e-6)
    others = (p * everything).sum(dim=-1) - target * logp
    return t * logp + s * others


def _labels(example: Example) -> tuple[bool, ...]:
    if "label" in example.facts:
        return (bool(example.facts["label"]),)
    return (True, *[False for _ in example.sequences[1:]])


def _with_mismatch(examples: Sequence[Example], index: int) -> Example:
    example = examples[index]
    prompt, _ = example.sequences[0]
    for step in range(1, len(examples)):
        other_prompt, response = examples[(index + step) % len(examples)].sequences[0]
        if other_prompt != prompt:
            return replace(example, sequences=(example.sequences[0], (prompt, response)))
    return replace(example, sequences=(example.sequences[0],))


def _given(reference: Tensor | None) -> Tensor:
    if reference is None:
        raise TrainingError("objective: it needs the reference's log-probs and was given none")
    return reference
