"""Rows of data files to examples: the checks that every objective shares."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

from pydantic import Field, ValidationError

from assay.contracts import Span
from assay.errors import ConfigError
from assay.protocols import Encoder, Example
from assay.rows import finite
from assay.steps import SplitterOptions, join_steps, step_spans
from assay_prms.aggregate import Aggregation
from assay_prms.fields import FormatOptions
from assay_prms.formats import FORMATS, read_row
from assay_prms.places import Placed, place_steps
from assay_prms.rows import StepRow, make_row

log = logging.getLogger(__name__)


class RewardOptions(FormatOptions):
    """What all reward-model objectives share."""

    splitter: SplitterOptions = SplitterOptions()
    """How responses are cut into steps, in training as in scoring."""
    marker: str | None = None
    """A single token put behind each step, after which it is judged; None judges after the step's own last token."""
    aggregation: Aggregation = "min"
    """How step scores become the response's score; saved with the weights."""
    threshold: float | None = None
    """Steps from this score on are good; saved with the weights."""
    companion: float | None = Field(default=None, ge=0)
    """Weight of the language-model loss on the response beside the reward loss (it helps small models to learn at any
    rate); None is 1 for models under about a billion parameters (hidden size up to 1280) and 0 above."""


@dataclass(frozen=True)
class Judged:
    """One response with its outcome."""

    prompt: Any
    text: str
    spans: tuple[Span, ...]
    label: bool
    domain: str | None = None


def solutions(row: Mapping[str, Any], options: RewardOptions) -> list[StepRow]:
    """The solutions with step labels in a row; a response with a list of labels is split first.

    Raises:
        ConfigError: the row keeps to no known format, or it has more or fewer labels than steps.
    """
    text, labels = row.get("response"), row.get("labels")
    if options.format == "auto" and isinstance(text, str) and isinstance(labels, list) and "prompt" in row:
        steps = [text[span.start : span.end] for span in step_spans(text, options.splitter)]
        known = {key: row[key] for key in ("domain", "outcome") if row.get(key) is not None}
        return [make_row(row["prompt"], steps, cast("list[Any]", labels), **known)]
    try:
        return read_row(row, options)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc'])) or 'row'}: {first['msg']}") from error


def join(row: StepRow, splitter: SplitterOptions) -> tuple[str, tuple[Span, ...]]:
    """The row's response as one text, and its steps in it."""
    return join_steps(row.steps, splitter.between)


def judged(row: Mapping[str, Any], options: RewardOptions) -> list[Judged]:
    """Responses with an outcome: `prompt`, `response` and `label`, or solutions with an outcome.

    Raises:
        ConfigError: there is no label, or it is neither true nor false.
    """
    if isinstance(row.get("response"), str) and "prompt" in row:
        text = str(row["response"])
        label = outcome_of(row, "label")
        domain = row.get("domain")
        spans = step_spans(text, options.splitter)
        return [Judged(row["prompt"], text, spans, label, domain if isinstance(domain, str) else None)]
    found: list[Judged] = []
    for solution in solutions(row, options.model_copy(update={"after_first_error": "keep", "alternatives": False})):
        if solution.outcome is not None:
            text, spans = join(solution, options.splitter)
            spans = tuple(span for span in spans if span.start < span.end)  # a blank text is no step
            found.append(Judged(solution.prompt, text, spans, solution.outcome, solution.domain))
    return found


def outcome_of(row: Mapping[str, Any], name: str) -> bool:
    """A column that is true or false, 1, 0 or -1."""
    if name not in row:
        raise ConfigError(f"column {name!r}: missing; found {', '.join(map(repr, row))}")
    value = row[name]
    if isinstance(value, str) or value is None or value not in (True, False, 1, 0, -1):
        raise ConfigError(f"column {name!r}: an outcome is true or false, 1, 0 or -1; found {value!r}")
    return value > 0


class Pair(NamedTuple):
    """Two responses, and what is known of how much better the first one is."""

    chosen: tuple[Any, str]
    """Prompt and response."""
    rejected: tuple[Any, str]
    margin: float
    preference: float
    """Chance in [0, 1] that the chosen one is the better one."""


def pair_of(row: Mapping[str, Any]) -> Pair:
    """The pair of a row with `prompt`, `chosen`, `rejected`, and perhaps `margin` and `preference`.

    `preference` is a chance, or a judge's two log-probs: of the option that named the chosen response, and of the
    other.
    """
    for name in ("chosen", "rejected"):
        if name not in row:
            raise ConfigError(f"column {name!r}: missing; found {', '.join(map(repr, row)) or 'no columns'}")
    chosen, rejected = _response(row, "chosen"), _response(row, "rejected")
    margin = finite(row.get("margin", 0.0))
    if margin is None:
        raise ConfigError(f"column 'margin': a number is expected; found {row['margin']!r:.60}")
    return Pair(chosen, rejected, margin, _preference(row.get("preference", 1.0)))


def _preference(value: object) -> float:
    """A chance as it is, or that of two log-probs."""
    from assay_prms.losses import option_preference

    chance = finite(value)
    if chance is not None and 0 <= chance <= 1:
        return chance
    if isinstance(value, list):
        logps = [logp for each in cast("list[Any]", value) if (logp := finite(each)) is not None and logp <= 0]
        if len(logps) == 2 == len(cast("list[Any]", value)):
            return option_preference(logps[0], logps[1])
    raise ConfigError(
        f"column 'preference': a chance from 0 to 1 or two log-probs up to 0 are expected; found {value!r}"
    )


def _response(row: Mapping[str, Any], name: str) -> tuple[Any, str]:
    value = row[name]
    if isinstance(value, str):
        if "prompt" not in row:
            raise ConfigError(f"column 'prompt': missing; found {', '.join(map(repr, row))}")
        return row["prompt"], value
    if isinstance(value, list) and value:
        *before, last = cast("list[object]", value)
        content = cast("Mapping[str, Any]", last).get("content") if isinstance(last, Mapping) else None
        if isinstance(content, str):
            return before or row.get("prompt"), content
    raise ConfigError(
        f"column {name!r}: a text or a list of messages is expected; found {type(cast('object', value)).__name__}"
    )


def literal(encode: Encoder) -> Encoder:
    """The encoder by which a response's text stays text, whatever special tokens it spells."""
    own = getattr(encode, "literal", None)
    return encode if own is None or isinstance(own, bool) else cast("Encoder", own())


def placed(encode: Encoder, prompt: Any, text: str, spans: Sequence[Span], options: RewardOptions) -> Placed:
    """The response as tokens with one place per step; see `place_steps`."""
    return place_steps(literal(encode), prompt, text, spans, marker=options.marker)


Targets = Literal["label", "hard", "soft"]


def targets_of(row: StepRow, targets: Targets, *, hard_only: bool = False) -> list[float | None]:
    """One number or None per step, in the asked view of what is known.

    Raises:
        ConfigError: a soft label where only right or wrong can be used.
    """
    found: list[float | None] = []
    for number, step in enumerate(row.labels, 1):
        if targets == "soft":
            value = step.soft
        elif targets == "hard":
            value = step.hard
        else:
            value = step.label if step.label is not None else step.hard
        if hard_only and value not in (None, 0.0, 1.0):
            raise ConfigError(
                f"labels: step {number} has the soft label {value}, and this objective ranks right above wrong. "
                'Set targets = "hard"'
            )
        found.append(value)
    return found


def with_fact(examples: Sequence[Example], **facts: Any) -> list[Example]:
    """The examples with further facts."""
    return [replace(example, facts={**example.facts, **facts}) for example in examples]


def known_formats() -> str:
    """The names of all formats."""
    return ", ".join(FORMATS)
