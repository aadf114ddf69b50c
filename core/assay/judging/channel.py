"""Frames on sockets: what the parent, the fork servers and the workers say to each other.

Items and answers travel on stream sockets as `length (4 bytes, big endian), kind (1 byte), body`; orders to a fork
server travel on sequenced-packet sockets as one JSON object per packet, with file descriptors beside it. Nothing is
pickled.
"""

import json
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

_HEADER = struct.Struct("!Ic")
_CHUNK = 1 << 18

LOAD, ITEM = b"L", b"I"
"""Kinds of frames to a worker: a program to load, an item to run."""

LOADED, BROKEN = b"l", b"b"
"""Kinds of answers to a load: the program's facts as JSON, or one line of cause."""

OK, RAISED, TRANSIENT, MEMORY, LARGE, LEFT = b"o", b"r", b"t", b"m", b"g", b"p"
"""Kinds of answers to an item: its value as JSON, or one line of cause."""

ITEM_LIMITS = struct.Struct("!ddQ")
"""In front of an item's payload: CPU seconds (0: none), memory in bytes (0: none), largest answer in bytes."""


class Frame(NamedTuple):
    """One message of a stream."""

    kind: bytes
    body: bytes


class FrameSizeError(Exception):
    """The other side announced a frame beyond the agreed size."""


def write_frame(file: int, kind: bytes, body: bytes) -> None:
    """Write one frame to a blocking file."""
    data = memoryview(_HEADER.pack(len(body), kind) + body)
    while data:
        data = data[os.write(file, data) :]


def read_frame(file: int) -> Frame | None:
    """The next frame of a blocking file, or None at its end."""
    header = _read_exactly(file, _HEADER.size)
    if header is None:
        return None
    size, kind = _HEADER.unpack(header)
    body = _read_exactly(file, size)
    return None if body is None else Frame(kind, body)


def _read_exactly(file: int, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        data = os.read(file, min(size - len(parts), _CHUNK))
        if not data:
            return None
        parts += data
    return bytes(parts)


class Connection:
    """The parent's end of a stream: never blocks, and refuses frames beyond `max_bytes`."""

    def __init__(self, sock: socket.socket, max_bytes: int) -> None:
        """Take over `sock`."""
        sock.setblocking(False)
        self.sock = sock
        self.max_bytes = max_bytes
        self._received = bytearray()
        self._unsent = bytearray()

    def fileno(self) -> int:
        """The file descriptor, for selectors."""
        return self.sock.fileno()

    def send(self, kind: bytes, *parts: bytes) -> bool:
        """Queue a frame and send what fits; true when everything is sent."""
        self._unsent += _HEADER.pack(sum(map(len, parts)), kind)
        for part in parts:
            self._unsent += part
        return self.flush()

    def flush(self) -> bool:
        """Send what fits; true when everything is sent, or the other side is gone."""
        while self._unsent:
            try:
                sent = self.sock.send(memoryview(self._unsent)[:_CHUNK])
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError):
                self._unsent.clear()  # its end is reported by the fork server
                break
            del self._unsent[:sent]
        return True

    def receive(self) -> bool:
        """Read what is there; false once the other side has closed."""
        while True:
            try:
                data = self.sock.recv(_CHUNK)
            except BlockingIOError:
                return True
            except ConnectionResetError:
                return False
            if not data:
                return False
            self._received += data
            if len(data) < _CHUNK:
                return True

    def frames(self) -> Iterator[Frame]:
        """The complete frames received so far; raises `FrameSizeError`."""
        while len(self._received) >= _HEADER.size:
            size, kind = _HEADER.unpack_from(self._received)
            if size > self.max_bytes:
                raise FrameSizeError(f"an answer of {size} bytes")
            end = _HEADER.size + size
            if len(self._received) < end:
                return
            body = bytes(self._received[_HEADER.size : end])
            del self._received[:end]
            yield Frame(kind, body)

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()


def order_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets for orders."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_order(sock: socket.socket, order: dict[str, Any], files: Sequence[int] = ()) -> None:
    """Send one order with file descriptors beside it; raises `OSError` when the other side is gone."""
    socket.send_fds(sock, [json.dumps(order).encode()], list(files))


def receive_order(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next order and its file descriptors, or None when the other side is gone."""
    try:
        data, files, _, _ = socket.recv_fds(sock, 1 << 16, 4)
    except ConnectionResetError:
        return None
    if not data:
        return None
    for file in files:
        os.set_inheritable(file, False)
    return json.loads(data), list(files)
