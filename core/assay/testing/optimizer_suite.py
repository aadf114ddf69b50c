"""What every policy optimizer must do, ours or a third party's, as plain functions on small batches.

    from assay.testing.optimizer_suite import check_optimizer
    check_optimizer(my_optimizer)

Each check raises `AssertionError` with one sentence. torch is imported when a function is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from assay.contracts.tensors import Denominators, TrainBatch

if TYPE_CHECKING:
    from torch import Tensor


NAN = float("nan")


def denominators_of(mask: Tensor, group: Tensor, max_tokens: int) -> Denominators:
    """The global counts of a whole batch, by the definitions of `Denominators`."""
    lengths = mask.sum(dim=1)
    filled = lengths > 0
    same = (group.unsqueeze(0) == group.unsqueeze(1)).to(mask.dtype)
    group_rows = same @ filled.to(mask.dtype)
    return Denominators(
        rows=float(filled.sum()),
        tokens=float(lengths.sum()),
        groups=float((1.0 / group_rows[filled]).sum()),
        max_tokens=max_tokens,
        group_tokens=same @ lengths,
        group_rows=group_rows,
    )


def batch_of(
    rewards: Sequence[float],
    lengths: Sequence[int],
    *,
    group_size: int | None = None,
    groups: Sequence[int] | None = None,
    max_tokens: int | None = None,
    width: int | None = None,
    truncated: Sequence[bool] | None = None,
    logp_gen: Tensor | None = None,
    logp_old: Tensor | None = None,
    logp_ref: Tensor | None = None,
    values: Tensor | None = None,
    token_reward: Tensor | None = None,
) -> TrainBatch:
    """A batch of responses with these rewards (NaN: masked) and token counts.

    Rows belong to `groups`, or to consecutive groups of `group_size`, or all to one. `width` pads beyond the longest.
    """
    import torch

    rows = len(rewards)
    widest = max(max(lengths), 1) if width is None else width
    mask = (torch.arange(widest).unsqueeze(0) < torch.tensor(lengths).unsqueeze(1)).float()
    if groups is None:
        groups = [row // group_size if group_size else 0 for row in range(rows)]
    group = torch.tensor(groups)
    return TrainBatch(
        mask=mask,
        reward=torch.tensor(list(rewards), dtype=torch.float32),
        group=group,
        truncated=torch.tensor(list(truncated) if truncated is not None else [False] * rows),
        denominators=denominators_of(mask, group, max_tokens if max_tokens is not None else widest),
        logp_gen=logp_gen,
        logp_old=logp_old,
        logp_ref=logp_ref,
        values=values,
        token_reward=token_reward,
    )
