"""One row: a problem, the steps of one solution, and what is known of each; the form that every format is read into."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Literal, Self, cast

from pydantic import Field, model_validator

from assay.component import Options
from assay.errors import ConfigError
from assay.training.encoder import messages_of

Origin = Literal["human", "monte_carlo", "judge", "oracle", "outcome_only", "unknown"]
"""Where labels come from."""


class StepLabel(Options):
    """What is known of one step; counts are kept, since hard and soft labels are views of them."""

    label: float | None = Field(default=None, ge=0.0, le=1.0)
    """1 right, 0 wrong, between for a soft label; None where nothing is known, which is never taken for 0."""
    successes: int | None = Field(default=None, ge=0)
    """Continuations from this step that reached the right answer."""
    attempts: int | None = Field(default=None, ge=0)
    """Continuations whose answer could be judged."""

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        if (self.successes is None) != (self.attempts is None):
            raise ValueError("successes and attempts come together")
        if self.successes is not None and self.attempts is not None and self.successes > self.attempts:
            raise ValueError(f"{self.successes} successes in {self.attempts} attempts")
        return self

    @property
    def hard(self) -> float | None:
        """1 where any continuation succeeded or the label is at least one half, else 0 (Math-Shepherd's HE)."""
        if self.label is None and self.attempts:
            return float(bool(self.successes))
        return None if self.label is None else float(self.label >= 0.5)

    @property
    def value(self) -> float | None:
        """The label, else the share: what formats with one number per step hold."""
        return self.soft if self.label is None else self.label

    @property
    def soft(self) -> float | None:
        """The share of continuations that succeeded, else the label (Math-Shepherd's SE)."""
        if self.attempts and self.successes is not None:
            return self.successes / self.attempts
        return self.label


class StepRow(Options):
    """One solution and its labels."""

    problem: str
    """The question, as text."""
    messages: tuple[dict[str, str], ...] = ()
    """The question as a conversation, where it is more than one text."""
    steps: tuple[str, ...]
    labels: tuple[StepLabel, ...]
    """One per step."""
    outcome: bool | None = None
    """Whether the final answer is right."""
    domain: str | None = None
    origin: Origin = "unknown"
    provenance: dict[str, Any] = Field(default_factory=dict)
    """Source, policy version, seed, and whatever a format needs to be written back as it was."""

    @model_validator(mode="after")
    def _one_label_per_step(self) -> Self:
        if len(self.steps) != len(self.labels):
            raise ValueError(f"{len(self.labels)} labels for {len(self.steps)} steps")
        return self

    @property
    def prompt(self) -> Any:
        """What the model is given: the messages, or the problem."""
        return list(self.messages) if self.messages else self.problem

    @property
    def first_error(self) -> int | None:
        """0-based index of the first wrong step, or None: labelled below one half, or counted without any success.

        A label decides before its counts: 2 right continuations of 16 are the evidence behind a step called right.
        """
        return next((k for k, step in enumerate(self.labels) if step.hard == 0.0), None)

    @property
    def problem_hash(self) -> str:
        """A hash of the problem that does not see case and blank space; evaluation sets are told by it."""
        return hash_of(self.problem)

    def after_first_error(self, value: float | None = None) -> StepRow:
        """The row with every label after the first wrong step set to `value`; their meaning is disputed."""
        first = self.first_error
        if first is None:
            return self
        rest = tuple(StepLabel(label=value) for _ in self.labels[first + 1 :])
        return self.model_copy(update={"labels": self.labels[: first + 1] + rest})


def hash_of(problem: str) -> str:
    """The hash by which problems are compared across files."""
    return hashlib.sha256(" ".join(problem.split()).casefold().encode("utf-8", "surrogatepass")).hexdigest()[:16]


def make_row(
    problem: Any,
    steps: Sequence[Any],
    labels: Sequence[float | StepLabel | None],
    **more: Any,
) -> StepRow:
    """A checked row; raises `ConfigError` that says what does not fit."""
    texts: list[str] = []
    for number, step in enumerate(steps, 1):
        if not isinstance(step, str):
            raise ConfigError(f"step {number}: a text is expected; found {type(step).__name__}")
        texts.append(step)
    if len(texts) != len(labels):
        kind = "more" if len(labels) > len(texts) else "fewer"
        raise ConfigError(
            f"labels: {kind} labels than steps; found {len(labels)} labels for {len(texts)} steps. Give one label, "
            "or null, for each step"
        )
    messages: tuple[dict[str, str], ...] = ()
    if isinstance(problem, list):
        messages = tuple(messages_of(cast("list[Any]", problem)))
        problem = "\n\n".join(m["content"] for m in messages)
    if not isinstance(problem, str):
        raise ConfigError(f"problem: a text or a list of messages is expected; found {type(problem).__name__}")
    checked = tuple(_label(value, number) for number, value in enumerate(labels, 1))
    return StepRow(problem=problem, messages=messages, steps=tuple(texts), labels=checked, **more)


def _label(value: Any, number: int) -> StepLabel:
    if isinstance(value, StepLabel):
        return value
    if value is None:
        return StepLabel()
    if isinstance(value, bool | int | float) and 0 <= value <= 1:
        return StepLabel(label=float(value))
    raise ConfigError(
        f"labels: the label of step {number} is {json.dumps(value, default=repr)[:60]}; a label is true, false, "
        "a number from 0 to 1, or null"
    )
