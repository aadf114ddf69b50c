"""A jail that is a local process: two pipes, a file for its standard error, and a process group to kill."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_CHUNK = 1 << 18


class PipeTransport:
    """Bytes to and from a child process; `close` kills its process group and runs `cleanup`."""

    def __init__(
        self,
        command: list[str],
        *,
        environment: dict[str, str],
        folder: Path | None = None,
        cleanup: Callable[[], None] | None = None,
    ) -> None:
        """Start `command` in a session of its own; raises `OSError` when it cannot be started."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the transport
        self._cleanup = cleanup
        self._folder = folder
        self._process = subprocess.Popen(  # noqa: S603 - the command is ours
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._early = bytearray()
        self._said = ""
        self._closed = False

    @property
    def pid(self) -> int:
        """Process id of the outermost process."""
        return self._process.pid

    def fileno(self) -> int:
        """The descriptor of the jail's output."""
        return self._out

    def read(self, timeout_s: float) -> bytes:
        """Some bytes of output, none at its end."""
        if self._early:
            data = bytes(self._early)
            self._early.clear()
            return data
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        if not poll.poll(max(0, timeout_s * 1000)):
            raise TimeoutError
        try:
            return os.read(self._out, _CHUNK)
        except BlockingIOError:
            raise TimeoutError from None

    def write(self, data: bytes, timeout_s: float) -> None:
        """Write all of `data`, taking in output meanwhile, so that two full pipes never wait for each other."""
        deadline = time.monotonic() + timeout_s
        view = memoryview(data)
        poll = select.poll()
        poll.register(self._in, select.POLLOUT)
        poll.register(self._out, select.POLLIN)
        while view:
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(self._in, view) :]
                continue
            left = deadline - time.monotonic()
            events = dict(poll.poll(max(0, left * 1000)))
            if not events:
                raise TimeoutError("its pipe stayed full")
            if events.get(self._out, 0) & select.POLLIN:
                self._early += os.read(self._out, _CHUNK)
            elif self._out in events:
                raise BrokenPipeError("it closed its output")

    def diagnosis(self) -> str:
        """The last lines of the jail's standard error."""
        if not self._closed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)
            self._said = self._last_lines()
        return self._said

    def _last_lines(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 600))
        return " ".join(self._errors.read().decode("utf-8", "replace").split())

    def kill(self) -> None:
        """Kill the process group; safe from another thread, whose read then ends."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process group and let go of everything."""
        if self._closed:
            return
        self.kill()
        self._process.wait()
        self._said = self._last_lines()
        self._closed = True
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        if self._cleanup is not None:
            self._cleanup()
        if self._folder is not None:
            remove_tree(self._folder)


def remove_tree(folder: Path) -> None:
    """Remove a folder that a job may have made very deep or unreadable."""
    tool = shutil.which("rm")
    if tool is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    subprocess.run([tool, "-rf", "--one-file-system", "--", str(folder)], check=False, stderr=subprocess.DEVNULL)  # noqa: S603
    if folder.exists():
        find = shutil.which("find")
        if find is not None:
            command = [find, str(folder), "-type", "d", "-exec", "chmod", "700", "{}", ";"]
            subprocess.run(command, check=False, stderr=subprocess.DEVNULL)  # noqa: S603
        subprocess.run([tool, "-rf", "--one-file-system", "--", str(folder)], check=False, stderr=subprocess.DEVNULL)  # noqa: S603
