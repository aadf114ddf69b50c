"""How verdicts become one reward; pure. What each combination makes of each outcome is the table below.

An outcome is *scored*, or *unscored* with whose doing that is: *candidate* or *ours* (abstained and failed alike).

| combination | all needed scored | one unscored, candidate | one unscored, ours |
|---|---|---|---|
| sum (the list) | sum of weight x value | declared score x weight | the channel is None |
| gate, its gate | open: `then`; closed: the closed value | unscored, candidate | unscored, ours |
| gate, its `then` | the value of `then` | unscored, candidate | unscored, ours |
| cascade, abstained | the first scored | next is asked; at the end unscored, candidate | next; at the end ours |
| cascade, failed | the first scored | unscored, candidate; none is asked after it | ours; none after it |
| min, product | smallest, product | unscored, candidate | unscored, ours |

Behind a gate that is closed or unscored `then` is not judged.
Where several are unscored, *ours* wins: had our part worked, there might have been a score. After the combination, the
entry's `on_candidate_fault` turns *unscored, candidate* into the declared score, or masks it; *unscored, ours* is
always masked. A masked part of a channel masks the channel: a sum over what happened to work would be another reward.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from assay.contracts import Fault, Reward, RewardPart, Status, StepScore, Verdict

COST = "cost"
"""The channel whose sum is to stay low."""


class Outcome(NamedTuple):
    """What an entry, or a part of one, came to."""

    status: Status
    value: float | None = None
    fault: Fault | None = None
    reason: str | None = None
    steps: tuple[StepScore, ...] = ()
    credit: bool = False

    @property
    def scored(self) -> bool:
        """Whether there is a value."""
        return self.value is not None


class Range(NamedTuple):
    """Lowest and highest value."""

    low: float
    high: float


def of_verdict(verdict: Verdict) -> Outcome:
    """The outcome of one source."""
    return Outcome(verdict.status, verdict.value, verdict.fault, verdict.reason, verdict.steps, verdict.credit)


def gate_opens(gate: Outcome, open_at: float) -> bool:
    """Whether `then` is to be judged."""
    return gate.value is not None and gate.value >= open_at


def shut_gate(gate: Outcome, closed: float) -> Outcome:
    """The outcome of a gate that did not open."""
    if gate.value is None:
        return gate
    return Outcome("scored", closed)


def falls_through(outcome: Outcome) -> bool:
    """Whether the next source of a cascade is asked."""
    return outcome.status == "abstained"


def cascade(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a cascade of which these were asked, in order."""
    last = outcomes[-1]
    return last if last.scored else _unscored(outcomes)


def minimum(outcomes: Sequence[Outcome]) -> Outcome:
    """The smallest value; unscored where any is."""
    values = _values(outcomes)
    if values is None:
        return _unscored(outcomes)
    smallest = outcomes[values.index(min(values))]
    return Outcome("scored", smallest.value, steps=smallest.steps, credit=smallest.credit)


def product(outcomes: Sequence[Outcome]) -> Outcome:
    """The product of the values; unscored where any is. Steps are kept where one member alone has them."""
    values = _values(outcomes)
    if values is None:
        return _unscored(outcomes)
    stepped = [outcome for outcome in outcomes if outcome.steps]
    if len(stepped) != 1:
        return Outcome("scored", math.prod(values))
    return Outcome("scored", math.prod(values), steps=stepped[0].steps, credit=stepped[0].credit)


def gate_range(then: Range, closed: float) -> Range:
    """Range of a gate's values."""
    return Range(min(then.low, closed), max(then.high, closed))


def cascade_range(members: Sequence[Range]) -> Range:
    """Range of a cascade's values."""
    return Range(min(member.low for member in members), max(member.high for member in members))


def minimum_range(members: Sequence[Range]) -> Range:
    """Range of a minimum's values."""
    return Range(min(member.low for member in members), min(member.high for member in members))


def product_range(members: Sequence[Range]) -> Range:
    """Range of a product's values."""
    low, high = 1.0, 1.0
    for member in members:
        corners = [low * member.low, low * member.high, high * member.low, high * member.high]
        low, high = min(corners), max(corners)
    return Range(low, high)


def worst_of(values: Range, *, weight: float, channel: str) -> float:
    """The value that is worst for a candidate: the lowest, or the highest where more of it is worse.

    More is worse where the weight is negative, and in the channel `cost` (unless the weight turns it round again).
    """
    more_is_worse = (channel == COST) != (weight < 0)
    return values.high if more_is_worse else values.low


def part(
    outcome: Outcome,
    *,
    source: str,
    weight: float,
    channel: str,
    on_candidate_fault: float | Literal["mask"] | None,
    worst: float,
) -> RewardPart:
    """What one entry of the list contributes: its score, the declared score, or nothing because it is masked.

    `worst` is the declared score where `on_candidate_fault` is None.
    """
    value, declared = outcome.value, False
    if value is None and outcome.fault == "candidate" and on_candidate_fault != "mask":
        value = worst if on_candidate_fault is None else on_candidate_fault
        declared = True
    return RewardPart(
        source=source,
        weight=weight,
        channel=channel,
        status=outcome.status,
        value=value,
        reason=outcome.reason,
        fault=outcome.fault,
        declared=declared,
        steps=outcome.steps,
        credit=outcome.credit,
    )


def total(rollout_id: str, parts: Sequence[RewardPart]) -> Reward:
    """The reward of one rollout: per channel the weighted sum of its parts, or None where one of them is masked.

    Its steps are those of parts that give credit; steps that only explain a value would pay for it twice.
    """
    channels: dict[str, float | None] = {"reward": None}
    reason = None if any(item.channel == "reward" for item in parts) else "no entry of rewards applies to this task"
    for channel in dict.fromkeys(item.channel for item in parts):
        masked = [item for item in parts if item.channel == channel and item.value is None]
        if masked:
            channels[channel] = None
            if channel == "reward":
                reason = f"{masked[0].source}: {masked[0].reason}"
        else:
            channels[channel] = math.fsum(
                item.weight * item.value for item in parts if item.channel == channel and item.value is not None
            )
    steps = [
        StepScore(span=step.span, value=step.value * item.weight)
        for item in parts
        if item.channel == "reward" and item.credit
        for step in item.steps
    ]
    steps.sort(key=lambda step: (step.span.start, step.span.end))
    return Reward(
        rollout_id=rollout_id,
        value=channels["reward"],
        steps=tuple(steps) if channels["reward"] is not None else (),
        channels=channels,
        parts=tuple(parts),
        reason=reason,
    )


def _values(outcomes: Sequence[Outcome]) -> list[float] | None:
    values = [outcome.value for outcome in outcomes if outcome.value is not None]
    return values if len(values) == len(outcomes) else None


def _unscored(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome that stands for several of which one is unscored: ours before the candidate's, failed first."""
    unscored = [outcome for outcome in outcomes if outcome.value is None]
    ours = [outcome for outcome in unscored if outcome.fault == "ours"] or unscored
    failed = [outcome for outcome in ours if outcome.status == "failed"] or ours
    return failed[0]._replace(steps=())
