"""The pool of killable worker processes, driven by one thread of its own.

A call goes to a worker that has its program loaded and is alone there; at a limit the worker's whole process tree is
killed, the call gets its answer and the slot is free again. Deadlines are kept by the pool's thread, so they hold
whatever the caller's event loop does, and calls may come from any thread and any loop.

Guaranteed: every call gets exactly one answer; at most `size` items run at once; programs share the slots round robin;
nothing runs on after `close`. Items that were running while a fork server itself died are tried once more.
"""

import contextlib
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from assay.contracts import ResourceLimits
from assay.errors import JudgingError
from assay.judging.crew import Crew
from assay.judging.events import Events
from assay.judging.servers import Servers
from assay.judging.tracked import Answer, Call, Program, ProgramKey, settle


class Pool:
    """Runs calls of named programs in worker processes; see the module's guarantees."""

    spreads: bool = False
    """Its workers share this machine's cores."""

    def __init__(
        self, size: int, *, start_timeout_s: float = 60.0, preload: Sequence[str] = ("assay.judging.rebuild",)
    ) -> None:
        """At most `size` items at once; nothing is started before the first call."""
        self.size = size
        self._turn: deque[Program] = deque()
        self._thread: threading.Thread | None = None
        self._events = Events()
        ids = itertools.count(1)
        self._crew = Crew(self._events, ids)
        self._servers = Servers(self._events, self._crew, ids, start_timeout_s=start_timeout_s, preload=preload)

    # ---- for callers, from any thread ----

    @property
    def counts(self) -> Counter[str]:
        """How often: spawned, timed_out, out_of_memory, killed, too_large."""
        return self._crew.counts

    def submit(self, key: ProgramKey, payload: bytes, limits: ResourceLimits) -> "Future[Answer]":
        """The answer to come; cancelling the future ends the item."""
        future: Future[Answer] = Future()

        def enter() -> None:
            program = self._program(key)
            if program.state == "broken":
                settle(future, Answer("killed", detail=program.cause, infra=True))
                return
            program.queue.append(Call(program, payload, limits, future))
            future.add_done_callback(self._on_done)

        self._post(enter)
        return future

    def open(self, key: ProgramKey) -> "Future[Mapping[str, Any]]":
        """The program's facts once it is loaded; the future raises `JudgingError` with the cause when it cannot be."""
        future: Future[Mapping[str, Any]] = Future()

        def enter() -> None:
            program = self._program(key)
            if program.state == "ready":
                settle(future, program.facts)
            elif program.state == "broken":
                settle(future, JudgingError(program.cause))
            else:
                program.waiting.append(future)

        self._post(enter)
        return future

    @property
    def queue_length(self) -> int:
        """Calls that wait for a slot."""
        return sum(len(program.queue) for program in list(self._servers.programs.values()))

    def close(self) -> None:
        """End every worker and server with everything below them; calls under way are answered as killed."""
        if self._events.closed:
            return
        if self._thread is None:
            self._events.refuse()
            self._shut()
            return
        self._post(self._stop)
        self._thread.join()

    def _post(self, action: Callable[[], None]) -> None:
        self._events.post(action, self._start)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._drive, name="assay-workers", daemon=True)
            self._thread.start()

    def _on_done(self, future: "Future[Answer]") -> None:
        if future.cancelled():
            with contextlib.suppress(JudgingError):
                self._post(lambda: self._cancelled(future))

    # ---- the pool's own thread ----

    def _drive(self) -> None:
        try:
            while not self._events.closed:
                self._dispatch()
                self._events.run_once(self._pause_s())
                now = time.monotonic()
                self._crew.keep_deadlines(now)
                self._servers.keep_deadlines(now)
        except BaseException as error:  # callers must hear of a defect here instead of waiting for ever
            self._abandon(f"the worker pool broke: {type(error).__name__}: {error}")
            raise
        finally:
            self._shut()

    def _pause_s(self) -> float | None:
        first = min(self._crew.first_deadline, self._servers.first_deadline)
        return None if first == float("inf") else max(0.0, first - time.monotonic())

    def _dispatch(self) -> None:
        """Give waiting calls to free slots, program by program."""
        for _ in range(len(self._turn)):
            if self._crew.busy >= self.size:
                return
            program = self._turn[0]
            self._turn.rotate(-1)
            if program.state == "new" and program.queue:
                self._servers.load(program)
            if program.state == "ready" and program.queue:
                self._crew.assign(program, program.queue.popleft())
        if self._crew.busy < self.size and any(p.queue and p.state == "ready" for p in self._turn):
            self._dispatch()

    def _program(self, key: ProgramKey) -> Program:
        new = key not in self._servers.programs
        program = self._servers.program(key)
        if new:
            self._turn.append(program)
        return program

    def _cancelled(self, future: "Future[Answer]") -> None:
        if self._crew.cancel(future):
            return
        for program in self._turn:
            for call in [call for call in program.queue if call.future is future]:
                program.queue.remove(call)

    def _stop(self) -> None:
        self._events.refuse()
        self._abandon("the worker pool was closed")

    def _abandon(self, why: str) -> None:
        self._events.run_posted()
        self._crew.abandon(why)
        self._servers.abandon(why)

    def _shut(self) -> None:
        self._servers.close()
        self._crew.close()
        self._events.close()
