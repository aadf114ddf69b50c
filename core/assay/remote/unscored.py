"""What a host that knows no missing reward is told of one: a number that the user named, or an error."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from assay.contracts import Judgement, Reward
from assay.errors import ConfigError, JudgingError
from assay.remote.answers import answer_of


class Told(NamedTuple):
    """The number that a host gets, and the facts beside it."""

    score: float
    flags: dict[str, float]
    """`masked` and `declared`, and per source `SOURCE/scored`, `/abstained`, `/failed`: each 0.0 or 1.0, always the
    same keys."""
    reason: str | None


def stand_in(masked: float | None, *, where: str) -> float | None:
    """The number that was named for answers without a reward, or None; raises `ConfigError` for what is no number."""
    if masked is None:
        return None
    if isinstance(masked, bool) or not isinstance(masked, int | float) or not math.isfinite(masked):  # pyright: ignore[reportUnnecessaryIsInstance] # trainers hand over what their own configs say
        raise ConfigError(f"{where}: masked= is the number that such an answer gets, and finite; found {masked!r}")
    return float(masked)


def told(
    reward: Reward, judgements: Sequence[Judgement], labels: Sequence[str], *, masked: float | None, where: str
) -> Told:
    """The number for one answer; raises `JudgingError` where there is none and `masked` names no stand-in."""
    answer = answer_of(reward)
    if answer.reward is None and masked is None:
        raise JudgingError(
            f"{where}: no reward for one answer: {answer.reason}. The trainer knows no missing reward; name the number "
            "that such an answer gets with masked="
        )
    flags = {"masked": float(answer.reward is None), "declared": float(answer.declared)}
    for label in labels:
        judgement = _of(label, judgements)
        for status in ("scored", "abstained", "failed"):
            flags[f"{label}/{status}"] = float(judgement is not None and judgement.status == status)
    score = masked if answer.reward is None else answer.reward
    assert score is not None
    return Told(score, flags, answer.reason)


def _of(label: str, judgements: Sequence[Judgement]) -> Judgement | None:
    return next((judgement for judgement in judgements if judgement.source == label), None)
