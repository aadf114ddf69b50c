"""The program inside every jail: reads jobs from stdin, forks one child for each, writes results to stdout.

Standard library only, no secret, no test, no expected value. `main` is started by a line of Python on the command line
(see `assay_sandboxes.interpreter`), with its settings as a JSON object in the first argument.
"""

import base64
import ctypes
import gc
import importlib
import json
import mmap
import os
import resource
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from typing import Any

from assay_sandboxes.inside import child, cleaning, frames, landlock, namespaces, seccomp, watch

PROTOCOL = 1
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
M_ARENA_MAX = -8
KEEP_BYTES = 32 << 20
PIPE_BYTES = 1 << 16
SETUP_FAILED = 125
TMPFS = 0x01021994


class Program:
    """What a visit runs: a source for the interpreter, or files that a build step left and a command line."""

    def __init__(self, message: dict[str, Any]) -> None:
        """Take the program out of the host's message."""
        self.source: str | None = message.get("source")
        self.path: str = message.get("path", "main.py")
        self.files: dict[str, bytes] = {
            name: base64.b64decode(text) if name in message.get("binary", ()) else text.encode()
            for name, text in message.get("files", {}).items()
        }
        self.argv: list[str] = message.get("argv", [])
        self.variables: dict[str, str] = message.get("variables", {})
        self.sparse: bool = message.get("sparse", False)
        self.stdin_file: str = message.get("stdin_file", "")


class Zygote:
    """Serves jobs one after the other until its standard input ends."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Prepare everything that each child needs, once."""
        self._work: str = settings["work"]
        self._apart: bool = settings["namespaces"]
        self._alone: bool = settings["alone"]
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._syscalls = ctypes.PyDLL(None, use_errno=True)
        self._guarded: bool = settings["seccomp"]
        shared = settings["shared_files"]
        self._filters = (
            {
                "python": seccomp.for_child(shared_files=shared),
                "native": seccomp.for_child(execute=True, shared_files=shared),
                "build": seccomp.for_child(fork=True, execute=True, shared_files=shared),
            }
            if self._guarded
            else {}
        )
        self._ruleset = (
            landlock.Ruleset(self._libc, readable=settings["readable"], writable=[self._work])
            if settings["landlock"]
            else None
        )
        if self._alone and os.getpid() != 1:
            raise OSError("the jail must give the zygote process number 1; it kills everything else after each job")
        self._libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        if not self._alone:
            self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._libc.mallopt(M_ARENA_MAX, 2)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        self._folder = self._open_work()
        if self._guarded:
            seccomp.for_zygote().install(self._libc)
        self._reader = frames.Reader(frames.MAX_FRAME)
        self._program = Program({})
        self._base_bytes = _address_space()
        self._waiting: list[bytes] = []

    def _open_work(self) -> int:
        """The work folder's descriptor; refuses one that is in use, so that nobody else's files are ever removed."""
        folder = os.open(self._work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        facts = ctypes.create_string_buffer(256)
        if self._libc.fstatfs(folder, facts):
            raise OSError(ctypes.get_errno(), "cannot ask for the kind of the work folder's file system")
        if self._alone and int.from_bytes(facts.raw[:8], sys.byteorder) != TMPFS:
            raise OSError(
                f"the work folder {self._work} of this jail is not a tmpfs of its own; it will not be emptied"
            )
        if os.listdir(folder):
            raise OSError(f"the work folder {self._work} is not empty at the start; it will not be emptied")
        return folder

    def serve(self) -> None:
        """Answer frames until the host closes the pipe."""
        frames.write(1, frames.pack({"ready": PROTOCOL, "python": sys.version.split()[0], "pid": os.getpid()}))
        while True:
            while not self._waiting:
                data = os.read(0, 1 << 20)
                if not data:
                    return
                self._waiting += self._reader.feed(data)
            message = json.loads(self._waiting.pop(0))
            match message["op"]:
                case "program":
                    self._program = Program(message)
                case "build":
                    self._answer(message, self._build(message))
                case "run":
                    self._answer(message, self._run(message))
                case _:  # a late frame for a channel that is closed
                    pass

    def _answer(self, message: dict[str, Any], answer: dict[str, Any]) -> None:
        # With namespaces of its own a job's folder is gone with it; elsewhere it is emptied, or the jail is replaced.
        answer["clean"] = cleaning.empty(self._folder)
        frames.write(1, frames.pack({"id": message["id"], **answer}))

    def _build(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run a build step in the jail's own work folder, and keep the file that it made in memory."""
        name: str = message["keep"]
        report = self._spawn(Program(message["program"]), message, "build")
        kept: bytes | None = None
        if report.outcome == "exited" and report.status == 0:
            kept = _read_file(self._folder, name)
        if kept is not None:
            self._program = Program(message["then"])
            self._program.files[name] = kept
        return {**_result(report), "built": kept is not None}

    def _run(self, message: dict[str, Any]) -> dict[str, Any]:
        return _result(self._spawn(self._program, message, "python" if self._program.source is not None else "native"))

    def _spawn(self, program: Program, message: dict[str, Any], kind: str) -> watch.Report:
        limits: dict[str, Any] = dict(message["limits"], sparse=program.sparse)
        stdin = message.get("stdin", "").encode()
        relayed = message.get("serve", False) or message.get("ask", False)
        files = dict(program.files)
        if program.stdin_file:
            files[program.stdin_file] = stdin
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        complaint_read, complaint_write = os.pipe()
        ours, theirs = None, None
        if relayed or message.get("calls") is not None:
            ours, theirs = (end.detach() for end in socket.socketpair())
        if len(stdin) <= PIPE_BYTES:
            os.write(in_write, stdin)
            os.close(in_write)
            in_write = None
        apart = self._apart and kind != "build"
        pid = namespaces.fork_apart(self._syscalls) if apart else os.fork()
        if pid == 0:
            try:
                given = (in_read, out_write, err_write, theirs, complaint_write)
                self._become(program, message, kind, limits, files, given)
            except BaseException:  # the child must end here, whatever went wrong in it
                _complain(complaint_write)
            os._exit(SETUP_FAILED)
        for fd in (in_read, out_write, err_write, theirs, complaint_write):
            if fd is not None:
                os.close(fd)
        report = watch.Watch(
            pid,
            watch.Streams(in_write, out_read, err_read, ours),
            limits,
            stdin,
            kill=self._kill_others,
            reap=self._reap_others,
            calls=len(message.get("calls") or ()),
            asking=bool(message.get("ask", False)),
            forward=self._forward if relayed else None,
            control=self._control if relayed else None,
            early=self._said() if relayed else [],
        ).run()
        # Every holder of the other end is dead or has closed it, so this read ends.
        report.complaint = os.read(complaint_read, 4096).decode("utf-8", "replace")
        os.close(complaint_read)
        return report

    def _become(
        self,
        program: Program,
        message: dict[str, Any],
        kind: str,
        limits: dict[str, Any],
        files: dict[str, bytes],
        descriptors: tuple[int, int, int, int | None, int],
    ) -> None:
        """Turn the fork into the job; returns only by raising."""
        if self._apart:
            if kind != "build":
                size = (limits["disk_mib"] << 20) + sum(len(content) + 4096 for content in files.values())
                namespaces.mount_work(self._libc, self._work, size)
            namespaces.drop_capabilities(self._libc)
        os.chdir(self._work)
        for name, content in files.items():
            _write_file(name, content)
        if not self._alone:
            os.setsid()
        if self._ruleset is not None:
            self._ruleset.restrict()
        child.take_descriptors(*descriptors)
        python = kind == "python"
        child.set_limits(limits, native=not python, base_bytes=self._base_bytes if python else 0)
        if self._guarded:
            self._filters[kind].install(self._libc)
        if not python:
            os.execve(program.argv[0], program.argv, {**program.variables, "HOME": self._work, "TMPDIR": self._work})  # noqa: S606
        child.reset_signals()
        calls, serve = message.get("calls"), message.get("serve", False)
        child.run_program(program.source or "", calls, path=program.path, serve=serve, argv=program.argv)

    def _kill_others(self, pid: int) -> None:
        if self._alone:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                return
        else:
            for each in {pid, *_children()}:
                try:
                    os.killpg(each, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue

    def _reap_others(self) -> None:
        """Wait for orphans until there are none; new ones that a dying child still made are killed as they appear."""
        while True:
            try:
                pid, _ = os.waitpid(-1, 0 if self._alone else os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                for each in _children():
                    os.kill(each, signal.SIGKILL)
                time.sleep(0.001)

    def _forward(self, body: bytes) -> None:
        frames.write(1, frames.pack({"say": body.decode("ascii", "replace")}))

    def _control(self) -> list[bytes] | None:
        """What the host says to the running child; None where the host is gone."""
        data = os.read(0, 1 << 20)
        if not data:
            return None
        self._waiting += self._reader.feed(data)
        return self._said()

    def _said(self) -> list[bytes]:
        """Take what the host said to the running child out of the frames that wait."""
        messages = [json.loads(body) for body in self._waiting]
        self._waiting = [body for body, message in zip(self._waiting, messages, strict=True) if message["op"] != "say"]
        return [message["text"].encode() for message in messages if message["op"] == "say"]


def _result(report: watch.Report) -> dict[str, Any]:
    return {
        "outcome": report.outcome,
        "detail": report.detail,
        "complaint": report.complaint,
        "status": os.waitstatus_to_exitcode(report.status),
        "stdout": report.stdout.decode("utf-8", "surrogateescape"),
        "stderr": report.stderr.decode("utf-8", "surrogateescape"),
        "replies": [body.decode("ascii", "replace") for body in report.replies],
        "wall_s": report.wall_s,
        "cpu_s": report.cpu_s,
        "peak_kib": report.peak_kib,
    }


def _complain(fd: int) -> None:
    """Say why the child could not be set up; its descriptor has moved if that is how far it came."""
    text = traceback.format_exc().strip().encode()[-2000:]
    for each in (child.COMPLAINT, fd):
        try:
            os.write(each, text)
            return
        except OSError:
            continue


def _write_file(name: str, content: bytes) -> None:
    folder = os.path.dirname(name)
    if folder:
        os.makedirs(folder, exist_ok=True)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o755)
    try:
        frames.write(fd, content)
    finally:
        os.close(fd)


def _read_file(folder: int, name: str) -> bytes | None:
    """The content of a regular file of at most `KEEP_BYTES`, or None."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        facts = os.fstat(fd)
        return file.read(KEEP_BYTES) if stat.S_ISREG(facts.st_mode) and facts.st_size <= KEEP_BYTES else None


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/children", encoding="ascii") as file:
            return [int(each) for each in file.read().split()]
    except OSError:
        return []


def _address_space() -> int:
    """Bytes of address space in use, found by lowering the limit until nothing more fits (a jail has no /proc)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    low, high = 1 << 20, 1 << 36
    try:
        while high - low > 1 << 20:
            middle = (low + high) // 2
            resource.setrlimit(resource.RLIMIT_AS, (middle, hard))
            try:
                mmap.mmap(-1, 4096).close()
                high = middle
            except OSError:
                low = middle
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    return high


def main() -> None:
    """Prepare, say so, and serve."""
    try:
        settings = json.loads(sys.argv[1])
        sys.path += settings["import_from"]
        for name in settings["preload"]:
            importlib.import_module(name)
        zygote = Zygote(settings)
        gc.collect()
        gc.disable()
        gc.freeze()
        zygote.serve()
    except Exception:  # the host reads this as the reason why the jail did not start, or died
        sys.stderr.write(traceback.format_exc())
        sys.exit(70)
