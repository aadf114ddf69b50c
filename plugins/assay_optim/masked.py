# pyright: reportUnknownMemberType=false
# (torch's stubs leave `unique` and `tolist` untyped)
"""Sums over masked tokens and over groups; every function says what it divides by. Imports no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from assay.contracts.tensors import Denominators, TrainBatch
from assay.errors import TrainingError
from assay.protocols import GroupMoments

if TYPE_CHECKING:
    from torch import Tensor

ZERO_STD = 1e-6
"""A standard deviation below this is float noise and counts as 0."""


def zero_where_masked(values: Tensor, mask: Tensor) -> Tensor:
    """`values` (N, T) with exactly 0 (no gradient, whatever stood there) where `mask` (N, T) is 0."""
    return values.where(mask > 0, 0.0)


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum of `values` (N, T) over `mask` (N, T), without a denominator."""
    return (zero_where_masked(values, mask) * mask).sum()


def row_sums(values: Tensor, mask: Tensor) -> Tensor:
    """(N,) sums of each row over its mask."""
    return (zero_where_masked(values, mask) * mask).sum(dim=1)


def whole_rewards(batch: TrainBatch) -> TrainBatch:
    """The batch with each response's token rewards added to its reward (N,): the response is one action."""
    if batch.token_reward is None:
        return batch
    return replace(batch, reward=batch.reward + row_sums(batch.token_reward, batch.mask), token_reward=None)


def row_means(values: Tensor, mask: Tensor) -> Tensor:
    """(N,) means of each row over its own tokens; 0 for an empty row."""
    return row_sums(values, mask) / mask.sum(dim=1).clamp(min=1)


def over_groups(values: Tensor, group: Tensor) -> Tensor:
    """(N,) the sum of `values` (N,) over the group of each row; groups may be ragged and in any order."""
    index, count = _group_index(group)
    return values.new_zeros(count).index_add(0, index, values)[index]


def group_min(values: Tensor, group: Tensor) -> Tensor:
    """(N,) the smallest of `values` (N,) within the group of each row."""
    index, count = _group_index(group)
    return values.new_zeros(count).scatter_reduce(0, index, values, "amin", include_self=False)[index]


def group_max(values: Tensor, group: Tensor) -> Tensor:
    """(N,) the largest of `values` (N,) within the group of each row."""
    return -group_min(-values, group)


def group_table(values: Tensor, group: Tensor, *, fill: float) -> Tensor:
    """(N, K) for each row the `values` (N,) of its whole group, padded with `fill`; K is the largest group."""
    index, count = _group_index(group)
    order = index.argsort(stable=True)
    sizes = index.bincount(minlength=count)
    starts = sizes.cumsum(0) - sizes
    place = values.new_zeros(len(values)).long()
    place[order] = (values.new_ones(len(values)).long().cumsum(0) - 1) - starts[index[order]]
    table = values.new_full((count, int(sizes.max())), fill)
    table[index, place] = values
    return table[index]


def group_moments(reward: Tensor, group: Tensor, *, virtual_count: int = 0, virtual_value: float = 0.0) -> GroupMoments:
    """Count, mean and standard deviation (ddof = 1) of the rewards (N,) of each row's group.

    NaN rewards are left out; `virtual_count` rewards of `virtual_value` are added to every group (NGRPO). A standard
    deviation below 1e-6 is exactly 0. Computed in float64.
    """
    valid = reward.isnan().logical_not()
    exact = reward.double().where(valid, 0.0)
    count = over_groups(valid.double(), group) + virtual_count
    mean = (over_groups(exact, group) + virtual_count * virtual_value) / count.clamp(min=1)
    squares = over_groups((exact - mean).square().where(valid, 0.0), group)
    squares = squares + virtual_count * (virtual_value - mean).square()
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    std = std.where((std >= ZERO_STD) & (count > 1), 0.0)
    return GroupMoments(count, mean, std)


def deviation(values: Tensor) -> Tensor:
    """Scalar standard deviation (ddof = 1) of finite `values` (N,); 0 for fewer than two, and below 1e-6."""
    if len(values) < 2:
        return values.new_zeros(())
    std = values.double().std()
    return std.where(std >= ZERO_STD, 0.0)


def last_token(mask: Tensor) -> Tensor:
    """(N, T) one-hot: 1 at the last unmasked token of each row, nothing in an empty row."""
    after = mask.flip(1).cumsum(1).flip(1)
    return ((after == 1) & (mask > 0)).to(mask.dtype)


def count_denominators(mask: Tensor, group: Tensor, max_tokens: int) -> Denominators:
    """The global counts of a whole batch, by the definitions of `Denominators`."""
    lengths = mask.sum(dim=1)
    filled = (lengths > 0).to(mask.dtype)
    group_tokens = over_groups(lengths, group)
    group_rows = over_groups(filled, group)
    groups = (filled / group_rows.clamp(min=1)).sum()
    return Denominators(
        rows=float(filled.sum()),
        tokens=float(lengths.sum()),
        groups=float(groups),
        max_tokens=max_tokens,
        group_tokens=group_tokens,
        group_rows=group_rows,
    )


def recounted(batch: TrainBatch, mask: Tensor) -> TrainBatch:
    """The whole batch with another mask and the denominators that belong to it."""
    counts = count_denominators(mask, batch.group, batch.denominators.max_tokens)
    return replace(batch, mask=mask, denominators=counts)


def with_extra(batch: TrainBatch, **tensors: Tensor) -> TrainBatch:
    """The batch with more entries in `extra`."""
    return replace(batch, extra={**batch.extra, **tensors})


def needed(tensor: Tensor | None, name: str, part: str) -> Tensor:
    """`tensor`, or a `TrainingError` that names what `part` was not given."""
    if tensor is None:
        raise TrainingError(
            f"optimizer part {part!r}: it needs {name} and the batch has none; "
            f"the trainer must fill it where the optimizer's `needs` asks for it"
        )
    return tensor


def policy_logp(batch: TrainBatch, part: str) -> Tensor:
    """(N, T) log-probs of the policy before the update, for use in `prepare`: recomputed ones, else the sampler's."""
    return needed(batch.logp_old if batch.logp_old is not None else batch.logp_gen, "logp_old", part)


def _group_index(group: Tensor) -> tuple[Tensor, int]:
    found = cast("tuple[Tensor, Tensor]", group.unique(return_inverse=True))
    return found[1], len(found[0])


def listed(tensor: Tensor) -> list[float]:
    """The numbers of a tensor (N,)."""
    return cast("list[float]", tensor.double().tolist())
