"""Watches one child until nothing of it is left: output caps, wall and CPU limits, and its channel."""

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from assay_sandboxes.inside import frames

CHUNK = 1 << 16
MAX_REPLIES_BYTES = 32 << 20


@dataclass
class Streams:
    """The zygote's ends of a child's pipes; each is closed as soon as it is done with."""

    stdin: int | None
    stdout: int
    stderr: int
    channel: int | None


@dataclass
class Report:
    """What became of a child."""

    outcome: str = "exited"
    detail: str = ""
    complaint: str = ""
    """Why the child could not be set up, written before any of the candidate's code ran."""
    status: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_kib: int = 0
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    replies: list[bytes] = field(default_factory=list[bytes])


class Watch:
    """One child under its limits; `run` returns when it is dead, reaped, and its pipes are drained."""

    def __init__(
        self,
        pid: int,
        streams: Streams,
        limits: dict[str, Any],
        stdin: bytes,
        *,
        kill: Callable[[int], None],
        reap: Callable[[], None],
        calls: int = 0,
        asking: bool = False,
        forward: Callable[[bytes], None] | None,
        control: Callable[[], list[bytes] | None] | None,
        early: list[bytes],
    ) -> None:
        """Watch `pid`; `forward` sends the child's frames on at once, `control` gives the host's (None: it is gone).

        A child that answers may send one frame for each of its `calls`, one for each call that the host passes on, and
        one word of failure; a frame more ends it. One that is `asking` decides itself how often.
        `early` are frames of the host that came together with the job.
        """
        self._pid = pid
        self._streams = streams
        self._limits = limits
        self._stdin = memoryview(stdin)
        self._kill = kill
        self._reap = reap
        self._frames_left = None if asking else calls + 1
        self._forward = forward
        self._control = control
        self._early = early
        self._report = Report()
        self._sinks = {streams.stdout: self._report.stdout, streams.stderr: self._report.stderr}
        self._alive = True
        self._reader = frames.Reader(1 << 21)
        self._replied = 0
        self._outgoing = bytearray()
        self._clock = (~pid << 3) | 2
        self._poll = select.poll()
        self._started = self._call_started = time.monotonic()
        self._call_cpu = 0.0
        self._open_calls = 1
        """Calls that the child has not answered; its own start counts as one until the first frame either way."""
        self._finishing = False

    def run(self) -> Report:
        """Watch to the end."""
        report = self._report
        ended = os.pidfd_open(self._pid)
        self._register(ended)
        if self._early:
            self._pass_on(self._early)
        try:
            while self._alive and report.outcome == "exited":
                wait = self._over_limit()
                if report.outcome == "exited":
                    for fd, events in self._poll.poll(max(1, int(wait * 1000) + 1)):
                        self._handle(fd, events, ended)
            if self._alive:
                self._end()
            report.wall_s = time.monotonic() - self._started
            # Whatever the child left behind dies before the last bytes are taken: nothing can hold a pipe open.
            self._kill(self._pid)
            _, status, usage = os.wait4(self._pid, 0)
            self._reap()
        finally:
            os.close(ended)
        report.status = status
        report.cpu_s = usage.ru_utime + usage.ru_stime
        report.peak_kib = usage.ru_maxrss
        if report.outcome == "exited":
            for fd in self._sinks:
                self._read(fd, drain=True)
            if self._streams.channel is not None:
                self._exchange(select.POLLIN)
        self._close()
        return report

    def _register(self, ended: int) -> None:
        streams = self._streams
        for fd in self._sinks:
            os.set_blocking(fd, False)
            self._poll.register(fd, select.POLLIN)
        self._poll.register(ended, select.POLLIN)
        self._poll.register(0, select.POLLIN if self._control else 0)
        if streams.stdin is not None:
            os.set_blocking(streams.stdin, False)
            self._poll.register(streams.stdin, select.POLLOUT)
        if streams.channel is not None:
            os.set_blocking(streams.channel, False)
            self._poll.register(streams.channel, select.POLLIN)

    def _handle(self, fd: int, events: int, ended: int) -> None:
        if fd == ended:
            self._alive = False
        elif fd in self._sinks:
            self._read(fd)
        elif fd == self._streams.stdin:
            self._write_stdin(events)
        elif fd == self._streams.channel:
            self._exchange(events)
        elif fd == 0:
            self._from_host(events)

    def _end(self) -> None:
        try:
            os.kill(self._pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _close(self) -> None:
        for fd in (self._streams.stdin, self._streams.stdout, self._streams.stderr, self._streams.channel):
            if fd is not None:
                os.close(fd)

    def _over_limit(self) -> float:
        """Seconds until a limit can next be passed; sets the outcome where one is."""
        now, limits, report = time.monotonic(), self._limits, self._report
        left = limits["wall_s"] - (now - self._started)
        call_wall = limits.get("call_wall_s")
        counting = self._forward is None or self._open_calls > 0
        if call_wall is not None and counting:
            left = min(left, call_wall - (now - self._call_started))
        if left <= 0:
            report.outcome, report.detail = "timed_out", "wall"
            return 0.0
        used = self._cpu()
        cpu_left = limits["cpu_s"] - used
        call_cpu = limits.get("call_cpu_s")
        if call_cpu is not None and counting:
            cpu_left = min(cpu_left, call_cpu - (used - self._call_cpu))
        if cpu_left <= 0:
            report.outcome, report.detail = "timed_out", "cpu"
            return 0.0
        return min(left, max(cpu_left, 0.01))

    def _cpu(self) -> float:
        try:
            return time.clock_gettime(self._clock)
        except OSError:
            return 0.0

    def _read(self, fd: int, *, drain: bool = False) -> None:
        sink, cap = self._sinks[fd], self._limits["output_kib"] << 10
        while True:
            try:
                data = os.read(fd, CHUNK)
            except BlockingIOError:
                return
            if not data:
                if not drain:
                    self._poll.unregister(fd)
                return
            sink += data
            if len(sink) > cap:
                del sink[cap:]
                self._report.outcome = "output_limit"
                self._report.detail = "stdout" if fd == self._streams.stdout else "stderr"
                return
            if not drain and len(data) < CHUNK:
                return

    def _write_stdin(self, events: int) -> None:
        fd = self._streams.stdin
        assert fd is not None
        if not events & (select.POLLERR | select.POLLHUP):
            try:
                self._stdin = self._stdin[os.write(fd, self._stdin[:CHUNK]) :]
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._stdin = self._stdin[:0]
        if events & (select.POLLERR | select.POLLHUP) or not self._stdin:
            self._poll.unregister(fd)
            os.close(fd)
            self._streams.stdin = None

    def _exchange(self, events: int) -> None:
        """Take the child's frames, and give it those that wait."""
        fd = self._streams.channel
        assert fd is not None
        if events & select.POLLOUT:
            self._send(fd)
        while True:
            try:
                data = os.read(fd, CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                with contextlib.suppress(KeyError):
                    self._poll.unregister(fd)
                return
            # After a length that no honest frame has, the reader drops everything: the answers so far are all.
            for body in self._reader.feed(data):
                self._replied += 4 + len(body)
                if self._frames_left == 0 or self._replied > MAX_REPLIES_BYTES:
                    self._report.outcome, self._report.detail = "output_limit", "returns"
                    return
                self._take(body)

    def _send(self, fd: int) -> None:
        try:
            del self._outgoing[: os.write(fd, self._outgoing[:CHUNK])]
        except BlockingIOError:
            return
        except OSError:
            self._outgoing.clear()
        if not self._outgoing:
            self._poll.modify(fd, select.POLLIN)
            if self._finishing:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as end:
                    end.shutdown(socket.SHUT_WR)

    def _take(self, body: bytes) -> None:
        self._call_started = time.monotonic()
        self._call_cpu = self._cpu()
        self._open_calls -= 1
        if self._frames_left is not None:
            self._frames_left -= 1
        if self._forward is None:
            self._report.replies.append(body)
        else:
            self._forward(body)

    def _from_host(self, events: int) -> None:
        bodies = self._control() if self._control is not None else None
        if bodies is None or (events & (select.POLLHUP | select.POLLERR) and not bodies):
            os._exit(0)  # the host is gone: this jail has nobody to work for
        self._pass_on(bodies)

    def _pass_on(self, bodies: list[bytes]) -> None:
        """Queue the host's frames for the child; an empty one is the last."""
        fd = self._streams.channel
        if fd is None:
            return
        for body in bodies:
            if body:
                self._outgoing += len(body).to_bytes(4, "big") + body
                self._open_calls += 1
                if self._frames_left is not None:
                    self._frames_left += 1
            else:
                self._finishing = True
        self._call_started = time.monotonic()
        self._call_cpu = self._cpu()
        try:
            self._poll.modify(fd, select.POLLIN | select.POLLOUT)
        except OSError:
            self._outgoing.clear()
