"""Forms batches of one source, and shares a device among sources; pure, time is passed in.

A batch is due when it is full, or when its oldest item has waited `max_wait_s`; at most `concurrency` batches are out.
With a token budget, items are taken in order of length around the oldest one, so that a batch pads little, and the
padded size `items x longest` stays within the budget (an item beyond it goes alone).

Invariants: every item is in exactly one batch; no batch exceeds `max_batch` or (with more than one item) `max_tokens`;
the oldest item is always in the next batch, so none starves.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from assay.contracts import Limits

T = TypeVar("T")


class _Waiting(NamedTuple, Generic[T]):
    item: T
    tokens: int
    since: float


class Batcher(Generic[T]):
    """Waiting items of one source and the batches that are out."""

    def __init__(self, limits: Limits) -> None:
        """Form batches as `limits` asks."""
        self.limits = limits
        self.out = 0
        """Batches that are under way."""
        self.wave = 0
        """Counts up whenever an item comes while none waits: those that ever waited together have the same."""
        self._waiting: list[_Waiting[T]] = []
        self._tokens = 0

    def __len__(self) -> int:
        """Items that wait."""
        return len(self._waiting)

    def add(self, item: T, *, tokens: int, now: float) -> None:
        """Let an item wait; `tokens` is its length."""
        self.wave += not self._waiting
        self._waiting.append(_Waiting(item, tokens, now))
        self._tokens += tokens

    def discard(self, item: T) -> None:
        """Forget a waiting item; nothing happens when it is out already."""
        self._keep([waiting for waiting in self._waiting if waiting.item is not item])

    def due(self, now: float) -> bool:
        """Whether a batch may leave now."""
        if not self._waiting or self.out >= self.limits.concurrency:
            return False
        full = len(self._waiting) >= self.limits.max_batch
        if self.limits.max_tokens is not None:
            full = full or self._tokens >= self.limits.max_tokens
        return full or now >= self._waiting[0].since + self.limits.max_wait_s

    def due_at(self) -> float | None:
        """When the next batch leaves if nothing more comes, or None while nothing can leave by itself."""
        if not self._waiting or self.out >= self.limits.concurrency:
            return None
        return self._waiting[0].since + self.limits.max_wait_s

    def take(self) -> list[T]:
        """The next batch, counted as out until `done`; longest items last where there is a token budget."""
        if self.limits.max_tokens is None:
            chosen = self._waiting[: self.limits.max_batch]
            self._keep(self._waiting[self.limits.max_batch :])
        else:
            chosen = self._by_length(self.limits.max_tokens)
        self.out += 1
        return [waiting.item for waiting in chosen]

    def done(self) -> None:
        """A batch has come back."""
        self.out -= 1

    def _by_length(self, budget: int) -> list[_Waiting[T]]:
        order = sorted(range(len(self._waiting)), key=lambda index: (self._waiting[index].tokens, index))
        first = last = order.index(0)
        while last + 1 - first < self.limits.max_batch:
            size = last + 2 - first
            if first > 0 and size * self._waiting[order[last]].tokens <= budget:
                first -= 1  # shorter neighbours cost no padding beyond what the batch has
            elif last + 1 < len(order) and size * self._waiting[order[last + 1]].tokens <= budget:
                last += 1
            else:
                break
        picked = order[first : last + 1]
        chosen = [self._waiting[index] for index in picked]
        gone = set(picked)
        self._keep([waiting for index, waiting in enumerate(self._waiting) if index not in gone])
        return chosen

    def _keep(self, waiting: list[_Waiting[T]]) -> None:
        self._waiting = waiting
        self._tokens = sum(item.tokens for item in waiting)


@dataclass
class FairShare:
    """Who may use a shared device next: the source that has used least of it for its weight.

    Start-time fair queueing (Goyal, Vin, Cheng 1996): a source that asked for nothing meanwhile is level with the one
    that was served last, and has no credit to keep others waiting with.
    """

    used: dict[Hashable, float] = field(default_factory=dict[Hashable, float])
    """Weighted cost so far, by source."""
    weights: dict[Hashable, float] = field(default_factory=dict[Hashable, float])
    served: float = 0.0
    """What the source served last had used when its turn came."""

    def join(self, source: Hashable, weight: float) -> None:
        """A source begins to use the device; it starts level with the least served, not with a credit."""
        self.weights[source] = weight
        self.used[source] = max(self.served, min(self.used.values(), default=0.0))

    def ask(self, source: Hashable) -> None:
        """A source that had nothing to send has something again."""
        self.used[source] = max(self.used[source], self.served)

    def charge(self, source: Hashable, cost: float) -> None:
        """Count `cost` (items, tokens or seconds) as used by `source`."""
        self.used[source] += cost / self.weights[source]

    def first(self, asking: Iterable[Hashable]) -> Hashable:
        """Whose turn it is among those that ask; ties go to the one that asked first."""
        chosen = min(asking, key=lambda source: self.used[source])
        self.served = self.used[chosen]
        return chosen
