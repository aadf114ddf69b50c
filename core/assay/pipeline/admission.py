"""How far sampling may run ahead of training; pure, without clock or task.

The rule is that of AReaL (arXiv 2505.24298, section 4): a group may start while
`started < (version + max_staleness + 1) * groups_per_step`. `started` leaves out groups that were replaced, so that a
refill never eats the room of the next step. With `max_staleness = 0` the stages take turns and a run is reproducible.
"""

from dataclasses import dataclass


@dataclass
class Admission:
    """Counts groups and versions, and says how many groups may start now."""

    groups_per_step: int
    max_staleness: int
    version: int = 0
    """Updates published so far."""
    started: int = 0
    """Groups started, without those that were replaced."""

    @property
    def room(self) -> int:
        """Number of groups that may start now; never negative."""
        return max(0, (self.version + self.max_staleness + 1) * self.groups_per_step - self.started)

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
