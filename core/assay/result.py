"""A stored run as an object: its summary, its rollouts, and why each got its reward."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay import runs
from assay.contracts import Judgement, Reward, Rollout, Task
from assay.reports.metrics import interval_of
from assay.store import RunStore


@dataclass(frozen=True)
class JudgedRollout:
    """One rollout with its task, its reward, and the judgements behind it."""

    step: int
    task: Task
    rollout: Rollout
    reward: Reward | None
    judgements: tuple[Judgement, ...]

    def explain(self) -> str:
        """The reward in words: every verdict with its evidence."""
        value = None if self.reward is None else self.reward.value
        lines = [f"rollout {self.rollout.id}: reward {'masked' if value is None else f'{value:g}'}"]
        for judgement in self.judgements:
            number = "" if judgement.value is None else f" {judgement.value:g}"
            why = f" ({judgement.reason})" if judgement.reason else ""
            lines.append(f"  {judgement.source} {judgement.version}: {judgement.status}{number}{why}")
            lines += [f"    {item.kind}: {item.summary}" for item in judgement.verdict.evidence]
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class Run:
    """A run folder."""

    folder: Path

    def __repr__(self) -> str:
        """The folder's name."""
        return f"Run({self.folder.name!r})"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One object per step."""
        return list(runs.read_lines(self.folder / runs.METRICS))

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """One object per held-out evaluation."""
        return list(runs.read_lines(self.folder / runs.EVALUATIONS))

    def summary(self) -> str:
        """The run in a few lines; counts stand beside every mean."""
        lines = [f"run {self.folder.name}: {len(self.metrics)} steps"]
        for line in self.evaluations:
            facts = line["accuracy"]
            counts = f"{facts['abstained']} abstained, {facts['failed']} failed"
            lines.append(f"held out after step {line['step']}: {interval_of(facts)} of {facts.get('of', 0)} ({counts})")
        for line in self.metrics[-1:]:
            mean = "none" if line.get("reward") is None else f"{line['reward']:.3f}"
            counts = f"{line['scored']} scored, {line['abstained']} abstained, {line['failed']} failed"
            lines.append(f"step {line['step']}: reward {mean} ({counts})")
        return "\n".join(lines)

    def rollouts(
        self, *, status: str | None = None, source: str | None = None, limit: int | None = None
    ) -> Sequence[JudgedRollout]:
        """Stored rollouts, those with a verdict of this status or source where one is given."""
        with RunStore.open(self.folder, read_only=True) as store:
            return [
                JudgedRollout(entry.step, entry.task, entry.rollout, entry.reward, tuple(entry.judgements))
                for entry in store.rollouts(status=status, source=source, limit=limit)
            ]

    def to_dict(self) -> dict[str, Any]:
        """Folder, metrics and evaluations as plain JSON."""
        return {"folder": str(self.folder), "metrics": self.metrics, "evaluations": self.evaluations}
