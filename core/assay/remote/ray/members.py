"""The actors of a reward pool as their driver sees them: what each holds, and whether it gives a sign of life."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from assay.config.rewards import RayConfig
from assay.errors import JudgingError
from assay.judging.tracked import Answer, ProgramKey, settle
from assay.remote.ray.cluster import Cluster, LostError, cause_of, raised_there, whenever
from assay.remote.ray.judging_actor import Item, JudgingActor

BEAT_S = 1.0
"""An actor without news answers after so long."""
Report = Callable[[Callable[[], None]], None]
"""Lets the driver's thread do something; called from Ray's threads."""


@dataclass(eq=False)
class Order:
    """One call, and where its answer goes."""

    id: int
    key: ProgramKey
    payload: bytes
    limits: str
    future: Future[Answer]
    losses: int = 0

    def answer(self, answer: Answer) -> None:
        """Hand the answer to whoever waits for it, unless the call was cancelled."""
        settle(self.future, answer)


@dataclass(eq=False)
class Member:
    """One actor; everything here belongs to the driver's thread."""

    cluster: Cluster
    settings: RayConfig
    slots: int
    start_timeout_s: float
    report: Report
    place: str = "a node that has not answered yet"
    ready: bool = False
    lost: bool = False
    answered: bool = False
    """Whether it has answered a call since the driver last looked."""
    counts: Counter[str] = field(default_factory=Counter[str])
    _actor: Any = None
    _held: dict[int, Order] = field(default_factory=dict[int, Order])
    _new: list[Order] = field(default_factory=list[Order])
    _cancelled: list[int] = field(default_factory=list[int])
    _alive_by: float = math.inf
    _cause: str | None = None

    def start(self, path: Sequence[str]) -> None:
        """Ask for the actor's process."""
        options: dict[str, Any] = {"num_cpus": self.cpus, "resources": dict(self.settings.resources) or None}
        self._actor = self.cluster.actor(JudgingActor, self.slots, self.start_timeout_s, list(path), **options)
        self._when(self._actor.where.remote(), self._began)

    def again(self) -> Member:
        """A new one like it, not started yet."""
        return Member(self.cluster, self.settings, self.slots, self.start_timeout_s, self.report)

    @property
    def cpus(self) -> float:
        """What it asks of the cluster."""
        return self.slots * self.settings.cpus_per_worker

    @property
    def load(self) -> float:
        """Calls that it holds per slot."""
        return len(self._held) / self.slots

    @property
    def has_room(self) -> bool:
        """Whether it may hold one more: its slots, and half as many ahead, so that none is idle meanwhile."""
        return len(self._held) < self.slots + max(1, self.slots // 2)

    def open(self, key: ProgramKey, told: Callable[[Callable[[], Any]], None]) -> None:
        """Ask for a program's facts; `told` gets a function that gives them, raises `JudgingError`, or `LostError`."""
        self._when(self._actor.open.remote(key.target, key.init), told)

    def add(self, order: Order) -> None:
        """Take a call on; it leaves with the next `send`."""
        self._held[order.id] = order
        self._new.append(order)

    def cancel(self, future: Future[Answer]) -> None:
        """Give up the call of a future, if it is held."""
        for order in [order for order in self._held.values() if order.future is future]:
            del self._held[order.id]
            if order in self._new:
                self._new.remove(order)
            else:
                self._cancelled.append(order.id)

    def send(self) -> None:
        """Send what is new."""
        if not self._new and not self._cancelled:
            return
        items = [tuple(Item(o.id, o.key.target, o.key.init, o.payload, o.limits)) for o in self._new]
        self._when(self._actor.put.remote(items, list(self._cancelled)), self._sent)
        self._new.clear()
        self._cancelled.clear()

    def complaint(self, now: float) -> str | None:
        """Why it has to be given up, or None."""
        if self._cause is None and now > self._alive_by:
            return f"no sign of life for {self.settings.lost_after_s:g} s"
        return self._cause

    def lose(self) -> list[Order]:
        """Give it up, end its process, and give back what it held, in order."""
        orders, self._held = list(self._held.values()), {}
        self._new.clear()
        self.end()
        return orders

    def end(self) -> None:
        """End its process with everything below it."""
        self.lost, self.ready = True, False
        if self._actor is not None:
            self.cluster.kill(self._actor)
            self._actor = None

    # ---- what it says ----

    def _when(self, reference: Any, told: Callable[[Callable[[], Any]], None]) -> None:
        """Let the driver's thread know of an answer, unless the actor was given up meanwhile."""

        def arrived(answer: Callable[[], Any]) -> None:
            self.report(lambda: None if self.lost else told(lambda: _asked(answer)))

        whenever(reference, arrived)

    def _began(self, place: Callable[[], Any]) -> None:
        try:
            self.place = place()
        except (LostError, JudgingError) as error:
            self._cause = str(error)
            return
        self.ready = True
        self._listen()

    def _listen(self) -> None:
        self._alive_by = time.monotonic() + BEAT_S + self.settings.lost_after_s
        self._when(self._actor.take.remote(BEAT_S), self._told)

    def _told(self, news: Callable[[], Any]) -> None:
        try:
            done, counts = news()
        except (LostError, JudgingError) as error:
            self._cause = str(error)
            return
        self.counts = Counter(counts)
        for name, answer in done:
            order = self._held.pop(name, None)
            if order is not None:  # else it was cancelled
                order.answer(Answer(**answer))
                self.answered = True
        self._listen()

    def _sent(self, done: Callable[[], Any]) -> None:
        try:
            done()
        except (LostError, JudgingError) as error:
            self._cause = str(error)


def members(
    cluster: Cluster, size: int, settings: RayConfig, *, start_timeout_s: float, report: Report
) -> list[Member]:
    """Actors, not started yet, whose slots add up to `size`."""
    most = settings.workers_per_actor
    count = -(-size // most)
    return [
        Member(cluster, settings, size // count + (place < size % count), start_timeout_s, report)
        for place in range(count)
    ]


def _asked(answer: Callable[[], Any]) -> Any:
    """What an actor answered; raises `JudgingError` as it did, or `LostError` where it could not be asked."""
    try:
        return answer()
    except Exception as error:
        own = raised_there(error)
        if isinstance(own, JudgingError):
            raise own from error
        raise LostError(cause_of(error)) from error
