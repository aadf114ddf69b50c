"""Examples from a run's own rewards: the best rollouts to imitate, best and worst as pairs, all as ranked lists.

Token ids are those that were sampled; nothing is tokenised again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from assay.contracts.batch import ScoredGroup
from assay.contracts.rollout import Rollout
from assay.protocols import Example


def best_of(groups: Iterable[ScoredGroup], *, threshold: float | None = None, keep: int = 1) -> list[Example]:
    """The `keep` best rollouts of each group as supervised examples (rejection sampling, distillation).

    Rollouts below `threshold` are left out, as are masked and multi-turn ones. Equal rewards keep rollout order.
    """
    found: list[Example] = []
    for group in groups:
        ranked = [pair for pair in _ranked(group) if threshold is None or pair[0] >= threshold]
        found.extend(Example((_tokens(rollout),)) for _, rollout in ranked[:keep])
    return found


def best_and_worst(groups: Iterable[ScoredGroup], *, least_gap: float = 0.0) -> list[Example]:
    """One pair per group, its best and its worst rollout; ties (a gap of at most `least_gap`) are dropped."""
    found: list[Example] = []
    for group in groups:
        ranked = _ranked(group)
        if len(ranked) < 2:
            continue
        (high, best), (low, worst) = ranked[0], ranked[-1]
        if high - low > least_gap:
            found.append(Example((_tokens(best), _tokens(worst)), facts={"gap": high - low}))
    return found


def ranked_lists(groups: Iterable[ScoredGroup], *, top: int = 1, bottom: int = 3) -> list[Example]:
    """One list per group, the `top` best and the `bottom` worst rollouts, best first; ties are dropped."""
    found: list[Example] = []
    for group in groups:
        ranked = _ranked(group)
        ends = ranked if len(ranked) <= top + bottom else [*ranked[:top], *ranked[-bottom:]]
        if len(ends) >= 2 and ends[0][0] > ends[-1][0]:
            found.append(Example(tuple(_tokens(rollout) for _, rollout in ends)))
    return found


def _ranked(group: ScoredGroup) -> Sequence[tuple[float, Rollout]]:
    scored = [
        (value, rollout)
        for value, rollout in zip(group.values, group.rollouts, strict=True)
        if value is not None and len(rollout.turns) == 1 and rollout.turns[0].token_ids
    ]
    return sorted(scored, key=lambda pair: -pair[0])


def _tokens(rollout: Rollout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return rollout.prompt_ids or (), rollout.turns[0].token_ids or ()
