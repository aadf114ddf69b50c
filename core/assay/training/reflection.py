"""Words by which a reasoning text turns back on itself, as text and as tokens of a vocabulary."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

REFLECTION_WORDS = ("wait", "however", "alternatively", "hmm", "recheck", "re-check", "reconsider", "verify", "mistake")
"""Matched as whole words, in any case."""

_known: WeakKeyDictionary[Any, frozenset[int]] = WeakKeyDictionary()


def reflection_ids(tokenizer: Any) -> frozenset[int]:
    """Ids of the tokens that begin a reflection word: its first piece, as it stands after a blank or a line break.

    A first piece of fewer than four letters begins other words too, and is left out unless it is the whole word.
    """
    if tokenizer not in _known:
        found: set[int] = set()
        for word in REFLECTION_WORDS:
            for written in (word, word.capitalize(), f" {word}", f" {word.capitalize()}"):
                ids = tokenizer.encode(written, add_special_tokens=False)
                if ids and len(tokenizer.decode(ids[:1]).strip()) >= min(4, len(word)):
                    found.add(ids[0])
        _known[tokenizer] = frozenset(found)
    return _known[tokenizer]
