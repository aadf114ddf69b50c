"""Readers: one row of a data file to one example. A row says what is missing; the caller adds file and line."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import Field

from assay.component import Options
from assay.errors import ConfigError
from assay.protocols import Encode, Example


class PairColumns(Options):
    """Where a pair stands: texts, or lists of messages of which the last is the response."""

    prompt_column: str = "prompt"
    """A text or a list of messages; may be absent where `chosen` and `rejected` are whole conversations."""
    chosen_column: str = "chosen"
    """The better response."""
    rejected_column: str = "rejected"
    """The worse response."""
    margin_column: str | None = None
    """A number by which the better one must win; None for 0."""
    weight_column: str | None = None
    """A weight of the pair; None for 1."""


class SingleColumns(Options):
    """Where a single judged response stands."""

    prompt_column: str = "prompt"
    """A text or a list of messages."""
    response_column: str = "response"
    """The response."""
    label_column: str = "label"
    """Whether it is desirable: true, 1 or `+1`; false, 0 or `-1`."""


class RankedColumns(Options):
    """Where a ranked list stands."""

    prompt_column: str = "prompt"
    """A text or a list of messages."""
    responses_column: str = "responses"
    """A list of responses, best first unless scores are given."""
    scores_column: str | None = None
    """A list of numbers, one per response, that ranks them."""
    top: int | None = Field(default=None, ge=1)
    """How many of the best to keep; None for all."""
    bottom: int | None = Field(default=None, ge=1)
    """How many of the worst to keep; None for all."""


class TextColumns(Options):
    """Where a response to imitate stands."""

    prompt_column: str = "prompt"
    """A text or a list of messages."""
    response_column: str = "response"
    """The response."""
    messages_column: str | None = None
    """A whole conversation whose last message is the response, instead of the two above."""
    text_column: str | None = None
    """Plain text without a prompt (a pretraining stream), instead of all above."""
    weight_column: str | None = None
    """A weight of the row; None for 1."""


def read_pair(row: Mapping[str, Any], columns: PairColumns, encode: Encode) -> Example | None:
    """(chosen, rejected), or None where one is empty or both are equal."""
    sequences: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    texts: list[str] = []
    for name in (columns.chosen_column, columns.rejected_column):
        prompt, response = _split(row, name, columns.prompt_column)
        texts.append(response)
        sequences.append(encode(prompt, response))
    if sequences[0][0] != sequences[1][0]:
        raise ConfigError(
            f"columns {columns.chosen_column!r} and {columns.rejected_column!r}: they answer different prompts; "
            "a pair has one prompt"
        )
    if texts[0] == texts[1] or not all(texts):
        return None
    facts = {} if columns.margin_column is None else {"margin": number(row, columns.margin_column)}
    return Example(tuple(sequences), weight=_weight(row, columns.weight_column), facts=facts)


def read_single(row: Mapping[str, Any], columns: SingleColumns, encode: Encode) -> Example | None:
    """One response with `facts["label"]`, or None where it is empty."""
    prompt, response = _split(row, columns.response_column, columns.prompt_column)
    label = column(row, columns.label_column)
    if isinstance(label, str) or label not in (True, False, 1, 0, -1):
        raise ConfigError(f"column {columns.label_column!r}: a label is true or false, 1, 0 or -1; found {label!r}")
    if not response:
        return None
    return Example((encode(prompt, response),), facts={"label": label > 0})


def read_ranked(row: Mapping[str, Any], columns: RankedColumns, encode: Encode) -> Example | None:
    """Responses best first, or None where fewer than two different ones are left."""
    prompt = column(row, columns.prompt_column)
    responses = _list(row, columns.responses_column)
    for text in responses:
        if not isinstance(text, str):
            raise ConfigError(f"column {columns.responses_column!r}: a list of texts is expected; found {text!r:.100}")
    if columns.scores_column is not None:
        scores = [_finite(score, columns.scores_column) for score in _list(row, columns.scores_column)]
        if len(scores) != len(responses):
            raise ConfigError(
                f"column {columns.scores_column!r}: one score per response; "
                f"found {len(scores)} scores for {len(responses)} responses"
            )
        order = sorted(range(len(responses)), key=lambda index: -scores[index])
        responses = [responses[index] for index in order]
    kept = chosen_ends([text for text in responses if text], columns.top, columns.bottom)
    if len(set(kept)) < 2:
        return None
    return Example(tuple(encode(prompt, text) for text in kept))


def read_text(row: Mapping[str, Any], columns: TextColumns, encode: Encode) -> Example | None:
    """One response to imitate, or None where it is empty."""
    if columns.text_column is not None:
        return _plain_text(row, columns, encode)
    if columns.messages_column is not None:
        prompt, response = _conversation(row, columns.messages_column)
    else:
        prompt, response = _split(row, columns.response_column, columns.prompt_column)
    return Example((encode(prompt, response),), weight=_weight(row, columns.weight_column)) if response else None


def _plain_text(row: Mapping[str, Any], columns: TextColumns, encode: Encode) -> Example | None:
    """A text without a prompt: its first token stands in for one, and the others are predicted."""
    text = column(row, str(columns.text_column))
    if not isinstance(text, str):
        raise ConfigError(f"column {columns.text_column!r}: a text is expected; found {type(text).__name__}")
    ids = encode("", text)[1]
    if len(ids) < 2:
        return None
    return Example(((ids[:1], ids[1:]),), weight=_weight(row, columns.weight_column))


def chosen_ends(ranked: Sequence[str], top: int | None, bottom: int | None) -> list[str]:
    """The first `top` and the last `bottom` of a list, each response once; all where both are None."""
    if top is None and bottom is None:
        return list(ranked)
    first = list(ranked[: top if top is not None else 0])
    rest = list(ranked[len(first) :])
    return first + (rest[-bottom:] if bottom is not None else [])


def column(row: Mapping[str, Any], name: str) -> Any:
    """The value of a column; raises `ConfigError` with the columns that were found."""
    if name not in row:
        raise ConfigError(f"column {name!r}: missing; found {', '.join(map(repr, row)) or 'no columns'}")
    return row[name]


def number(row: Mapping[str, Any], name: str) -> float:
    """A finite number of a column."""
    return _finite(column(row, name), name)


def _finite(value: Any, name: str) -> float:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or not abs(value) <= sys.float_info.max:
        raise ConfigError(f"column {name!r}: a finite number is expected; found {value!r:.60}")
    return float(value)


def _weight(row: Mapping[str, Any], name: str | None) -> float:
    weight = 1.0 if name is None else number(row, name)
    if weight < 0:
        raise ConfigError(f"column {name!r}: a weight is 0 or more; found {weight:g}")
    return weight


def _list(row: Mapping[str, Any], name: str) -> list[Any]:
    value = column(row, name)
    if not isinstance(value, list):
        raise ConfigError(f"column {name!r}: a list is expected; found {type(value).__name__}")
    return cast("list[Any]", value)


def _conversation(row: Mapping[str, Any], name: str) -> tuple[Any, str]:
    value = column(row, name)
    if not isinstance(value, list) or len(cast("list[Any]", value)) < 2:
        raise ConfigError(f"column {name!r}: a list of two messages or more is expected; found {value!r:.100}")
    return _split(row, name, name)


def _split(row: Mapping[str, Any], name: str, prompt_column: str) -> tuple[Any, str]:
    value = column(row, name)
    if isinstance(value, str):
        return column(row, prompt_column), value
    if isinstance(value, list) and value:
        *before, last = cast("list[Any]", value)
        if isinstance(last, Mapping) and isinstance(cast("Mapping[str, Any]", last).get("content"), str):
            response = cast("Mapping[str, Any]", last)
            if (role := response.get("role", "assistant")) != "assistant":
                raise ConfigError(f"column {name!r}: the last message is the response, and its role is {role!r}")
            return before or column(row, prompt_column), str(response["content"])
    kind = type(cast("object", value)).__name__
    raise ConfigError(f"column {name!r}: a text or a list of messages is expected; found {kind}")
