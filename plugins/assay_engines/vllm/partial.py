"""A response as it grows over one or more attempts, and the versions of the weights that made each of its tokens.

Pure bookkeeping. The server tells versions only when a request ends; of one that is lost on the way, those tokens count
that came before any update began, since they can only have been made by the version in use when the attempt started.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from assay.contracts import WeightSpan


class ServerSpan(NamedTuple):
    """Tokens `[start, end)` of one attempt and their version, as the server tells it."""

    version: int
    start: int
    end: int


@dataclass
class Partial:
    """Tokens so far."""

    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    spans: list[WeightSpan] = field(default_factory=list[WeightSpan])
    """Of the tokens of closed attempts."""
    kept: int = 0
    """Tokens of closed attempts."""
    version: int = 0
    """Version in use when the running attempt began."""
    certain: int | None = None
    """How many tokens had come when an update began during the running attempt; None where none did."""

    def begin(self, version: int, *, updating: bool) -> None:
        """An attempt begins; `updating` while new weights are on their way."""
        self.version = version
        self.certain = self.kept if updating else None

    def add(self, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Tokens arrived."""
        self.tokens.extend(tokens)
        self.logprobs.extend(logprobs)

    def doubt(self) -> None:
        """An update begins: later tokens of this attempt may be of either version."""
        if self.certain is None:
            self.certain = len(self.tokens)

    def close(self, spans: Sequence[ServerSpan]) -> None:
        """The attempt ended and the server told its versions; raises `ValueError` where they miss a token."""
        place = 0
        for span in spans:
            if span.start != place or span.end < span.start:
                raise ValueError(f"the server's weight versions leave a gap: {list(spans)}")
            self._append(span.version, span.end - span.start)
            place = span.end
        if self.kept != len(self.tokens):
            raise ValueError(f"the server's weight versions cover {self.kept} of {len(self.tokens)} tokens")

    def lose(self, *, keep: bool) -> None:
        """The attempt was lost: forget what is uncertain of it, and all of the response unless `keep`."""
        if not keep:
            self.tokens.clear()
            self.logprobs.clear()
            self.spans.clear()
            self.kept = 0
            return
        sure = len(self.tokens) if self.certain is None else self.certain
        del self.tokens[sure:], self.logprobs[sure:]
        self._append(self.version, sure - self.kept)

    def _append(self, version: int, count: int) -> None:
        if count <= 0:
            return
        first, last = self.kept, self.kept + count - 1
        if self.spans and self.spans[-1].version == version:
            first = self.spans.pop().first
        self.spans.append(WeightSpan(version=version, first=first, last=last))
        self.kept = last + 1


def attempt_seed(seed: int, kept: int) -> int:
    """The seed of an attempt that goes on after `kept` tokens: the request's own from the start, a fresh one later.

    The same one again would draw the later tokens with the random numbers that the first ones were drawn with.
    """
    if kept == 0:
        return seed & (2**63 - 1)
    return int.from_bytes(hashlib.blake2b(f"{seed}:{kept}".encode(), digest_size=8).digest(), "big") >> 1
