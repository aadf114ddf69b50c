"""Rewards of length alone: `length` with a documented shape, and DAPO's soft `overlong` penalty."""

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from assay.component import Options
from assay.contracts import Evidence, Rollout, Task, Verdict
from assay_rules.text import Count, token_count

Shape = Literal["ramp", "step", "linear"]


class LengthOptions(Options):
    """Which lengths are wanted, and how the reward falls beyond them."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Longest response, in the engine's tokens, that is fully rewarded; words and marks are counted where a rollout has
    no token ids. 512 when neither maximum is given."""
    max_characters: int | None = Field(default=None, ge=1)
    """The same in characters; instead of `max_tokens`."""
    shape: Shape = "ramp"
    """With m the maximum, s the slack and n the length: `ramp` is 1 up to m, then falls in a straight line to 0 at
    m * (1 + s); `step` is 1 up to m, then 0; `linear` falls from 1 at length 0 to 0 at m (shorter is better)."""
    slack: float = Field(default=1.0, gt=0, le=100)
    """s of the ramp."""
    minimum: int = Field(default=1, ge=1)
    """Shorter responses get 0, in the same unit, so that the reward is not earned by saying nothing."""

    @model_validator(mode="after")
    def _one_maximum(self) -> Self:
        if self.max_tokens is not None and self.max_characters is not None:
            raise ValueError("give max_tokens or max_characters, not both")
        if self.minimum > self.maximum:
            raise ValueError(f"the minimum {self.minimum} is above the maximum {self.maximum}")
        return self

    @property
    def maximum(self) -> int:
        """m, in tokens or characters."""
        return self.max_characters or self.max_tokens or 512


@dataclass(frozen=True)
class Length:
    """In [0, 1]: 1 for a length that is wanted, less for one that is not."""

    options: LengthOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        options = self.options
        if options.max_characters is not None:
            count = Count(sum(len(turn.text) for turn in rollout.turns if turn.trainable), "characters")
        else:
            count = token_count(rollout)
        value = length_value(count.number, options.maximum, options.shape, options.slack, options.minimum)
        summary = f"{count.number} {count.unit}; wanted {options.minimum} to {options.maximum}"
        return Verdict.score(value, evidence=Evidence(kind="length", summary=summary, data=count.number))

    def check_task(self, task: Task) -> str | None:
        """Nothing of the task is needed."""
        return None


def length_value(number: int, maximum: int, shape: Shape, slack: float, minimum: int = 1) -> float:
    """The reward in [0, 1] of a length; the shapes are those of `LengthOptions.shape`."""
    if number < minimum:
        return 0.0
    if shape == "linear":
        return max(0.0, 1.0 - number / maximum)
    if number <= maximum:
        return 1.0
    return max(0.0, 1.0 - (number - maximum) / (slack * maximum)) if shape == "ramp" else 0.0


class OverlongOptions(Options):
    """Where the penalty begins and where it is full."""

    max_tokens: int = Field(default=20480, ge=1)
    """L_max: at this length, and beyond it, the penalty is full."""
    cache_tokens: int = Field(default=4096, ge=1)
    """L_cache: the penalty grows in a straight line over the last so many tokens before L_max."""
    factor: float = Field(default=1.0, gt=0)
    """Size of the full penalty."""

    @model_validator(mode="after")
    def _room(self) -> Self:
        if self.cache_tokens > self.max_tokens:
            raise ValueError(f"cache_tokens {self.cache_tokens} is more than max_tokens {self.max_tokens}")
        return self


@dataclass(frozen=True)
class Overlong:
    """In [-factor, 0]: the soft overlong punishment of DAPO (Yu et al. 2025, arXiv 2503.14476, equation 13).

    0 up to L_max - L_cache, then ((L_max - L_cache) - n) / L_cache, then -1; all times the factor. To be added to a
    reward of correctness; an empty response is short, hence 0.
    """

    options: OverlongOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        count, options = token_count(rollout), self.options
        value = options.factor * overlong_value(count.number, options.max_tokens, options.cache_tokens)
        summary = f"{count.number} {count.unit}; free up to {options.max_tokens - options.cache_tokens}"
        return Verdict.score(value, evidence=Evidence(kind="length", summary=summary, data=count.number))

    def check_task(self, task: Task) -> str | None:
        """Nothing of the task is needed."""
        return None


def overlong_value(number: int, max_tokens: int, cache_tokens: int) -> float:
    """The penalty in [-1, 0] of `number` tokens."""
    free = max_tokens - cache_tokens
    if number <= free:
        return 0.0
    return (free - number) / cache_tokens if number <= max_tokens else -1.0
