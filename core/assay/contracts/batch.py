"""What travels between judging, assembling and the update."""

from typing import Literal

from pydantic import Field

from assay.contracts._contract import Contract
from assay.contracts.rollout import Rollout, Sampling
from assay.contracts.task import Task
from assay.contracts.verdict import Fault, Status, StepScore

APART = "nll"
"""Reward channel that is 1 on texts which are no members of their group but are to be made likelier."""


class Candidate(Contract):
    """What a reward source judges: a task and a rollout; the whole group where the source's scope is `group`."""

    task: Task
    rollout: Rollout
    group: tuple[Rollout, ...] = ()
    """All rollouts of the group, `rollout` included, for group-scope sources; empty otherwise."""


class RewardPart(Contract):
    """What one `rewards` entry contributed to one reward."""

    source: str
    weight: float
    channel: str = "reward"
    status: Status
    value: float | None = None
    """The value that entered the sum before its weight: the score, or the declared score of a candidate's fault."""
    reason: str | None = None
    fault: Fault | None = None
    declared: bool = False
    """Whether `value` is the score declared for a candidate's fault instead of a source's own."""
    steps: tuple[StepScore, ...] = ()
    credit: bool = False
    """Whether the steps are rewards beside the value (`Verdict.credit`)."""


class Reward(Contract):
    """The reward of one rollout; None is masked out of its group and never becomes 0."""

    rollout_id: str
    value: float | None
    """The `reward` channel, or None where a needed part is masked."""
    steps: tuple[StepScore, ...] = ()
    """What single steps are paid beside the value: the weighted steps of those parts that give credit."""
    channels: dict[str, float | None] = Field(default_factory=dict)
    """Every named channel, `reward` included."""
    parts: tuple[RewardPart, ...] = ()
    reason: str | None = None
    """Why the value is None."""


class ScoredGroup(Contract):
    """One task, its rollouts, and their rewards in the same order."""

    task: Task
    rollouts: tuple[Rollout, ...]
    rewards: tuple[Reward, ...]

    @property
    def values(self) -> tuple[float | None, ...]:
        """The rewards' values in rollout order; None is masked."""
        return tuple(reward.value for reward in self.rewards)


class WeightsRef(Contract):
    """Where new weights are to be found."""

    version: int = Field(ge=0)
    path: str | None = None
    """A folder of safetensors, or None where engine and trainer share the module in memory."""


class RolloutRequest(Contract):
    """One response to be drawn."""

    id: str = Field(min_length=1)
    """The rollout's id."""
    task: Task
    group_id: str
    sampling: Sampling
    priority: int = 0
    """Lower is earlier."""
    turn: int = Field(default=0, ge=0)
    """How often the task was drawn before in this run."""
    sample: int = Field(default=0, ge=0)
    """Place of the response within its group."""
    prompt_ids: tuple[int, ...] | None = None
    """Token ids that the response follows, in place of the task's rendered messages; for an answer that goes on."""


class RunInfo(Contract):
    """What an observer is told of a run."""

    id: str
    name: str
    kind: str
    folder: str
    seed: int
    plugins: dict[str, str] = Field(default_factory=dict)
    """Distribution name to version."""


class UpdateReport(Contract):
    """What one optimizer step did."""

    step: int
    version: int
    metrics: dict[str, float]


class RunOutcome(Contract):
    """How a run ended."""

    status: Literal["done", "failed", "interrupted", "stopped"]
    steps: int
    message: str = ""
