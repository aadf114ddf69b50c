"""Collects judged rollouts into groups, decides on each, and closes a batch; pure, without clock or task."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from assay.contracts import Reward, Rollout, ScoredGroup
from assay.pipeline.tickets import Ticket
from assay.protocols import Decision

Select = Callable[[ScoredGroup], Decision]

TOO_FEW_SCORED = "too_few_scored"
REFILL_LIMIT = "refill_limit"
STALE = "stale"


@dataclass(frozen=True)
class Batch:
    """What one update is made of."""

    groups: tuple[tuple[Ticket, ScoredGroup], ...]
    """Kept groups in ticket order."""
    decisions: tuple[tuple[Ticket, ScoredGroup, Decision], ...]
    """Every group that was decided on for this batch, in ticket order, with the reason."""

    @property
    def dropped(self) -> Counter[str]:
        """Reason to number of groups that are not trained on."""
        return Counter(decision.reason for _, _, decision in self.decisions if decision.action != "keep")

    def without(self, stale: Collection[int]) -> "Batch":
        """The batch with the groups of these tickets, which have become too old, among those that are dropped."""
        if not stale:
            return self
        return Batch(
            groups=tuple(item for item in self.groups if item[0].number not in stale),
            decisions=tuple(
                (ticket, group, Decision("drop", STALE) if ticket.number in stale else decision)
                for ticket, group, decision in self.decisions
            ),
        )


@dataclass
class _Open:
    ticket: Ticket
    size: int
    rollouts: dict[str, tuple[Rollout, Reward]] = field(default_factory=dict[str, tuple[Rollout, Reward]])


class Assembler:
    """Every rollout is added exactly once; every group is decided exactly once; a batch has `groups_per_step` groups.

    A `refill` decision replaces the group as long as fewer than `max_refill * groups_per_step` were replaced in this
    batch; afterwards it counts as dropped, so that a batch always closes.
    """

    def __init__(self, select: Select, *, groups_per_step: int, min_scored: int, max_refill: float) -> None:
        """`select` decides on one complete group with enough scored rollouts."""
        self.select = select
        self.groups_per_step = groups_per_step
        self.min_scored = min_scored
        self.max_refilled = int(max_refill * groups_per_step)
        self._open: dict[str, _Open] = {}
        self._decided: list[tuple[Ticket, ScoredGroup, Decision]] = []

    def open(self, ticket: Ticket, size: int) -> None:
        """Expect `size` rollouts for this ticket."""
        if ticket.group_id in self._open:
            raise ValueError(f"group {ticket.group_id!r} is open already")
        self._open[ticket.group_id] = _Open(ticket, size)

    def add(self, rollout: Rollout, reward: Reward) -> Decision | None:
        """Add one judged rollout; the decision on its group when that is complete, else None."""
        group = self._open[rollout.group_id]
        if rollout.id in group.rollouts:
            raise ValueError(f"rollout {rollout.id!r} was added before")
        group.rollouts[rollout.id] = (rollout, reward)
        if len(group.rollouts) < group.size:
            return None
        del self._open[rollout.group_id]
        members = [group.rollouts[key] for key in sorted(group.rollouts)]
        scored = ScoredGroup(
            task=group.ticket.task,
            rollouts=tuple(member for member, _ in members),
            rewards=tuple(reward for _, reward in members),
        )
        decision = self._decide(scored)
        self._decided.append((group.ticket, scored, decision))
        return decision

    def close(self) -> Batch | None:
        """A batch once enough groups are decided; groups beyond it stay for the next one."""
        filled = [item for item in self._decided if item[2].action != "refill"]
        if len(filled) < self.groups_per_step:
            return None
        chosen = {ticket.number for ticket, _, _ in filled[: self.groups_per_step]}
        taken = [item for item in self._decided if item[2].action == "refill" or item[0].number in chosen]
        self._decided = [item for item in self._decided if item[2].action != "refill" and item[0].number not in chosen]
        taken.sort(key=lambda item: item[0].number)
        kept = tuple((ticket, group) for ticket, group, decision in taken if decision.action == "keep")
        return Batch(groups=kept, decisions=tuple(taken))

    @property
    def waiting(self) -> int:
        """Groups that still wait for rollouts or rewards."""
        return len(self._open)

    def _decide(self, group: ScoredGroup) -> Decision:
        if sum(value is not None for value in group.values) < self.min_scored:
            return Decision("drop", TOO_FEW_SCORED)
        decision = self.select(group)
        if decision.action == "refill":
            refilled = sum(item[2].action == "refill" for item in self._decided)
            if refilled >= self.max_refilled:
                return Decision("drop", REFILL_LIMIT)
        return decision
