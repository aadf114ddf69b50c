"""Notices that nothing moves, and names the stage that everything waits for; pure, time is passed in."""

from dataclasses import dataclass, field
from typing import NamedTuple

ORDER = ("sample", "judge", "train", "publish")
QUIET_S = 10.0
"""After this long without progress it is told what everything waits for, then after twice as long each time."""


class Work(NamedTuple):
    """One thing that a stage has begun and not ended."""

    doing: str
    since: float


@dataclass
class Watchdog:
    """Stages say what they begin and end; the stuck one is the most downstream stage that has something under way."""

    limit_s: float
    progressed_at: float = 0.0
    _open: dict[str, dict[int, Work]] = field(default_factory=lambda: {stage: {} for stage in ORDER})
    _begun: int = 0
    _quiet_s: float = QUIET_S

    def begin(self, stage: str, doing: str, now: float) -> int:
        """The stage begins work of its own (an engine, a verifier, an update); the number that `end` wants."""
        self._begun += 1
        self._open[stage][self._begun] = Work(doing, now)
        return self._begun

    def end(self, stage: str, number: int) -> None:
        """That work is over, whatever became of it."""
        del self._open[stage][number]

    def progress(self, now: float) -> None:
        """Something left a stage."""
        self.progressed_at = now
        self._quiet_s = QUIET_S

    def waiting(self, now: float) -> str | None:
        """What everything waits for, where it is time to tell it, else None."""
        if now - self.progressed_at < self._quiet_s:
            return None
        self._quiet_s *= 2
        stage, work = self._stuck()
        return f"waiting for {work.doing} ({stage}, {now - work.since:.0f} s)"

    def complaint(self, now: float) -> str | None:
        """The sentence about the stuck stage and its oldest work when nothing moved for `limit_s`, else None."""
        if now - self.progressed_at < self.limit_s:
            return None
        stage, work = self._stuck()
        return (
            f"no progress for {now - self.progressed_at:.0f} s: stage {stage!r} is stuck in {work.doing} "
            f"for {now - work.since:.0f} s; the run can be continued with --resume"
        )

    def _stuck(self) -> tuple[str, Work]:
        stage = next((stage for stage in reversed(ORDER) if self._open[stage]), "sample")
        nothing = Work("nothing it told of", self.progressed_at)
        return stage, min(self._open[stage].values(), key=lambda work: work.since, default=nothing)
