"""Which prefixes of one solution are looked at, in which order, and what their states say of its steps; pure.

A solution of K steps has the prefixes of 1 to K-1 steps to ask about; of all K steps its own answer tells. A plan is
asked for the prefixes that it wants, is told their states, and in the end labels the steps: 1 right, 0 the first wrong
one, None where nothing is known (steps after the first wrong one always).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from assay.labels.decisions import All, AnyOf, AtLeast, Rule, State, wald

Mode = Literal["auto", "hard_exact", "soft"]
LONG = 8
"""`auto` searches solutions with more steps than this by halving instead of scanning them."""


class Plan(Protocol):
    """How one solution is labelled."""

    rule: Rule

    def wanted(self, states: Mapping[int, State]) -> Sequence[int]:
        """Prefix lengths to ask about next, given all states so far; empty when done."""
        ...

    def labels(self, states: Mapping[int, State]) -> list[float | None]:
        """One label per step, once nothing is wanted."""
        ...


class Right:
    """A right solution in the hard modes: its own answer shows that every prefix is alive."""

    def __init__(self, steps: int) -> None:
        """A solution of so many steps."""
        self.steps = steps
        self.rule: Rule = AnyOf(1)

    def wanted(self, states: Mapping[int, State]) -> Sequence[int]:
        """Nothing."""
        return ()

    def labels(self, states: Mapping[int, State]) -> list[float | None]:
        """All right."""
        return [1.0] * self.steps


class Scan:
    """A wrong solution, asked from the left until the first dead prefix."""

    def __init__(self, steps: int, rule: Rule) -> None:
        """A solution of so many steps under `rule`."""
        self.steps = steps
        self.rule = rule

    def wanted(self, states: Mapping[int, State]) -> Sequence[int]:
        """The next prefix that is open, while none is dead."""
        for length in range(1, self.steps):
            state = states.get(length, "open")
            if state == "dead":
                return ()
            if state == "open":
                return (length,)
        return ()

    def labels(self, states: Mapping[int, State]) -> list[float | None]:
        """Right up to the first dead prefix; the last step where every prefix is alive. See `closed`."""
        dead = next((length for length in range(1, self.steps) if states.get(length) == "dead"), self.steps)
        return closed(self.steps, dead, states)


class Halving:
    """A wrong solution with many steps: the first dead prefix by binary search, since what is dead stays dead."""

    def __init__(self, steps: int, rule: Rule) -> None:
        """A solution of so many steps under `rule`."""
        self.steps = steps
        self.rule = rule

    def wanted(self, states: Mapping[int, State]) -> Sequence[int]:
        """The middle of what is left; nothing where it is known or where its state cannot be known."""
        low, high = self._bounds(states)
        middle = (low + high) // 2
        if high - low <= 1 or states.get(middle) == "unknown":
            return ()
        return (middle,)

    def labels(self, states: Mapping[int, State]) -> list[float | None]:
        """As for a scan; steps between the bounds stay unknown where the search could not end."""
        low, high = self._bounds(states)
        if high - low <= 1:
            return closed(self.steps, high, {})
        return [1.0] * low + [None] * (self.steps - low)

    def _bounds(self, states: Mapping[int, State]) -> tuple[int, int]:
        """Longest prefix taken for alive and shortest one taken for dead on the path of the search."""
        low, high = 0, self.steps
        while high - low > 1:
            state = states.get((low + high) // 2)
            if state == "alive":
                low = (low + high) // 2
            elif state == "dead":
                high = (low + high) // 2
            else:
                break
        return low, high


class Everything:
    """Soft labels: every prefix with all completions, the longest first."""

    def __init__(self, steps: int, rule: Rule, *, right: bool) -> None:
        """A solution of so many steps whose own answer is `right` or not."""
        self.steps = steps
        self.rule = rule
        self.right = right

    def wanted(self, states: Mapping[int, State]) -> Sequence[int]:
        """All that are open."""
        return [length for length in range(self.steps - 1, 0, -1) if states.get(length, "open") == "open"]

    def labels(self, states: Mapping[int, State]) -> list[float | None]:
        """The last step's own outcome; the shares of the others come from their counts."""
        return [None] * (self.steps - 1) + [float(self.right)]


def closed(steps: int, dead: int, states: Mapping[int, State]) -> list[float | None]:
    """Labels of a wrong solution whose prefix of `dead` steps is the first dead one.

    A prefix whose state could not be known counts as right where a longer one is alive (what lives has lived before),
    and is unknown where the dead one follows it: then nobody knows which of the two is the first.
    """
    alive = max((length for length in range(1, dead) if states.get(length, "alive") == "alive"), default=0)
    first: list[float | None] = [1.0] * alive
    return first + [None] * (dead - 1 - alive) + [0.0] + [None] * (steps - dead)


def plan_for(mode: Mode, steps: int, *, right: bool, pass_rate: float, samples: int) -> Plan:
    """The plan of a solution with so many steps, of a problem solved at least so often, with `samples` completions."""
    if mode == "soft":
        return Everything(steps, All(samples), right=right)
    if right:
        return Right(steps)
    if mode == "hard_exact":
        return Scan(steps, AnyOf(samples))
    if steps > LONG:
        return Halving(steps, wald(pass_rate, samples))
    return Scan(steps, AtLeast(min(2, samples), samples))
