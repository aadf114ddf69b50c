"""Whether a source that takes batches answers in their order; pure.

Nothing in a verdict says whose it is, so a source that sorts its batch and forgets to sort back returns numbers that
look right. Of some batches a part (half, but up to 16 all but one) is therefore asked for again, shuffled, and must
come out as it did. Only batches with at least two different decisions are worth it (any order of equal ones is right),
and what is asked again holds two different ones. Each of the first `probation` such batches is due, then one in
`every`, but no more than `per_wave` of those that waited together, so that n waiting candidates cost at most that many
calls beyond their batches. Once a batch does not come out as it did, the source gets one candidate at a time, whose
order cannot be wrong. A wrong order that is asked again passes by chance: batches of 4 one time in 5, of 8 in 35, of 16
in 200 or more seldom. A source that errs now and then is found when one of the batches in which it errs is asked again.
"""

import math
import random
from collections.abc import Sequence

from assay.contracts import Verdict


class OrderWatch:
    """Counts the batches of one source and says what of which is asked for again."""

    def __init__(self, *, probation: int = 10, every: int = 50, per_wave: int = 2) -> None:
        """Nothing is known of the source yet."""
        self.probation = probation
        self.every = every
        self.per_wave = per_wave
        self.broken = False
        """Whether an answer was in another order than its batch."""
        self._asked = 0
        self._unasked = 0
        self._wave = -1
        self._asked_of_wave = 0

    def picks(self, answer: Sequence[Verdict], wave: int, draw: random.Random) -> Sequence[int]:
        """Places in the batch of wave number `wave` to ask for again, in this order; none where it is not its turn."""
        if wave > self._wave:
            self._wave, self._asked_of_wave = wave, 0
        one = draw.randrange(len(answer))
        others = [place for place in range(len(answer)) if not same(answer[one], answer[place])]
        if not others:
            return []
        due = self._asked < self.probation or self._unasked >= self.every - 1
        if not due or wave < self._wave or self._asked_of_wave >= self.per_wave:
            self._unasked += 1
            return []
        self._asked += 1
        self._unasked = 0
        self._asked_of_wave += 1
        size = min(len(answer) - 1, max(16, len(answer) // 2))
        pair = [one, draw.choice(others)]
        rest = [place for place in range(len(answer)) if place not in pair]
        picked = (pair + draw.sample(rest, max(0, size - len(pair))))[:size]
        draw.shuffle(picked)
        return picked

    def compare(self, answer: Sequence[Verdict], picked: Sequence[int], again: Sequence[Verdict]) -> bool:
        """Whether the candidates at `picked` got the same again; remembers where they did not."""
        kept = all(same(answer[place], other) for place, other in zip(picked, again, strict=True))
        self.broken = self.broken or not kept
        return kept


def same(one: Verdict, other: Verdict) -> bool:
    """Whether two verdicts decide alike; values may differ by what the shape of a batch does to a sum."""
    if one.status != other.status or one.fault != other.fault:
        return False
    if one.value is None or other.value is None:
        return one.value is other.value
    return math.isclose(one.value, other.value, rel_tol=1e-3, abs_tol=1e-4)
