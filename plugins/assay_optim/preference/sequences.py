"""From token log-probs of all sequences of a batch of examples to numbers per sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.protocols import Example, ExampleTotals

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """Log-probs of the responses of N sequences, in the order of the examples."""

    mask: Tensor
    """(N, T) float: 1 on response tokens."""
    lengths: Tensor
    """(N,) response tokens."""
    logp: Tensor
    """(N, T) with graph, 0 where masked."""
    reference: Tensor | None
    """(N, T) of the reference, 0 where masked."""

    @property
    def sums(self) -> Tensor:
        """(N,) log-probs of whole responses."""
        return self.logp.sum(dim=1)

    @property
    def means(self) -> Tensor:
        """(N,) log-probs per token."""
        return self.sums / self.lengths.clamp(min=1)

    @property
    def log_ratios(self) -> Tensor:
        """(N,) log pi(y) - log ref(y) of whole responses; without a reference log pi(y)."""
        return self.sums if self.reference is None else self.sums - self.reference.sum(dim=1)

    def scores(self, *, length_norm: bool) -> Tensor:
        """(N,) log-ratios, per token where `length_norm`."""
        return self.log_ratios / self.lengths.clamp(min=1) if length_norm else self.log_ratios


def sequences_of(examples: Sequence[Example], logp: Tensor, reference: Tensor | None) -> Sequences:
    """All sequences of `examples`, whose responses start at column 0 of (N, T)."""
    counts = [len(response) for example in examples for _, response in example.sequences]
    lengths = logp.new_tensor(counts)
    columns = logp.new_ones(logp.shape[1]).cumsum(0) - 1
    mask = (columns.unsqueeze(0) < lengths.unsqueeze(1)).to(logp.dtype)
    clean = None if reference is None else reference.to(logp.dtype).where(mask > 0, 0.0)
    return Sequences(mask, lengths, logp.where(mask > 0, 0.0), clean)


def firsts(examples: Sequence[Example], like: Tensor) -> Tensor:
    """(B,) long: the row of each example's first sequence."""
    starts: list[int] = []
    row = 0
    for example in examples:
        starts.append(row)
        row += len(example.sequences)
    return like.new_tensor(starts).long()


def weights_of(examples: Sequence[Example], like: Tensor) -> Tensor:
    """(B,) the examples' weights."""
    return like.new_tensor([example.weight for example in examples])


def totals_of(examples: Sequence[Example], totals: ExampleTotals | None) -> ExampleTotals:
    """`totals`, or those of `examples` taken as the whole batch."""
    if totals is not None:
        return totals
    tokens = sum(len(response) for example in examples for _, response in example.sequences)
    return ExampleTotals(examples=sum(example.weight for example in examples), tokens=float(tokens))
