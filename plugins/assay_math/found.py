"""What extraction comes to: an answer and where it stands, or why there is none."""

from typing import NamedTuple


class Extraction(NamedTuple):
    """An answer as it stands in the response."""

    text: str
    """The answer's own text; several boxes are joined by commas (or by `or`)."""
    rule: str
    start: int
    """First character in the response."""
    end: int
    """One past the last character."""
    parts: int = 1
    """Number of boxes that it was joined from."""


class Missing(NamedTuple):
    """No answer: why, in a few words."""

    reason: str
