"""Has groups of plugin modules listed, each group in a child process: `python -m assay._prober GROUP...`.

A group is a JSON object with the fields of `Group`; one JSON line per module comes out. The process imports assay once
and forks for each group, so that a group costs what its plugins cost. It runs no plugin's code itself, starts no
thread, adopts what the plugins leave behind and ends it.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

import psutil

from assay._probe import write_answers
from assay.process import become_subreaper, die_with_parent, kill_tree

_AT_ONCE = 16
_ANSWER_BYTES = 8 << 20
"""Most that is read of what one group's process has written."""


@dataclass(frozen=True)
class Group:
    """Modules that one child process is asked about, and how long it may take."""

    modules: Sequence[str]
    idle_limit_s: float
    """Longest wait for a process that is not even computing."""
    hard_limit_s: float
    """Longest wait."""

    def word(self) -> str:
        """The group as one word of the command line."""
        return json.dumps(asdict(self))


@dataclass
class _Child:
    """A process that was forked for a group; its answers come in a file without a name."""

    group: Group
    pid: int
    answers: BinaryIO
    started: float = field(default_factory=time.monotonic)
    active: float = field(default_factory=time.monotonic)
    """When it was last seen computing."""

    def cause_of_end(self) -> str | None:
        """Why modules that are not in the answers have none, once the process has ended; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            return f"its import ended the process with status {os.waitstatus_to_exitcode(status)}"
        now = time.monotonic()
        if _computes(self.pid):
            self.active = now
        took = now - self.started
        if took > self.group.hard_limit_s or (took > self.group.idle_limit_s and now - self.active > 0.5):
            kill_tree(self.pid)
            os.waitpid(self.pid, 0)
            return f"its import did not end within {took:.1f} s"
        return None

    def lines(self, cause: str) -> list[str]:
        """One JSON line per module, with `cause` for those that nothing readable was written of."""
        found: dict[str, dict[str, Any]] = {}
        for line in os.pread(self.answers.fileno(), _ANSWER_BYTES, 0).splitlines():
            try:
                answer: Any = json.loads(line)
                found[answer["module"]] = answer
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
        return [json.dumps(found.get(name, {"module": name, "cause": cause})) for name in self.group.modules]


def main() -> None:
    """Ask about every group of the command line and write the lines as they come."""
    become_subreaper()
    waiting = [Group(**json.loads(word)) for word in sys.argv[1:]]
    running: list[_Child] = []
    while waiting or running:
        while waiting and len(running) < _AT_ONCE:
            running.append(_fork(waiting.pop(0), running))
        for child in tuple(running):
            if cause := child.cause_of_end():
                running.remove(child)
                sys.stdout.writelines(f"{line}\n" for line in child.lines(cause))
                sys.stdout.flush()
                child.answers.close()
        time.sleep(0.005)
    kill_tree(os.getpid(), root=False)


def _fork(group: Group, running: Sequence[_Child]) -> _Child:
    """Start a process for a group that has none of the prober's files but the one for its own answers."""
    answers = os.fdopen(os.memfd_create("assay-probe"), "w+b")
    prober = os.getpid()
    pid = os.fork()
    if pid:
        return _Child(group, pid, answers)
    # Whatever a plugin does, its process never goes on as the prober.
    try:
        os.setsid()
        die_with_parent(prober)
        os.dup2(2, 1)
        for other in running:
            other.answers.close()
        write_answers(group.modules, answers)
    finally:
        os._exit(0)


def _computes(pid: int) -> bool:
    """Whether the process runs, waits for a core or for the disk; a busy machine makes a plugin slow, not idle."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
    except psutil.Error:
        return False


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
