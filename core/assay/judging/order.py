"""Whether a source that takes batches answers in their order; pure.

Nothing in a verdict says whose it is, so a source that sorts its batch and forgets to sort back returns numbers that
look right. Of some batches half is therefore asked for again, shuffled, and must come out as it did: of every batch
until `probation` of them could tell (held at least two different decisions) or `most` were asked for, then of one in
`every`. Once they do not, the source gets one candidate at a time, whose order cannot be wrong. What this finds for
certain is a source whose order depends on its candidates; one that errs now and then is found when it is asked again.
"""

import math
from collections.abc import Sequence

from assay.contracts import Verdict


class OrderWatch:
    """Counts the batches of one source and says of which a part is asked for again."""

    def __init__(self, *, probation: int = 5, most: int = 20, every: int = 50) -> None:
        """Nothing is known of the source yet."""
        self.probation = probation
        self.most = most
        self.every = every
        self.broken = False
        """Whether an answer was in another order than its batch."""
        self._told = 0
        self._asked = 0
        self._unasked = 0

    def due(self) -> bool:
        """Whether a part of the batch that was just answered is to be asked for again."""
        on_probation = self._told < self.probation and self._asked < self.most
        if on_probation or self._unasked >= self.every - 1:
            self._asked += 1
            self._unasked = 0
            return True
        self._unasked += 1
        return False

    def compare(self, answer: Sequence[Verdict], picked: Sequence[int], again: Sequence[Verdict]) -> bool:
        """Whether the candidates at `picked` got the same again; remembers where they did not."""
        kept = all(same(answer[index], other) for index, other in zip(picked, again, strict=True))
        if not kept:
            self.broken = True
        elif any(not same(answer[0], other) for other in answer[1:]):
            self._told += 1
        return kept


def same(one: Verdict, other: Verdict) -> bool:
    """Whether two verdicts decide alike; values may differ by what the shape of a batch does to a sum."""
    if one.status != other.status or one.fault != other.fault:
        return False
    if one.value is None or other.value is None:
        return one.value is other.value
    return math.isclose(one.value, other.value, rel_tol=1e-3, abs_tol=1e-4)
