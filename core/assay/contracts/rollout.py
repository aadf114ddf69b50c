"""What a policy answered, token by token, and the weights that made each token."""

from typing import Literal, Self

from pydantic import Field, model_validator

from assay.contracts._contract import Contract, Text
from assay.contracts.task import Role

Finish = Literal["stop", "length", "limit", "abort", "error"]
"""Why a rollout ended: its own stop token or string; `max_new_tokens`; a limit of the environment (turns, tools);
an abort from outside; an error of the engine."""


class Span(Contract):
    """A half-open range of characters of one text: `text[start:end]`."""

    start: int = Field(ge=0)
    end: int = Field(ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.end < self.start:
            raise ValueError(f"a span ends before it starts: {self.start}..{self.end}")
        return self


class Step(Contract):
    """One reasoning step of a response."""

    index: int = Field(ge=0)
    span: Span
    """Characters of the last turn's text."""


class WeightSpan(Contract):
    """Which policy version made which tokens of a response."""

    version: int = Field(ge=0)
    first: int = Field(ge=0)
    """Index of the first token, counted over the trainable tokens of the rollout."""
    last: int = Field(ge=0)
    """Index of the last token, inclusive."""


class Sampling(Contract):
    """How a response was, or shall be, drawn."""

    temperature: float = Field(default=1.0, ge=0.0)
    """0 is greedy; log-probs are those of logits divided by the temperature (by 1 when greedy)."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Mass of the nucleus; below 1 the sampler's own log-probs are those of the truncated distribution."""
    max_new_tokens: int = Field(default=256, ge=1)
    stop: tuple[str, ...] = ()
    """Texts that end the response; the stop text itself is not part of it."""
    seed: int = 0
    """Seed of this request alone: the same seed gives the same tokens alone or in a batch."""


class Turn(Contract):
    """One stretch of text by one speaker after the task's messages."""

    role: Role = "assistant"
    text: Text
    token_ids: tuple[int, ...] | None = None
    """The sampled ids, exactly as the engine made them; never re-tokenised text."""
    logprobs: tuple[float, ...] | None = None
    """Log-probs of `token_ids` under the distribution really sampled from, or None where the engine has none."""
    trainable: bool = True
    """False for text that the policy did not write (a tool's answer, a forced phrase)."""

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        if self.logprobs is not None and len(self.logprobs) != len(self.token_ids or ()):
            raise ValueError(f"{len(self.logprobs)} log-probs for {len(self.token_ids or ())} token ids")
        return self


class Rollout(Contract):
    """One response to one task, and everything that is needed to train on it or to judge it again."""

    id: str = Field(min_length=1)
    task_id: str = Field(min_length=1)
    group_id: str = Field(min_length=1)
    """Responses to the same prompt in the same step share a group."""
    turns: tuple[Turn, ...] = Field(min_length=1)
    prompt_ids: tuple[int, ...] | None = None
    """Token ids of the rendered task messages, as the engine saw them."""
    weight_versions: tuple[WeightSpan, ...] = ()
    """Spans of policy versions; more than one after an update in flight."""
    finish: Finish = "stop"
    sampling: Sampling = Sampling()

    @property
    def text(self) -> str:
        """The text of the last turn: the response that a verifier judges."""
        return self.turns[-1].text

    @property
    def truncated(self) -> bool:
        """Whether the response was cut off instead of ending by itself."""
        return self.finish in ("length", "limit", "abort")
