"""LarPO: objectives on ranked lists of responses (three forms)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from assay.contracts.tensors import Forward, LossReport
from assay.errors import TrainingError
from assay.protocols import Encode, Example, ExampleTotals, Needs, RowLayout
from assay_optim.preference.data import RankedColumns, read_ranked
from assay_optim.preference.links import softplus
from assay_optim.preference.pairs import Prepared
from assay_optim.preference.sequences import firsts, sequences_of, totals_of, weights_of

if TYPE_CHECKING:
    from torch import Tensor

Form = Literal["contrastive", "lambdarank", "listmle"]


class LarpoOptions(RankedColumns):
    """LarPO: retrieval losses on g_k = b log pi/ref of responses ordered best first.

    Recipe: 10 samples at temperature 0.8 to 1; the contrastive form keeps the best against the worst 3, the list forms
    the best 2 and the worst 2; the reference is the sampling policy of the iteration; learning rate 5e-7.
    """

    form: Form = "contrastive"
    """`contrastive` -log softmax(g)[best]; `lambdarank` -sum_{i<j} log sigma(g_i - g_j);
    `listmle` -sum_i log(e^{g_i} / sum_{j >= i} e^{g_j})."""
    beta: float = Field(default=0.1, gt=0.0)
    """b."""
    iteration: int = Field(default=64, ge=1)
    """Updates per iteration, after which the reference moves."""


@dataclass
class LarpoObjective(Prepared):
    """Mean over lists of the form's loss; see `LarpoOptions`.

    check: g = [0.8, 0.1, -0.3, -0.6] gives 0.730469, 2.381495, 2.058124. (The paper's long ListMLE form counts an index
    twice and one of its tables lacks the log.)
    """

    options: LarpoOptions
    layout: RowLayout = "ranked"

    @property
    def needs(self) -> Needs:
        """A reference that moves each iteration."""
        return Needs(logp_old=False, logp_ref=True, reference_every=self.options.iteration)

    def read(self, row: Mapping[str, Any], encode: Encode) -> Example | None:
        """A ranked list."""
        return read_ranked(row, self.options, encode)

    def loss(
        self,
        examples: Sequence[Example],
        forward: Forward,
        reference: Tensor | None,
        *,
        totals: ExampleTotals | None = None,
    ) -> LossReport:
        """This slice's share."""
        if reference is None:
            raise TrainingError("LarPO: it needs the reference's log-probs and was given none")
        scores = self.options.beta * sequences_of(examples, forward.logp, reference).log_ratios
        weights = weights_of(examples, forward.logp) / max(totals_of(examples, totals).examples, 1e-12)
        loss = forward.logp.sum() * 0.0
        best_first = 0.0
        for start, weight, example in zip(firsts(examples, forward.logp), weights, examples, strict=True):
            row = int(start)
            ranked = scores[row : row + len(example.sequences)]
            loss = loss + weight * list_loss(ranked, self.options.form)
            best_first += float(weight * (ranked.argmax() == 0))
        return LossReport(loss, {"best_first": best_first})


def list_loss(scores: Tensor, form: Form) -> Tensor:
    """The loss of one list of scores (m,), best first."""
    if form == "contrastive":
        return scores.logsumexp(dim=0) - scores[0]
    if form == "lambdarank":
        gaps = scores.unsqueeze(1) - scores.unsqueeze(0)
        return softplus(-gaps).triu(diagonal=1).sum()
    tails = scores.flip(0).logcumsumexp(dim=0).flip(0)
    return (tails - scores).sum()
