"""When is a prefix alive, and when is that certain; pure functions of counts.

A *prefix* of k steps is alive when the sampler still reaches a right answer from it. Completions that were cut off or
that nobody could judge are spent but decide nothing.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, Protocol

State = Literal["alive", "dead", "open", "unknown"]
"""`open`: more completions are needed; `unknown`: all are spent and none of them could be judged."""


class Counts(NamedTuple):
    """What is known of one prefix."""

    successes: int = 0
    """Judged completions that are right."""
    attempts: int = 0
    """Judged completions."""
    spent: int = 0
    """Completions drawn, those included that were cut off or could not be judged."""
    given: int = 0
    """Right solutions of the data itself that begin with this prefix; each shows that it is alive."""


class Rule(Protocol):
    """Decides about one prefix."""

    def state(self, counts: Counts) -> State:
        """What is certain by now."""
        ...

    def wave(self, counts: Counts) -> int:
        """How many completions to draw next; at least 1 while the state is `open`."""
        ...


class AnyOf(NamedTuple):
    """Alive with one success in `cap` completions (Math-Shepherd's hard estimate, arXiv 2312.08935), drawn in waves.

    The waves are 1, 1, 2, 4, 8: most living prefixes show themselves in the first.
    """

    cap: int

    def state(self, counts: Counts) -> State:
        """What is certain by now."""
        if counts.successes + counts.given > 0:
            return "alive"
        if counts.spent < self.cap:
            return "open"
        return "dead" if counts.attempts else "unknown"

    def wave(self, counts: Counts) -> int:
        """As many as were spent, at least one."""
        return min(max(1, counts.spent), self.cap - counts.spent)


class AtLeast(NamedTuple):
    """Alive with `needed` successes in at most `cap` completions; ends as soon as that is certain either way.

    Two successes instead of one keep a wrong prefix from passing by a lucky completion.
    """

    needed: int
    cap: int

    def state(self, counts: Counts) -> State:
        """What is certain by now."""
        successes = counts.successes + counts.given
        if successes >= self.needed:
            return "alive"
        if successes + self.cap - counts.spent >= self.needed:
            return "open"
        return "dead" if counts.attempts else "unknown"

    def wave(self, counts: Counts) -> int:
        """What could be enough at once, then as many as were spent; never one that cannot decide any more."""
        missing = self.needed - counts.successes - counts.given
        return min(max(missing, counts.spent), self.cap - counts.spent)


class Wald(NamedTuple):
    """Sequential test of "as likely as the bare problem" against a leak of `leak` (Wald 1945), at most `cap`.

    Each completion adds log(p/leak) or log((1-p)/(1-leak)); the test ends at +-log((1-error)/error), and at the cap by
    the sign.
    """

    alive_rate: float
    """p: at least how often the bare problem is solved, clipped to [0.2, 0.9] by `wald`."""
    cap: int
    leak: float = 0.04
    error: float = 0.05

    def state(self, counts: Counts) -> State:
        """What is certain by now."""
        evidence = self.evidence(counts)
        bound = math.log((1 - self.error) / self.error)
        if evidence >= bound:
            return "alive"
        if evidence <= -bound:
            return "dead"
        if counts.spent < self.cap:
            return "open"
        if not counts.attempts and not counts.given:
            return "unknown"
        return "alive" if evidence > 0 else "dead"

    def wave(self, counts: Counts) -> int:
        """As many as an unbroken run of successes or of failures needs to end the test, at most four at a time."""
        bound = math.log((1 - self.error) / self.error)
        up, down = self._steps()
        to_end = min((bound - self.evidence(counts)) / up, (bound + self.evidence(counts)) / -down)
        return min(max(1, math.ceil(to_end - 1e-9)), 4, self.cap - counts.spent)

    def evidence(self, counts: Counts) -> float:
        """Log-likelihood ratio of alive against dead."""
        up, down = self._steps()
        successes = counts.successes + counts.given
        return successes * up + (counts.attempts - counts.successes) * down

    def _steps(self) -> tuple[float, float]:
        up = math.log(self.alive_rate / self.leak)
        return up, math.log((1 - self.alive_rate) / (1 - self.leak))


class All(NamedTuple):
    """Always all `cap` completions, for soft labels: alive where any succeeded."""

    cap: int

    def state(self, counts: Counts) -> State:
        """What is certain by now."""
        if counts.spent < self.cap:
            return "open"
        if not counts.attempts:
            return "alive" if counts.given else "unknown"
        return "alive" if counts.successes + counts.given else "dead"

    def wave(self, counts: Counts) -> int:
        """All that are left."""
        return self.cap - counts.spent


def wald(pass_rate: float, cap: int) -> Wald:
    """The sequential test for a problem that is solved at least so often.

    Hand in the low end of what a few solutions say of the pass rate: their plain share is often too high, and living
    prefixes are then called dead after two or three failures.
    """
    return Wald(min(0.9, max(0.2, pass_rate)), cap)
