"""How far sampling may run ahead of training; pure, without clock or task.

The rule is that of AReaL (arXiv 2505.24298, section 4): a group may start while
`started < (version + ahead + 1) * groups_per_step`. `started` leaves out groups that were replaced, so that a refill
never eats the room of the next step. `ahead` is at most `max_staleness`, and no more than the measured times of the
phases ask for: groups that would only lie and wait for an update are drawn later, from newer weights. With
`max_staleness = 0` the stages take turns and a run is reproducible.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

MARGIN = 1.5
"""How much longer than in the median step sampling and judging may take without an update having to wait."""
STEPS = 5
"""How many steps back times are looked at."""


@dataclass
class Admission:
    """Counts groups and versions, and says how many groups may start now."""

    groups_per_step: int
    max_staleness: int
    version: int = 0
    """Updates published so far."""
    started: int = 0
    """Groups started, without those that were replaced."""
    _asked: deque[float] = field(default_factory=lambda: deque[float](maxlen=STEPS))
    """Per step: the time to make its groups, in updates."""

    @property
    def ahead(self) -> int:
        """Steps that sampling may be ahead of the published weights, in [min(1, max_staleness), max_staleness].

        While an update is made the groups of the next one are drawn. Where that takes as long as n updates, n steps
        must be under way, or the update waits.
        """
        if not self._asked:
            return self.max_staleness
        needed = MARGIN * statistics.median(self._asked)
        return math.ceil(min(self.max_staleness, max(1.0, needed)))

    def measured(self, seconds: Mapping[str, float]) -> None:
        """Take the times of a step's phases into account: `sample_s`, `judge_s`, `train_s` and `publish_s`."""
        update_s = seconds["train_s"] + seconds["publish_s"]
        made_s = seconds["sample_s"] + seconds["judge_s"]
        self._asked.append(made_s / update_s if update_s > 0 else math.inf)

    @property
    def room(self) -> int:
        """Number of groups that may start now; never negative."""
        return max(0, (self.version + self.ahead + 1) * self.groups_per_step - self.started)

    def start(self, groups: int) -> None:
        """Count groups as started; raises `ValueError` beyond the room."""
        if groups > self.room:
            raise ValueError(f"{groups} groups would exceed the room of {self.room}")
        self.started += groups

    def replace(self) -> None:
        """A started group was dropped and another prompt shall take its place."""
        self.started -= 1

    def publish(self) -> None:
        """New weights are in use. A batch that ended short leaves no debt: started catches up with the version."""
        self.version += 1
        self.started = max(self.started, self.version * self.groups_per_step)

    def fresh(self, oldest_version: int, *, learning: int) -> bool:
        """Whether a group whose oldest token was made by `oldest_version` may still be learned from.

        `learning` is the version that learns: it may be one ahead of the published one, whose push is under way.
        """
        return oldest_version >= learning - self.max_staleness
