"""A reward pool on a Ray cluster: the calls of `assay.judging`'s sources, run by killable workers inside actors.

It stands in place of the pool of this machine, behind the same two doors (`open`, `submit`), so sources, guards,
retries, caches and verdicts are the same. One thread drives it; Ray's answers come to it as events.

Guaranteed: every call gets exactly one answer; an actor never holds more than its window of calls, so that the rest
waits here; an actor that died, or that gives no sign of life, is replaced, and each call that it held is made once
more on another; a call whose actor was lost twice is answered with the cause. Not guaranteed: that a call was not
begun on the lost actor; its answer from there is never taken.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from assay.config.rewards import RayConfig
from assay.contracts import ResourceLimits
from assay.errors import AssayError, JudgingError
from assay.judging.tracked import Answer, ProgramKey, settle
from assay.remote.ray.cluster import Cluster, connect
from assay.remote.ray.members import Member, Order
from assay.remote.ray.members import members as start_members

log = logging.getLogger("assay.judging")
_LOOK_S = 1.0
_LOSSES_PER_ACTOR = 3
"""Actors may be lost so many times their number in a row, without an answer in between."""


@dataclass
class _Opening:
    """Somebody who waits for a program's facts."""

    key: ProgramKey
    future: Future[Mapping[str, Any]]
    losses: int = 0


@dataclass
class _Waiting:
    """Calls that wait for room, by program; programs take turns."""

    calls: dict[ProgramKey, deque[Order]] = field(default_factory=dict[ProgramKey, "deque[Order]"])
    turn: deque[ProgramKey] = field(default_factory=deque[ProgramKey])

    def __len__(self) -> int:
        return sum(map(len, self.calls.values()))

    def add(self, order: Order, *, first: bool = False) -> None:
        """Let a call wait; `first` for one that waits for the second time."""
        if order.key not in self.calls:
            self.calls[order.key] = deque()
            self.turn.append(order.key)
        (self.calls[order.key].appendleft if first else self.calls[order.key].append)(order)

    def take(self) -> Order:
        """The next call of the program whose turn it is."""
        while not self.calls[self.turn[0]]:
            self.turn.rotate(-1)
        order = self.calls[self.turn[0]].popleft()
        self.turn.rotate(-1)
        return order

    def remove(self, future: Future[Answer]) -> None:
        """Forget the call of a future, if it waits."""
        for calls in self.calls.values():
            for order in [order for order in calls if order.future is future]:
                calls.remove(order)


class RayPool:
    """Runs calls of named programs on actors; see the module's guarantees."""

    spreads: bool = True
    """Its workers have more than this machine's cores."""

    def __init__(self, size: int, settings: RayConfig, *, start_timeout_s: float = 60.0) -> None:
        """At most `size` items at once over all actors; nothing is connected before the first call."""
        self.size = size
        self.settings = settings
        self.start_timeout_s = start_timeout_s
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._cluster: Cluster | None = None
        self._members: list[Member] = []
        self._ids = itertools.count(1)
        self._waiting = _Waiting()
        self._openings: list[_Opening] = []
        self._facts: dict[ProgramKey, Mapping[str, Any]] = {}
        self._broken = ""
        """Why nothing can run any more."""
        self._started_by = float("inf")
        """When actors that have not started by then are given up; infinite while none is waited for."""
        self._losses_in_row = 0
        self._own: Counter[str] = Counter()
        self._past: Counter[str] = Counter()
        """Counts of actors that are gone."""

    # ---- for callers, from any thread ----

    @property
    def counts(self) -> Counter[str]:
        """What happened to workers, over all actors, as in the pool of one machine; and lost_actors, repeated."""
        total = self._own + self._past
        for member in list(self._members):
            total.update(member.counts)
        return total

    @property
    def queue_length(self) -> int:
        """Calls that wait for room on an actor."""
        return len(self._waiting)

    @property
    def places(self) -> list[str]:
        """Where each actor runs: host and process."""
        return [member.place for member in list(self._members)]

    def submit(self, key: ProgramKey, payload: bytes, limits: ResourceLimits) -> Future[Answer]:
        """The answer to come; cancelling the future ends the item."""
        future: Future[Answer] = Future()
        order = Order(next(self._ids), key, payload, limits.model_dump_json(), future)

        def enter() -> None:
            if self._broken:
                order.answer(Answer("killed", detail=self._broken, infra=True))
                return
            self._waiting.add(order)
            future.add_done_callback(self._on_done)

        self._post(enter)
        return future

    def open(self, key: ProgramKey) -> Future[Mapping[str, Any]]:
        """The program's facts once an actor has loaded it; raises `JudgingError` with the cause when it cannot be."""
        future: Future[Mapping[str, Any]] = Future()

        def enter() -> None:
            if self._broken:
                settle(future, JudgingError(self._broken))
            elif key in self._facts:
                settle(future, self._facts[key])
            else:
                self._openings.append(_Opening(key, future))

        self._post(enter)
        return future

    def close(self) -> None:
        """End every actor with everything below it; calls under way are answered as killed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._events.put(lambda: None)
            thread.join()

    def _post(self, action: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                raise JudgingError("judging: the worker pool is closed; open a new panel")
            if self._thread is None:
                self._thread = threading.Thread(target=self._drive, name="assay-ray", daemon=True)
                self._thread.start()
        self._events.put(action)

    def _on_done(self, future: Future[Answer]) -> None:
        if future.cancelled():
            with contextlib.suppress(JudgingError):
                self._post(lambda: self._cancelled(future))

    # ---- the pool's own thread ----

    def _drive(self) -> None:
        try:
            self._begin()
            while not self._closed:
                self._dispatch()
                self._run_events()
                self._keep_deadlines(time.monotonic())
        except BaseException as error:  # callers must hear of a defect here instead of waiting for ever
            self._abandon(f"the Ray pool broke: {type(error).__name__}: {error}")
            raise
        finally:
            self._abandon(self._broken or "the worker pool was closed")
            for member in self._members:
                member.end()
            self._past = self.counts - self._own
            self._members.clear()

    def _run_events(self) -> None:
        """Wait for one event, then do all that are there."""
        with contextlib.suppress(queue.Empty):
            self._events.get(timeout=_LOOK_S)()
            while True:
                self._events.get_nowait()()

    def _begin(self) -> None:
        try:
            self._cluster = connect(self.settings.address, where="judging.ray")
        except AssayError as error:
            self._abandon(str(error))
            return
        self._members = start_members(
            self._cluster, self.size, self.settings, start_timeout_s=self.start_timeout_s, report=self._events.put
        )
        for member in self._members:
            member.start(sys.path)
        self._started_by = time.monotonic() + self.start_timeout_s

    def _dispatch(self) -> None:
        ready = [member for member in self._members if member.ready]
        if not ready:
            return
        for opening in self._openings:
            self._ask(opening, min(ready, key=lambda member: member.load))
        self._openings.clear()
        while self._waiting:
            member = min(ready, key=lambda member: member.load)
            if not member.has_room:
                break
            member.add(self._waiting.take())
        for member in ready:
            member.send()

    def _ask(self, opening: _Opening, member: Member) -> None:
        def told(facts: Callable[[], Any]) -> None:
            try:
                found = facts()
            except JudgingError as error:
                settle(opening.future, JudgingError(str(error)))
                return
            except AssayError as error:
                opening.losses += 1
                self._lose(member, str(error))
                if opening.losses > 1:
                    settle(opening.future, JudgingError(f"its actor was lost twice while loading it: {error}"))
                else:
                    self._openings.append(opening)
                return
            self._facts[opening.key] = found
            settle(opening.future, found)

        member.open(opening.key, told)

    def _keep_deadlines(self, now: float) -> None:
        for member in list(self._members):
            if member.answered:
                self._losses_in_row = 0
                member.answered = False
            if (cause := member.complaint(now)) is not None:
                self._lose(member, cause)
        if now > self._started_by:
            self._started_by = float("inf")
            missing = [member for member in self._members if not member.ready]
            if not missing or self._cluster is None:
                return
            told = (
                f"judging.ray: {len(missing)} of {len(self._members)} actors with {missing[0].cpus:g} CPUs each did "
                f"not start within {self.start_timeout_s:g} s; the cluster has {self._cluster.room()}; lower "
                "judging.workers or judging.ray.cpus_per_worker"
            )
            if len(missing) == len(self._members):
                self._abandon(told)
            else:
                log.warning("%s; going on with the others", told)

    def _lose(self, member: Member, cause: str) -> None:
        """An actor is gone: start another in its place, and let its calls be made once more."""
        if member.lost:
            return
        orders = member.lose()
        self._past.update(member.counts)
        self._own["lost_actors"] += 1
        self._losses_in_row += 1
        log.warning(
            "judging: the Ray actor on %s was lost (%s); %d candidates are judged again elsewhere",
            member.place,
            cause,
            len(orders),
        )
        place = self._members.index(member)
        if self._losses_in_row > _LOSSES_PER_ACTOR * len(self._members):
            self._abandon(f"judging.ray: {self._losses_in_row} actors were lost in a row without an answer: {cause}")
        for order in reversed(orders):
            order.losses += 1
            if self._broken:
                order.answer(Answer("killed", detail=self._broken, infra=True))
            elif order.losses > 1:
                order.answer(Answer("killed", detail=f"its Ray actor was lost twice: {cause}", infra=True))
            else:
                self._own["repeated"] += 1
                self._waiting.add(order, first=True)
        if self._broken:
            return
        self._members[place] = member.again()
        self._members[place].start(sys.path)
        self._started_by = time.monotonic() + self.start_timeout_s

    def _cancelled(self, future: Future[Answer]) -> None:
        self._waiting.remove(future)
        for member in self._members:
            member.cancel(future)

    def _abandon(self, why: str) -> None:
        """Answer everybody; from now on every call is answered so."""
        self._broken = why
        while self._waiting:
            self._waiting.take().answer(Answer("killed", detail=why, infra=True))
        for member in self._members:
            for order in member.lose():
                order.answer(Answer("killed", detail=why, infra=True))
        while self._openings:
            settle(self._openings.pop().future, JudgingError(why))
