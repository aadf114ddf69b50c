"""Slots that jobs wait for in order, usable from any event loop."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator
from typing import Generic, TypeVar

S = TypeVar("S")


class Slots(Generic[S]):
    """A fixed set of slots, lent to one holder each; the longest waiting is served first."""

    def __init__(self, slots: list[S]) -> None:
        """All `slots` are free."""
        self._free = deque(slots)
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[S]]] = deque()
        self._lock = threading.Lock()

    async def take(self) -> S:
        """A slot, as soon as one is free."""
        loop = asyncio.get_running_loop()
        with self._lock:
            # The most recently used slot first: its jail is warm.
            if self._free:
                return self._free.pop()
            future: asyncio.Future[S] = loop.create_future()
            self._waiting.append((loop, future))
        try:
            return await future
        except asyncio.CancelledError:
            with self._lock, contextlib.suppress(ValueError):
                self._waiting.remove((loop, future))
            if future.done() and not future.cancelled():
                self.give(future.result())
            raise

    def give(self, slot: S) -> None:
        """Hand a slot back; may be called from any thread."""
        with self._lock:
            while self._waiting:
                loop, future = self._waiting.popleft()
                with contextlib.suppress(RuntimeError):  # its loop is closed: nobody waits there any more
                    loop.call_soon_threadsafe(self._hand_over, future, slot)
                    return
            self._free.append(slot)

    def _hand_over(self, future: "asyncio.Future[S]", slot: S) -> None:
        if future.done():
            self.give(slot)
        else:
            future.set_result(slot)

    @contextlib.asynccontextmanager
    async def lend(self) -> AsyncGenerator[S, None]:
        """A slot for the time of a block."""
        slot = await self.take()
        try:
            yield slot
        finally:
            self.give(slot)
