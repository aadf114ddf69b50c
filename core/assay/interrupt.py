"""Ends a run on request: politely the first time, at once the second."""

import asyncio
import signal
from typing import Protocol

from assay.events import Emit


class Stoppable(Protocol):
    """Work that ends by itself after the step in progress once it is asked to."""

    stop_requested: bool


class StopOnInterrupt:
    """The first Ctrl-C (or SIGTERM) ends the run after the step in progress; the second ends it at once."""

    def __init__(self, loop: Stoppable, emit: Emit) -> None:
        """Watch over `loop`; the request is told by `emit`."""
        self._loop = loop
        self._emit = emit

    def __enter__(self) -> None:
        """Install the handlers of SIGINT and SIGTERM."""
        events = asyncio.get_running_loop()
        current = asyncio.current_task()

        def stop() -> None:
            if self._loop.stop_requested and current is not None:
                current.cancel()
                return
            self._loop.stop_requested = True
            self._emit(
                {"event": "alert", "text": "stopping after this step; once more to stop at once (both are safe)"}
            )

        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                events.add_signal_handler(number, stop)
        except (ValueError, RuntimeError, NotImplementedError):
            return  # not the main thread: whoever owns it handles signals

    def __exit__(self, *_: object) -> None:
        """Remove them."""
        events = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            events.remove_signal_handler(number)
