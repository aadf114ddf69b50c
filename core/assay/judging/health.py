"""Whether a source can still be trusted to work, and how long to pause before another try; pure."""

import math
from collections import Counter, deque
from dataclasses import dataclass, field


@dataclass
class Health:
    """Watches a source's last verdicts; only failures that are ours count, a candidate cannot make a source unhealthy.

    The source is unhealthy while more than `threshold * window` of its last `window` verdicts failed.
    """

    threshold: float = 0.5
    window: int = 50
    probe_every: int = 20
    """While unhealthy and masked, one candidate in so many is still judged, so that recovery is noticed."""
    _last: deque[str] = field(default_factory=deque[str])
    _masked: int = 0

    def record(self, failure: str) -> None:
        """Count one verdict: the kind of failure in a few words, or an empty string for none."""
        self._last.append(failure)
        if len(self._last) > self.window:
            self._last.popleft()

    @property
    def failures(self) -> int:
        """Failures among the last verdicts."""
        return sum(map(bool, self._last))

    @property
    def limit(self) -> int:
        """Most failures among the last `window` verdicts of a healthy source."""
        return math.floor(self.threshold * self.window + 1e-9)  # 0.58 * 50 is 28.999999999999996

    @property
    def unhealthy(self) -> bool:
        """Whether too many failed."""
        return self.failures > self.limit

    def probes(self) -> bool:
        """Whether this candidate is judged all the same, to see whether an unhealthy source has recovered."""
        self._masked += 1
        return self._masked % self.probe_every == 0

    def summary(self) -> str:
        """For example `26 of the last 50 verdicts failed (timed out 26)`."""
        kinds = ", ".join(f"{kind} {count}" for kind, count in Counter(filter(None, self._last)).most_common(3))
        return f"{self.failures} of the last {len(self._last)} verdicts failed ({kinds})"


def backoff_s(attempt: int, jitter: float, *, first_s: float = 0.1, longest_s: float = 5.0) -> float:
    """Seconds to wait before try `attempt + 1`: doubled each time, times 0.5 to 1.5 by `jitter` in [0, 1]."""
    return min(first_s * 2 ** (attempt - 1), longest_s) * (0.5 + jitter)
