"""Start a command under a supervisor that contains its whole process tree, and run one to its end within bounds.

Works from any thread and any event loop, installs no signal handler and uses no alarm: a deadline is kept by a thread
that waits, and kept by killing.
"""

import asyncio
import contextlib
import json
import os
import secrets
import selectors
import socket
import subprocess  # commands are started from argument lists, never through a shell
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from assay.process.tree import kill_marked, kill_tree

Outcome = Literal["exited", "crashed", "timed_out", "output_limit"]
_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
_GRACE_S = 2.0
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Bounds:
    """Limits of a command, set on the command itself and inherited by everything below it; None is no limit."""

    cpu_s: int | None = None
    """CPU seconds of each process."""
    memory_mib: int | None = None
    """Address space of each process, in MiB."""
    file_mib: int | None = None
    """Size of each written file, in MiB."""
    open_files: int | None = None
    """Open files of each process."""
    core_mib: int | None = 0
    """Size of a core dump, in MiB."""

    def rlimits(self) -> dict[str, int]:
        """The limits by their names in the `resource` module, in the kernel's units."""
        mib = 1 << 20
        named = {
            "RLIMIT_CPU": self.cpu_s,
            "RLIMIT_AS": None if self.memory_mib is None else self.memory_mib * mib,
            "RLIMIT_FSIZE": None if self.file_mib is None else self.file_mib * mib,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_CORE": None if self.core_mib is None else self.core_mib * mib,
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Finished:
    """What became of a command."""

    outcome: Outcome
    """`crashed` is an end by a signal that was not ours."""
    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    dropped: int
    """Bytes of output beyond the limit."""
    wall_s: float
    cpu_s: float
    """CPU seconds of the whole tree, as far as it was waited for."""
    peak_memory_mib: float
    """Largest resident memory of one process of the tree."""
    left: int
    """Processes that the command left running when it ended, and that were killed."""


@dataclass
class Tree:
    """A running command and everything below it, made by `start`."""

    supervisor: subprocess.Popen[bytes]
    status: socket.socket
    marker: str
    report: dict[str, float | int | str | None] = field(default_factory=dict[str, "float | int | str | None"])

    @property
    def pid(self) -> int:
        """Process id of the supervisor, the root of the tree."""
        return self.supervisor.pid

    @property
    def stdin(self) -> IO[bytes] | None:
        """The command's standard input where it was started with a pipe."""
        return self.supervisor.stdin

    @property
    def stdout(self) -> IO[bytes] | None:
        """The command's standard output where it was started with a pipe."""
        return self.supervisor.stdout

    @property
    def stderr(self) -> IO[bytes] | None:
        """The command's standard error where it was started with a pipe."""
        return self.supervisor.stderr

    def running(self) -> bool:
        """Whether the command has not ended yet."""
        return self.supervisor.poll() is None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the whole tree has ended, after waiting up to `timeout_s` seconds."""
        try:
            self.supervisor.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._read_report()
        return True

    def kill(self) -> None:
        """End the whole tree and return once nothing of it runs."""
        if self.running():
            _shut(self.status)
            try:
                self.supervisor.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                kill_tree(self.pid)
                self.supervisor.wait()
        self._read_report()
        if not self.report:
            kill_marked(self.marker)

    def close(self) -> None:
        """Kill what still runs and let go of all pipes."""
        self.kill()
        self.status.close()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # unsent input of a command that is gone
                    stream.close()

    def _read_report(self) -> None:
        if self.report:
            return
        self.status.setblocking(False)
        try:
            line = self.status.recv(1 << 16)
        except (BlockingIOError, ConnectionError, OSError):
            return
        if line:
            self.report = json.loads(line)


def start(
    argv: Sequence[str],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    bounds: Bounds | None = None,
    pass_fds: Sequence[int] = (),
) -> Tree:
    """A started command as a tree that can be killed as a whole.

    It also dies when this process does, and when the last reference to the returned tree is dropped.

    The streams are as for `subprocess.Popen`. A command that cannot be executed ends with exit code 127 and the cause
    in `report["error"]`.
    """
    ours, theirs = socket.socketpair()
    marker = f"ASSAY_TREE={secrets.token_hex(8)}"
    name, _, value = marker.partition("=")
    order = {
        "argv": list(argv),
        "status_fd": theirs.fileno(),
        "rlimits": (bounds or Bounds()).rlimits(),
    }
    try:
        supervisor = subprocess.Popen(  # noqa: S603 # an argument list, no shell
            [sys.executable, "-I", "-S", _SUPERVISOR, json.dumps(order)],
            cwd=cwd,
            env={**(os.environ if env is None else env), name: value},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(theirs.fileno(), *pass_fds),
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Tree(supervisor, ours, marker)


def run_blocking(
    argv: Sequence[str],
    *,
    wall_s: float,
    stdin: bytes = b"",
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    output_kib: int = 256,
    stop_at_output: bool = False,
    bounds: Bounds | None = None,
    stop: threading.Event | None = None,
) -> Finished:
    """What became of a command that was given `stdin` and at most `wall_s` seconds; its tree is gone afterwards.

    Output beyond `output_kib` per stream is dropped and counted, or ends the command where `stop_at_output` is set.
    Raises `FileNotFoundError`, `PermissionError` or `OSError` where the command cannot be started. Setting `stop` from
    another thread ends it as at the wall limit.
    """
    tree = start(
        argv, cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bounds=bounds
    )
    started = time.monotonic()
    try:
        exchange = _Exchange(tree, stdin, output_kib << 10, stop_at_output)
        ended_by = exchange.run(started + wall_s, stop)
        tree.kill()
    finally:
        tree.close()
    report = tree.report
    if report.get("error"):
        raise _as_os_error(str(report["error"]), argv[0])
    number = report.get("signal")
    outcome: Outcome = ended_by or ("crashed" if number is not None or not report else "exited")
    return Finished(
        outcome=outcome,
        exit_code=_whole(report.get("exit_code")),
        signal=_whole(number),
        stdout=bytes(exchange.kept[0]),
        stderr=bytes(exchange.kept[1]),
        dropped=exchange.dropped,
        wall_s=time.monotonic() - started,
        cpu_s=float(report.get("cpu_s") or 0.0),
        peak_memory_mib=float(report.get("peak_kib") or 0.0) / 1024,
        left=_whole(report.get("left")) or 0,
    )


async def run(
    argv: Sequence[str],
    *,
    wall_s: float,
    stdin: bytes = b"",
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    output_kib: int = 256,
    stop_at_output: bool = False,
    bounds: Bounds | None = None,
) -> Finished:
    """As `run_blocking`, without blocking the event loop; cancelling it kills the tree."""
    stop = threading.Event()
    future: Future[Finished] = Future()

    def drive() -> None:
        try:
            finished = run_blocking(
                argv,
                wall_s=wall_s,
                stdin=stdin,
                cwd=cwd,
                env=env,
                output_kib=output_kib,
                stop_at_output=stop_at_output,
                bounds=bounds,
                stop=stop,
            )
        except BaseException as error:  # handed to the awaiting coroutine
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        else:
            if future.set_running_or_notify_cancel():
                future.set_result(finished)

    threading.Thread(target=drive, name="assay-command", daemon=True).start()
    try:
        return await asyncio.wrap_future(future)
    finally:
        stop.set()


class _Exchange:
    """Feeds a command and reads it, until it has ended or must be ended."""

    def __init__(self, tree: Tree, stdin: bytes, limit: int, stop_at_output: bool) -> None:
        assert tree.stdin is not None
        assert tree.stdout is not None
        assert tree.stderr is not None
        self.stdin, self.outputs, self.status = tree.stdin, (tree.stdout, tree.stderr), tree.status
        self.rest = memoryview(stdin)
        self.limit = limit
        self.stop_at_output = stop_at_output
        self.kept = (bytearray(), bytearray())
        self.dropped = 0

    def run(self, deadline: float, stop: threading.Event | None) -> Literal["timed_out", "output_limit"] | None:
        """Why the command must be ended, or None when it has ended by itself."""
        with selectors.DefaultSelector() as selector:
            for index, stream in enumerate(self.outputs):
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, index)
            os.set_blocking(self.stdin.fileno(), False)
            selector.register(self.stdin, selectors.EVENT_WRITE, "stdin")
            selector.register(self.status, selectors.EVENT_READ, "status")
            while self._step(selector, deadline, stop):
                if time.monotonic() >= deadline or (stop is not None and stop.is_set()):
                    return "timed_out"
                if self.stop_at_output and self.dropped:
                    return "output_limit"
        for index in range(len(self.outputs)):
            while self._take(index):
                pass
        return "output_limit" if self.stop_at_output and self.dropped else None

    def _step(self, selector: selectors.BaseSelector, deadline: float, stop: threading.Event | None) -> bool:
        """Move what can be moved; false once the command has ended."""
        left_s = max(0.0, deadline - time.monotonic())
        for key, _ in selector.select(left_s if stop is None else min(left_s, 0.05)):
            if key.data == "status":
                return False
            if key.data == "stdin":
                self._feed()
                if not self.rest:
                    selector.unregister(self.stdin)
                    self.stdin.close()
            elif self._take(key.data) == 0:
                selector.unregister(key.fileobj)
        return True

    def _feed(self) -> None:
        try:
            self.rest = self.rest[os.write(self.stdin.fileno(), self.rest[:_CHUNK]) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.rest = self.rest[:0]  # the command does not want the rest

    def _take(self, index: int) -> int | None:
        """Number of bytes read: 0 at the end of the stream, None while nothing is there."""
        try:
            data = os.read(self.outputs[index].fileno(), _CHUNK)
        except BlockingIOError:
            return None
        kept = self.kept[index]
        room = self.limit - len(kept)
        kept += data[:room]
        self.dropped += max(0, len(data) - room)
        return len(data)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # may be closed from the other side
        sock.shutdown(socket.SHUT_WR)


def _whole(value: float | str | None) -> int | None:
    return None if value is None else int(value)


def _as_os_error(text: str, program: str) -> OSError:
    kinds: dict[str, type[OSError]] = {"FileNotFoundError": FileNotFoundError, "PermissionError": PermissionError}
    name, _, message = text.partition(": ")
    return kinds.get(name, OSError)(f"{program!r} cannot be started: {message or name}")
