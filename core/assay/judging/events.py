"""The event loop of the pool's thread: actions posted from any thread, and actions per readable or writable file."""

import contextlib
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from assay.errors import JudgingError


class Events:
    """A selector with an inbox; everything but `post` belongs to the one thread that calls `run_once`."""

    def __init__(self) -> None:
        """Nothing is watched yet."""
        self.closed = False
        """Whether posts are refused."""
        self._lock = threading.Lock()
        self._inbox: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.watch(self._wake_read, self._wake)

    def post(self, action: Callable[[], None], start: Callable[[], None]) -> None:
        """Let the thread call `action` soon, from any thread; `start` is called first, under a lock.

        Raises `JudgingError` once closed.
        """
        with self._lock:
            if self.closed:
                raise JudgingError("judging: the worker pool is closed; open a new panel")
            self._inbox.append(action)
            start()
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def refuse(self) -> None:
        """Refuse further posts."""
        with self._lock:
            self.closed = True

    def run_once(self, pause_s: float | None) -> None:
        """Wait for an event, up to `pause_s` seconds, and call what it asks for."""
        for key, mask in self._selector.select(pause_s):
            key.data(mask)

    def run_posted(self) -> None:
        """Call what was posted."""
        while self._inbox:
            self._inbox.popleft()()

    def watch(self, file: Any, action: Callable[[int], None], *, write: bool = False) -> None:
        """Call `action` with the event mask when `file` can be read (or written too)."""
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        if file in self._selector.get_map():
            self._selector.modify(file, mask, action)
        else:
            self._selector.register(file, mask, action)

    def unwatch(self, file: Any) -> None:
        """Forget `file`; nothing happens where it was not watched."""
        if file in self._selector.get_map():
            self._selector.unregister(file)

    def close(self) -> None:
        """Let go of the selector; called once, when nobody posts any more."""
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wake(self, _mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 1 << 16)
        self.run_posted()
