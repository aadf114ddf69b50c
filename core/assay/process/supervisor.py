"""The small process between assay and a command: adopts the command's orphans, and leaves none behind.

Run as a script, `python -I -S supervisor.py JSON`, by `assay.process`; never imported. It starts the command with its
limits, waits for it, for the end of its owner (end of file on the status socket), or for a termination signal, kills
whatever is left below itself, and writes one line of JSON to the status socket.
"""

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from assay.process import tree
else:  # run as a script without site-packages: the folder is the import root
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import tree

_TICK_MS = 1000


def main() -> int:
    """Exit status 0 after the command has ended and its tree is gone; the command's own fate is in the report."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    status: int = order["status_fd"]
    tree.become_subreaper()
    stop_read, stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(stop_write)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _woken)

    error_read, error_write = os.pipe2(os.O_CLOEXEC)
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _become(order, error_write)
    os.close(error_write)
    _to_null(0, 1, 2)
    complaint = os.read(error_read, 4096).decode()
    handle = os.pidfd_open(pid)
    watch = select.poll()
    for file in (handle, status, stop_read):
        watch.register(file, select.POLLIN | select.POLLHUP)
    while not complaint and not watch.poll(_TICK_MS):
        tree.reap(keep=(pid,))

    ended, wait_status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        tree.kill_tree(pid)
        _, wait_status = os.waitpid(pid, 0)
    wall_s = time.monotonic() - started
    left = tree.kill_tree(os.getpid(), root=False)
    while tree.children(os.getpid()):
        if not tree.reap():
            time.sleep(0.001)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = os.waitstatus_to_exitcode(wait_status)
    report = {
        "error": complaint,
        "exit_code": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
        "wall_s": wall_s,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_kib": used.ru_maxrss,
        "left": left,
    }
    with contextlib.suppress(OSError):  # the owner may be gone or no longer listen
        os.write(status, json.dumps(report).encode() + b"\n")
    return 0


def _become(order: "dict[str, Any]", error_write: int) -> None:
    """Turn this fork into the command; what goes wrong is told through `error_write`."""
    try:
        tree.die_with_parent(os.getppid())
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        for name, value in order["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        os.setpgid(0, 0)
        os.close(order["status_fd"])
        os.execvpe(order["argv"][0], order["argv"], os.environ)  # noqa: S606 # an argument list
    except BaseException as error:  # whatever it is, it must reach the owner, and this fork must end
        os.write(error_write, f"{type(error).__name__}: {error}".encode()[:4096])
    os._exit(127)


def _woken(_number: int, _frame: object) -> None:
    """Nothing: the wake-up file tells the loop."""


def _to_null(*files: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for file in files:
        os.dup2(null, file)
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
