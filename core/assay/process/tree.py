"""Find and end a whole process tree, a grandchild in its own session included (Linux).

A process that has called `become_subreaper` adopts every orphan below it, so nothing below it can leave its tree. The
functions here only use the standard library and import nothing else of assay: the supervisor runs this file alone.

Guaranteed: after `kill_tree(pid)` no process that was below `pid` when it was called, or was forked below it meanwhile,
is running, as long as `pid` is a subreaper or still the living ancestor of all of them. Not guaranteed: anything about
processes that had already been handed to another reaper before the call (see `kill_marked` for those).
"""

import ctypes
import os
import signal
import time
from collections.abc import Collection

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 200


def become_subreaper() -> None:
    """Make this process adopt the orphans below it; kept over exec, not inherited by children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exits at once where `parent` is already gone.

    The kernel ties this to the thread that forked, so call it only below a process that forks from its main thread.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def children(pid: int) -> tuple[int, ...]:
    """Process ids of the direct children of `pid`, zombies included; empty when `pid` is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found.extend(int(word) for word in file.read().split())
    except FileNotFoundError:
        if os.path.isdir(f"/proc/{pid}/task"):
            return _children_by_scan(pid)
    except (ProcessLookupError, PermissionError):
        pass
    return tuple(found)


def descendants(pid: int) -> tuple[int, ...]:
    """Process ids of everything alive below `pid`, parents before children; zombies are left out."""
    found: list[int] = []
    seen = {pid}
    queue = [pid]
    while queue:
        for child in children(queue.pop(0)):
            if child in seen:
                continue
            seen.add(child)
            queue.append(child)
            if _alive(child):
                found.append(child)
    return tuple(found)


def kill_tree(pid: int, *, root: bool = True, keep: Collection[int] = ()) -> int:
    """Number of processes killed: everything below `pid`, and `pid` itself last unless `root` is false.

    The tree is frozen from the top before anything is killed, so nothing in it can fork its way out. Direct children
    in `keep`, and what is below them, are left alone. Waits until all of it has stopped running (zombies may remain
    for their parent to reap).
    """
    if root:
        _send(pid, signal.SIGSTOP)
    frozen: set[int] = set()
    for _ in range(_ROUNDS):
        fresh = [child for child in _below(pid, keep) if child not in frozen]
        if not fresh:
            break
        for child in fresh:
            _send(child, signal.SIGSTOP)
        frozen.update(fresh)
    killed: set[int] = set()
    for attempt in range(_ROUNDS):
        alive = _below(pid, keep)
        if not alive:
            break
        for child in alive:
            _send(child, signal.SIGKILL)
        killed.update(alive)
        time.sleep(min(0.0002 * (attempt + 1), 0.01))
    if root and _alive(pid) and _send(pid, signal.SIGKILL):
        killed.add(pid)
    return len(killed)


def kill_marked(marker: str) -> int:
    """Number of processes killed whose environment holds `marker` (`NAME=value`), wherever they hang in the tree.

    The last resort where a supervisor died before it could clean up; a process that has emptied its environment is
    not found.
    """
    needle = marker.encode()
    killed: set[int] = set()
    for _ in range(10):
        fresh = {pid for pid in _all_pids() if pid != os.getpid() and _has_environment(pid, needle)} - killed
        if not fresh:
            break
        for pid in fresh:
            _send(pid, signal.SIGKILL)
        killed |= fresh
    return len(killed)


def reap(keep: Collection[int] = ()) -> dict[int, int]:
    """Wait statuses of this process's ended children, by process id; those in `keep` are not reaped."""
    ended: dict[int, int] = {}
    for child in children(os.getpid()):
        if child in keep:
            continue
        try:
            pid, status = os.waitpid(child, os.WNOHANG)
        except ChildProcessError:
            continue
        if pid:
            ended[pid] = status
    return ended


def _below(pid: int, keep: Collection[int]) -> list[int]:
    if not keep:
        return list(descendants(pid))
    found: list[int] = []
    for child in children(pid):
        if child in keep:
            continue
        if _alive(child):
            found.append(child)
        found.extend(descendants(child))
    return found


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _alive(pid: int) -> bool:
    """Whether `pid` is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _children_by_scan(pid: int) -> tuple[int, ...]:
    """Direct children by reading every process: for kernels without `/proc/PID/task/TID/children`."""
    found: list[int] = []
    for other in _all_pids():
        try:
            with open(f"/proc/{other}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == pid:
                    found.append(other)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return tuple(found)


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _has_environment(pid: int, needle: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return needle in file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
