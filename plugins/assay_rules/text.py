"""Text helpers that every rule shares: the answer zone, what can be shown of a text, and counting tokens."""

import re
from typing import NamedTuple

from assay.contracts import Rollout

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
_PIECE = re.compile(r"\w+|[^\w\s]")


def answer_zone(text: str) -> str | None:
    """The text that may hold the answer: what follows the last `</think>`, or all of it when nothing is thought.

    None where a think block opens and never closes: such a response has no answer.
    """
    head, closed, tail = text.rpartition(THINK_CLOSE)
    if THINK_OPEN in tail:
        return None
    return tail if closed else head + tail


def shown(text: str, limit: int = 80) -> str:
    """`text` as a quoted, printable line of about `limit` characters; control and broken characters are escaped."""
    short = text if len(text) <= limit else f"{text[: limit // 2]}...{text[-(limit // 2) :]}"
    return repr(short).encode("utf-8", "backslashreplace").decode("utf-8")


def storable(text: str, limit: int = 2000) -> str:
    """`text` cut to `limit` characters and without lone surrogates, so that it survives JSON."""
    return text[:limit].encode("utf-8", "backslashreplace").decode("utf-8")


class Count(NamedTuple):
    """How long something is, and what was counted."""

    number: int
    unit: str


def token_count(rollout: Rollout) -> Count:
    """The response's trainable tokens.

    Where the engine gave no token ids (a file of texts), words and punctuation marks are counted instead, and the unit
    says so.
    """
    turns = [turn for turn in rollout.turns if turn.trainable]
    if all(turn.token_ids is not None for turn in turns):
        return Count(sum(len(turn.token_ids or ()) for turn in turns), "tokens")
    return Count(sum(1 for turn in turns for _ in _PIECE.finditer(turn.text)), "words and marks")
