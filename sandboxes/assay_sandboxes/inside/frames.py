"""Length-prefixed JSON frames, on pipes and sockets."""

import json
import os
from typing import Any

MAX_FRAME = 64 << 20
"""Largest frame between host and zygote."""


def pack(message: dict[str, Any]) -> bytes:
    """The bytes of one frame: four bytes of length, big end first, and JSON in ASCII."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return len(body).to_bytes(4, "big") + body


def write(fd: int, data: bytes) -> None:
    """Write all of `data`, however often the descriptor takes only a part."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Reader:
    """Cuts a stream of bytes into frames of at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        """Start empty."""
        self._limit = limit
        self._buffer = bytearray()
        self.broken = False
        """Whether a length beyond the limit was seen; nothing after it is read."""

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes."""
        if self.broken:
            return []
        self._buffer += data
        frames: list[bytes] = []
        while len(self._buffer) >= 4:
            length = int.from_bytes(self._buffer[:4], "big")
            if length > self._limit:
                self.broken = True
                break
            if len(self._buffer) < 4 + length:
                break
            frames.append(bytes(self._buffer[4 : 4 + length]))
            del self._buffer[: 4 + length]
        return frames
