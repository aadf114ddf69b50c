"""Learning from judged rollouts: by an optimizer, or by an objective (online DPO, SPIN, online imitation).

With an objective each group makes rows of the objective's layout by its own rewards, the rows become examples with the
token ids that were sampled, and all examples of a step make one batch. The reference moves as the objective says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assay.config.fit import GroupExamples
from assay.contracts import ScoredGroup
from assay.protocols import Decision, Example, Objective, PolicyOptimizer
from assay.training.encoder import TextEncoder
from assay.training.examples import ExampleSet, batch_of
from assay.training.group_rows import SampledEncoder, members, rows_of_group
from assay.training.trainer import ExampleStream, Trainer


@dataclass(frozen=True)
class Stream:
    """Examples that are learned beside the rewards, in an order that the seed decides."""

    data: ExampleSet
    objective: Objective
    weight: float
    size: int
    """Examples of one update."""
    seed: int

    def at(self, step: int) -> ExampleStream:
        """What belongs to the update after `step` others."""
        return ExampleStream(batch_of(self.data, step, self.size, seed=self.seed), self.objective, self.weight)


def _also(stream: Stream | None, step: int) -> Sequence[ExampleStream]:
    return () if stream is None else (stream.at(step),)


class RewardLearner:
    """Learns from rewards by a policy optimizer."""

    def __init__(self, trainer: Trainer, optimizer: PolicyOptimizer, stream: Stream | None = None) -> None:
        """A learner with the trainer's `optimizer`, and a stream of examples beside the rewards."""
        self._trainer = trainer
        self._optimizer = optimizer
        self._stream = stream

    def select(self, group: ScoredGroup) -> Decision:
        """What the optimizer decides on one group."""
        return self._optimizer.select([group])[0]

    def step(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        """One update."""
        return self._trainer.step(groups, also=_also(self._stream, self._trainer.version)).metrics


class GroupLearner:
    """Turns groups into examples and examples into updates."""

    def __init__(
        self, trainer: Trainer, objective: Objective, choice: GroupExamples, stream: Stream | None = None
    ) -> None:
        """A learner with the trainer's `objective`; `choice` says what of a group is learned from."""
        self._stream = stream
        self._trainer = trainer
        self._objective = objective
        self._choice = choice
        self._encoder = TextEncoder(trainer.policy.tokenizer)

    def select(self, group: ScoredGroup) -> Decision:
        """Keep a group that makes at least one example; for an explanation it must hold a response that is not good."""
        if self._choice.chosen == "explanation":
            known = [value for value in group.values if value is not None]
            teaches = any(value < self._choice.good_from for value in known)
        else:
            teaches = bool(rows_of_group(group, self._objective.layout, self._choice))
        return Decision("keep", "") if teaches else Decision("drop", "nothing to learn from")

    def step(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        """One update; `examples` counts what it was made of."""
        examples = self.examples(groups)
        also = _also(self._stream, self._trainer.version)
        return {**self._trainer.step_examples(examples, also=also).metrics, "examples": float(len(examples))}

    def examples(self, groups: Sequence[ScoredGroup]) -> list[Example]:
        """The examples of these groups."""
        found: list[Example] = []
        for group in groups:
            own, explanations = members(group)
            encoder = SampledEncoder(self._encoder)
            encoder.add(own.task, own.rollouts)
            encoder.add(own.task, explanations)
            for row in rows_of_group(own, self._objective.layout, self._choice, explanations=explanations):
                example = self._objective.read(row, encoder)
                if example is not None:
                    found.append(example)
        return found
