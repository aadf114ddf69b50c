"""What an author of a verifier writes: mypy and pyright must both see these types."""

from typing import Any

from assay import Component, RewardSource, Rollout, Task, Verdict, hookimpl, verifier


@verifier("typed", summary="a typed verifier", value_range=(0.0, 2.0))
def typed(task: Task, rollout: Rollout) -> Verdict:
    """Score twice the share of the reference that the answer has."""
    reference = str(task.reference)
    if not rollout.text:
        return Verdict.abstain("the answer is empty", fault="candidate")
    return Verdict.score(2.0 if reference in rollout.text else 0.0, evidence=f"looked for {reference!r}")


@hookimpl
def assay_reward_sources() -> list[Component[Any, RewardSource]]:
    """Offer the verifier."""
    return [typed]
