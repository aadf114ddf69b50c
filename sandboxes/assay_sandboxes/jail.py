"""One jail as the host sees it: a zygote behind two pipes, asked one thing at a time, always with a deadline.

Everything here blocks and belongs to one thread. A jail that dies, answers nonsense or misses its deadline raises
`JailLost`; the pool decides what that means for the job.
"""

import json
import time
from typing import Any, Protocol

from assay.errors import SandboxError

GRACE_S = 0.4
"""How much longer than the zygote the host waits before it ends the jail itself."""
_MAX_FRAME = 64 << 20


class JailLost(Exception):  # noqa: N818 - it is what happened, and the pool decides whether it is an error
    """The jail is gone: its process died, or it did not answer in time and was killed."""

    def __init__(self, why: str, *, late: bool = False) -> None:
        """Say `why`; `late` where it missed a deadline."""
        super().__init__(why)
        self.late = late


class Transport(Protocol):
    """Bytes to and from a zygote, and the means to end everything that was started for it."""

    def read(self, timeout_s: float) -> bytes:
        """Some bytes, or none at the end of the stream; raises `TimeoutError` when nothing comes in time."""
        ...

    def write(self, data: bytes, timeout_s: float) -> None:
        """Write all of `data`; raises `TimeoutError` or `OSError`."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when `read` has something."""
        ...

    def diagnosis(self) -> str:
        """What the jail wrote to its standard error, shortened."""
        ...

    def kill(self) -> None:
        """End the jail's processes; may be called from another thread, whose `read` then ends."""
        ...

    def close(self) -> None:
        """End the jail and remove whatever was made for it; may be called twice."""
        ...


class Jail:
    """A started zygote."""

    def __init__(self, transport: Transport, *, start_within_s: float) -> None:
        """Wait for the zygote's greeting; raises `SandboxError` with its own words when it does not come."""
        self._transport = transport
        self._buffer = bytearray()
        self._number = 0
        self.jobs = 0
        """Jobs run so far."""
        self.alive = True
        try:
            self.greeting = self.receive(time.monotonic() + start_within_s)
        except JailLost as lost:
            raise SandboxError(
                f"the jail did not start: {lost}; {transport.diagnosis() or 'it said nothing'}"
            ) from None
        if self.greeting.get("ready") != 1:
            self.close()
            raise SandboxError(f"the jail speaks another protocol: {str(self.greeting)[:100]}")

    @property
    def python(self) -> str:
        """Version of the interpreter inside."""
        return str(self.greeting["python"])

    def ask(self, messages: list[dict[str, Any]], *, wall_s: float) -> dict[str, Any]:
        """Send `messages`, the last of which is a request, and return its answer."""
        deadline = time.monotonic() + wall_s + GRACE_S
        request = self.send(messages, wall_s=wall_s)
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == request:
                return answer

    def send(self, messages: list[dict[str, Any]], *, wall_s: float) -> int:
        """Send `messages`, number the last one, and return its number."""
        self._number += 1
        messages[-1]["id"] = self._number
        self.jobs += 1
        self._write(messages, wall_s + GRACE_S)
        return self._number

    def say(self, text: str) -> None:
        """Pass one frame to the running child."""
        self._write([{"op": "say", "text": text}], 5.0)

    def _write(self, messages: list[dict[str, Any]], timeout_s: float) -> None:
        data = bytearray()
        for message in messages:
            body = json.dumps(message, separators=(",", ":")).encode()
            data += len(body).to_bytes(4, "big") + body
        try:
            self._transport.write(bytes(data), timeout_s)
        except OSError as error:
            raise self._lost(f"it takes no more input ({error or type(error).__name__})") from None

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next frame; raises `JailLost` at the deadline or the end."""
        while (frame := self.take()) is None:
            left = deadline - time.monotonic()
            try:
                if left <= 0:
                    raise TimeoutError
                data = self._transport.read(left)
            except TimeoutError:
                raise self._lost("it did not answer in time", late=True) from None
            except OSError as error:
                raise self._lost(f"its output is gone ({error})") from None
            if not data:
                raise self._lost("its process ended")
            self._buffer += data
        return frame

    def take(self) -> dict[str, Any] | None:
        """A frame that has already arrived as a whole, or None."""
        if len(self._buffer) < 4:
            return None
        length = int.from_bytes(self._buffer[:4], "big")
        if length > _MAX_FRAME:
            raise self._lost("it sent a frame that is too long")
        if len(self._buffer) < 4 + length:
            return None
        body = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        try:
            frame = json.loads(body)
        except ValueError:
            raise self._lost("it sent a frame that is not JSON") from None
        if not isinstance(frame, dict):
            raise self._lost("it sent a frame that is not an object")
        return frame  # pyright: ignore[reportUnknownVariableType]

    def poll(self) -> None:
        """Read what is there without waiting."""
        try:
            data = self._transport.read(0.0)
        except TimeoutError:
            return
        except OSError as error:
            raise self._lost(f"its output is gone ({error})") from None
        if not data:
            raise self._lost("its process ended")
        self._buffer += data

    def fileno(self) -> int:
        """A descriptor that is readable when a frame arrives."""
        return self._transport.fileno()

    def kill(self) -> None:
        """End the jail's processes from another thread."""
        self._transport.kill()

    def close(self) -> None:
        """End the jail."""
        self.alive = False
        self._transport.close()

    def _lost(self, why: str, *, late: bool = False) -> JailLost:
        self.close()
        return JailLost(why, late=late)
