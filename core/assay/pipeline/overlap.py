"""Measures how much of judging was hidden behind sampling and training; pure, time is passed in."""

from dataclasses import dataclass, field


@dataclass
class Overlap:
    """Accumulates, per phase, the time in which at least one item was in it."""

    now: float = 0.0
    active: dict[str, int] = field(default_factory=lambda: {"sample": 0, "judge": 0, "train": 0, "publish": 0})
    busy_s: dict[str, float] = field(default_factory=dict[str, float])
    exposed_s: float = 0.0
    """Time in which judging was all that went on."""

    def enter(self, phase: str, now: float) -> None:
        """One item enters a phase."""
        self._advance(now)
        self.active[phase] += 1

    def leave(self, phase: str, now: float) -> None:
        """One item leaves a phase."""
        self._advance(now)
        self.active[phase] -= 1

    def take(self, now: float) -> dict[str, float]:
        """Seconds per phase since the last call, those of judging alone, and its hidden share in [0, 1]."""
        self._advance(now)
        seconds = {f"{phase}_s": self.busy_s.get(phase, 0.0) for phase in self.active}
        judged = self.busy_s.get("judge", 0.0)
        seconds["judge_hidden"] = 1.0 - self.exposed_s / judged if judged > 0 else 1.0
        seconds["judge_exposed_s"] = self.exposed_s
        self.busy_s, self.exposed_s = {}, 0.0
        return seconds

    def _advance(self, now: float) -> None:
        passed = max(0.0, now - self.now)
        self.now = now
        for phase, items in self.active.items():
            if items:
                self.busy_s[phase] = self.busy_s.get(phase, 0.0) + passed
        if self.active["judge"] and not any(items for phase, items in self.active.items() if phase != "judge"):
            self.exposed_s += passed
