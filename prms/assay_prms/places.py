"""Steps of a response as token positions of one tokenizer; training and scoring call the same function."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

from assay.contracts import Span
from assay.errors import ConfigError
from assay.protocols import Encoder

Ids = tuple[int, ...]


class Placed(NamedTuple):
    """A response as token ids, and where its steps end."""

    prompt: Ids
    response: Ids
    places: tuple[int, ...]
    """Index in `response` of the token after which each step is judged: the step's last token, or its marker."""


def place_steps(
    encode: Encoder, prompt: Any, response: str, spans: Sequence[Span], *, marker: str | None = None, between: str = ""
) -> Placed:
    """The response of `prompt` with one position for each span.

    Without a marker the text is tokenised once, as a whole, and a step's place is the token that holds its last
    character; a separator that the tokenizer fuses with it changes nothing. With a marker every step is tokenised
    apart, `between` before all but the first, and the marker's id is put behind it: marker text inside the response
    stays ordinary text.

    Raises:
        ConfigError: the marker is not one token, or two steps end in one token, so that there are fewer places than
            steps.
    """
    if marker is not None:
        return _with_markers(encode, prompt, [response[s.start : s.end] for s in spans], marker, between)
    before, after = encode(prompt, response)
    places = places_of(encode.offsets(response), spans)
    if len(set(places)) != len(places) or any(place >= len(after) for place in places):
        raise ConfigError(
            f"response: {len(spans)} steps end in {len(set(places))} tokens; two of them share one. Split into longer "
            "steps"
        )
    return Placed(before, after, places)


def places_of(offsets: Sequence[tuple[int, int]], spans: Sequence[Span]) -> tuple[int, ...]:
    """Index of the last token that begins before the end of each span."""
    starts = [start for start, _ in offsets]
    return tuple(max(bisect_left(starts, span.end) - 1, 0) for span in spans)


def one_id(encode: Encoder, text: str, *, what: str) -> int:
    """The single id of a text; raises `ConfigError` where it is not one token."""
    ids = encode.ids(text)
    if len(ids) != 1:
        raise ConfigError(
            f"{what}: {text!r} must be one token of this tokenizer, spaces included; found {len(ids)}. Name another"
        )
    return ids[0]


def _with_markers(encode: Encoder, prompt: Any, steps: Sequence[str], marker: str, between: str) -> Placed:
    mark = one_id(encode, marker, what="marker")
    before, _ = encode(prompt, "")
    ids: list[int] = []
    places: list[int] = []
    for number, step in enumerate(steps):
        ids.extend(_step_ids(encode, between + step if number else step, marker, mark, first=number == 0))
        places.append(len(ids))
        ids.append(mark)
    return Placed(before, tuple(ids), tuple(places))


def _step_ids(encode: Encoder, text: str, marker: str, mark: int, *, first: bool) -> Ids:
    """Ids of a step by itself, as it stands behind a marker; marker ids come from `_with_markers` alone.

    Some tokenizers put a space before every text. Behind a marker there is none, so the marker goes along and is cut
    off again; where the tokenizer does not give its id back, the step stands by itself.
    """
    if not first:
        led = _literal_ids(encode, marker + text)
        if led[:1] == (mark,) and mark not in led[1:]:
            return led[1:]
    own = _literal_ids(encode, text)
    return own if mark not in own else _spelled(encode, text, marker)


def _literal_ids(encode: Encoder, text: str) -> Ids:
    """Ids of a response's text without the end token, special tokens that it spells left as text."""
    return encode("x", text)[1][:-1]


def _spelled(encode: Encoder, text: str, marker: str) -> Ids:
    """Ids of a text in which the marker is spelled out character by character."""
    found: list[int] = []
    for index, piece in enumerate(text.split(marker)):
        if index:
            for character in marker:
                found.extend(_literal_ids(encode, character))
        if piece:
            found.extend(_literal_ids(encode, piece))
    return tuple(found)
