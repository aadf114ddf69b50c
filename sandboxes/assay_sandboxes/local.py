"""Jails that are plain processes on the host: the zygote is a child process with a temporary work folder."""

import json
import os
from typing import Any

from assay.errors import SandboxError
from assay_sandboxes.bubblewrap import next_uid
from assay_sandboxes.home import Home
from assay_sandboxes.interpreter import ENVIRONMENT, SYSTEM_FOLDERS, command, installed, reachable
from assay_sandboxes.options import SandboxOptions
from assay_sandboxes.pipes import PipeTransport


class LocalBackend:
    """Starts zygotes without a file system of their own."""

    name = "local"
    start_within_s = 30.0

    def __init__(self, options: SandboxOptions, home: Home, *, landlock: bool, seccomp: bool, drop: bool) -> None:
        """Bound each job by `landlock` and `seccomp`; `drop` says whether root becomes an unprivileged user."""
        self._options = options
        self._home = home
        self._landlock = landlock
        self._seccomp = seccomp
        self._drop = drop and os.getuid() == 0
        self._interpreter = installed()

    def start(self, *, trusted: bool) -> PipeTransport:
        """Start one zygote."""
        uid = next_uid() if self._drop else None
        moves: list[tuple[str, str]] = []
        if self._drop and not self._interpreter.in_usr:
            blocked = [path for path in (self._interpreter.prefix,) if not reachable(path)]
            # A mount over the first closed folder above the interpreter brings it within reach at its own place.
            moves = [self._cover(path) for path in blocked]
        work = self._home.work_folder(uid)
        settings = json.dumps(self._settings(str(work)))
        jail = command(self._interpreter, str(self._home.inside), "zygote", settings)
        if self._drop:
            launch = json.dumps({"uid": uid, "binds": [], "cover": moves, "command": jail})
            jail = command(self._interpreter, str(self._home.inside), "launch", launch)
        environment = {**ENVIRONMENT, "HOME": str(work), "TMPDIR": str(work)}
        return PipeTransport(jail, environment=environment, folder=work)

    def _cover(self, path: Any) -> tuple[str, str]:
        closed = next(parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001)
        return str(closed), str(path)

    def close(self) -> None:
        """Nothing is held beside the jails."""

    def _settings(self, work: str) -> dict[str, Any]:
        interpreter = self._interpreter
        readable = [*SYSTEM_FOLDERS, str(interpreter.library), str(interpreter.executable)]
        readable += ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"]
        readable += ["/etc/alternatives", "/etc/ld.so.cache", *self._options.import_from]
        return {
            "import_from": list(self._options.import_from),
            "work": work,
            "namespaces": False,
            "alone": False,
            "seccomp": self._seccomp,
            "shared_files": True,
            "landlock": self._landlock,
            "readable": readable,
            "preload": list(self._options.preload),
        }


def need_linux(name: str) -> None:
    """Raise `SandboxError` where the zygote cannot run."""
    if os.name != "posix" or not hasattr(os, "pidfd_open"):
        raise SandboxError(f"sandbox {name!r}: it needs Linux; use 'docker' here")
