"""What inline code prints and logs, told apart by the coroutine that does it.

Worker processes capture by file descriptor; inline sources share the process with everything else, so their prints are
caught where Python writes them, and only for the context that judges. What a C library writes is not seen.
"""

import contextvars
import io
import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TextIO

_MAX_CHARACTERS = 1 << 18
_buffer: contextvars.ContextVar["Captured | None"] = contextvars.ContextVar("assay_captured", default=None)


class Captured:
    """The text that one call has printed, up to a bound."""

    def __init__(self) -> None:
        """Start empty."""
        self._parts: list[str] = []
        self._size = 0

    def write(self, text: str) -> None:
        """Keep `text` while there is room."""
        room = _MAX_CHARACTERS - self._size
        self._size += len(text)
        if room > 0:
            self._parts.append(text[:room])

    def text(self) -> str:
        """What was kept."""
        return "".join(self._parts)


class _Tee(io.TextIOBase):
    """A standard stream that hands what a judging context writes to its buffer."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, s: str) -> int:
        captured = _buffer.get()
        if captured is None:
            return self.stream.write(s)
        captured.write(s)
        return len(s)

    def flush(self) -> None:
        self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Handler(logging.Handler):
    """Logs of a judging context go to its buffer."""

    def emit(self, record: logging.LogRecord) -> None:
        captured = _buffer.get()
        if captured is not None:
            captured.write(f"{record.levelname} {record.name}: {record.getMessage()}\n")


@contextmanager
def capturing() -> Generator[None]:
    """Make `judging_context` work inside: the standard streams and the root logger are wrapped, and put back after."""
    before = sys.stdout, sys.stderr
    tees = _Tee(sys.stdout), _Tee(sys.stderr)
    handler = _Handler(logging.INFO)
    sys.stdout, sys.stderr = tees
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        if sys.stdout is tees[0]:
            sys.stdout = before[0]
        if sys.stderr is tees[1]:
            sys.stderr = before[1]


def judging_context() -> tuple[contextvars.Context, Captured]:
    """A context to run a task in, and what it prints."""
    captured = Captured()
    context = contextvars.copy_context()
    context.run(_buffer.set, captured)
    return context, captured


def shortened(text: str, characters: int = 8192) -> str:
    """The beginning and the end of a long text, with the number of characters left out between them."""
    if len(text) <= characters:
        return text
    half = characters // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters ...]\n{text[-half:]}"
