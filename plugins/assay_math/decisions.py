"""What comparing two expressions comes to."""

from typing import Literal, NamedTuple

Outcome = Literal["equal", "different", "unknown", "costly", "undefined"]


class Decision(NamedTuple):
    """An outcome, and the rule that it rests on, in one line."""

    outcome: Outcome
    rule: str


def equal(rule: str) -> Decision:
    """Equal, by `rule`."""
    return Decision("equal", rule)


def different(rule: str) -> Decision:
    """Different, by `rule`."""
    return Decision("different", rule)
