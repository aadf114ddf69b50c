"""Notices that nothing moves, and names the stage that everything waits for; pure, time is passed in."""

from dataclasses import dataclass, field

ORDER = ("sample", "judge", "train", "publish")


@dataclass
class Watchdog:
    """Stages report what they wait for; the stuck one is the most downstream stage that is busy."""

    limit_s: float
    progressed_at: float = 0.0
    _state: dict[str, tuple[bool, str, float]] = field(default_factory=dict[str, tuple[bool, str, float]])

    def busy(self, stage: str, doing: str, now: float) -> None:
        """The stage works on something of its own (an engine, a verifier, an update); the oldest of several counts."""
        if not self._state.get(stage, (False, "", 0.0))[0]:
            self._state[stage] = (True, doing, now)

    def idle(self, stage: str, waiting_for: str, now: float) -> None:
        """The stage waits for another stage."""
        self._state[stage] = (False, waiting_for, now)

    def progress(self, now: float) -> None:
        """Something left a stage."""
        self.progressed_at = now

    def complaint(self, now: float) -> str | None:
        """The sentence about the stuck stage when nothing moved for `limit_s`, else None."""
        if now - self.progressed_at < self.limit_s:
            return None
        stuck = [stage for stage in reversed(ORDER) if self._state.get(stage, (False, "", 0.0))[0]]
        stage = stuck[0] if stuck else "sample"
        _, doing, since = self._state.get(stage, (False, "nothing it told of", self.progressed_at))
        return (
            f"no progress for {now - self.progressed_at:.0f} s: stage {stage!r} is stuck in {doing} "
            f"for {now - since:.0f} s; the run can be continued with --resume"
        )
