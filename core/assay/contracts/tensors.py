"""What an optimizer sees of a batch; torch is imported for the type checker only.

Letters: N responses, T response tokens (padded), P prompts, G responses per prompt, V vocabulary, K top-k entries.
Statistics are float32. `mask` is 1 on trainable response tokens and 0 on padding and on tokens of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Denominators:
    """Global counts of the batch, over all micro-batches and all ranks, so that any split gives the same loss."""

    rows: float
    """n: responses with at least one unmasked token."""
    tokens: float
    """Unmasked tokens."""
    groups: float
    """Prompts with at least one unmasked token."""
    max_tokens: int
    """L: the fixed length limit of a response (never the padded width)."""
    group_tokens: Tensor
    """(N,) unmasked tokens of the row's whole group."""
    group_rows: Tensor
    """(N,) responses of the row's whole group that are in the batch."""

    def take(self, rows: Tensor) -> Denominators:
        """The same global numbers for a slice: `rows` are the indices (long) to keep, in order."""
        return replace(self, group_tokens=self.group_tokens[rows], group_rows=self.group_rows[rows])


@dataclass(frozen=True)
class TrainBatch:
    """One batch, or a slice of its rows; `prepare` returns a copy with `advantage` (and `returns`) filled in."""

    mask: Tensor
    """(N, T) float: 1 on tokens that count."""
    reward: Tensor
    """(N,) float: the `reward` channel; NaN marks a masked rollout, which `prepare` must leave out."""
    group: Tensor
    """(N,) long: which prompt a row belongs to; ragged groups are allowed."""
    truncated: Tensor
    """(N,) bool."""
    denominators: Denominators
    logp_gen: Tensor | None = None
    """(N, T) log-probs that the sampler reported."""
    logp_old: Tensor | None = None
    """(N, T) log-probs recomputed by the trainer before the first optimizer step on this batch."""
    logp_ref: Tensor | None = None
    """(N, T) log-probs of the frozen (or moving) reference."""
    token_reward: Tensor | None = None
    """(N, T) rewards of single tokens (process rewards, placed at the last token of their step)."""
    values: Tensor | None = None
    """(N, T) the critic's values before the first optimizer step."""
    topk_gen: Tensor | None = None
    """(N, T, K) log-probs of the sampler's K likeliest tokens."""
    advantage: Tensor | None = None
    """(N,) or (N, T)."""
    returns: Tensor | None = None
    """(N, T) targets of the critic."""
    channels: Mapping[str, Tensor] = field(default_factory=dict[str, "Tensor"])
    """Name to (N,) for the channels other than `reward` (for example `cost`)."""
    extra: Mapping[str, Tensor] = field(default_factory=dict[str, "Tensor"])
    """Name to (N, ...): whatever a part computed in `prepare` for its own use in `loss`; and, from the trainer,
    `logp_<model>` (N, T) for each of `Needs.models`, `values_<critic>` (N, T) for critics beside the first, and, where
    advantages were weighed for a sampler that differs, that weight as `importance` (N, T)."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """What `prepare` found, to be logged once per batch (zero-variance share, advantage spread, ...)."""

    def take(self, rows: Tensor) -> TrainBatch:
        """A slice with the same global denominators: `rows` are the indices (long) to keep, in order."""

        def cut(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[rows]

        return replace(
            self,
            mask=self.mask[rows],
            reward=self.reward[rows],
            group=self.group[rows],
            truncated=self.truncated[rows],
            denominators=self.denominators.take(rows),
            logp_gen=cut(self.logp_gen),
            logp_old=cut(self.logp_old),
            logp_ref=cut(self.logp_ref),
            token_reward=cut(self.token_reward),
            values=cut(self.values),
            topk_gen=cut(self.topk_gen),
            advantage=cut(self.advantage),
            returns=cut(self.returns),
            channels={name: tensor[rows] for name, tensor in self.channels.items()},
            extra={name: tensor[rows] for name, tensor in self.extra.items()},
        )


@dataclass(frozen=True)
class Forward:
    """What the trainer's forward gives for the rows of a batch; never logits unless `Needs` says so."""

    logp: Tensor
    """(N, T) float32 log-probs of the response tokens, of logits divided by the rollout's temperature; with graph."""
    entropy: Tensor
    """(N, T) float32 entropies of the same distributions; with graph only where `Needs.entropy_grad`."""
    values: Tensor | None = None
    """(N, T) the critic's values; with graph."""
    topk: Tensor | None = None
    """(N, T, K) log-probs, under the current policy, of the sampler's K likeliest tokens; with graph."""
    logits: Tensor | None = None
    """(N, T, V) logits divided by the temperature, only where `Needs.logits`; with graph."""
    extra: Mapping[str, Tensor] = field(default_factory=dict[str, "Tensor"])
    """With graph: `values_<critic>` (N, T) for critics beside the first; `head_<name>` (N, T) or (N, T, C) for heads,
    which read the state after each token, 0 where a token is not scored."""


@dataclass(frozen=True)
class LossReport:
    """A scalar to call `backward` on, and detached numbers to log."""

    loss: Tensor
    """This slice's share: the losses of a batch's slices add up to the batch's loss."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Shares as well: the trainer adds those of a batch's slices, or takes the maximum where a name ends in `_max`.
    Percentiles and the effective sample size are means over slices by tokens: exact for one slice."""
