"""The learner and the journal behind the pipeline's doors."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from assay.contracts import Reward, Rollout, ScoredGroup, Task, WeightsRef
from assay.pipeline import StepReport
from assay.protocols import Decision
from assay.store import RunStore

if TYPE_CHECKING:
    from assay.training.online import GroupLearner, RewardLearner
    from assay.training.trainer import Trainer
    from assay.training.weights import Publisher


@dataclass
class Learner:
    """The trainer, and what it learns by, behind the pipeline's one door."""

    trainer: "Trainer"
    inner: "RewardLearner | GroupLearner"
    publisher: "Publisher"
    shuffle_seed: int | None
    """Permute the rewards inside each batch by this seed: a control that must not learn."""

    def select(self, group: ScoredGroup) -> Decision:
        """What becomes of one group."""
        return self.inner.select(group)

    def step(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        """One update."""
        if self.shuffle_seed is not None:
            groups = shuffled(groups, seed=f"{self.shuffle_seed}:{self.trainer.version}")
        ranks = self.trainer.ranks
        told: list[JsonValue] = [group.model_dump(mode="json") for group in groups] if ranks.size > 1 else []
        with ranks.leading({"do": "step", "groups": told}):
            return self.inner.step(groups)

    def weights(self, version: int) -> WeightsRef:
        """Where the current weights are."""
        with self.trainer.ranks.leading({"do": "weights", "version": version}):
            return self.publisher.publish(version)

    def save(self, folder: Path, progress: Mapping[str, JsonValue]) -> None:
        """Write a checkpoint into `folder`."""
        from assay.training.checkpoint import save_trainer

        with self.trainer.ranks.leading({"do": "save"}):
            save_trainer(self.trainer, folder, progress)

    def load(self, folder: Path) -> dict[str, JsonValue]:
        """Go on from the checkpoint in `folder`; its progress."""
        from assay.training.checkpoint import load_trainer

        with self.trainer.ranks.leading({"do": "load", "folder": str(folder.absolute())}):
            return load_trainer(self.trainer, folder)


def shuffled(groups: Sequence[ScoredGroup], *, seed: str) -> list[ScoredGroup]:
    """The groups with their rewards permuted over the whole batch; masked ones stay masked."""
    values = [value for group in groups for value in group.values if value is not None]
    random.Random(seed).shuffle(values)  # noqa: S311 (an order, not a secret)
    supply = iter(values)

    def redo(reward: Reward) -> Reward:
        return reward if reward.value is None else reward.model_copy(update={"value": next(supply), "steps": ()})

    return [group.model_copy(update={"rewards": tuple(redo(reward) for reward in group.rewards)}) for group in groups]


@dataclass
class Journal:
    """The run's store behind the pipeline's one door."""

    store: RunStore
    known: Mapping[str, Mapping[str, tuple[Rollout, Reward | None]]] = field(
        default_factory=dict[str, "Mapping[str, tuple[Rollout, Reward | None]]"]
    )
    """What a killed run left behind, by group."""

    def stored(self, group_id: str) -> Mapping[str, tuple[Rollout, Reward | None]]:
        """Durable rollouts of a group."""
        return self.known.get(group_id, {})

    def sampled(self, step: int, task: Task, rollout: Rollout) -> None:
        """Keep a rollout."""
        self.store.add_rollout(rollout, step=step, task=task)

    def rewarded(self, step: int, rollout: Rollout, reward: Reward) -> None:
        """Keep a reward."""
        self.store.add_reward(reward, step=step, group_id=rollout.group_id)

    def trained(self, report: StepReport) -> None:
        """Keep what became of each group."""
        for ticket, _, decision in report.batch.decisions:
            self.store.mark_group(report.step, ticket.group_id, decision.action, decision.reason)
