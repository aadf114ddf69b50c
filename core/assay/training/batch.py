"""Scored groups become tensors; tensors become micro-batches that add up to the same loss however they are cut.

Guaranteed: denominators are counted over the whole batch before it is cut; a response whose reward is masked is not in
the batch at all; an empty response stays in it, with its reward, and is in no mean over tokens or rows.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch
from torch import Tensor

from assay.contracts.batch import Reward, ScoredGroup
from assay.contracts.rollout import Rollout
from assay.contracts.tensors import Denominators, TrainBatch
from assay.errors import TrainingError
from assay.training.forward import TokenRow
from assay.training.reflection import reflection_ids

__all__ = [
    "TokenBatch",
    "count_denominators",
    "make_batch",
    "plan_micro_batches",
    "step_ends",
    "take_rows",
]


@dataclass(frozen=True)
class TokenBatch:
    """A batch as the optimizer sees it, and the same rows as token ids."""

    rows: tuple[TokenRow, ...]
    """N rows; `scored` is where the mask is 1."""
    batch: TrainBatch

    @property
    def tokens(self) -> int:
        """Unmasked response tokens."""
        return int(self.batch.denominators.tokens)


def make_batch(
    groups: Sequence[ScoredGroup],
    *,
    device: torch.device | str = "cpu",
    max_tokens: int | None = None,
    tokenizer: Any = None,
) -> TokenBatch:
    """The batch of all rollouts that have a reward.

    Args:
        groups: scored groups; rewards that are None are left out.
        device: where the tensors live.
        max_tokens: L of the `constant` aggregation; None takes the largest `max_new_tokens` of the rollouts.
        tokenizer: needed where rewards carry step values, to find each step's last token; with it `extra["reflection"]`
            (N, T) marks tokens that begin a reflection word, for the metrics.

    Raises:
        TrainingError: a rollout has no token ids.
    """
    rows: list[TokenRow] = []
    rewards: list[Reward] = []
    rollouts: list[Rollout] = []
    owner: list[int] = []
    for index, group in enumerate(groups):
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True):
            if reward.value is not None:
                rows.append(_row(rollout))
                rewards.append(reward)
                rollouts.append(rollout)
                owner.append(index)
    width = max((len(row.response) for row in rows), default=0)
    mask = _grid([[float(wanted) for wanted in row.scored or ()] for row in rows], width, device)
    group = torch.tensor(owner, dtype=torch.long, device=device)
    limit = max_tokens or max((rollout.sampling.max_new_tokens for rollout in rollouts), default=1)
    names = sorted({name for reward in rewards for name in reward.channels} - {"reward"})
    batch = TrainBatch(
        mask=mask,
        reward=torch.tensor([reward.value for reward in rewards], dtype=torch.float32, device=device),
        group=group,
        truncated=torch.tensor([rollout.truncated for rollout in rollouts], dtype=torch.bool, device=device),
        denominators=count_denominators(mask, group, limit),
        logp_gen=_sampler_logp(rollouts, width, device),
        token_reward=_token_reward(rollouts, rewards, width, device, tokenizer),
        channels={name: _channel(rewards, name, device) for name in names},
        extra={} if tokenizer is None else {"reflection": _reflection(rows, width, device, tokenizer)},
    )
    return TokenBatch(tuple(rows), batch)


def count_denominators(mask: Tensor, group: Tensor, max_tokens: int) -> Denominators:
    """The global counts of a batch with this mask (N, T) and these groups (N,)."""
    lengths = mask.sum(dim=1)
    size = int(group.max()) + 1 if len(group) else 0
    tokens = torch.zeros(size, device=mask.device).index_add_(0, group, lengths)
    rows = torch.zeros(size, device=mask.device).index_add_(0, group, torch.ones_like(lengths))
    return Denominators(
        rows=float((lengths > 0).sum()),
        tokens=float(lengths.sum()),
        groups=float((tokens > 0).sum()),
        max_tokens=max_tokens,
        group_tokens=tokens[group],
        group_rows=rows[group],
    )


def take_rows(batch: TrainBatch, index: Tensor, *, width: int) -> TrainBatch:
    """The rows `index` of `batch` with its denominators, cut to `width` tokens (those after it are masked in all)."""
    taken, full = batch.take(index), batch.mask.shape[1]

    def cut(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[:, :width] if value.ndim >= 2 and value.shape[1] == full else value
        if isinstance(value, Mapping):
            return {key: cut(entry) for key, entry in cast("Mapping[str, Any]", value).items()}
        return value

    return replace(taken, **{entry.name: cut(getattr(taken, entry.name)) for entry in fields(taken)})


def plan_micro_batches(
    rows: Sequence[TokenRow],
    budget: int,
    *,
    shared_prompt: bool,
    together: Sequence[int] | None = None,
) -> list[list[int]]:
    """Row indices of each micro-batch: every row with a scored token exactly once, each batch within `budget` tokens.

    A batch's cost is what the forward really reads: distinct prompts once and responses without padding where prompts
    are shared, rows times the longest row otherwise. One unit that is larger than the budget is a batch of its own.

    Args:
        rows: the batch's rows.
        budget: tokens per micro-batch.
        shared_prompt: whether the forward shares prompts.
        together: (N,) rows with the same number must meet in one micro-batch; None lets every row go anywhere.
    """
    used = [index for index, row in enumerate(rows) if row.last_scored >= 0]
    numbers: dict[tuple[int, ...], int] = {}
    prompt_of = {index: numbers.setdefault(rows[index].prompt, len(numbers)) for index in used}
    sizes = [len(prompt) for prompt in numbers]
    members: dict[int, list[int]] = {}
    for index in used:
        members.setdefault(index if together is None else together[index], []).append(index)
    if shared_prompt:
        # Neighbours share a prompt; prompts keep the order of their first appearance, so that a run can be repeated.
        units = sorted(members.values(), key=lambda unit: prompt_of[unit[0]])
        costs = _SharedCost(rows, prompt_of, sizes)
    else:
        units = sorted(members.values(), key=lambda unit: max(len(rows[i].prompt) + rows[i].last_scored for i in unit))
        costs = _PaddedCost(rows)
    batches: list[list[int]] = []
    for unit in units:
        if batches and costs.with_unit(unit) <= budget:
            batches[-1].extend(unit)
        else:
            batches.append(list(unit))
            costs.clear()
        costs.add(unit)
    return batches


class _SharedCost:
    """Tokens of the micro-batch being filled when each distinct prompt is read once."""

    def __init__(self, rows: Sequence[TokenRow], prompt_of: Mapping[int, int], sizes: Sequence[int]) -> None:
        self._rows, self._prompt_of, self._sizes = rows, prompt_of, sizes
        self.clear()

    def clear(self) -> None:
        self._prompts: set[int] = set()
        self._tokens = 0

    def with_unit(self, unit: Sequence[int]) -> int:
        fresh = {self._prompt_of[index] for index in unit} - self._prompts
        own = sum(self._rows[index].last_scored for index in unit)
        return self._tokens + own + sum(self._sizes[prompt] for prompt in fresh)

    def add(self, unit: Sequence[int]) -> None:
        self._tokens = self.with_unit(unit)
        self._prompts |= {self._prompt_of[index] for index in unit}


class _PaddedCost:
    """Tokens of the micro-batch being filled when every row is as wide as the longest."""

    def __init__(self, rows: Sequence[TokenRow]) -> None:
        self._rows = rows
        self.clear()

    def clear(self) -> None:
        self._count = self._width = 0

    def with_unit(self, unit: Sequence[int]) -> int:
        return (self._count + len(unit)) * max(self._width, self._longest(unit))

    def add(self, unit: Sequence[int]) -> None:
        self._count, self._width = self._count + len(unit), max(self._width, self._longest(unit))

    def _longest(self, unit: Sequence[int]) -> int:
        return max(len(self._rows[index].prompt) + self._rows[index].last_scored for index in unit)


def step_ends(tokenizer: Any, token_ids: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Index of the token that completes each character position of `ends` in the decoded text of `token_ids`."""
    found: list[int] = []
    for end in ends:
        low, high = 0, max(len(token_ids) - 1, 0)
        while low < high:
            middle = (low + high) // 2
            if len(tokenizer.decode(list(token_ids[: middle + 1]))) >= end:
                high = middle
            else:
                low = middle + 1
        found.append(low)
    return found


def _row(rollout: Rollout) -> TokenRow:
    if rollout.prompt_ids is None or any(turn.token_ids is None for turn in rollout.turns):
        raise TrainingError(
            f"trainer: rollout {rollout.id!r} cannot be trained on; it has no token ids. Use another engine"
        )
    ids = tuple(token for turn in rollout.turns for token in turn.token_ids or ())
    scored = tuple(turn.trainable for turn in rollout.turns for _ in turn.token_ids or ())
    return TokenRow(rollout.prompt_ids, ids, scored, rollout.sampling.temperature or 1.0)


def _grid(values: Sequence[Sequence[float]], width: int, device: torch.device | str) -> Tensor:
    padded = [[*line, *([0.0] * (width - len(line)))] for line in values]
    return torch.tensor(padded, dtype=torch.float32, device=device).reshape(len(values), width)


def _sampler_logp(rollouts: Sequence[Rollout], width: int, device: torch.device | str) -> Tensor | None:
    lines: list[list[float]] = []
    for rollout in rollouts:
        line: list[float] = []
        for turn in rollout.turns:
            if turn.logprobs is None and turn.trainable and turn.token_ids:
                return None
            line.extend(turn.logprobs or [0.0] * len(turn.token_ids or ()))
        lines.append(line)
    return _grid(lines, width, device)


def _token_reward(
    rollouts: Sequence[Rollout], rewards: Sequence[Reward], width: int, device: torch.device | str, tokenizer: Any
) -> Tensor | None:
    if tokenizer is None or not any(reward.steps for reward in rewards):
        return None
    lines = [[0.0] * width for _ in rewards]
    for line, rollout, reward in zip(lines, rollouts, rewards, strict=True):
        last = rollout.turns[-1].token_ids or ()
        before = sum(len(turn.token_ids or ()) for turn in rollout.turns[:-1])
        if last:
            for step, at in zip(
                reward.steps, step_ends(tokenizer, last, [s.span.end for s in reward.steps]), strict=True
            ):
                line[before + at] += step.value
    return _grid(lines, width, device)


def _reflection(rows: Sequence[TokenRow], width: int, device: torch.device | str, tokenizer: Any) -> Tensor:
    ids = reflection_ids(tokenizer)
    return _grid([[float(token in ids) for token in row.response] for row in rows], width, device)


def _channel(rewards: Sequence[Reward], name: str, device: torch.device | str) -> Tensor:
    values = [reward.channels.get(name) for reward in rewards]
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float32, device=device)
