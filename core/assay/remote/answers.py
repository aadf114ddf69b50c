"""What one reward says to somebody who cannot see its verdicts: a status, a number only where there is one, and why.

| the reward's parts (channel `reward`) | status | value | reward |
|---|---|---|---|
| all scored by their sources | scored | the weighted sum | the same |
| one left unscored by the candidate | abstained or failed, fault candidate | none | the sum with the declared score |
| one left unscored by us | abstained or failed, fault ours | none | none |
| no entry applies to the task | abstained, fault ours | none | none |
"""

from typing import NamedTuple

from assay.contracts import Fault, Reward, RewardPart, Status


class Answer(NamedTuple):
    """One reward in short."""

    status: Status
    value: float | None
    """A number if and only if every part was scored."""
    reward: float | None
    """What a trainer may use: `value`, or the sum with the declared scores of a candidate's faults; None is masked."""
    fault: Fault | None
    reason: str | None

    @property
    def declared(self) -> bool:
        """Whether the reward holds a score that was declared for a candidate's fault."""
        return self.value is None and self.reward is not None


def answer_of(reward: Reward) -> Answer:
    """The reward in short; of several unscored parts ours come before the candidate's."""
    parts = [part for part in reward.parts if part.channel == "reward"]
    unscored = [part for part in parts if part.status != "scored"]
    if not unscored and reward.value is not None:
        return Answer("scored", reward.value, reward.value, None, None)
    if not unscored:
        return Answer("abstained", None, None, "ours", reward.reason or "no entry of rewards applies to this task")
    first = next((part for part in unscored if part.fault == "ours"), unscored[0])
    return Answer(first.status, None, reward.value, first.fault, _reason(first))


def _reason(part: RewardPart) -> str:
    return f"{part.source}: {part.reason}"
