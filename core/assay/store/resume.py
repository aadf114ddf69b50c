"""What a killed run left behind, read back from its log."""

from assay.contracts import Reward, Rollout
from assay.store.sqlite import RunStore


def unfinished_groups(store: RunStore, *, after_step: int) -> dict[str, dict[str, tuple[Rollout, Reward | None]]]:
    """Durable rollouts of every group that the weights of step `after_step` have not seen, by group and rollout id.

    A group counts as seen when it was decided on (trained on or dropped) at step `after_step`, the step of the
    checkpoint, or before. Groups that were decided later are there again: their updates are lost with the weights and
    are made again from here. A rollout without a reward is to be judged again; so is one with a failed part in a group
    that was not decided on at all, since what ended the run may be mended.
    """
    decided = {row[1] for row in store.rows("marks")}
    seen = {row[1] for row in store.rows("marks", "WHERE step <= ?", after_step)}
    rewards: dict[str, Reward] = {}
    found: dict[str, dict[str, tuple[Rollout, Reward | None]]] = {}
    for rollout_id, _, group_id, _, body in store.rows("rewards", "ORDER BY seq"):
        if group_id not in seen:
            reward = Reward.model_validate_json(body)
            if group_id in decided or all(part.status != "failed" for part in reward.parts):
                rewards[rollout_id] = reward
    for rollout_id, _, group_id, _, body in store.rows("rollouts", "ORDER BY seq"):
        if group_id not in seen:
            rollout = Rollout.model_validate_json(body)
            found.setdefault(group_id, {})[rollout_id] = (rollout, rewards.get(rollout_id))
    return found


def unjudged(store: RunStore) -> list[str]:
    """Ids of rollouts that have no reward yet, in order of arrival."""
    judged = {row[0] for row in store.rows("rewards")}
    return [row[0] for row in store.rows("rollouts", "ORDER BY seq") if row[0] not in judged]


def used_at(store: RunStore) -> dict[str, int]:
    """Group id to the step whose update was made of it; dropped groups are not there."""
    return {mark.group_id: mark.step for mark in store.marks() if mark.action == "keep"}
