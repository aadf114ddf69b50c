"""How many items a server holds at once, and when whoever is refused should come again; pure, time is passed in."""

import math
from collections import deque

LONGEST_RETRY_S = 60
_REMEMBERED = 64


class Admission:
    """Counts items between their admission and their answer; at most `queue` at once."""

    def __init__(self, queue: int) -> None:
        """Nothing is held yet."""
        self.queue = queue
        self.held = 0
        self._finished: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)

    def admit(self, items: int) -> bool:
        """Whether there is room for all of `items`, which are then held; a part of them is never taken."""
        if self.held + items > self.queue:
            return False
        self.held += items
        return True

    def done(self, items: int, now: float) -> None:
        """`items` were answered."""
        self.held -= items
        self._finished.append((now, items))

    def retry_after_s(self, items: int, now: float) -> int:
        """Whole seconds until there is room for `items` at the pace of the last answers: 1 to 60."""
        excess = self.held + items - self.queue
        if not self._finished or excess <= 0:
            return 1
        since = max(now - self._finished[0][0], 1e-3)
        per_second = sum(count for _, count in self._finished) / since
        return min(max(math.ceil(excess / per_second), 1), LONGEST_RETRY_S)
