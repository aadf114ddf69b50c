"""A stored run as an object: its summary, its rollouts, and why each got its reward."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay import runs
from assay.config.refs import build
from assay.contracts import Judgement, Reward, Rollout, Task
from assay.errors import TrainingError
from assay.preflight import make_context
from assay.protocols import RewardSource
from assay.registry import Registry
from assay.reports.fit import evaluation_sentence
from assay.reports.metrics import interval_of
from assay.store import RunStore

REWARD_MODEL = "reward_model.json"
"""What a reward model is, beside its weights; written by `assay.training.checkpoint.save_reward_model`."""


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

    @property
    def policy(self) -> Path:
        """The folder of the trained model, which `policy.model` of a config accepts.

        Raises `TrainingError` where there is none: no checkpoint yet, or an adapter that is not finished.
        """
        whole = self.folder / runs.MODEL
        if (whole / "config.json").is_file():
            return whole
        checkpoints = self.folder / runs.CHECKPOINTS
        found = sorted(checkpoints.glob("[0-9]*")) if checkpoints.is_dir() else []
        if not found:
            raise TrainingError(f"{self.folder}: there is no checkpoint yet; go on with: assay train --resume")
        if not (found[-1] / "model.safetensors").is_file():
            raise TrainingError(
                f"{found[-1]}: an adapter without its model; finish the run with --resume, which writes {whole}"
            )
        return found[-1]

    def reward_source(self) -> RewardSource:
        """The reward model that a run of kind `prm` trained, loaded from its folder.

        Raises `TrainingError` where the run trained none.
        """
        return load_reward_model(self.policy)

    def summary(self) -> str:
        """The run in a few lines; counts stand beside every mean."""
        lines = [f"run {self.folder.name}: {len(self.metrics)} steps"]
        for line in self.evaluations:
            if "accuracy" not in line:
                lines.append(f"held out after step {line['step']}: {evaluation_sentence(line)}")
                continue
            facts = line["accuracy"]
            counts = f"{facts['abstained']} abstained, {facts['failed']} failed"
            lines.append(f"held out after step {line['step']}: {interval_of(facts)} of {facts.get('of', 0)} ({counts})")
        for line in self.metrics[-1:]:
            if "scored" not in line:
                lines.append(f"step {line['step']}: loss {line['loss']:.4g} over {line['examples']:.0f} examples")
                continue
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


def load_reward_model(folder: Path) -> RewardSource:
    """The reward source that a reward-model folder describes in its `reward_model.json`.

    Raises `TrainingError` where the folder is none, `ConfigError` or `PluginError` where the source cannot be built.
    """
    file = folder / REWARD_MODEL
    try:
        described: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        use, options = str(described["use"]), dict(described.get("options") or {})
    except FileNotFoundError as error:
        raise TrainingError(
            f"{folder}: no reward model; {file.name} is missing; train one with kind = 'prm'"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{file}: damaged: {error}; train the reward model again, or restore the file") from error
    registry = Registry.load()
    context = make_context(registry, base_dir=Path.cwd(), seed=0)
    options["path"] = str(folder)
    source: RewardSource = build(registry, "reward_source", use, options, context, where=str(file))
    return source
