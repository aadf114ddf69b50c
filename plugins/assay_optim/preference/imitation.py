"""Supervised fine-tuning: likelihood of given responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from assay.contracts.tensors import Forward, LossReport
from assay.protocols import Encode, Example, ExampleTotals, Needs, RowLayout, Sidecar
from assay_optim.preference.data import TextColumns, read_text
from assay_optim.preference.sequences import sequences_of, totals_of, weights_of

if TYPE_CHECKING:
    from torch import Tensor


class SftOptions(TextColumns):
    """Supervised fine-tuning on responses, conversations or plain text."""

    reduce: Literal["token_mean", "sequence_mean"] = "token_mean"
    """Mean over the batch's response tokens, or mean over rows of each row's mean."""


@dataclass
class SftObjective:
    """-mean log pi over response tokens; rows weigh by `Example.weight` (a second stream: give its rows a weight)."""

    options: SftOptions
    kind: Literal["sft", "preference", "prm"] = "sft"
    layout: RowLayout = "texts"
    sidecars: Sequence[Sidecar] = ()

    @property
    def needs(self) -> Needs:
        """Nothing but the policy."""
        return Needs(logp_old=False)

    def read(self, row: Mapping[str, Any], encode: Encode) -> Example | None:
        """A response to imitate."""
        return read_text(row, self.options, encode)

    def prepare(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Examples with response tokens."""
        return [example for example in examples if example.sequences[0][1]]

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
        found = sequences_of(examples, forward.logp, None)
        weights = weights_of(examples, forward.logp)
        whole = totals_of(examples, totals)
        if self.options.reduce == "token_mean":
            loss = -(weights * found.sums).sum() / max(whole.tokens, 1.0)
        else:
            loss = -(weights * found.means).sum() / max(whole.examples, 1e-12)
        return LossReport(loss, {"nll": float(loss.detach())})
